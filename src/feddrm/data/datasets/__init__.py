"""The datasets that can be loaded by name."""
