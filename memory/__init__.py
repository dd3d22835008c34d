"""Memory: bytes, blocks, tiers and streams under a budget; knows no graphs and no gradients.

`budget` and `profile` are contexts; under a budget a `Manager` gives loops their blocks, copies them to further tiers
and back, or lets the loops compute them again.

Read `manager` first: what a loop holds, and what happens from a block's push to its pop. `chunk` has the records of
loops, chunks and blocks; `residency` copies blocks out, drops them, and fetches them ahead of their reader; `arena` has
the counted bytes of the tiers and the order of accesses; `planner` chooses who is copied and who is computed again;
`checkpointing` keeps entry states and runs a dropped chunk again, as `schedule` says. `devices` are the tiers and their
streams, `pool` keeps memory for reuse; `turns` has calls of several threads wait for each other; `profile` records all
of it, judges and draws it; `session` says under which budget, and `sizes` reads sizes of memory as people write them.
"""

if __name__ != "ctrlgrad.memory":
    raise ImportError("this folder is a part of ctrlgrad: import ctrlgrad.memory, not memory")

from ctrlgrad.memory.arena import Allocation
from ctrlgrad.memory.chunk import Recompute
from ctrlgrad.memory.manager import Block, Chunk, LoopMemory, Manager
from ctrlgrad.memory.profile.records import Recording
from ctrlgrad.memory.session import Plan, Session, budget, current, plan, profile, register_device
from ctrlgrad.memory.sizes import Budget

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
