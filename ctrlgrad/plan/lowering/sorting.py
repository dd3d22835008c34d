"""Orders and positions, written with other ops: `argsort` of few elements, `searchsorted`, and `nonzero`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.ir import Builder, Closed, Graph, Node, Value, attributes
from ctrlgrad.ir.attributes import DYNAMIC
from ctrlgrad.ir.control import emit_loop
from ctrlgrad.ops.term import Term, broadcast_to, constant, emit, reshape, where
from ctrlgrad.plan.expression import BOOL
from ctrlgrad.plan.lowering.outside import or_outside, outside
from ctrlgrad.plan.lowering.state import State

Visit = Callable[[Node], None]

# Elements along an axis up to which comparing each with each is faster than a call of NumPy's sort.
FEW = 128


def argsort(state: State, node: Node, visit: Visit) -> None:
    """An element's place is how many come before it; where those many are k, the element is number k."""
    size = state.shape(node.operands[0])[attributes.Axis.of(node).axis]
    if size.is_known and size.factor > FEW:
        outside(state, node)
        return
    if size.is_known:
        run(state, node, visit, _argsort(node))
        return
    is_few = state.compute([state.size_register(size)], BOOL, lambda n: n <= FEW)
    or_outside(state, node, is_few, lambda: run(state, node, visit, _argsort(node)), state.shape(node.operands[0]))


def searchsorted(state: State, node: Node, visit: Visit) -> None:
    run(state, node, visit, _searchsorted(node))


def nonzero(state: State, node: Node, visit: Visit) -> None:
    run(state, node, visit, _nonzero(node))


def run(state: State, node: Node, visit: Visit, graph: Graph) -> None:
    given = {inner: state.items[outer] for inner, outer in zip(graph.inputs, node.operands, strict=True)}
    (state.items[node.result],) = state.run(graph, given, visit)


def begin(node: Node) -> tuple[Builder, list[Term]]:
    builder = Builder(name=node.op.name)
    builder.source = node.source
    return builder, [Term(builder, builder.input(v.tensor)) for v in node.operands]


def _comparable(x: Term) -> Term:
    return emit("cast", x, dtype=np.dtype(np.uint8)) if dtype_kind(x.dtype) == "b" else x


def _less(a: Term, b: Term) -> Term:
    """In NumPy's order, in which NaN comes last."""
    found = emit("less", a, b)
    if dtype_kind(a.dtype) != "f":
        return found
    is_nan = emit("logical_and", emit("isnan", b), emit("logical_not", emit("isnan", a)))
    return emit("logical_or", found, is_nan)


def _argsort(node: Node) -> Graph:
    builder, (x,) = begin(node)
    axis, rank = attributes.Axis.of(node).axis, x.rank
    last = (*(a for a in range(rank) if a != axis), axis)
    x = emit("transpose", _comparable(x), axes=last)
    mine, other = emit("expand_dims", x, axes=(rank,)), emit("expand_dims", x, axes=(rank - 1,))
    if attributes.Order.of(node).descending:
        precedes, follows = _less(mine, other), _less(other, mine)
    else:
        precedes, follows = _less(other, mine), _less(mine, other)
    n = x.dim(rank - 1)
    rows, columns = _rows_and_columns(builder, n)
    # The plan has memory for this array whether or not its branch runs: it has at most FEW x FEW elements.
    earlier, later = (rows, columns) if not isinstance(n, Term) else _rows_and_columns(builder, emit("minimum", n, FEW))
    is_tied = emit("logical_and", emit("logical_not", follows), emit("less", later, earlier))
    before = emit("cast", emit("logical_or", precedes, is_tied), dtype=np.dtype(np.int64))
    place = emit("sum", before, axes=(rank,), keepdims=False)
    # [..., i, k]: whether element i has place k.
    is_there = emit("equal", emit("expand_dims", place, axes=(rank,)), columns)
    order = emit("sum", where(is_there, rows, constant(builder, np.int64(0))), axes=(rank - 1,), keepdims=False)
    back = tuple(last.index(a) for a in range(rank))
    return builder.finish([emit("transpose", order, axes=back).value])


