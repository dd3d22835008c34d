"""Memory: bytes, blocks, tiers and streams; knows no graphs and no gradients. Empty in this version."""

if __name__ != "ctrlgrad.memory":
    raise ImportError("this folder is a part of ctrlgrad: import ctrlgrad.memory, not memory")
