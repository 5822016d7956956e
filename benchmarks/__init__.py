"""Benchmarks: scripts that measure time and accuracy; results/bench keeps their figures."""
