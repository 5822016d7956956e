"""The paper's experiments that need no federation: gradient drift and the lambda trade-off."""
