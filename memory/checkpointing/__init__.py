"""Checkpointing: the entry states that are kept, and the runs of dropped chunks from them."""
