"""Number of ranks that were started together, and joining them.

The number is read from the environment that the launcher set: asking MPI would start it. Of these variables the
first one that is there counts, so that an `mpirun` inside of a SLURM step goes before the step:

    OMPI_COMM_WORLD_SIZE, ..._RANK            Open MPI's mpirun
    MV2_COMM_WORLD_SIZE, ..._RANK             MVAPICH's
    PMI_SIZE, PMI_RANK                        MPICH's and Intel's; `srun --mpi=pmi2`
    FLUX_JOB_SIZE, FLUX_TASK_RANK             flux run
    SLURM_STEP_NUM_TASKS, SLURM_PROCID        srun, whatever its --mpi
    PMIX_RANK                                 any other launcher with PMIx, as prun; it does not say how many there are

A batch script of SLURM has a SLURM_PROCID and a SLURM_NTASKS too, and is one process; it has no SLURM_STEP_NUM_TASKS.
Sources: the manuals of these launchers, sections on environment variables.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Mapping
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING

from ctrlgrad.errors import UserInputError
from ctrlgrad.mpi.watch import FAILED, Ending, Watch
from ctrlgrad.records import record

if TYPE_CHECKING:
    from ctrlgrad.mpi.world import World

# The number of ranks, and this one's, by launcher.
_VARIABLES = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    ("FLUX_JOB_SIZE", "FLUX_TASK_RANK"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
)
_RANK_ALONE = "PMIX_RANK"


@record
class Launch:
    """Rank of this process among those that were started together; `size` is None where the launcher does not say."""

    rank: int
    size: int | None


def launched(environment: Mapping[str, str] = os.environ) -> Launch | None:
    """Rank and number of processes from the launcher; None for a process that was started by itself, or as the only
    one.

    >>> launched({"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "1"})
    Launch(rank=1, size=3)
    >>> launched({}) is None
    True
    """
    for size, rank in _VARIABLES:
        if size in environment and rank in environment:
            found = Launch(int(environment[rank]), int(environment[size]))
            return None if found.size == 1 else found
    return Launch(int(environment[_RANK_ALONE]), None) if _RANK_ALONE in environment else None


def number_of_ranks() -> int:
    """Number of processes; asks MPI where the launcher does not say.

    Raises:
        UserInputError: as of `join`.
    """
    launch = launched()
    if launch is None:
        return 1
    return join().world.size if launch.size is None else launch.size


@record
class Joined:
    """State of a process that has joined the other ranks: the means of exchange, and the watch for their end."""

    world: World
    watch: Watch


@cache
def join() -> Joined:
    """Start MPI in this process, and watch the other ranks from now on; called again, gives the same.

    All ranks call this. A rank that then ends while another one waits for it, by its death or by an uncaught error,
    ends all ranks. One that ends well before that keeps the other ranks waiting: MPI starts on all ranks or on none.

    Raises:
        UserInputError: mpi4py is not installed, or the launcher belongs to another MPI.
    """
    launch = launched()
    size = 1 if launch is None else launch.size
    world = _start_mpi()
    if size is not None and world.size != size:
        raise UserInputError(
            "the launcher and mpi4py belong to different MPI libraries",
            expected=f"{size} ranks, as the launcher says",
            got=f"{world.size}, as mpi4py says",
            hint="use the mpirun that `pip install -e '.[mpi]'` puts beside python; with srun, the --mpi of that "
            "MPI library (srun --mpi=list shows which there are)",
        )
    watch = Watch(world.rank, world.size)
    watch.start(world.broadcast, world.is_one_host())
    # Runs before mpi4py ends MPI, which waits for all ranks.
    atexit.register(_leave, watch, _Uncaught())
    return Joined(world, watch)


def _start_mpi() -> World:
    """Start MPI, and return the ranks' means of exchange."""
    try:
        from ctrlgrad.mpi.world import World  # loads mpi4py, an extra, and starts MPI
    except (ImportError, RuntimeError) as error:
        raise UserInputError(
            "this process is one of several that were started together, and MPI cannot be used",
            expected="mpi4py, and the MPI library whose mpirun is used",
            got=str(error),
            hint="pip install -e '.[mpi]', or start one process, without mpirun",
        ) from None
    return World()


class _Uncaught:
    """The error that ends the program, if one does: what Python hands to `sys.excepthook`.

    At a prompt it hands over every error, and goes on: those do not count. `sys.exit` is no error.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._hook = sys.excepthook
        sys.excepthook = self._take

    def _take(self, kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        if not hasattr(sys, "ps1"):
            self.error = error
        self._hook(kind, error, where)


def _leave(watch: Watch, uncaught: _Uncaught) -> None:
    """End this process, whose program has ended well or with an uncaught error."""
    if uncaught.error is not None:
        # Python has printed it.
        watch.fail(Ending("Error", f"{type(uncaught.error).__name__}; all ranks stop", FAILED))
    watch.close()
