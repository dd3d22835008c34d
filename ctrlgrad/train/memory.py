"""Training within a memory budget, and a record of where the bytes of some steps were."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from ctrlgrad import memory
from ctrlgrad.errors import MemoryBudgetError
from ctrlgrad.memory.profile.pictures import Profile

# The steps of a run that are recorded: after the first one, which compiles.
FIRST, STEPS = 2, 3
# Into memory.txt, memory.json, memory.html and memory.png.
NAME = "memory"


@contextmanager
def within(limit: int | None) -> Iterator[None]:
    """A block of code within a budget of so many bytes; None: without one."""
    if limit is None:
        yield
        return
    with memory.budget(device=limit):
        yield


def enough(limit: int, run: Callable[[], object]) -> int:
    """A budget within which a function runs, above a limit that was too small: tried, to a sixteenth of it."""

    def works(budget: int) -> bool:
        try:
            with within(budget):
                run()
        except MemoryBudgetError:
            return False
        return True

    high = 2 * max(limit, 512)
    while not works(high):
        limit, high = high, 2 * high
    while high - limit > high // 16:
        middle = (limit + high) // 2
        limit, high = (limit, middle) if works(middle) else (middle, high)
    return high


class StepProfile:
    """Records a few steps of a run, and writes what it found into a folder as soon as they are over."""

    def __init__(self, folder: Path, writing: Callable[[], AbstractContextManager[None]]) -> None:
        """`writing` is entered around what is written into the folder."""
        self.folder = folder
        self._writing = writing
        self._steps = 0
        self._recording: Profile | None = None
        self._context = ExitStack()

    def __enter__(self) -> StepProfile:
        return self

    def __exit__(self, *error: object) -> None:
        self._context.close()
        if error[0] is None:
            self._write()

    def before_step(self) -> None:
        """To be called before each step, and after the last."""
        self._steps += 1
        if self._steps == FIRST:
            self._recording = self._context.enter_context(memory.profile())
        elif self._steps == FIRST + STEPS:
            self._context.close()
            self._write()

    def _write(self) -> None:
        recording, self._recording = self._recording, None
        if recording is not None:
            with self._writing():
                recording.write_all(self.folder / NAME)


__all__ = ["FIRST", "STEPS", "StepProfile", "within"]
