"""The features that a router looks at."""
