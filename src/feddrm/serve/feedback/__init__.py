"""What the gateway learns from its use: outcomes, a second artifact beside the served one, drift, replay."""
