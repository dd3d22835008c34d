"""The part of `KernelWriter` that row vectorisers use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from ctrlgrad.engines.native.elements import Elements, First
from ctrlgrad.engines.native.reductions import Sums
from ctrlgrad.engines.native.text import Writer
from ctrlgrad.plan.axes import Axis
from ctrlgrad.plan.model import Kernel, Register, Vectors, View
from ctrlgrad.plan.sizes import Size

if TYPE_CHECKING:
    from ctrlgrad.engines.native.extremes import Extremes

Known = Callable[[int], tuple[str, bool] | None]
"""What an operand is, by its number: a name and whether it is a vector; None where it is to be loaded."""


class Nest(Protocol):
    """`engines.native.nests.KernelWriter`, which says what each of these is."""

    w: Writer
    kernel: Kernel
    elements: Elements
    views: list[View]
    through: list[int]
    bases: list[str]
    sums: dict[int, Sums | Extremes]
    indices: dict[int, str]
    vectors: Vectors
    number: Callable[[Register], str]
    size: Callable[[Size], str]
    captured: Callable[[str, str], str]

    def ends(self, depth: int, axis: Axis) -> tuple[str, str]: ...
    def whole(self, start: str, total: str, step: int) -> str: ...
    def each(self, start: str, end: str, step: int = 1) -> Iterator[str]: ...
    def base(self, place: int) -> str: ...
    def times(self, i: str, stride: Size) -> str: ...
    def moved(self, axis: Axis, offsets: list[str], i: str) -> list[str]: ...
    def point(
        self,
        offsets: list[str],
        width: int,
        lane: int = 0,
        axis: Axis | None = None,
        further: int = 0,
        known: Known | None = None,
        first: First | None = None,
    ) -> None: ...
    def innermost(self, axis: Axis, rows: Sequence[list[str]], start: str, total: str) -> None: ...
    def gathered(self, k: int, forms: Iterable[tuple[int, int]]) -> Sums | Extremes: ...
    def begin(self, k: int, axes: Sequence[Axis], rows: int = 1) -> None: ...
    def finish(self, k: int, offsets: list[str], row: int | None = None) -> None: ...
    def target(self, k: int, offsets: list[str]) -> tuple[str, str]: ...
