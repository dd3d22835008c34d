"""How the dataflow engine runs: what a user, a test or a benchmark may choose."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from ctrlgrad.dataflow.clusters import CUTS
from ctrlgrad.dataflow.recorder import Recorder
from ctrlgrad.errors import UserInputError
from ctrlgrad.source import here

if TYPE_CHECKING:
    from ctrlgrad.dataflow.graph import FlatNode

LOOPS = ("lowered", "whole")
PIECES = ("reference", "native")


def _check(name: str, value: object, is_usable: bool, expected: str) -> None:
    if not is_usable:
        raise UserInputError(f"the setting {name} is not usable", expected=expected, got=repr(value))


def _check_function(name: str, value: object, expected: str) -> None:
    _check(name, value, value is None or callable(value), f"{expected}, or None")


def _check_choice(name: str, value: object, known: tuple[str | None, ...]) -> None:
    _check(name, value, value in known, " or ".join(map(repr, known)))


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True)
class Settings:
    """The settings in force.

    Attributes:
        parallel_iterations: the window of every loop; None: what each `while_loop` says, 32 where it says nothing.
        clusters: "whole", "flowing" or "none", see `ctrlgrad.dataflow.clusters`; None: "whole" on one device and
            "flowing" on several.
        loops: "lowered", or "whole": a loop whose ops all go to one device stays one node, and runs as a plan in
            machine code; on a GPU by the CUDA engine.
        pieces: what runs a cluster on the processor: "reference", node by node, to the reference engine's bits; or
            "native": its elementwise chains and products as machine code where that pays, compiled in the first calls.
        place: where an op goes, instead of where the user put it: takes a `FlatNode`, returns a device's name or None.
        order: a seed; what is ready fires in an order drawn by it, instead of first come, first served.
        latency: seconds that a message takes from or to a device `sim:N`.
        delay: seconds that a message takes in any case, drawn for each; for tests.
        recorder: notes every firing, see `ctrlgrad.dataflow.Recorder`.
    """

    parallel_iterations: int | None = None
    clusters: str | None = None
    loops: str = "lowered"
    pieces: str = "reference"
    place: Callable[[FlatNode], str | None] | None = None
    order: int | None = None
    latency: float = 0.0
    delay: Callable[[random.Random], float] | None = None
    recorder: Recorder | None = None

    def __post_init__(self) -> None:
        """Refuse what no run can keep to, before there is one."""
        window, order, latency = self.parallel_iterations, self.order, self.latency
        is_window = window is None or (_is_int(window) and window >= 1)
        _check("parallel_iterations", window, is_window, "an int of 1 or more, or None")
        _check_choice("clusters", self.clusters, (None, *CUTS))
        _check_choice("loops", self.loops, LOOPS)
        _check_choice("pieces", self.pieces, PIECES)
        _check_function("place", self.place, "a function that takes a FlatNode and returns a device's name or None")
        _check("order", order, order is None or _is_int(order), "an int, or None")
        is_number = isinstance(latency, int | float) and not isinstance(latency, bool)
        _check("latency", latency, is_number and 0.0 <= latency < math.inf, "seconds, 0 or more")
        _check_function("delay", self.delay, "a function that takes a random.Random and returns seconds")
        is_recorder = self.recorder is None or isinstance(self.recorder, Recorder)
        _check("recorder", self.recorder, is_recorder, "a ctrlgrad.dataflow.Recorder, or None")


_SETTINGS: ContextVar[Settings] = ContextVar("dataflow settings", default=Settings())  # noqa: B039


def current_settings() -> Settings:
    return _SETTINGS.get()


@contextmanager
def settings(**changes: Any) -> Iterator[Settings]:
    """Choose how the dataflow engine runs, for a block of code; the fields of `Settings`.

    >>> from ctrlgrad import dataflow
    >>> with dataflow.settings(parallel_iterations=1) as now:
    ...     now.parallel_iterations
    1
    """
    names = [f.name for f in fields(Settings)]
    for name in changes:
        if name not in names:
            raise UserInputError(
                f"the dataflow engine has no setting {name!r}", source=here(), expected=", ".join(names), got=name
            )
    try:
        changed = replace(_SETTINGS.get(), **changes)
    except UserInputError as error:
        error.source = here()
        raise
    token = _SETTINGS.set(changed)
    try:
        yield _SETTINGS.get()
    finally:
        _SETTINGS.reset(token)


__all__ = ["Settings", "current_settings", "settings"]
