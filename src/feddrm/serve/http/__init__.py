"""What stands between the socket and the routes: connections, limits, decoding, error responses."""
