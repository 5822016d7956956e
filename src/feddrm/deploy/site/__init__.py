"""A site's side of a deployment: its configuration, its data, its private store, its half of every step."""
