"""The web console: its routes and its static files."""
