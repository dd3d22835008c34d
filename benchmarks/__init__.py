"""Comparisons of cost: each module runs by `python -m benchmarks.NAME` and prints a table."""
