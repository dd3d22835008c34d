"""What a run leaves on disk while it goes on: its checkpoint and its metrics. One process writes, whatever the number.

Another thread may ask for the last whole state to be written, while the run goes on; a file is written by one of them
at a time, and replaced as a whole.
"""

from __future__ import annotations

import threading
from pathlib import Path

from ctrlgrad.errors import UserInputError
from ctrlgrad.train import checkpoint, metrics
from ctrlgrad.train.checkpoint import Identity, State, temporary
from ctrlgrad.train.metrics import Metrics, Summary
from ctrlgrad.train.settings import CHECKPOINT_INTERVAL

CHECKPOINT, METRICS, SUMMARY, PLOT = "checkpoint.safetensors", "metrics.jsonl", "summary.json", "loss.png"


class Keeper:
    """Writes the files of one run; `begin` comes first."""

    def __init__(self, out: Path, identity: Identity) -> None:
        self.out = out
        self.identity = identity
        self.lines: list[Metrics] = []
        self._latest: State | None = None
        self._writing = threading.Lock()

    @property
    def path(self) -> Path:
        return self.out / CHECKPOINT

    def begin(self, state: State) -> None:
        """Make the folder, with the first checkpoint, and with the metrics up to it."""
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            for left in self.out.glob(temporary(self.path, "*").name):
                left.unlink()  # by a run that was killed while it wrote
            checkpoint.write(self.path, state, self.identity)
        except OSError as error:
            raise UserInputError("--out: the folder cannot be written", got=f"{self.out}: {error.strerror}") from None
        self.lines = metrics.rewind(self.out / METRICS, state.step)
        self._latest = state

    def keep(self, state: State, line: Metrics | None) -> None:
        """After each step: its line of metrics, and now and then a checkpoint."""
        if line is not None:
            metrics.append(self.out / METRICS, line)
            self.lines.append(line)
        self._latest = state
        if state.step % CHECKPOINT_INTERVAL == 0 or state.step == self.identity.settings.steps:
            self.save()

    def save(self) -> State:
        """Write a checkpoint of the last whole step, and return its state."""
        with self._writing:
            state = self._latest
            assert state is not None
            checkpoint.write(self.path, state, self.identity)
            return state

    def end(self, summary: Summary) -> None:
        """The figure and the summary; the summary last, so that a folder with one holds a whole run."""
        metrics.plot(self.out / PLOT, self.lines, summary)
        checkpoint.write_atomically(self.out / SUMMARY, (summary.json() + "\n").encode())


__all__ = ["CHECKPOINT", "METRICS", "PLOT", "SUMMARY", "Keeper"]
