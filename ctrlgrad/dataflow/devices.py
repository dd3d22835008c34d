"""The names of devices, and `device`, which puts ops on one.

    cpu:N          a worker thread of this process
    sim:N          the same, and everything that is sent to or from it takes a while: `Settings.latency`
    cuda:N         a GPU
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
        name: "cpu:N" (a worker thread each), "sim:N", "cuda:N", or one of these on another rank, "/rank:R/cpu:N".

    Raises:
        UserInputError: the name is no device's.

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


def check_devices(names: Iterable[tuple[str, Source | None]], known: Iterable[str]) -> None:
    """Refuse devices that a run does not have; `names` come with the place that asks for them."""
    have = set(known)
    for name, source in names:
        parse_device(name, source)
        if name not in have:
            raise UserInputError(
                f"the device {name} does not exist here",
                source=source,
                expected=", ".join(sorted(have)),
                got=name,
                hint="change the name in ctrlgrad.device(...), or run where there is such a device",
            )


def local_devices() -> list[str]:
    """The devices of this process that the dataflow engine can compute on."""
    return [f"{kind}:{n}" for kind in ("cpu", "sim") for n in range(MOST)]


__all__ = ["DEFAULT", "DeviceName", "check_devices", "device", "local_devices", "parse_device"]
