"""What an executor needs of the device that it computes on, in one run: how values get there, and leave it.

`HostRun` is a worker thread on the processor, where values are NumPy's from start to end. The other one is in
`cuda_runs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from ctrlgrad.engines.reference import Run
from ctrlgrad.ir import Type


class Leaving(Protocol):
    """A value on its way from a device to the host."""

    def is_done(self) -> bool:
        """Whether it has arrived. Never blocks."""

    def value(self) -> Any:
        """The value on the host; waits for it. To be called once."""


class DeviceRun(Protocol):
    """One device in one run. All but the constructor is called on the device's own thread, inside `running`."""

    @property
    def run(self) -> Run:
        """Counters, and the iteration that a piece runs in."""

    @property
    def context(self) -> Any:
        """What pieces take beside their operands."""

    @property
    def is_late(self) -> bool:
        """Whether an error was seen later than it happened, so that nobody knows in which iteration that was."""

    def running(self) -> AbstractContextManager[None]:
        """For the whole run on this device. At the end nothing is under way any more, whatever has happened."""

    def entered(self, value: Any, its: Type) -> Any:
        """An input of the graph, as pieces take it."""

    def on_host(self, value: Any) -> Any:
        """A value that decides how control goes on; waits for it."""

    def leave(self, value: Any) -> Leaving | None:
        """Begin to bring a value to the host; None where it is there already. What computes does not wait."""

    def arrive(self, value: Any, its: Type) -> Any:
        """Begin to take in a value that lies on the host; `landed` has it."""

    def landed(self, arriving: Any) -> Any:
        """The value that was taken in, as pieces take it. What computes waits for it, not the caller."""

    def results(self, outputs: Mapping[int, Any]) -> dict[int, Any]:
        """Outputs of the graph as NumPy arrays and scalars, and lists of them for stacks."""


class HostRun:
    """A device `cpu:N` or `sim:N`."""

    is_late = False

    def __init__(self, run: Run) -> None:
        self.run = self.context = run

    def running(self) -> AbstractContextManager[None]:
        return nullcontext()

    def entered(self, value: Any, its: Type) -> Any:
        return value

    def on_host(self, value: Any) -> Any:
        return value

    def leave(self, value: Any) -> None:
        return None

    def arrive(self, value: Any, its: Type) -> Any:
        return value

    def landed(self, arriving: Any) -> Any:
        return arriving

    def results(self, outputs: Mapping[int, Any]) -> dict[int, Any]:
        return dict(outputs)


__all__ = ["DeviceRun", "HostRun", "Leaving"]
