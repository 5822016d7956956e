"""Fitting a router and its class heads to a cohort of clients, local or remote."""
