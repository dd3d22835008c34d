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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ctrlgrad.errors import UserInputError

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
            raise UserInputError("--out: the folder cannot be written", got=f"{out}: {error.strerror}") from None
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


__all__ = ["BEST", "CHECKPOINT", "METRICS", "PLOT", "SUMMARY", "check", "held"]
