"""Consecutive kernels over long vectors, run tile by tile: what one writes is in cache when the next one reads it.

Kernels that cannot become one (one reads beside the point that another writes) each go through all of their arrays, and
arrays that do not fit into the processor's nearest memory come from further away every time. A group of kernels takes
its points in tiles instead: all kernels for the first points, in their order, then for the next ones.

That keeps every read if a kernel stays behind. Let one kernel touch element i + c of some memory at its point i, and a
later one element i + d, and let one of both write. The later one's point i meets the earlier one's point i + d - c: it
must stay d - c points further behind, or more. Offsets are sums of sizes, which are not negative: so is a lag, and one
that is at least as large in each of its terms is at least as large (such schedules: W. Kelly and W. Pugh, "A unifying
framework for iteration reordering transformations", 1995).

A loop whose kernels each go through all of their arrays likewise reads and writes them once in each iteration. Where
each point of what the loop writes depends on nothing but the same point of it, and on what the loop leaves as it is,
the loop over tiles may be the outer one (M. E. Wolf and M. S. Lam, "A data locality optimizing algorithm", 1991).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from ctrlgrad.plan.effects import defines
from ctrlgrad.plan.model import (
    Array,
    Block,
    Compute,
    Guard,
    Kernel,
    Load,
    Loop,
    Plan,
    Register,
    Stack,
    Step,
    Tiles,
    View,
)
from ctrlgrad.plan.places import Place
from ctrlgrad.plan.sizes import ONE, ZERO, Size
from ctrlgrad.records import record

# The bytes of all that a tile touches, which are to stay in the nearest memory; the points of a tile, a multiple of
# this many at least; the kernels that are worth it, and the most of one group.
TILE_BYTES, POINTS, FEWEST, MOST = 24 << 10, 128, 3, 64


@record
class _Access:
    """Memory that a kernel touches: at its point i element i + offset, or any element where that is None."""

    place: Place
    item_bytes: int
    offset: tuple[tuple[tuple[str, ...], int], ...] | None
    is_write: bool


def tiles_of(steps: Sequence[Step], start: int, plan: Plan) -> tuple[Tiles, int] | None:
    """The kernels from a step on that run tile by tile, and the number of the step behind them; None where none do.

    Computations of numbers among them need none of their arrays and may go before, and so may the request for room.
    """
    if not _has_long_kernels(steps, start):
        return None
    kernels: list[Kernel] = []
    accesses: list[list[_Access]] = []
    lags: list[Counter[tuple[str, ...]]] = []
    end = start
    for number in range(start, len(steps)):
        step = steps[number]
        if len(kernels) == MOST:
            break
        if isinstance(step, Compute):
            continue
        if not isinstance(step, Kernel) or not is_along_a_line(step, plan):
            break
        found = list(accesses_of(step, plan.places))
        lag = _lag(found, accesses, lags)
        if lag is None:
            break
        # A write begins at the first point of a tile, to stay aligned.
        lag |= _terms(step.writes[0].view)
        kernels.append(step)
        accesses.append(found)
        lags.append(lag)
        end = number + 1
    points = points_of(accesses)
    if sum(is_long(length_of(kernel), points) for kernel in kernels) < FEWEST:
        return None
    sizes = tuple(tuple(Size(factor, names) for names, factor in sorted(lag.items())) for lag in lags)
    return Tiles(tuple(kernels), sizes, points), end


def groups_of(block: Block, plan: Plan) -> Iterator[Tiles]:
    """Groups of kernels of a block that run tile by tile."""
    number = 0
    while number < len(block.steps):
        found = tiles_of(block.steps, number, plan) if isinstance(block.steps[number], Kernel) else None
        if found is not None:
            yield found[0]
        number = number + 1 if found is None else found[1]


def loop_tiles(loop: Loop, plan: Plan) -> Tiles | None:
    """Tiles of a loop that can run tile by tile; else None.

    Numbers that the loop computes are computed again for each tile, with the number of iterations, and are the same for
    all tiles.
    """
    steps = [*loop.condition.steps, *loop.body.steps]
    if any(block.moves or block.stack_moves for block in (loop.condition, loop.body)):
        return None
    if not all(isinstance(step, Kernel | Compute | Load | Guard) and step not in plan.releases for step in steps):
        return None
    if any(isinstance(carry.inside, Stack) for carry in loop.carries):
        return None
    kernels = tuple(step for step in steps if isinstance(step, Kernel))
    carried = [carry.inside for carry in loop.carries if isinstance(carry.inside, Array)]
    if not kernels or not all(is_along_a_line(kernel, plan, carried) for kernel in kernels):
        return None
    length = length_of(kernels[0])
    if length == ONE or any(length_of(kernel) != length for kernel in kernels):
        return None
    accesses = [access for kernel in kernels for access in accesses_of(kernel, plan.places)]
    # Of what is written, each point touches one element, which is the same in all iterations.
    own = {register.name for step in steps for register in defines(step) if isinstance(register, Register)}
    own |= {carry.inside.name for carry in loop.carries if isinstance(carry.inside, Register)} | {loop.counter.name}
    offsets: dict[Place, set[object]] = {access.place: set() for access in accesses if access.is_write}
    for access in accesses:
        if access.place in offsets:
            if access.offset is None or any(own.intersection(names) for names, _ in access.offset):
                return None
            offsets[access.place].add((access.offset, access.item_bytes))
    if any(place.kind != "buffer" or len(found) > 1 for place, found in offsets.items()):
        return None
    if any(plan.places[step.view.array] in offsets for step in steps if isinstance(step, Load)):
        return None
    points = points_of([accesses])
    if not is_long(length, points) or not own.isdisjoint(length.names):
        return None
    return Tiles(kernels, ((),) * len(kernels), points)


def _has_long_kernels(steps: Sequence[Step], start: int) -> bool:
    """Return true if enough of the next kernels may be long; called at each step of a plan."""
    kernels = longs = 0
    for number in range(start, len(steps)):
        step = steps[number]
        if isinstance(step, Kernel):
            kernels += 1
            longs += is_long(length_of(step), POINTS)
        if longs == FEWEST or kernels == MOST or not isinstance(step, Kernel | Compute):
            break
    return longs >= FEWEST


def length_of(kernel: Kernel) -> Size:
    """Number of points of a kernel along a line."""
    return next((size for size in kernel.space if size != ONE), ONE)


def is_along_a_line(kernel: Kernel, plan: Plan, carried: Collection[Array] = ()) -> bool:
    """Return true if a kernel has one axis, writes contiguous elements, and reads contiguous elements or a constant
    one.

    It writes to rows that it pushes and to memory that is there already: known at entry, or that of a carried array.
    """
    standing = {(plan.places[array], array.count) for array in carried}
    if sum(size != ONE for size in kernel.space) > 1 or kernel.checks:
        return False
    for write in kernel.writes:
        place = plan.places[write.view.array]
        is_copied_first = write.base is not None and plan.places[write.base] != place
        if write.how != "store" or write.scattered or is_copied_first or _stride(kernel, write.view) != ONE:
            return False
        # A buffer that grows where it is needed would lose what other kernels of the group read in it before.
        is_there = place.kind == "buffer" and plan.buffers[place.number].is_known_at_entry
        if not (place.kind == "slot" or is_there or (place, write.view.array.count) in standing):
            return False
    return all(not o.gathered and _stride(kernel, o.view) in (ZERO, ONE) for o in kernel.operands)


def _stride(kernel: Kernel, view: View) -> Size:
    strides = [stride for stride, size in zip(view.strides, kernel.space, strict=True) if size != ONE]
    return strides[0] if strides else ONE


def accesses_of(kernel: Kernel, places: Mapping[Array, Place]) -> Iterator[_Access]:
    views = [(o.view, False) for o in kernel.operands] + [(w.view, True) for w in kernel.writes]
    for view, is_write in views:
        terms = None if _stride(kernel, view) == ZERO else tuple(sorted(_terms(view).items()))
        yield _Access(places[view.array], view.dtype.itemsize, terms, is_write)


def _terms(view: View) -> Counter[tuple[str, ...]]:
    """The terms of a view's offset."""
    offset: Counter[tuple[str, ...]] = Counter()
    for term in view.offset:
        offset[term.names] += term.factor
    return offset


