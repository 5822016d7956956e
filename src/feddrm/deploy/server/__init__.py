"""The server's side of a deployment: settings, negotiation, rounds, the router's fit over messages."""
