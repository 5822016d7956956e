"""The layers between the socket and the routes: connection limits, middleware, decoding, errors, OpenAPI."""
