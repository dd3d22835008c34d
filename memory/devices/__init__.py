"""Devices: tiers of memory, streams, events and copies, on the CPU, on CUDA, and simulated."""
