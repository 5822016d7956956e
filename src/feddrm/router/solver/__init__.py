"""The exact federated solver: client statistics, L-BFGS on the server, the problems they solve."""
