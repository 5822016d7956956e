"""Datasets by name. Each is a frozen dataclass of settings that loads a federation."""
