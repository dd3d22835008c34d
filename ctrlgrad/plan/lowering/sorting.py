"""Lowering of sorts, selections and cumulative operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctrlgrad.dtypes import computed_dtype, dtype_kind, running_dtype
from ctrlgrad.ir import Builder, Closed, Graph, Node, Value, attributes
from ctrlgrad.ir.attributes import DYNAMIC
from ctrlgrad.ir.control import emit_loop
from ctrlgrad.ops.term import Term, broadcast_to, constant, emit, reshape, where
from ctrlgrad.plan.expression import BOOL, ExpressionBuilder, Number, select
from ctrlgrad.plan.lowering.arithmetic import needs_elements, reduced
from ctrlgrad.plan.lowering.moving import flipped
from ctrlgrad.plan.lowering.outside import or_outside, outside
from ctrlgrad.plan.lowering.state import INDEX, State, Tensor, broadcast, expression_of
from ctrlgrad.plan.model import Array, Cumulate, How, Kernel, View, Write
from ctrlgrad.plan.sizes import ONE, ZERO, Size, Sizes, product, row_major

# The k largest elements of each row, without sorting it.
#
# A row's elements become integers in the same order, and lie in blocks of 64 beside each block's largest. The largest
# of all is then found by two short looks, through the blocks' largest ones and through one block; it is struck out,
# and its block's largest is looked for again. So n elements take n + k (n / 64 + 64) steps in all.


BLOCK = 64

# Selecting so many, or a sixteenth of the elements, is faster than sorting all.
MANY = 64


def top_k(state: State, node: Node, visit: Visit) -> None:
    selection, shape = attributes.Selection.of(node), state.shape(node.operands[0])
    size, count = shape[selection.axis], selection.count
    dtype = node.operands[0].tensor.dtype
    # Selection needs an integer below the keys of all elements.
    has_keys = dtype_kind(dtype) in "fb" or dtype.itemsize < 8
    is_sorted = count == 0 or count > max(MANY, size.factor // 16 if size.is_known else 0) or not has_keys
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


# Positions of extremes, and cumulative sums and products.


def extreme_index(state: State, node: Node) -> None:
    """`argmax` and `argmin`: the least index at which the extreme lies. A NaN is beyond all numbers, as in NumPy."""
    tensor = state.in_memory(state.tensor(node.operands[0]))
    (axis,) = attributes.Axes.of(node).axes
    needs_elements(state, [tensor.shape[axis]])
    kept = tuple(ONE if a == axis else size for a, size in enumerate(tensor.shape))
    if dtype_kind(tensor.dtype) == "b":
        _first(state, node, tensor, axis, kept)
        return
    if all(size == ONE for size in tensor.shape[axis + 1 :]):
        _position(state, node, tensor, axis, kept)
        return
    extreme = reduced(state, node, tensor, kept, kept, "max" if node.op.name == "argmax" else "min")

    def make(builder: ExpressionBuilder, x: tuple[Number, ...], extreme: tuple[Number, ...]) -> Sequence[Number]:
        hit = x[0].equals(extreme[0])
        if dtype_kind(x[0].dtype) == "f":
            hit = hit | x[0].differs(x[0])
        return [select(hit, builder.emit("index", (), INDEX, axis), np.iinfo(INDEX).max)]

    array = _least(state, node, [tensor, broadcast(extreme.view, tensor.shape)], axis, kept, make)
    state.items[node.result] = array.view if array.shape else state.load(array.view)


def _position(state: State, node: Node, tensor: Tensor, axis: int, kept: Sizes) -> None:
    """Along the innermost axis the extreme and its position are found in one pass."""
    how: How = "argmax" if node.op.name == "argmax" else "argmin"

    def make(builder: ExpressionBuilder, x: tuple[Number, ...]) -> Sequence[Number]:
        dtype = computed_dtype(x[0].dtype)
        number = x[0] if dtype == x[0].dtype else x[0].convert(dtype)
        return [number, builder.emit("index", (), INDEX, axis)]

    array = _least(state, node, [tensor], axis, kept, make, how)
    state.items[node.result] = array.view if array.shape else state.load(array.view)


def _least(
    state: State,
    node: Node,
    tensors: Sequence[Tensor],
    axis: int,
    kept: Sizes,
    make: Callable[..., Sequence[Number]],
    how: How = "min",
) -> Array:
    """The least of numbers along an axis, or of an extreme's positions."""
    expression, operands, numbers = expression_of(tensors, make)
    space = tensors[0].shape
    array = state.array(
        INDEX, kept if attributes.Reduction.of(node).keepdims else tuple(s for a, s in enumerate(kept) if a != axis)
    )
    # Behind an axis of a row's elements all sizes are 1: a row stands still along these axes too, whose index another
    # formula of the kernel may have.
    stands_still = [a == axis or (a > axis and size == ONE) for a, size in enumerate(kept)]
    strides = tuple(ZERO if still else stride for still, stride in zip(stands_still, row_major(kept), strict=True))
    write = Write(View(array, (), space, strides), tuple(range(len(expression.outputs))), how)
    state.emit(Kernel(space, operands, numbers, expression, (write,), nodes=(node,)))
    return array


