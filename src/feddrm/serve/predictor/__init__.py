"""A client's predictor: the model (shared leaves and the client's private ones) and its application."""
