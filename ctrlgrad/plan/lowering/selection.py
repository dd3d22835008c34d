"""The k largest elements of each row, without sorting it.

A row's elements become integers in the same order, and lie in blocks of 64 beside each block's largest. The largest of
all is then found by two short looks, through the blocks' largest ones and through one block; it is struck out, and its
block's largest is looked for again. So n elements take n + k (n / 64 + 64) steps in all.
"""

from __future__ import annotations

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.ir import Graph, Node, attributes
from ctrlgrad.ir.attributes import DYNAMIC
from ctrlgrad.ops.term import Term, broadcast_to, constant, emit, reshape, where
from ctrlgrad.plan.expression import BOOL
from ctrlgrad.plan.lowering.outside import or_outside, outside
from ctrlgrad.plan.lowering.sorting import Visit, begin, loop, run
from ctrlgrad.plan.lowering.state import State
from ctrlgrad.plan.sizes import Size

BLOCK = 64

# Selecting so many, or a sixteenth of the elements, is faster than sorting all.
MANY = 64


def top_k(state: State, node: Node, visit: Visit) -> None:
    selection, shape = attributes.Selection.of(node), state.shape(node.operands[0])
    size, count = shape[selection.axis], selection.count
    is_sorted = count == 0 or count > max(MANY, size.factor // 16 if size.is_known else 0) or not _has_keys(node)
    # An axis with too few elements is known only to a plan for this size: the reference kernel says what is wrong.
    if size.is_known and size.factor >= count:
        run(state, node, visit, _sorted(node) if is_sorted else _selected(node))
        return
    found = (*shape[: selection.axis], Size(count), *shape[selection.axis + 1 :])
    if is_sorted or size.is_known:
        outside(state, node, shape=found)
        return
    is_enough = state.compute([state.size_register(size)], BOOL, lambda n: n >= count)
    or_outside(state, node, is_enough, lambda: run(state, node, visit, _selected(node)), found)


def _has_keys(node: Node) -> bool:
    """Whether there is an integer below those that stand for the elements."""
    dtype = node.operands[0].tensor.dtype
    return dtype_kind(dtype) in "fb" or dtype.itemsize < 8


def _keys(x: Term) -> Term:
    """Signed integers in the same order, in which NaN is the largest; none of them is the least of its dtype."""
    if dtype_kind(x.dtype) != "f":
        return emit("cast", x, dtype=np.dtype(np.int64))
    x = x if x.dtype.itemsize >= 4 else emit("cast", x, dtype=np.dtype(np.float32))
    signed = np.dtype(f"i{x.dtype.itemsize}")
    most = np.iinfo(signed).max
    # There are two zeros, which are equal. Negative numbers are the larger, the less their other bits say.
    bits = emit("cast", emit("float_to_bits", where(x.equals(0), 0, x)), dtype=signed)
    ordered = where(bits < 0, emit("bitwise_xor", bits, most), bits)
    return where(emit("isnan", x), most, ordered)


def _sorted(node: Node) -> Graph:
    builder, (x,) = begin(node)
    selection = attributes.Selection.of(node)
    order = emit("argsort", x, axis=selection.axis, descending=True)
    key = (*[slice(None)] * selection.axis, slice(0, selection.count))
    key = (*key, *[slice(None)] * (x.rank - len(key)))
    return builder.finish([emit("getitem", order, key=key).value])


def _selected(node: Node) -> Graph:
    builder, (x,) = begin(node)
    axis, count, rank = attributes.Axis.of(node).axis, attributes.Selection.of(node).count, x.rank
    last = (*(a for a in range(rank) if a != axis), axis)
    keys = _keys(emit("transpose", x, axes=last))
    least = constant(builder, np.iinfo(keys.dtype).min, keys.dtype)
    *outer, n = keys.dims
    rows: int | Term = 1
    for size in outer:
        rows = rows * size
    # Elements of a block; the last block is filled up.
    width = BLOCK if isinstance(n, Term) else min(n, BLOCK)
    blocks = emit("floor_divide", n + (width - 1), width) if isinstance(n, Term) else -(-n // width)
    filling = broadcast_to(least, [rows, blocks * width - n])
    table = reshape(emit("concat", reshape(keys, [rows, n]), filling, axis=1), [rows, blocks, width])
    largest = emit("max", table, axes=(2,), keepdims=False)
    zero = constant(builder, np.int64(0))
    total = rows * count if isinstance(rows, Term) else constant(builder, np.int64(rows * count))
    found = broadcast_to(zero, [rows, count])

    def condition(least: Term, total: Term, step: Term, table: Term, largest: Term, found: Term) -> Term:
        return step < total

    def body(least: Term, total: Term, step: Term, table: Term, largest: Term, found: Term) -> list[Term]:
        row, number = emit("floor_divide", step, count), emit("remainder", step, count)
        block = _place_of_largest(emit("getitem", largest, row, key=(DYNAMIC, slice(None))))
        place = _place_of_largest(emit("getitem", table, row, block, key=(DYNAMIC, DYNAMIC, slice(None))))
        table = emit("setitem", table, least, row, block, place, key=(DYNAMIC, DYNAMIC, DYNAMIC))
        rest = emit("getitem", table, row, block, key=(DYNAMIC, DYNAMIC, slice(None)))
        most = emit("max", rest, axes=(0,), keepdims=False)
        largest = emit("setitem", largest, most, row, block, key=(DYNAMIC, DYNAMIC))
        found = emit("setitem", found, block * width + place, row, number, key=(DYNAMIC, DYNAMIC))
        return [step + 1, table, largest, found]

    found = loop(node, builder, [least, total], [zero, table, largest, found], condition, body)[-1]
    back = tuple(last.index(a) for a in range(rank))
    return builder.finish([emit("transpose", reshape(found, [*outer, count]), axes=back).value])


def _place_of_largest(row: Term) -> Term:
    return emit("argmax", row, axes=(0,), keepdims=False)
