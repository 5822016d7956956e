"""Tables: what their columns mean, and how raw rows become network inputs."""
