"""A client's predictor: the shared trunk with this client's private part, as a model and as an application."""
