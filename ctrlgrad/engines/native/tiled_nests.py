"""Groups of kernels and loops that run tile by tile (see `ctrlgrad.plan.tiling`), as LLVM text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ctrlgrad.engines.native.axes import Axis
from ctrlgrad.engines.native.loops import counted_loop
from ctrlgrad.engines.native.nests import UNROLL, KernelWriter
from ctrlgrad.engines.native.text import Writer
from ctrlgrad.plan.model import Kernel, Tiles
from ctrlgrad.plan.sizes import Size
from ctrlgrad.plan.tiling import length_of


class Stretch(KernelWriter):
    """Writes a kernel for the points from `first` to `end` of its one axis."""

    first, end = "0", "0"

    def ends(self, depth: int, axis: Axis) -> tuple[str, str]:
        return self.first, self.end

    def has_rest(self, axis: Axis, width: int) -> bool:
        return True

    def unroll(self, axis: Axis, width: int) -> int:
        return UNROLL if self.is_short else 1


def write_tiles(
    writer: Writer,
    tiles: Tiles,
    size: Callable[[Size], str],
    nest: Callable[[type[Stretch], Kernel], Stretch],
) -> None:
    """A loop over tiles; `nest` gives the writer of a kernel, of the class that it is told."""
    w = writer
    for name in ("smin", "smax"):
        w.declare(f"i64 @llvm.{name}.i64(i64, i64)")

    def of(name: str, a: str, b: str) -> str:
        return w.op(f"call i64 @llvm.{name}.i64(i64 {a}, i64 {b})")

    lengths = [size(length_of(kernel)) for kernel in tiles.kernels]
    lags, end = [], "0"
    for length, terms in zip(lengths, tiles.lags, strict=True):
        lag = "0"
        for term in terms:
            lag = w.add(lag, size(term))
        lags.append(lag)
        end = of("smax", end, w.add(length, lag))
    with counted_loop(w, "0", end, tiles.points) as start:
        for kernel, length, lag in zip(tiles.kernels, lengths, lags, strict=True):
            at = start if lag == "0" else w.op(f"sub i64 {start}, {lag}")
            after = of("smin", w.op(f"add i64 {at}, {tiles.points}"), length)
            first = at if lag == "0" else of("smax", at, "0")
            with w.when(w.op(f"icmp slt i64 {first}, {after}")):
                stretch = nest(Stretch, kernel)
                stretch.first, stretch.end = first, after
                stretch.write()


@contextmanager
def loop_over_tiles(writer: Writer, length: str, points: int) -> Iterator[tuple[str, str]]:
    """A loop over tiles of as many points, at least one, though it be empty; gives where each begins and ends."""
    w = writer
    for name in ("smin", "smax"):
        w.declare(f"i64 @llvm.{name}.i64(i64, i64)")
    end = w.op(f"call i64 @llvm.smax.i64(i64 {length}, i64 1)")
    with counted_loop(w, "0", end, points) as start:
        after = w.op(f"add i64 {start}, {points}")
        yield start, w.op(f"call i64 @llvm.smin.i64(i64 {after}, i64 {length})")