def _lag(
    found: Sequence[_Access], before: Sequence[Sequence[_Access]], lags: Sequence[Counter[tuple[str, ...]]]
) -> Counter[tuple[str, ...]] | None:
    """Least lag of a kernel behind the first one; None where no lag is enough."""
    lag: Counter[tuple[str, ...]] = Counter()
    for earlier, its_lag in zip(before, lags, strict=True):
        for a in earlier:
            for b in found:
                if not (a.is_write or b.is_write):
                    continue
                if a.place != b.place:
                    # Rows of stacks may alias.
                    if {a.place.kind, b.place.kind} <= {"slot", "row"}:
                        return None
                    continue
                if a.offset is None or b.offset is None or a.item_bytes != b.item_bytes:
                    return None
                least = Counter(its_lag)
                for names, factor in b.offset:
                    least[names] += factor
                for names, factor in a.offset:
                    least[names] -= factor
                # Of each term the larger one, and none below 0.
                lag |= least
    return lag


def points_of(accesses: Sequence[Sequence[_Access]]) -> int:
    each = {a.place: a.item_bytes for kernel in accesses for a in kernel if a.offset is not None}
    return max(TILE_BYTES // max(sum(each.values()), 1) // POINTS, 1) * POINTS


def is_long(length: Size, points: int) -> bool:
    return not length.is_known or length.factor >= 2 * points
