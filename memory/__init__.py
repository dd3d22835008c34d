"""Memory: bytes, blocks, tiers and streams under a budget; knows no graphs and no gradients.

`budget` and `profile` are contexts; under a budget a `Manager` gives loops their blocks, copies them to further tiers
and back, or lets the loops compute them again.

A block's life: `arena` gives it bytes of a tier inside the limit; `residency` copies it out, drops it where a copy is
left, and fetches it ahead of its reader; `checkpointing` keeps entry states and runs a dropped chunk again; `devices`
are the tiers and streams beneath; `profile` records all of it, judges it and draws it. `chunk` says what a block and a
chunk are, `manager` puts the parts to work, and `session` says under which budget.
"""

if __name__ != "ctrlgrad.memory":
    raise ImportError("this folder is a part of ctrlgrad: import ctrlgrad.memory, not memory")

from ctrlgrad.memory.arena.allocation import Allocation
from ctrlgrad.memory.budget import Budget
from ctrlgrad.memory.chunk import Block, Chunk, Recompute
from ctrlgrad.memory.loop import LoopMemory
from ctrlgrad.memory.manager import Manager
from ctrlgrad.memory.profile.records import Recording
from ctrlgrad.memory.session import Plan, Session, budget, current, plan, profile, register_device

__all__ = [
    "Allocation",
    "Block",
    "Budget",
    "Chunk",
    "LoopMemory",
    "Manager",
    "Plan",
    "Recompute",
    "Recording",
    "Session",
    "budget",
    "current",
    "plan",
    "profile",
    "register_device",
]


def __dir__() -> list[str]:
    return sorted(__all__)
