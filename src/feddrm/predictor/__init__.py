"""A client's model as a predictor, and the answers of a run's clients to queries, without any server."""
