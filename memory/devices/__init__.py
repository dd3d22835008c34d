"""Devices: tiers of memory, streams, events and copies.

`device` is the interface to the memory manager. `cpu` and `cuda` are devices, `simulated` one without hardware for
tests and plans. `streams` has streams that are threads, and `spill` the file of the disk tier.
"""
