"""The package's version, in a module of its own so that no layer imports the package root."""

__version__ = "0.1.0"
