"""Devices: tiers of memory, streams, events and copies.

`device` is the interface to the memory manager. `cpu` and `cuda` are devices. `streams` has streams that are threads,
and `spill` the file of the disk tier.
"""
