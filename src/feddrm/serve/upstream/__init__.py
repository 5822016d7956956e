"""The clients that the gateway asks for predictions: where they are, how they are, who is asked next."""
