"""How many ranks were started together, and joining them.

How many there are is what the launcher wrote into the environment: to ask MPI would start it.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from ctrlgrad.errors import UserInputError
from ctrlgrad.mpi.watch import FAILED, Ending, Watch

if TYPE_CHECKING:
    from ctrlgrad.mpi.world import World

# What Open MPI's mpirun sets, and what MPICH's and Intel's do: the number of ranks, and this one's.
_VARIABLES = (("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"), ("PMI_SIZE", "PMI_RANK"))


@dataclass(frozen=True, slots=True)
class Launch:
    """This process among those that were started together."""

    rank: int
    size: int


def launched(environment: Mapping[str, str] = os.environ) -> Launch | None:
    """What the launcher says; None for a process that was started by itself, or as the only one.

    >>> launched({"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "1"})
    Launch(rank=1, size=3)
    >>> launched({}) is None
    True
    """
    for size, rank in _VARIABLES:
        if environment.get(size, "1") != "1":
            return Launch(int(environment[rank]), int(environment[size]))
    return None


@dataclass(frozen=True, slots=True)
class Joined:
    """What a process has that has found the others: what they exchange, and how they end."""

    world: World
    watch: Watch


@cache
def join() -> Joined:
    """Start MPI in this process, and watch the other ranks from now on; called again, gives the same.

    All ranks call this. A rank that then ends while another one waits for it, by its death or by an error that nobody
    caught, ends all ranks.

    Raises:
        UserInputError: mpi4py is not installed, or the launcher belongs to another MPI.
    """
    launch = launched()
    size = 1 if launch is None else launch.size
    try:
        from ctrlgrad.mpi.world import World  # loads mpi4py, an extra, and starts MPI
    except (ImportError, RuntimeError) as error:
        raise UserInputError(
            f"this process is one of {size} that were started together, and MPI cannot be used",
            expected="mpi4py, and the MPI library whose mpirun is used",
            got=str(error),
            hint="pip install 'ctrlgrad[mpi]', or start one process, without mpirun",
        ) from None
    world = World()
    if world.size != size:
        raise UserInputError(
            "mpirun and mpi4py belong to different MPI libraries",
            expected=f"{size} ranks, as the launcher says",
            got=f"{world.size}, as mpi4py says",
            hint="use the mpirun that `pip install 'ctrlgrad[mpi]'` puts beside python",
        )
    watch = Watch(world.rank, world.size)
    watch.start(world.broadcast, world.is_one_host())
    # Runs before mpi4py ends MPI, which waits for all ranks.
    atexit.register(_leave, watch)
    return Joined(world, watch)


def _leave(watch: Watch) -> None:
    """The end of this process, whose program has ended well or with an error that nobody caught."""
    error = getattr(sys, "last_value", None)
    if error is not None:
        # Python has printed it.
        watch.fail(Ending("Error", f"{type(error).__name__}; all ranks stop", FAILED))
    watch.close()


__all__ = ["Joined", "Launch", "join", "launched"]
