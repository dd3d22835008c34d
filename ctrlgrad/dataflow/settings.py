"""How the dataflow engine runs: what a user, a test or a benchmark may choose."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from ctrlgrad.dataflow.clusters import CUTS
from ctrlgrad.errors import UserInputError
from ctrlgrad.source import here

if TYPE_CHECKING:
    from ctrlgrad.dataflow.graph import FlatNode
    from ctrlgrad.dataflow.recorder import Recorder

LOOPS = ("lowered", "whole")


@dataclass(frozen=True)
class Settings:
    """The settings in force.

    Attributes:
        parallel_iterations: the window of every loop; None: what each `while_loop` says, 32 where it says nothing.
        clusters: "whole", "flowing" or "none", see `ctrlgrad.dataflow.clusters`; None: "whole" on one device and
            "flowing" on several.
        loops: "lowered", or "whole": a loop all on one device that nothing on another device waits for or feeds inside
            stays one node, and runs by the native engine where that is installed.
        place: where an op goes, instead of where the user put it: takes a `FlatNode`, returns a device's name or None.
        order: a seed; what is ready fires in an order drawn by it, instead of first come, first served.
        latency: seconds that a message takes from or to a device `sim:N`.
        delay: seconds that a message takes in any case, drawn for each; for tests.
        recorder: notes every firing, see `ctrlgrad.dataflow.Recorder`.
    """

    parallel_iterations: int | None = None
    clusters: str | None = None
    loops: str = "lowered"
    place: Callable[[FlatNode], str | None] | None = None
    order: int | None = None
    latency: float = 0.0
    delay: Callable[[random.Random], float] | None = None
    recorder: Recorder | None = None


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
    _check("clusters", changes.get("clusters"), (None, *CUTS))
    _check("loops", changes.get("loops", "lowered"), LOOPS)
    window = changes.get("parallel_iterations")
    if window is not None and (not isinstance(window, int) or window < 1):
        raise UserInputError(
            "parallel_iterations is not usable",
            source=here(),
            expected="an int of 1 or more, or None",
            got=repr(window),
        )
    token = _SETTINGS.set(replace(_SETTINGS.get(), **changes))
    try:
        yield _SETTINGS.get()
    finally:
        _SETTINGS.reset(token)


def _check(name: str, value: Any, known: tuple[Any, ...]) -> None:
    if value not in known:
        raise UserInputError(
            f"the setting {name} is not usable", source=here(), expected=" or ".join(map(repr, known)), got=repr(value)
        )


__all__ = ["Settings", "current_settings", "settings"]
