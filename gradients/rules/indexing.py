"""Derivatives of indexed reads and updates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.gradients.adjoint import Primal
from ctrlgrad.gradients.table import jointly_linear, reverse_into, reverse_joint, reverse_variadic
from ctrlgrad.ir import INDEX, Value
from ctrlgrad.ir.attributes import DYNAMIC, Key
from ctrlgrad.ops.indexing import is_advanced
from ctrlgrad.ops.term import Term, constant, emit, reshape, sum_to, where, zeros
from ctrlgrad.records import record
from ctrlgrad.stacks.saving import Scope

jointly_linear("getitem", (0,))


def _getitem(acc: Term, ct: Term, out: Term, x: Term, *indices: Term, key: Any) -> Term:
    # A key adds axes to a number at most: then the part is the whole.
    return emit("additem", acc, ct, *indices, key=key) if x.rank else acc + reshape(ct, [])


reverse_into("getitem", _getitem)


def _additem(position: int, ct: Term, out: Term, x: Term, value: Term, *indices: Term, key: Any) -> Term | None:
    if position == 0:
        return ct
    if position == 1:
        return sum_to(emit("getitem", ct, *indices, key=key), value.dims)
    return None


jointly_linear("additem", (0, 1))
reverse_variadic("additem", _additem)


def _setitem(ct: Term, out: Term, x: Term, value: Term, *indices: Term, key: Any) -> Sequence[Term | None]:
    """What was replaced gets no cotangent. It is read before it is cleared, so that clearing can happen in place."""
    read = emit("getitem", ct, *indices, key=key)
    if is_advanced(key, [i.type for i in indices]):
        kept = _is_kept(out, indices, key)
        read = read if kept is None else where(kept, read, 0)
    given = sum_to(read, value.dims)
    cleared = emit("setitem", ct, constant(ct.builder, 0, ct.dtype), *indices, key=key)
    return [cleared, given, *(None for _ in indices)]


@record
class _Places:
    """Places that index arrays name in an array: a number for each, and where their axes stand in `x[key]`."""

    numbers: Term
    at: int
    after: int

    @staticmethod
    def of(x: Term, indices: Sequence[Term], key: Key) -> _Places:
        given, rest, axis, first = iter(indices), 0, 0, 0
        places: list[int] = []
        numbers: Term | None = None
        for position, item in enumerate(key):
            if item is None or isinstance(item, slice):
                bounds = () if item is None else (item.start, item.stop, item.step)
                for _ in range(bounds.count(DYNAMIC)):
                    next(given)
                rest += 1
            else:
                first = first if places else rest
                places.append(position)
            if item is DYNAMIC:
                number, size = emit("cast", next(given), dtype=INDEX.dtype), x.dim(axis)
                number = where(number < 0, number + size, number)
                numbers = number if numbers is None else numbers * size + number
            axis += item is not None
        assert numbers is not None
        at = first if places[-1] - places[0] + 1 == len(places) else 0
        return _Places(numbers, at, rest - at)

    def beside_slices(self, mask: Term) -> Term:
        """A mask for each of the numbers, as it meets `x[key]`."""
        return reshape(mask, [*[1] * self.at, *self.numbers.dims, *[1] * self.after])


# Up to so many places each is compared with each.
FEW_PLACES = 32


def _is_kept(out: Term, indices: Sequence[Term], key: Key) -> Term | None:
    """Mark the last value written to each place that index arrays name twice; None where no place is named twice.

    The cost follows the number of values written, not the array's size."""
    if _differ(out, indices, key):
        return None
    places = _Places.of(out, indices, key)
    count: int | Term = 1
    for d in places.numbers.dims:
        count = d * count if isinstance(d, Term) else count * d
    numbers = reshape(places.numbers, [count])
    if isinstance(count, int) and count <= FEW_PLACES:
        later = constant(out.builder, np.triu(np.ones((count, count), bool), 1))
        same = emit("expand_dims", numbers, axes=(1,)).equals(emit("expand_dims", numbers, axes=(0,)))
        again = emit("any", emit("logical_and", same, later), axes=(1,), keepdims=False)
        return places.beside_slices(emit("logical_not", again))
    # In a stable order the last of equal numbers stands last.
    order = emit("argsort", numbers, axis=0, descending=False)
    ordered = emit("getitem", numbers, order, key=(DYNAMIC,))
    sizes, shape = ([count.value], (None,)) if isinstance(count, Term) else ([], (count,))
    position = Term(out.builder, out.builder.emit("iota", sizes, {"shape": shape}))
    last = (count if isinstance(count, Term) else constant(out.builder, count, np.int64)) - 1
    following = emit("getitem", ordered, emit("minimum", position + 1, last), key=(DYNAMIC,))
    is_last = emit("logical_or", emit("not_equal", following, ordered), position.equals(last))
    none = zeros(out.builder, np.dtype(bool), [count])
    return places.beside_slices(emit("setitem", none, is_last, order, key=(DYNAMIC,)))


def _differ(x: Term, indices: Sequence[Term], key: Key) -> bool:
    """Return True where index arrays plainly name each place once: along each of their axes one of them counts."""
    joined: set[int] = set()
    told: set[int] = set()
    given, axis = iter(indices), 0
    for item in key:
        if isinstance(item, slice):
            for _ in range((item.start, item.stop, item.step).count(DYNAMIC)):
                next(given)
        elif item is DYNAMIC:
            index = next(given)
            axes = {a - index.rank for a, d in enumerate(index.tensor.shape) if d != 1}
            joined |= axes
            values = _offsets(index.scope, index.forward) if isinstance(index, Primal) else None
            if values is not None and len(np.unique(values)) == values.size and _fits(values, x.tensor.shape[axis]):
                told |= axes
        axis += item is not None
    return joined <= told


def _fits(values: np.ndarray, size: int | None) -> bool:
    """Return True where no two values are as far from each other as the two numbers of one place, i and i - size."""
    return not values.size or (size is not None and int(values.max()) - int(values.min()) < size)


def _offsets(scope: Scope, value: Value) -> np.ndarray | None:
    """The elements of an index array, less a number that is added to all of them; None where they are not known."""
    known = scope.number(value)
    node = scope.producers.get(value)
    if known is not None:
        return known
    if node is None or dtype_kind(value.tensor.dtype) != "i":
        return None
    if node.op.name == "iota" and not node.operands:
        return np.arange(math.prod(n for n in value.tensor.shape if n is not None))
    if node.op.name in ("reshape", "expand_dims", "cast"):
        return _offsets(scope, node.operands[0])
    if node.op.name in ("add", "subtract"):
        array, number = node.operands
        if array.tensor.rank == 0 and node.op.name == "add":
            array, number = number, array
        return _offsets(scope, array) if number.tensor.rank == 0 else None
    return None


jointly_linear("setitem", (0, 1))
reverse_joint("setitem", _setitem)
