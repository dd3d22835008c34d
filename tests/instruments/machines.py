"""Machines that a test of sizes is run for: numbers of threads, and widths of vectors that this processor can have."""

from __future__ import annotations

from ctrlgrad.engines.native import target

THREADS = (1, 2, 3, 7, 16, 64)
# A processor that is itself told to have narrow vectors (`$CTRLGRAD_VECTOR_BITS`) has those.
VECTOR_BITS = tuple(bits for bits in (128, 256, 512) if bits <= 8 * target.host().vector_bytes)
