"""The Open Inference Protocol, version 2: its codec and its routes."""
