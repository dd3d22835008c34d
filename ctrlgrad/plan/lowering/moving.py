"""Ops that move elements: most become views; what must lie elsewhere is written by a kernel."""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.ir import Node, attributes
from ctrlgrad.plan.expression import ExpressionBuilder
from ctrlgrad.plan.lowering.broadcasting import reach, spread
from ctrlgrad.plan.lowering.state import INDEX, Cut, Splat, State, Tensor
from ctrlgrad.plan.model import Array, Kernel, View, Write
from ctrlgrad.plan.sizes import ONE, ZERO, Size, Sizes, product, row_major


def template(state: State, node: Node, first: int = 1) -> Sizes:
    """The shape that a node's template and its operands for unknown dimensions give."""
    dims = iter(node.operands[first:])
    return tuple(
        state.size_of(state.index(next(dims))) if d is None else Size(d) for d in attributes.Shape.of(node).shape
    )


def constant(state: State, node: Node) -> None:
    state.items[node.result] = state.constant(attributes.Constant.of(node).value)


def identity(state: State, node: Node) -> None:
    state.items[node.result] = state.items[node.operands[0]]


def ensure_sizes(state: State, node: Node) -> None:
    shape = state.shape(node.operands[0])
    for axis, size in zip(attributes.Required.of(node).axes, template(state, node), strict=True):
        state.guard_equal(shape[axis], size)
    identity(state, node)


def dim(state: State, node: Node) -> None:
    state.items[node.result] = (state.size_register(state.shape(node.operands[0])[attributes.Axis.of(node).axis]),)


def iota(state: State, node: Node) -> None:
    shape = template(state, node, 0)
    builder = ExpressionBuilder()
    array = state.array(INDEX, shape)
    expression = builder.finish(builder.emit("index", (), INDEX, 0))
    state.emit(Kernel(shape, (), (), expression, (Write(array.view, (0,)),), nodes=(node,)))
    state.items[node.result] = array.view


def _put(state: State, node: Node, tensor: Tensor) -> None:
    """The result of a view; of rank 0 it is a number."""
    if node.result.tensor.rank:
        state.items[node.result] = tensor
    else:
        state.items[node.result] = tensor.numbers if isinstance(tensor, Splat) else state.load(tensor)


def reshape(state: State, node: Node) -> None:
    tensor, shape = state.tensor(node.operands[0]), template(state, node)
    state.guard_equal(product(tensor.shape), product(shape))
    if isinstance(tensor, Splat):
        _put(state, node, Splat(tensor.numbers, shape, tensor.dtype))
        return
    view = state.dense_view(tensor)
    _put(state, node, View(view.array, view.offset, shape, row_major(shape)))


def broadcast_to(state: State, node: Node) -> None:
    tensor, shape = state.tensor(node.operands[0]), template(state, node)
    lead = len(shape) - len(tensor.shape)
    for size, target in zip(tensor.shape, shape[lead:], strict=True):
        reach(state, size, target)
    _put(state, node, spread(state, tensor, shape))


def _rearranged(state: State, node: Node, axes: Sequence[int | None]) -> None:
    """A view whose axes are these of the operand; None is a new one of size 1."""
    tensor = state.tensor(node.operands[0])
    shape = tuple(ONE if a is None else tensor.shape[a] for a in axes)
    if isinstance(tensor, Splat):
        _put(state, node, Splat(tensor.numbers, shape, tensor.dtype))
        return
    strides = tuple(ZERO if a is None else tensor.strides[a] for a in axes)
    _put(state, node, View(tensor.array, tensor.offset, shape, strides))


def transpose(state: State, node: Node) -> None:
    _rearranged(state, node, attributes.Axes.of(node).axes)


def expand_dims(state: State, node: Node) -> None:
    rank = node.result.tensor.rank
    old = iter(range(rank))
    _rearranged(state, node, [None if axis in attributes.Axes.of(node).axes else next(old) for axis in range(rank)])


def squeeze(state: State, node: Node) -> None:
    shape = state.shape(node.operands[0])
    for axis in attributes.Axes.of(node).axes:
        state.guard_equal(shape[axis], ONE)
    _rearranged(state, node, [axis for axis in range(len(shape)) if axis not in attributes.Axes.of(node).axes])


def flip(state: State, node: Node) -> None:
    tensor = state.tensor(node.operands[0])
    if not isinstance(tensor, Splat):
        for axis in attributes.Axes.of(node).axes:
            tensor = flipped(tensor, axis)
    _put(state, node, tensor)


def flipped(view: View, axis: int) -> View:
    """An axis backwards."""
    stride = view.strides[axis]
    back = Size(-1) * stride
    # The last element comes first: (size - 1) * stride further on.
    offset = (*view.offset, view.shape[axis] * stride, back)
    strides = (*view.strides[:axis], back, *view.strides[axis + 1 :])
    return View(view.array, offset, view.shape, strides)


def concat(state: State, node: Node) -> None:
    """Each part is written to its place; what makes a part may write it there at once."""
    axis = attributes.Axis.of(node).axis
    tensors = [state.tensor(v) for v in node.operands]
    total = _sum_of(state, [t.shape[axis] for t in tensors])
    shape = tuple(
        total if a == axis else next((t.shape[a] for t in tensors if t.shape[a].is_known), tensors[0].shape[a])
        for a in range(len(tensors[0].shape))
    )
    strides = row_major(shape)
    whole: Array | None = None
    start: tuple[Size, ...] = ()
    for tensor in tensors:
        for a, size in enumerate(tensor.shape):
            if a != axis:
                state.guard_equal(size, shape[a])
        part = tuple(size if a == axis else shape[a] for a, size in enumerate(tensor.shape))
        following = state.array(node.result.tensor.dtype, shape)
        state.write(View(following, start, part, strides), tensor, base=whole)
        whole = following
        start = (*start, tensor.shape[axis] * strides[axis])
    assert whole is not None
    state.items[node.result] = whole.view


def _sum_of(state: State, sizes: Sequence[Size]) -> Size:
    if all(s.is_known for s in sizes):
        return Size(sum(s.factor for s in sizes))
    distinct = list(dict.fromkeys(s.names for s in sizes if s.factor))
    if len(distinct) == 1:
        return Size(sum(s.factor for s in sizes), distinct[0])
    if len(sizes) == 2 and (whole := joined(state, *sizes)) is not None:
        return whole
    registers = [state.size_register(s) for s in sizes]
    register = state.compute(registers, INDEX, lambda *ns: sum(ns[1:], start=ns[0]))
    return state.size_of(register)


def cut(state: State, part: Cut) -> Size:
    """A part of a size; equal parts of an argument's size are one size."""
    known = part.known or state.cuts.get(part)
    if known is not None:
        return known
    if state.scope_of(part.size):
        return state.size_of(state.compute([state.size_register(part.size)], INDEX, part.of))
    with state.at_the_top():
        found = state.cuts[part] = state.size_of(state.compute([state.size_register(part.size)], INDEX, part.of))
    state.cut_of[found] = part
    return found


def joined(state: State, a: Size, b: Size) -> Size | None:
    """The size whose two parts these are."""
    first, second = state.cut_of.get(a), state.cut_of.get(b)
    return first.size if first is not None and second is not None and first.joins(second) else None
