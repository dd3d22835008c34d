"""What the steps of a body are when it is prepared, beside kernels: views, numbers, products, sums and updates."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ctrlgrad.engines.cuda.expressions import is_fusible
from ctrlgrad.engines.cuda.functions import C_TYPES
from ctrlgrad.engines.cuda.prepared.launches import INT64, binary_text, sum_text
from ctrlgrad.engines.cuda.prepared.model import Affine, CannotPrepare, Converted, Fixed, View
from ctrlgrad.engines.cuda.prepared.reading import Computed, Reading, StackValue
from ctrlgrad.engines.cuda.prepared.views import part, viewed
from ctrlgrad.engines.cuda.products import layout
from ctrlgrad.engines.cuda.program import NodeStep
from ctrlgrad.ir import Node, attributes

# Takes the reading so far and gives the values of the results.
Op = Callable[[Reading, NodeStep], tuple[object, ...]]
# A sum of more elements takes more than one thread.
LONGEST_SUM = 1024
KERNEL_KINDS = "biuf"


# Numbers of the host.


def computed(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    """An op on numbers of the host: one that goes by steps again, or a number that the card computes."""
    operands = [reading.value(slot) for slot in step.operands]
    if all(isinstance(x, Affine) for x in operands) and step.node.op.name in _AFFINE:
        found = _AFFINE[step.node.op.name](step.node, *operands)
        if found is not None:
            return (found,)
    if not is_fusible(step.node) or any(v.tensor.dtype.kind == "c" for v in (*step.node.operands, step.node.result)):
        raise CannotPrepare(f"{step.node.op.name} on the host")
    return (Computed(step.node, tuple(operands)),)


def _product(node: Node, a: Affine, b: Affine) -> Affine | None:
    for x, y in ((a, b), (b, a)):
        if y == Affine(y.constant):
            return x.times(y.constant)
    return None


def _cast(node: Node, number: Affine) -> Affine | Converted | Fixed | None:
    dtype = node.result.tensor.dtype
    if dtype == INT64:
        return number
    if dtype.name not in C_TYPES:
        return None
    return Converted(number, dtype) if number.is_moving else Fixed(dtype, dtype.type(number.constant))


_AFFINE: dict[str, Callable[..., object]] = {
    "add": lambda node, a, b: a.plus(b),
    "subtract": lambda node, a, b: a.plus(b, -1),
    "multiply": _product,
    "negative": lambda node, a: a.times(-1),
    "cast": _cast,
}


def _same(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    return (reading.value(step.operands[0]),)


# Views.


def _viewing(of: Callable[[Node, np.ndarray], np.ndarray]) -> Op:
    def op(reading: Reading, step: NodeStep) -> tuple[object, ...]:
        view = reading.view(step.operands[0])
        if not view.size:
            raise CannotPrepare("an array without elements")
        return (viewed(view, lambda x: of(step.node, x)),)

    return op


def _shape(node: Node) -> tuple[int, ...]:
    shape = attributes.Shape.of(node).shape
    if None in shape:
        raise CannotPrepare(f"a size of {node.op.name} is not known")
    return tuple(d for d in shape if d is not None)


def _reshape(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    view = reading.view(step.operands[0])
    if not view.size:
        raise CannotPrepare("an array without elements")
    if not view.is_contiguous:
        view = reading.launches.copy(view)
    return (viewed(view, lambda x: x.reshape(_shape(step.node))),)


def _getitem(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    indices = [reading.value(slot) for slot in step.operands[1:]]
    found, bounds = part(reading.view(step.operands[0]), _basic_key(step.node), indices)
    reading.bounds += bounds
    # What is about to be overwritten is read first.
    return (reading.launches.copy(found) if reading.is_updated(found) else found,)


def _basic_key(node: Node) -> tuple[object, ...]:
    if any(v.tensor.rank for v in node.operands[2 if node.op.updates else 1 :]):
        raise CannotPrepare("an index is an array")
    return tuple(attributes.Index.of(node).key)


# Launches.


def _update(operator: str | None) -> Op:
    """A part of an array is written, or added to, in place."""

    def op(reading: Reading, step: NodeStep) -> tuple[object, ...]:
        first, value_slot, *rest = step.operands
        key = _basic_key(step.node)
        indices = [reading.value(slot) for slot in rest]
        value = reading.operand(value_slot)
        if (INT64 if isinstance(value, Affine) else value.dtype) != reading.view(first).dtype:
            raise CannotPrepare(f"{step.node.op.name} converts what it writes")
        whole = reading.own(first, step.operands[1:])
        place, bounds = part(whole, key, indices)
        reading.bounds += bounds
        if operator is None:
            reading.launches.copied(value, place)
        else:
            reading.launches.kernel(binary_text(operator, whole.dtype), place.shape, [place, value], [place])
        return (whole,)

    return op


def _summed(reading: Reading, view: View, axes: tuple[int, ...], shape: tuple[int, ...], dtype: np.dtype) -> View:
    """A sum over axes by one thread for each element of the result, in their order."""
    count = math.prod(view.shape[axis] for axis in axes)
    if view.dtype != dtype or dtype.kind not in "iuf":
        raise CannotPrepare(f"a sum of {view.dtype}")
    if not view.size or count > LONGEST_SUM:
        raise CannotPrepare(f"a sum of {count} elements")
    others = [axis for axis in range(len(view.shape)) if axis not in axes]
    turned = viewed(view, lambda x: x.transpose(*others, *axes))
    out = reading.launches.buffer(tuple(view.shape[axis] for axis in others), dtype)
    reading.launches.kernel(sum_text(dtype), turned.shape, [turned], [out], reduced=len(axes))
    return viewed(out, lambda x: x.reshape(shape))


def _sum(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    view, node = reading.view(step.operands[0]), step.node
    axes, keeps = attributes.Axes.of(node).axes, attributes.Reduction.of(node).keepdims
    chosen = tuple(range(len(view.shape))) if axes is None else tuple(axis % len(view.shape) for axis in axes)
    if not chosen:
        return (view,)
    shape = tuple(1 if axis in chosen else size for axis, size in enumerate(view.shape) if keeps or axis not in chosen)
    return (_summed(reading, view, chosen, shape, node.result.tensor.dtype),)


def _sum_to(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    view, shape = reading.view(step.operands[0]), _shape(step.node)
    lead = len(view.shape) - len(shape)
    over = [lead + axis for axis, size in enumerate(shape) if size == 1 and view.shape[lead + axis] != 1]
    axes = (*range(lead), *over)
    return (_summed(reading, view, axes, shape, step.node.result.tensor.dtype) if axes else view,)


def _matrix(reading: Reading, slot: int) -> View:
    """A factor of a product, where its address stays and the library can read it."""
    view = reading.view(slot)
    if len(view.shape) != 2 or view.dtype.name not in ("float32", "float64"):
        raise CannotPrepare(f"a product of {view.dtype} of rank {len(view.shape)}")
    if not view.size:
        raise CannotPrepare("a product without elements")
    found = layout(view.shape, view.strides, view.dtype.itemsize)
    if found is not None and not view.is_moving:
        return view
    # A copy of a transposed matrix is the transposed of a copy: the library reads it as it would have read the matrix.
    is_transposed = found is not None and found[0] == 1
    copied = reading.launches.copy(viewed(view, np.transpose) if is_transposed else view)
    return viewed(copied, np.transpose) if is_transposed else copied


def _matmul(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    a, b = (_matrix(reading, slot) for slot in step.operands)
    out = reading.launches.buffer((a.shape[0], b.shape[1]), a.dtype)
    reading.launches.product(a, b, out, False)
    return (out,)


def product_sum(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    """A product that is added to the first operand, in place where nobody else reads that."""
    total, *factors = step.operands
    a, b = (_matrix(reading, slot) for slot in factors)
    out = reading.own(total, factors)
    reading.launches.product(a, b, out, True)
    return (out,)


def _pop(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    stack = reading.stack(step.operands[0])
    if stack.pushed:
        raise CannotPrepare("a stack is pushed on and popped off")
    element = step.node.results[1].tensor
    if not element.is_static:
        raise CannotPrepare("a size of stack_pop is not known")
    row = reading.row(stack, -1 - stack.popped, tuple(d for d in element.shape if d is not None), element.dtype)
    reading.pops.append(step.node)
    return StackValue(stack.position, 0, stack.popped + 1), row


DEVICE: dict[str, Op] = {
    "transpose": _viewing(lambda node, x: np.transpose(x, attributes.Axes.of(node).axes)),
    "expand_dims": _viewing(lambda node, x: np.expand_dims(x, attributes.Axes.of(node).axes)),
    "squeeze": _viewing(lambda node, x: np.squeeze(x, attributes.Axes.of(node).axes)),
    "flip": _viewing(lambda node, x: np.flip(x, attributes.Axes.of(node).axes)),
    "broadcast_to": _viewing(lambda node, x: np.broadcast_to(x, _shape(node))),
    "reshape": _reshape,
    "getitem": _getitem,
    "setitem": _update(None),
    "additem": _update("+"),
    "sum": _sum,
    "sum_to": _sum_to,
    "matmul": _matmul,
    "stack_pop": _pop,
}
IDENTITIES: dict[str, Op] = dict.fromkeys(("stop_gradient", "barrier", "watch", "forget_sizes"), _same)

__all__ = ["DEVICE", "IDENTITIES", "LONGEST_SUM", "computed", "product_sum"]