def _rows_and_columns(builder: Builder, n: int | Term) -> tuple[Term, Term]:
    """The numbers below n as a column and as a row."""
    numbers = emit("iota", n, shape=(None,)) if isinstance(n, Term) else constant(builder, np.arange(n))
    return emit("expand_dims", numbers, axes=(1,)), emit("expand_dims", numbers, axes=(0,))


def _searchsorted(node: Node) -> Graph:
    """The positions of all values at once, by halving: from `length` rows on, the place is searched in that many."""
    builder, (row, values) = begin(node)
    row, values = _comparable(row), _comparable(values)
    n = row.dim(0)
    length = n if isinstance(n, Term) else constant(builder, np.int64(n))
    start = broadcast_to(constant(builder, np.int64(0)), values.dims)

    def condition(row: Term, values: Term, length: Term, found: Term) -> Term:
        return emit("greater", length, 0)

    def body(row: Term, values: Term, length: Term, found: Term) -> list[Term]:
        rest = emit("floor_divide", length, 2)
        half = length - rest
        middle = emit("getitem", row, found + (half - 1), key=(DYNAMIC,))
        is_left = attributes.Search.of(node).side == "left"
        is_before = _less(middle, values) if is_left else emit("logical_not", _less(values, middle))
        return [rest, where(is_before, found + half, found)]

    _, found = loop(node, builder, [row, values], [length, start], condition, body)
    return builder.finish([found.value])


def _nonzero(node: Node) -> Graph:
    """How many there are, and then their positions one after the other."""
    builder, (x,) = begin(node)
    is_hit = x if dtype_kind(x.dtype) == "b" else emit("not_equal", x, constant(builder, np.zeros((), x.dtype)))
    total = x.dim(0)
    for size in x.dims[1:]:
        total = total * size
    hits = reshape(is_hit, [total])
    ones = emit("cast", hits, dtype=np.dtype(np.int64))
    count = emit("sum", ones, axes=(0,), keepdims=False)
    zero = constant(builder, np.int64(0))
    start = broadcast_to(zero, [count])

    def condition(ones: Term, count: Term, i: Term, k: Term, found: Term) -> Term:
        return emit("less", k, count)

    def body(ones: Term, count: Term, i: Term, k: Term, found: Term) -> list[Term]:
        # What is no hit is written over by the next one that is.
        written = emit("setitem", found, i, k, key=(DYNAMIC,))
        return [i + 1, k + emit("getitem", ones, i, key=(DYNAMIC,)), written]

    _, _, flat = loop(node, builder, [ones, count], [zero, zero, start], condition, body)
    columns: list[Term] = []
    for size in reversed(x.dims[1:]):
        size = size if isinstance(size, Term) else constant(builder, np.int64(size))
        columns.insert(0, emit("remainder", flat, size))
        flat = emit("floor_divide", flat, size)
    rows = [emit("expand_dims", column, axes=(0,)) for column in (flat, *columns)]
    return builder.finish([(emit("concat", *rows, axis=0) if len(rows) > 1 else rows[0]).value])


def loop(
    node: Node,
    builder: Builder,
    captured: Sequence[Term],
    carried: Sequence[Term],
    condition: Callable[..., Term],
    body: Callable[..., list[Term]],
) -> list[Term]:
    """A loop; what both functions take are the captured terms and the carried ones."""
    regions: list[Graph] = []
    for name, make in (("cond", condition), ("body", body)):
        inner = Builder(builder, name)
        inner.source = node.source
        found: Any = make(*(Term(inner, inner.input(t.type)) for t in (*captured, *carried)))
        results: list[Value] = [t.value for t in found] if isinstance(found, list) else [found.value]
        regions.append(inner.finish(results))
    closed = Closed(tuple(t.value for t in captured), tuple(regions))
    values = emit_loop(builder, closed, [t.value for t in carried], attributes.Loop(name=node.op.name))
    return [Term(builder, value) for value in values]
