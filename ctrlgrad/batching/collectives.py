"""Batching of collectives: over the batch axis where they name it, along it where they name another one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ctrlgrad.batching.batcher import Batcher, batches
from ctrlgrad.batching.lanes import Lane, Rows
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.ir import Builder, Node
from ctrlgrad.ir.attributes import DYNAMIC, Collective, CollectiveAlong, Permutation
from ctrlgrad.ops.term import Term, broadcast_to, constant, emit, reshape, transpose

Count = int | Term


@batches("psum all_gather psum_scatter all_to_all ppermute axis_index")
def _collective(batcher: Batcher, node: Node) -> Sequence[Lane]:
    attrs, rows = Collective.of(node), batcher.rows
    if attrs.rows not in rows.names:
        along = CollectiveAlong.find(node)
        shifted = attrs if along is None else replace(along, axis=along.axis + 1)
        return [batcher.lane(batcher.emit(node.op.name, [batcher.term(node.operands[0])], shifted))]
    if rows.guarded:
        raise TypeMismatchError(
            f"{node.op.name}: in a loop or a branch that not all rows of axis {attrs.rows.name!r} take part in",
            source=node.source,
            expected="a condition that is the same for all rows",
            got="a condition that differs from row to row",
            hint="make it the same by ctrlgrad.lax.pmax(condition, axis_name), and keep what a row that is done has by"
            " numpy.where;\nor take the collective out of the loop or branch",
        )
    place = rows.names.index(attrs.rows)
    if node.op.name == "axis_index":
        return [batcher.lane(_number(batcher, place))]
    rule = _RULES[node.op.name]
    (operand,) = node.operands
    if len(rows.axes) == 1:
        x, count = batcher.term(operand), rows.count(batcher.builder)
        same = batcher.is_same(operand)
        found, is_same = rule(x, same, count, attrs)
        return [batcher.lane_same(found) if is_same else batcher.lane(found)]
    return [batcher.lane(_over_one_of(batcher.batched(operand), rows, place, rule, attrs))]


# Of a term, whether all rows share it (else the rows are its axis 0), and their number: the result, and whether all
# rows share that. The last argument is what the op's nodes say: a `Collective` of its own kind.
Rule = Callable[[Term, bool, Count, Any], tuple[Term, bool]]


def _sizes(builder: Builder, rows: Rows) -> list[Count]:
    return [n if isinstance(n, int) else Term(builder, n) for n in rows.axes]


def _number(batcher: Batcher, place: int) -> Term:
    """The number of each row along one of the axes that were made one."""
    sizes = _sizes(batcher.builder, batcher.rows)
    number = batcher.rows.iota(batcher.builder)
    if len(sizes) == 1:
        return number
    inner: Count = math.prod(sizes[place + 1 :], start=1)
    return emit("remainder", emit("floor_divide", number, inner), sizes[place])


def _over_one_of(x: Term, rows: Rows, place: int, rule: Rule, attrs: Collective) -> Term:
    """Apply a rule over one of the flattened axes: it is moved to the front, the other axes behind it."""
    sizes = _sizes(x.builder, rows)
    others = len(sizes) - 1
    parted = _moved(reshape(x, [*sizes, *x.dims[1:]]), place, 0)
    if isinstance(attrs, CollectiveAlong):
        attrs = replace(attrs, axis=attrs.axis + others)
    found, is_same = rule(parted, False, sizes[place], attrs)
    if is_same:
        found = broadcast_to(found, [sizes[place], *found.dims])
    whole = _moved(found, 0, place)
    return reshape(whole, [rows.count(x.builder), *whole.dims[others + 1 :]])


def _moved(x: Term, source: int, target: int) -> Term:
    """An axis of x taken to another place."""
    order = [axis for axis in range(x.rank) if axis != source]
    order.insert(target, source)
    return x if order == sorted(order) else transpose(x, order)


def _inserted(x: Term, axis: int, count: Count) -> Term:
    """x repeated along a new axis."""
    dims = x.dims
    return broadcast_to(emit("expand_dims", x, axes=(axis,)), [*dims[:axis], count, *dims[axis:]])


def _times(x: Term, count: Count) -> Term:
    factor = constant(x.builder, count, x.dtype) if isinstance(count, int) else emit("cast", count, dtype=x.dtype)
    return x * factor


def _sum(x: Term, same: bool, count: Count) -> Term:
    return _times(x, count) if same else emit("sum", x, axes=(0,), keepdims=False)


def _all_to_all(x: Term, same: bool, count: Count, attrs: CollectiveAlong) -> tuple[Term, bool]:
    if same:
        return _inserted(_moved(x, attrs.axis, 0), attrs.axis + 1, count), False
    order = list(range(x.rank))
    order[0], order[attrs.axis + 1] = attrs.axis + 1, 0
    return transpose(x, order), False


def _ppermute(x: Term, same: bool, count: Count, attrs: Permutation) -> tuple[Term, bool]:
    sources = np.array(attrs.sources, np.int64)
    if same:
        x = broadcast_to(x, [count, *x.dims])
    places = Term(x.builder, x.builder.constant(np.maximum(sources, 0)))
    sent = emit("getitem", x, places, key=(DYNAMIC, *[slice(None)] * (x.rank - 1)))
    if (sources < 0).any():
        gets = x.builder.constant((sources >= 0).reshape(-1, *[1] * (x.rank - 1)))
        sent = emit("where", Term(x.builder, gets), sent, constant(x.builder, 0, x.dtype))
    return sent, False


_RULES: dict[str, Rule] = {
    "psum": lambda x, same, count, attrs: (_sum(x, same, count), True),
    "all_gather": lambda x, same, count, attrs: (
        _inserted(x, attrs.axis, count) if same else _moved(x, 0, attrs.axis),
        True,
    ),
    "psum_scatter": lambda x, same, count, attrs: (_moved(_sum(x, same, count), attrs.axis, 0), False),
    "all_to_all": _all_to_all,
    "ppermute": _ppermute,
}
