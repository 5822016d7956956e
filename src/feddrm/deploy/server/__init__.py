"""The server's side of a deployment: settings, negotiation, training, the router's fit over messages."""
