"""Speed, measured: each benchmark compares ways of doing the same work within one run."""
