"""What crosses the wire between the server and the sites: signed messages, the run spec, the public files."""
