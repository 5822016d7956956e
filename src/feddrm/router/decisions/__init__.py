"""What the router decides about a query, and why."""
