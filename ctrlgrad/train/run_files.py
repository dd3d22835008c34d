"""Files that a run writes while it goes on: its checkpoint and its metrics. One process writes, whatever the number.

Nothing is written before the first step is done, so a run that cannot make one leaves everything as it was. Another
thread may ask for the last whole state to be written, while the run goes on; a file is written by one of them at a
time, and replaced as a whole.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ctrlgrad.errors import CtrlgradError, UserInputError
from ctrlgrad.train import checkpoint, metrics
from ctrlgrad.train.checkpoint import Identity, State, temporary
from ctrlgrad.train.folder import BEST, CHECKPOINT, METRICS, PLOT, SUMMARY
from ctrlgrad.train.metrics import Metrics, Summary
from ctrlgrad.train.settings import Settings


class RunFiles:
    """Writes the files of one run, which goes on from `state`; `advice` is how to go on with it after an error."""

    def __init__(self, out: Path, identity: Identity, state: State, advice: str, interval: int) -> None:
        """`interval` is how many steps lie between checkpoints."""
        self.out = out
        self.interval = interval
        self.is_own = not isinstance(identity.settings, Settings)
        self.identity = identity
        self.advice = advice
        self.lines: list[Metrics] = []
        self.latest = state
        # The step of the last checkpoint that this process has written.
        self._saved: int | None = None
        self._has_begun = False
        self._writing = threading.Lock()

    @property
    def path(self) -> Path:
        return self.out / CHECKPOINT

    def keep(self, state: State, line: Metrics | None) -> None:
        """After each step: its line of metrics, and now and then a checkpoint."""
        self._begin()
        self.latest = state
        if line is not None:
            with self.writing():
                metrics.append(self.out / METRICS, line, self.is_own)
            self.lines.append(line)
        is_last = state.step == self.identity.steps
        if self._saved is None or state.step % self.interval == 0 or is_last:
            self.save()

    def save(self) -> State:
        """Write a checkpoint of the last whole step, and return its state; nothing before the first one."""
        with self._writing:
            state = self.latest
            if self._has_begun:
                with self.writing():
                    checkpoint.write(self.path, state, self.identity)
                    (self.out / SUMMARY).unlink(missing_ok=True)  # of fewer steps
                self._saved = state.step
            return state

    def keep_best(self) -> None:
        """Write the last whole step as the best one so far."""
        with self._writing, self.writing():
            checkpoint.write(self.out / BEST, self.latest, self.identity)

    def end(self, summary: Summary) -> None:
        """The figure and the summary; the summary last, so that a folder with one holds a whole run."""
        self._begin()
        if self._saved != self.latest.step:
            self.save()
        with self.writing():
            metrics.plot(self.out / PLOT, self.lines, summary)
            checkpoint.write_atomically(self.out / SUMMARY, (summary.json(self.is_own) + "\n").encode())

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A block of code that writes into the folder: a disk that is full is an error of the user's."""
        try:
            yield
        except OSError as error:
            if isinstance(error, CtrlgradError):
                raise
            raise UserInputError(
                f"the run stops after step {self.latest.step}: its folder cannot be written",
                got=f"{self.out}: {error.strerror or error}",
                hint=f"make room, then {'the same command again' if self._saved is None else self.advice}",
            ) from None

    def _begin(self) -> None:
        """Drop what a run that was killed had begun, or had written after its last checkpoint."""
        if self._has_begun:
            return
        with self.writing():
            for left in self.out.glob(temporary(self.path, "*").name):
                left.unlink()  # by a run that was killed while it wrote
            self.lines = metrics.rewind(self.out / METRICS, self.latest.step, self.is_own)
        self._has_begun = True


__all__ = ["CHECKPOINT", "METRICS", "PLOT", "SUMMARY", "RunFiles"]
