"""A client's predictor as an HTTP application."""
