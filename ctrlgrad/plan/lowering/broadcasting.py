"""Arrays that come together though their sizes are not known to be equal.

A plan first takes such sizes for equal, as nearly all are: a guard ends the run where they are not. Then the graph gets
another plan, in which the code decides: along an axis that turns out to have size 1 the stride is 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.plan.expression import BOOL, Number, select
from ctrlgrad.plan.lowering.state import INDEX, Splat, State, Tensor, broadcast
from ctrlgrad.plan.model import View
from ctrlgrad.plan.sizes import ONE, Size, Sizes


def joined_shape(state: State, shapes: Sequence[Sizes], declared: Sequence[int | None]) -> Sizes:
    """The shape that operands broadcast to; sizes that are not known to be equal are checked when it runs."""
    rank = len(declared)
    return tuple(
        _joined_size(state, [s[axis - rank + len(s)] for s in shapes if axis - rank + len(s) >= 0], declared[axis])
        for axis in range(rank)
    )


def _joined_size(state: State, sizes: Sequence[Size], declared: int | None) -> Size:
    others = list(dict.fromkeys(size for size in sizes if size != ONE))
    if declared is not None:
        joined = Size(declared)
    else:
        joined = next((s for s in others if s.is_known), None) or _common_size(state, others)
    for size in others:
        reach(state, size, joined)
    return joined


def _common_size(state: State, sizes: Sequence[Size]) -> Size:
    """The first of some unknown sizes that is not 1, or 1; equal questions have one answer."""
    if len(sizes) < 2 or state.assumes("equal"):
        return sizes[0] if sizes else ONE
    parts = frozenset[Size]().union(*(state.joins.get(size, frozenset([size])) for size in sizes))
    for known, joined in state.joins.items():
        if joined == parts and state.scope_of(known) < len(state.scopes):
            return known

    def first(*numbers: Number) -> Number:
        found = numbers[-1]
        for n in reversed(numbers[:-1]):
            found = select(n.equals(1), found, n)
        return found

    with state.before(sizes):
        found = state.size_of(state.compute([state.size_register(size) for size in sizes], INDEX, first))
    state.joins[found] = parts
    return found


def reach(state: State, size: Size, target: Size) -> None:
    """A size has to be equal to another one, or 1."""
    if size in (ONE, target) or any((size, target) in scope.reached for scope in state.scopes):
        return
    if size.is_known:
        state.guard_equal(size, target)
    elif state.assumes("equal"):
        state.guard_equal(size, target, "equal")
    else:
        registers = [state.size_register(size), state.size_register(target)]
        holds = state.compute(registers, BOOL, lambda n, wanted: n.equals(wanted) | n.equals(1))
        state.guard(holds, "size", registers[0], target)
        state.scopes[-1].reached.add((size, target))


def spread(state: State, tensor: Tensor, shape: Sizes) -> Tensor:
    """A tensor over a larger shape, which its sizes reach."""
    if isinstance(tensor, Splat) or state.assumes("equal"):
        return broadcast(tensor, shape)
    targets = shape[len(shape) - len(tensor.shape) :]
    strides = tuple(
        stride if size.is_known or size == target else stride * _moves(state, size)
        for size, stride, target in zip(tensor.shape, tensor.strides, targets, strict=True)
    )
    return broadcast(View(tensor.array, tensor.offset, tensor.shape, strides), shape)


def _moves(state: State, size: Size) -> Size:
    """0 where a size is 1, else 1."""
    found = state.moves.get(size)
    if found is None or state.scope_of(found) == len(state.scopes):
        with state.before([size]):
            register = state.compute([state.size_register(size)], INDEX, lambda n: select(n.equals(1), n - n, 1))
        found = state.moves[size] = state.size_of(register)
    return found
