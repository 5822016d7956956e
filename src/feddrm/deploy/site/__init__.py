"""A site's side of a deployment: its settings, its data, its private store, its replies to the server."""
