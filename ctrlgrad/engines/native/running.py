"""A call while it runs, as those see it that serve it: chunks, outside calls, errors.

`ctrlgrad.engines.native.runtime` has the frame and the program themselves, and stands above.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from ctrlgrad.engines.native.frame import Layout
from ctrlgrad.engines.native.frame_memory import FrameMemory
from ctrlgrad.engines.native.stacks import RunningStack
from ctrlgrad.memory import Chunk
from ctrlgrad.plan.chunks import LoopPlan
from ctrlgrad.plan.model import Loop, Plan, Step, Value


class Positions(Protocol):
    """The loops around each step and each place that may fail, the outermost first."""

    steps: dict[Step, tuple[Loop, ...]]
    sites: dict[int, tuple[Loop, ...]]


class Program(Protocol):
    """A plan with its machine code."""

    @property
    def positions(self) -> Positions: ...

    def __call__(self, arguments: Sequence[Any]) -> list[Any]: ...

    def loop_program(self, number: int, *, pushes: bool) -> tuple[Program, LoopPlan]: ...

    def run_again(
        self, arguments: Sequence[Any], chunks: Iterator[Chunk], ran: Sequence[Any], scratch: np.ndarray | None
    ) -> list[Any]: ...


class OutsideCalls(Protocol):
    """Record of the calls that compiled code made into Python."""

    @property
    def callbacks(self) -> int: ...


class Frame(Protocol):
    """The words and the memory of one call."""

    layout: Layout
    plan: Plan
    words: np.ndarray
    memory: FrameMemory
    stacks: list[RunningStack]
    # That of a memory session, which puts itself here.
    session: Any

    @property
    def program(self) -> Program: ...

    @property
    def outside(self) -> OutsideCalls: ...

    def run(self, arguments: Sequence[Any]) -> list[Any]: ...

    def rest(self) -> None: ...

    def dispose(self) -> None: ...

    def give_back(self) -> None: ...

    def put(self, index: int, dtype: np.dtype, value: Any) -> None: ...

    def number(self, index: int, dtype: np.dtype) -> Any: ...

    def row_shape(self, handle: int) -> tuple[int, ...]: ...

    def label(self, handle: int) -> str: ...

    def told(self, values: Sequence[Value], index: int) -> list[Any]: ...

    def kept(self, value: Value, given: Any) -> Any: ...
