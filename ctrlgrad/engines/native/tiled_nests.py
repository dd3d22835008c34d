"""Groups of kernels and loops that run tile by tile (see `ctrlgrad.plan.tiling` and `loop_tiling`), as LLVM text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from ctrlgrad.engines.native.axes import Axis
from ctrlgrad.engines.native.loops import counted_loop
from ctrlgrad.engines.native.nests import UNROLL, KernelWriter
from ctrlgrad.engines.native.text import Writer
from ctrlgrad.plan.model import Array, Kernel
from ctrlgrad.plan.places import Place
from ctrlgrad.plan.sizes import Size
from ctrlgrad.plan.tiling import Tiles, length_of
from ctrlgrad.plan.windows import MOST_MOVED, Window

# Where memory begins: the bytes of a line of the cache.
ALIGNMENT = 64


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
    windows: Mapping[Place, Window],
    places: Mapping[Array, Place],
    address: Callable[[Place], str],
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
    shown = {place: _Shown(w, window, size, tiles.points) for place, window in windows.items()}
    with counted_loop(w, "0", end, tiles.points) as start:
        for window in shown.values():
            window.begin(start)
        for kernel, length, lag in zip(tiles.kernels, lengths, lags, strict=True):
            at = start if lag == "0" else w.op(f"sub i64 {start}, {lag}")
            after = of("smin", w.op(f"add i64 {at}, {tiles.points}"), length)
            first = at if lag == "0" else of("smax", at, "0")
            with w.when(w.op(f"icmp slt i64 {first}, {after}")):
                stretch = nest(Stretch, kernel)
                stretch.first, stretch.end = first, after
                for k, view in enumerate(stretch.views):
                    if places[view.array] in shown:
                        stretch.bases[k] = shown[places[view.array]].base(stretch.bases[k])
                stretch.write()
        for place, window in shown.items():
            window.move_on(address(place))


class _Shown:
    """A window as a tile sees it: an address from which its elements lie where they would if all of them were there.

    Where more would have to move than pays, the window stands still and is all of the array.
    """

    def __init__(self, w: Writer, window: Window, size: Callable[[Size], str], points: int) -> None:
        self.w, self.window, self.points = w, window, points

        def total(terms: Sequence[Size]) -> str:
            found = "0"
            for term in terms:
                found = w.add(found, size(term))
            return found

        before = after = "0"
        for shift in window.shifts:
            offset, lag = total(shift.offset), total(shift.lag)
            before = self.of("smax", before, w.op(f"sub i64 {lag}, {offset}"))
            after = self.of("smax", after, w.op(f"sub i64 {offset}, {lag}"))
        # Writes of a tile begin at a cache line.
        unit = max(ALIGNMENT // window.item_bytes, 1)
        self.before = w.op(f"and i64 {w.add(before, str(unit - 1))}, {-unit}")
        self.moved = w.add(self.before, after)
        self.is_small = w.op(f"icmp sle i64 {self.moved}, {min(MOST_MOVED // window.item_bytes, points)}")
        self.count = size(window.count)

    def of(self, name: str, a: str, b: str) -> str:
        return self.w.op(f"call i64 @llvm.{name}.i64(i64 {a}, i64 {b})")

    def begin(self, start: str) -> None:
        """A tile begins."""
        w = self.w
        # Elements that lie there from the tiles before.
        self.kept = self.of("smin", self.before, start)
        away = w.op(f"sub i64 {start}, {self.kept}")
        self.away = w.op(f"select i1 {self.is_small}, i64 {away}, i64 0")

    def base(self, address: str) -> str:
        below = self.w.op(f"mul i64 {self.away}, {-self.window.item_bytes}")
        return self.w.op(f"getelementptr i8, ptr {address}, i64 {below}")

    def move_on(self, address: str) -> None:
        """The tile ends: what the next one needs too moves to the front."""
        w, item_bytes = self.w, self.window.item_bytes
        first = w.op(f"sub i64 {w.add(self.kept, str(self.points))}, {self.before}")
        left = self.of("smin", self.moved, w.op(f"sub i64 {self.count}, {first}"))
        left = w.op(f"select i1 {self.is_small}, i64 {left}, i64 0")
        nbytes = w.op(f"mul i64 {self.of('smax', left, '0')}, {item_bytes}")
        later = w.op(f"getelementptr i8, ptr {address}, i64 {w.op(f'mul i64 {first}, {item_bytes}')}")
        w.declare("void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1 immarg)")
        w.line(f"call void @llvm.memmove.p0.p0.i64(ptr {address}, ptr {later}, i64 {nbytes}, i1 false)")


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
