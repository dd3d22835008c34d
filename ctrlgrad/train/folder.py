"""The folder of a run: made, and held by one process as long as it trains there.

Two processes that train in one folder would mix their metrics and replace each other's checkpoints. So the folder
itself is locked (`flock`): the system lets go of the lock when the process ends, however it ends, and nothing of it is
left on disk. A folder that was made here and is still empty at the end is removed.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ctrlgrad.errors import CtrlgradError, UserInputError
from ctrlgrad.train import checkpoint, metrics
from ctrlgrad.train.checkpoint import Identity, State, temporary
from ctrlgrad.train.metrics import Metrics, Summary
from ctrlgrad.train.settings import Settings

try:
    import fcntl
except ImportError:  # Windows: folders are not locked there
    fcntl = None  # type: ignore[assignment]

BEST = "best.safetensors"
CHECKPOINT, METRICS, SUMMARY, PLOT = "checkpoint.safetensors", "metrics.jsonl", "summary.json", "loss.png"
_LOG = logging.getLogger("ctrlgrad")


@contextmanager
def held(out: Path | None, resume: bool) -> Iterator[Path]:
    """The folder of a run, for this process alone; None stands for the first free runs/NUMBER.

    Raises `UserInputError` where there is no run to resume, where one would be overwritten, where another process is
    training, and where nothing can be written.
    """
    if out is None:
        if resume:
            raise UserInputError(
                "--resume: which run?", expected="the folder of a run", got="no --out", hint="add --out DIR"
            )
        out = next(path for number in itertools.count(1) if not (path := Path("runs", str(number))).exists())
    created: list[Path] = []
    lock = None
    try:
        try:
            check(out, resume)
            if not resume:
                created = _make(out)
            lock = _locked(out)
        except OSError as error:
            raise UserInputError(
                "--out: the folder cannot be written", got=f"{out}: {error.strerror}", hint="name another folder"
            ) from None
        check(out, resume)  # what another process did in between
        yield out
    finally:
        for folder in reversed(created):
            with contextlib.suppress(OSError):  # it is not empty
                folder.rmdir()
        if lock is not None:
            os.close(lock)


def check(out: Path, resume: bool) -> None:
    """Refuse an output folder that cannot be made or written, or that a new run would overwrite."""
    nearest = next(p for p in (out, *out.absolute().parents) if p.exists())
    if not nearest.is_dir():
        raise UserInputError("--out: this is a file", expected="a folder, or a path for one", got=str(nearest))
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UserInputError("--out: the folder cannot be written", expected="a folder of yours", got=str(nearest))
    found = [name for name in (CHECKPOINT, BEST, METRICS, SUMMARY, PLOT) if (out / name).exists()]
    if found and not resume:
        raise UserInputError(
            "--out: the folder already holds a run",
            expected="a folder without " + ", ".join(found),
            got=str(out),
            hint="choose another --out, or continue that run with --resume",
        )


def _make(out: Path) -> list[Path]:
    """Make a folder; returns which ones were made for it, the outermost first."""
    missing = [path for path in (out, *out.parents) if not path.exists()]
    created = []
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process was faster
            path.mkdir()
            created.append(path)
    return created


def _locked(out: Path) -> int | None:
    """A descriptor that holds the folder's lock; None where folders cannot be locked."""
    if fcntl is None or not out.exists():
        return None
    descriptor = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UserInputError(
            "--out: another process is training in this folder",
            expected="a folder that no other process is using",
            got=str(out),
            hint="wait until it has ended, or choose another --out",
        ) from None
    except OSError as error:
        # Some network file systems have no locks.
        _LOG.warning("the folder %s cannot be locked (%s): do not train there twice at once", out, error.strerror)
    return descriptor


# Files that a run writes while it goes on: its checkpoint and its metrics. One process writes, whatever the number.
#
# Nothing is written before the first step is done, so a run that cannot make one leaves everything as it was. Another
# thread may ask for the last whole state to be written, while the run goes on; a file is written by one of them at a
# time, and replaced as a whole.


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
