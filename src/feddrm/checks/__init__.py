"""Checks before something is started: one finding each, with its remedy. Without torch."""
