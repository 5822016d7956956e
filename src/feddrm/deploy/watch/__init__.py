"""The training as it happens: its state, its metrics and its page on the server's own machine."""
