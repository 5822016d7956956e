"""The clients' predictors as the gateway sees them: their state, and who is asked about which sample."""
