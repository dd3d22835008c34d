"""The names of devices, and `device`, which puts ops on one.

    cpu:N          a worker thread of this process
    sim:N          the same, and everything that is sent to or from it takes a while: `Settings.latency`
    cuda:N         a GPU, by the CUDA engine, with a worker thread that queues work on it
    /rank:R/NAME   device NAME of the process with rank R

`cpu:0` is where everything sits that was put nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ctrlgrad.errors import UserInputError
from ctrlgrad.source import Source, here, placed_on

DEFAULT = "cpu:0"
# Devices of one kind in one process: far more than cores, so that a program for many devices runs anywhere.
MOST = 64
_NAME = re.compile(r"(?:/rank:(\d+)/)?([a-z]+):(\d+)")
_KINDS = ("cpu", "sim", "cuda")
# What there is in any process.
_OF_THE_HOST = ("cpu", "sim")


@dataclass(frozen=True, order=True)
class DeviceName:
    """A device's name, taken apart."""

    rank: int | None
    kind: str
    number: int

    def __str__(self) -> str:
        prefix = "" if self.rank is None else f"/rank:{self.rank}/"
        return f"{prefix}{self.kind}:{self.number}"


def parse_device(name: object, source: Source | None = None) -> DeviceName:
    """A device's name, taken apart.

    Raises:
        UserInputError: it is no name of a device.
    """
    found = _NAME.fullmatch(name) if isinstance(name, str) else None
    if found is None or found[2] not in _KINDS or int(found[3]) >= MOST:
        raise UserInputError(
            f"there is no device {name!r}",
            source=source or here(),
            expected=f"cpu:N, sim:N or cuda:N with N below {MOST}, and /rank:R/ in front of it on another machine",
            got=repr(name),
        )
    return DeviceName(None if found[1] is None else int(found[1]), found[2], int(found[3]))


@contextmanager
def device(name: str | None) -> Iterator[None]:
    """Put what is traced in a block of code on a device; the engine "dataflow" runs it there, others ignore it.

    A gradient's op sits with the op that it is the gradient of, and a stack with the values pushed on it. `None` takes
    an outer block's device away.

    Args:
        name: "cpu:N" or "sim:N" (a worker thread each), "cuda:N" (a GPU), or one on another rank, "/rank:R/cpu:N".

    Raises:
        UserInputError: the name is no device's. Whether the device is there is seen when the graph runs.

    >>> import ctrlgrad as cg
    >>> @cg.function(engine="dataflow")
    ... def f(x):
    ...     with cg.device("cpu:1"):
    ...         y = x * x
    ...     return y + 1.0
    >>> float(f(3.0))
    10.0
    """
    if name is not None:
        parse_device(name)
    with placed_on(name):
        yield


def check_devices(names: Iterable[tuple[str, Source | None]]) -> None:
    """Refuse devices that this process does not have; `names` come with the place that asks for them.

    Raises:
        UserInputError: one is not here; says which are, and for a GPU how many there are or what is missing.
    """
    asked: dict[str, Source | None] = {}
    for text, source in names:
        # A copied constant does not say where the user wrote it.
        asked[text] = asked.get(text) or source
    for text, source in asked.items():
        name = parse_device(text, source)
        missing = None if name.kind in _OF_THE_HOST else _missing_cuda(name.number)
        if missing is not None:
            always = ", ".join(f"{kind}:0 to {kind}:{MOST - 1}" for kind in _OF_THE_HOST)
            raise UserInputError(
                f"the device {name} does not exist here: {missing.problem}",
                source=source,
                expected=f"{always}; of GPUs: {missing.expected}",
                got=missing.got,
                hint=missing.hint,
            )


def is_here(name: DeviceName) -> bool:
    """Whether this process can compute on a device; its rank is not looked at."""
    return name.kind in _OF_THE_HOST or _missing_cuda(name.number) is None


def local_devices() -> list[str]:
    """The devices of this process that the dataflow engine can compute on.

    GPUs are among them where CuPy and a card are there; asking loads CuPy. `is_here` asks for one device alone.
    """
    from ctrlgrad.dataflow import cuda_devices  # what it loads takes a while

    return [f"{kind}:{n}" for kind in _OF_THE_HOST for n in range(MOST)] + cuda_devices.found()


def _missing_cuda(number: int) -> UserInputError | None:
    """Why there is no GPU of this number; None where there is."""
    from ctrlgrad.dataflow import cuda_devices  # as above

    try:
        cuda_devices.check(number)
    except UserInputError as error:
        return error
    return None


__all__ = ["DEFAULT", "DeviceName", "check_devices", "device", "is_here", "local_devices", "parse_device"]
