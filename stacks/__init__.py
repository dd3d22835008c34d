"""Stacks: the ops that push and pop, and how values that the backward pass needs get onto them.

The modules, in reading order:

    ops        the ops on stacks
    saving     transport of forward values to the backward side
    choice     which forward values a region saves: a minimum cut by bytes per iteration
    regions    saving in the body of a loop, or in a branch
    restoring  carries that are updated in part: the backward loop restores them
    sizes      where the size of a dimension comes from, so that it is captured and not saved
"""

if __name__ != "ctrlgrad.stacks":
    raise ImportError("this folder is a part of ctrlgrad: import ctrlgrad.stacks, not stacks")

from ctrlgrad.stacks import ops

__all__ = ["ops"]
