"""What crosses the wire between server and sites: messages, the channel, and the checks on both."""
