"""Positions of extremes, and sums and products that grow along an axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctrlgrad.dtypes import computed_dtype, dtype_kind, running_dtype
from ctrlgrad.ir import Builder, Closed, Graph, Node, TensorType, Value, attributes
from ctrlgrad.ir.attributes import DYNAMIC
from ctrlgrad.ir.control import emit_loop
from ctrlgrad.plan.expression import ExpressionBuilder, Number, select
from ctrlgrad.plan.lowering.arithmetic import needs_elements, reduced
from ctrlgrad.plan.lowering.state import INDEX, State
from ctrlgrad.plan.lowering.tensors import Tensor, broadcast, expression_of
from ctrlgrad.plan.model import Array, How, Kernel, View, Write
from ctrlgrad.plan.sizes import ONE, ZERO, Sizes, row_major

_GROWS = {"cumsum": "add", "cumprod": "multiply"}


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


def scan(state: State, node: Node, visit: Callable[[Node], None]) -> None:
    """`cumsum` and `cumprod`: a loop that carries what has been added up, and writes it to its place."""
    graph = _as_loop(node)
    (result,) = state.run(graph, {graph.inputs[0]: state.items[node.operands[0]]}, visit)
    state.items[node.result] = result


def _as_dtype(builder: Builder, x: Value, dtype: np.dtype) -> Value:
    return x if x.tensor.dtype == dtype else builder.emit("cast", (x,), {"dtype": dtype})


def _as_loop(node: Node) -> Graph:
    """The scan as a graph of one `while`: what is carried is the iteration, the total so far and the result."""
    x_type = node.operands[0].tensor
    axis = attributes.Axis.of(node).axis
    builder = Builder(name=node.op.name)
    builder.source = node.source
    x = builder.input(x_type)
    size = _size(builder, x, axis)
    zero = builder.constant(np.int64(0))
    carried = running_dtype if node.op.name == "cumsum" else computed_dtype
    row = TensorType(carried(x_type.dtype), (*x_type.shape[:axis], *x_type.shape[axis + 1 :]))
    total = _zeros(builder, x, axis, row)
    types = [x_type, size.tensor, zero.tensor, row, x_type]

    cond = Builder(builder, "cond")
    cond.source = node.source
    inside = [cond.input(t) for t in types]
    cond_region = cond.finish([cond.emit("less", (inside[2], inside[1]))])

    body = Builder(builder, "body")
    body.source = node.source
    x_in, n, i, so_far, result = (body.input(t) for t in types)
    one = body.constant(np.int64(1))
    at = i
    if attributes.Scan.of(node).reverse:
        at = body.emit("subtract", (body.emit("subtract", (n, i)), one))
    key: tuple[Any, ...] = tuple(DYNAMIC if a == axis else slice(None) for a in range(x_type.rank))
    here = _as_dtype(body, body.emit("getitem", (x_in, at), {"key": key}), row.dtype)
    grown = body.emit(_GROWS[node.op.name], (so_far, here))
    # The first total is the first element, to the sign of a zero.
    is_first = body.emit("equal", (i, body.constant(np.int64(0))))
    grown = body.emit("where", (is_first, here, grown))
    written = body.emit("setitem", (result, _as_dtype(body, grown, x_type.dtype), at), {"key": key})
    body_region = body.finish([body.emit("add", (i, one)), grown, written])

    closed = Closed((x, size), (cond_region, body_region))
    results = emit_loop(builder, closed, (zero, total, x), attributes.Loop(name=node.op.name))
    return builder.finish([results[2]])


def _size(builder: Builder, x: Value, axis: int) -> Value:
    known = x.tensor.shape[axis]
    return builder.constant(np.int64(known)) if known is not None else builder.emit("dim", (x,), {"axis": axis})


def _zeros(builder: Builder, x: Value, axis: int, row: TensorType) -> Value:
    """A row of zeros, whose sizes are those of x."""
    zero = builder.constant(np.zeros((), row.dtype))
    if not row.rank:
        return zero
    dims = [builder.emit("dim", (x,), {"axis": a}) for a, d in enumerate(x.tensor.shape) if a != axis and d is None]
    return builder.emit("broadcast_to", (zero, *dims), {"shape": row.shape})