def _first(state: State, node: Node, tensor: View, axis: int, kept: Sizes) -> None:
    """Of bools: where the first true one is (`argmin`: false one), found in one pass; 0 where there is none."""
    none = np.iinfo(INDEX).max

    def make(builder: ExpressionBuilder, x: tuple[Number, ...]) -> Sequence[Number]:
        hit = x[0] if node.op.name == "argmax" else ~x[0]
        return [select(hit, builder.emit("index", (), INDEX, axis), none)]

    array = _least(state, node, [tensor], axis, kept, make)
    if not array.shape:
        state.items[node.result] = (
            state.compute([*state.load(array.view)], INDEX, lambda x: select(x.equals(none), 0, x)),
        )
        return
    expression, operands, numbers = expression_of([array.view], lambda builder, x: [select(x[0].equals(none), 0, x[0])])
    found = state.array(INDEX, array.shape)
    state.emit(Kernel(array.shape, operands, numbers, expression, (Write(found.view, (0,)),), nodes=(node,)))
    state.items[node.result] = found.view


def cumulate(state: State, node: Node, visit: Visit) -> None:
    """`cumsum` and `cumprod`, of elements as they lie: axes in the order of memory, a flipped axis backwards."""
    axis, view = attributes.Axis.of(node).axis, state.view(node.operands[0])
    is_flipped = view.strides[axis].factor < 0
    view = flipped(view, axis) if is_flipped else view
    order = [*range(len(view.shape))]
    if all(stride.is_known for stride in view.strides):
        order.sort(key=lambda a: -view.strides[a].factor)
    shape = tuple(view.shape[a] for a in order)
    dense = state.dense_view(View(view.array, view.offset, shape, tuple(view.strides[a] for a in order)))
    place = order.index(axis)
    folded = (product(shape[:place]), shape[place], product(shape[place + 1 :]))
    is_sum, reverse = node.op.name == "cumsum", attributes.Scan.of(node).reverse != is_flipped
    total = (running_dtype if is_sum else computed_dtype)(view.dtype)
    array = state.array(view.dtype, shape)
    operand = View(dense.array, dense.offset, folded, row_major(folded))
    state.emit(Cumulate("sum" if is_sum else "product", array, operand, total, reverse))
    strides = tuple(array.view.strides[order.index(a)] for a in range(len(order)))
    found = View(array, (), view.shape, strides)
    state.items[node.result] = flipped(found, axis) if is_flipped else found


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
    """Number of elements that are not zero, then their positions, one array per axis."""
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
        # A position that is no hit is overwritten by the next one.
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
