"""Stacks: the ops that push and pop, and how values that the backward pass needs get onto them."""

if __name__ != "ctrlgrad.stacks":
    raise ImportError("this folder is a part of ctrlgrad: import ctrlgrad.stacks, not stacks")

from ctrlgrad.stacks import ops

__all__ = ["ops"]
