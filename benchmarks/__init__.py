"""Comparisons of cost: `python -m benchmarks` with other systems, `python -m benchmarks.NAME` of ctrlgrad alone."""
