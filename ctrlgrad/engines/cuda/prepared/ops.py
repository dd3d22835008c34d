"""Preparation of a body's steps other than groups: views, numbers, products, updates and the like."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from ctrlgrad.engines.cuda.expressions import is_fusible
from ctrlgrad.engines.cuda.functions import C_TYPES
from ctrlgrad.engines.cuda.indexing.keys import Chosen, chosen
from ctrlgrad.engines.cuda.prepared.indices import index_in
from ctrlgrad.engines.cuda.prepared.model import CannotPrepare
from ctrlgrad.engines.cuda.prepared.operands import INT64, Affine, Converted, Fixed, View, wrapped
from ctrlgrad.engines.cuda.prepared.products import matmul
from ctrlgrad.engines.cuda.prepared.reading import Computed, Reading
from ctrlgrad.engines.cuda.prepared.rows import STACKS
from ctrlgrad.engines.cuda.prepared.steps import stepped
from ctrlgrad.engines.cuda.prepared.views import known_shape, part, viewed
from ctrlgrad.engines.cuda.program import NodeStep
from ctrlgrad.engines.cuda.reductions.ops import REDUCTIONS, SCANS, node_text, reduced_shape, summed_axes
from ctrlgrad.engines.cuda.texts import binary_text
from ctrlgrad.ir import Node, attributes
from ctrlgrad.ir.attributes import DYNAMIC

# Takes the reading so far and gives the values of the results.
Op = Callable[[Reading, NodeStep], tuple[object, ...]]


# Numbers of the host.


def computed(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    """An op on numbers of the host: one that goes by steps again, or a number that the card computes."""
    operands = [reading.value(slot) for slot in step.operands]
    found = stepped(step.node, operands) or _converted(step.node, operands)
    if found is not None:
        return (found,)
    if not is_fusible(step.node):
        raise CannotPrepare(f"{step.node.op.name} on the host")
    return (Computed(step.node, tuple(operands)),)


def _converted(node: Node, operands: Sequence[object]) -> Converted | Fixed | None:
    """One that goes by steps, in another dtype."""
    if node.op.name != "cast" or not isinstance(operands[0], Affine):
        return None
    number, dtype = operands[0], node.result.tensor.dtype
    if dtype.name not in C_TYPES:
        return None
    return (
        Converted(number, dtype) if number.is_moving else Fixed(dtype, np.int64(wrapped(number.constant)).astype(dtype))
    )


def _same(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    return (reading.value(step.operands[0]),)


def _ensure_sizes(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    shape = reading.view(step.operands[0]).shape
    if tuple(shape[a] for a in attributes.Required.of(step.node).axes) != known_shape(step.node):
        raise CannotPrepare("sizes that are refused")
    return _same(reading, step)


# Views.


def _viewing(of: Callable[[Node, np.ndarray], np.ndarray]) -> Op:
    def op(reading: Reading, step: NodeStep) -> tuple[object, ...]:
        view = reading.view(step.operands[0])
        if not view.size:
            raise CannotPrepare("an array without elements")
        return (viewed(view, lambda x: of(step.node, x)),)

    return op


def _flipped(node: Node, x: np.ndarray) -> np.ndarray:
    axes = attributes.Axes.of(node).axes
    # Of an array of rank 0 NumPy's is a number, which lies elsewhere.
    return np.flip(x, axes) if axes else x


def _reshape(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    view = reading.view(step.operands[0])
    if not view.size:
        raise CannotPrepare("an array without elements")
    return (reading.launches.reshaped(view, known_shape(step.node)),)


def _getitem(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    indices = [index_in(reading, slot) for slot in step.operands[1:]]
    if any(isinstance(index, View) for index in indices):
        return (_gathered(reading, step.node, reading.view(step.operands[0]), indices),)
    found = _part(reading, step.node, reading.view(step.operands[0]), indices)
    # The view is about to be overwritten, so it is copied first.
    return (reading.launches.copy(found) if reading.is_updated(found) else found,)


def _part(reading: Reading, node: Node, x: View, indices: Sequence[Affine | View]) -> View:
    """Part of an array that a key selects, where all indices go by steps."""
    steps = [index for index in indices if isinstance(index, Affine)]
    found, bounds = part(x, attributes.Index.of(node).key, steps)
    reading.bounds += bounds
    return found


def _gathered(reading: Reading, node: Node, x: View, indices: Sequence[object]) -> View:
    """Gather by a key with indices from the card."""
    its = _chosen(reading, node, x, indices)
    if not its.has_elements:
        raise CannotPrepare("an array without elements")
    return reading.launches.gather(its, node)


def _chosen(reading: Reading, node: Node, x: View, indices: Sequence[object]) -> Chosen:
    key = attributes.Index.of(node).key
    if any(isinstance(item, slice) and DYNAMIC in (item.start, item.stop, item.step) for item in key):
        raise CannotPrepare("a slice's bounds are values")

    def whole(key: tuple[object, ...]) -> View:
        is_static = [item is None or isinstance(item, slice | int) for item in key]
        basic = [item if known else DYNAMIC for item, known in zip(key, is_static, strict=True)]
        found, bounds = part(x, basic, [item for item in key if isinstance(item, Affine)])
        reading.bounds += bounds
        return found

    rest = iter(indices)
    named = [next(rest) if item is DYNAMIC else item for item in key]
    return chosen(len(x.shape), named, lambda item: isinstance(item, View), whole)


# Launches.


def _update(name: str | None) -> Op:
    """A part of an array is written, or added to, in place."""

    def op(reading: Reading, step: NodeStep) -> tuple[object, ...]:
        first, value_slot, *rest = step.operands
        indices = [index_in(reading, slot) for slot in rest]
        value = reading.operand(value_slot)
        if (INT64 if isinstance(value, Affine) else value.dtype) != reading.view(first).dtype:
            raise CannotPrepare(f"{step.node.op.name} converts what it writes")
        whole = reading.own(first, step.operands[1:])
        if any(isinstance(index, View) for index in indices):
            its = _chosen(reading, step.node, whole, indices)
            if not its.has_elements:
                raise CannotPrepare("an array without elements")
            text = None if name is None else binary_text(name, whole.dtype)
            reading.launches.scatter(its, reading.view(value_slot), text, step.node)
            return (whole,)
        place = _part(reading, step.node, whole, indices)
        if name is None:
            reading.launches.copied(value, place)
        else:
            reading.launches.kernel(binary_text(name, whole.dtype), place.shape, [place, value], [place])
        return (whole,)

    return op


def _reduction(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    """Reduction that is not fused."""
    view, node = reading.view(step.operands[0]), step.node
    if node.op.name == "sum_to":
        shape = known_shape(node)
        axes = summed_axes(view.shape, shape)
    else:
        axes, shape = attributes.Axes.of(node).axes, reduced_shape(node, view.shape)
    if not axes:
        return (view,)
    if not view.size:
        raise CannotPrepare("an array without elements")
    out = reading.launches.buffer(shape, node.result.tensor.dtype)
    reading.launches.reduction(node_text(node), view.shape, axes, [view], [], [out])
    return (out,)


def _scan(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    view, node = reading.view(step.operands[0]), step.node
    axis, backwards = attributes.Axis.of(node).axis, attributes.Scan.of(node).reverse
    if not view.size:
        raise CannotPrepare("an array without elements")
    out = reading.launches.buffer(view.shape, view.dtype)
    seen = [viewed(x, lambda a: np.flip(a, axis)) if backwards else x for x in (view, out)]
    reading.launches.scan(node_text(node), axis, *seen)
    return (out,)


def _concat(reading: Reading, step: NodeStep) -> tuple[object, ...]:
    """One array written part by part."""
    parts = [reading.view(slot) for slot in step.operands]
    axis = attributes.Axis.of(step.node).axis
    sizes = [view.shape[axis] for view in parts]
    first = parts[0].shape
    whole = reading.launches.buffer((*first[:axis], sum(sizes), *first[axis + 1 :]), parts[0].dtype)
    if not whole.size:
        raise CannotPrepare("an array without elements")
    for view, end in zip(parts, itertools.accumulate(sizes), strict=True):
        key = (*(slice(None),) * axis, slice(end - view.shape[axis], end))
        reading.launches.copied(view, part(whole, key, ())[0])
    return (whole,)


DEVICE: dict[str, Op] = {
    "transpose": _viewing(lambda node, x: np.transpose(x, attributes.Axes.of(node).axes)),
    "expand_dims": _viewing(lambda node, x: np.expand_dims(x, attributes.Axes.of(node).axes)),
    "squeeze": _viewing(lambda node, x: np.squeeze(x, attributes.Axes.of(node).axes)),
    "flip": _viewing(_flipped),
    "broadcast_to": _viewing(lambda node, x: np.broadcast_to(x, known_shape(node))),
    "reshape": _reshape,
    "getitem": _getitem,
    "setitem": _update(None),
    "additem": _update("add"),
    **dict.fromkeys((*REDUCTIONS, "sum_to"), _reduction),
    **dict.fromkeys(SCANS, _scan),
    "concat": _concat,
    "matmul": matmul,
    **STACKS,
}
IDENTITIES: dict[str, Op] = dict.fromkeys(("stop_gradient", "barrier", "watch", "forget_sizes"), _same)
IDENTITIES["ensure_sizes"] = _ensure_sizes
