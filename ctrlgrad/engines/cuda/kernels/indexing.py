"""Indexed reads and updates.

An index that is on the host is checked there, and is the reference engine's error. One that is on the device is checked
on the device, by the kernels that go by it (`ctrlgrad.engines.cuda.indexing`): the read or update goes on with another
element, and the error is raised at the next place where the host waits for the device anyway (a loop's predicate, the
end of the run). It names the index, the line, and the iterations (`ctrlgrad.engines.cuda.sites`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.arguments import Access
from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.indexing.keys import Chosen, chosen
from ctrlgrad.engines.cuda.indexing.stages import Surroundings, gather, scatter
from ctrlgrad.engines.cuda.kernel import KernelText
from ctrlgrad.engines.cuda.kernels.elementwise import add_to
from ctrlgrad.engines.cuda.kernels.table import DEVICE, Factory, Kernel
from ctrlgrad.engines.cuda.program import scalar
from ctrlgrad.engines.cuda.stacks import own_array
from ctrlgrad.engines.cuda.texts import binary_text
from ctrlgrad.engines.reference.interpreter import explained
from ctrlgrad.ir import Node, TensorType, attributes
from ctrlgrad.ir.attributes import DYNAMIC
from ctrlgrad.ops.arrays import fill

_ARRAY = Access(())


def _filled(context: Context, node: Node, x: Any, operands: Sequence[Any]) -> tuple[Any, ...]:
    """The key for the library: bounds of slices and scalar indices as numbers, arrays on the device, all checked."""
    rest = iter(operands)

    def part(item: Any) -> Any:
        return context.number(next(rest)) if item is DYNAMIC else item

    key: list[Any] = []
    for item in attributes.Index.of(node).key:
        if isinstance(item, slice):
            key.append(slice(part(item.start), part(item.stop), part(item.step)))
        elif item is DYNAMIC:
            index = next(rest)
            key.append(index if context.library.is_array(index) else int(index))
        else:
            key.append(item)
    axis = 0
    for item in key:
        if isinstance(item, int) and not -x.shape[axis] <= item < x.shape[axis]:
            raise IndexError(f"index {item} is out of bounds for axis {axis} with size {x.shape[axis]}")
        axis += item is not None
    return tuple(key)


def _has_index(context: Context, key: Sequence[Any]) -> bool:
    """Return true if an index is on the device."""
    return any(context.library.is_array(item) for item in key)


def _chosen(context: Context, x: Any, key: Sequence[Any]) -> Chosen:
    return chosen(x.ndim, key, context.library.is_array, lambda basic: x[(*basic, ...)])


def _launch(context: Context, node: Node, its: Chosen, launches: Callable[[Surroundings], Iterator[Any]]) -> None:
    """Put a read or an update on the stream; nothing where there is no index."""
    if 0 in its.index_shape:
        return
    around = Surroundings(lambda _: _ARRAY, context.library.empty, context.index_flag(), context.site(node))
    for launch in launches(around):
        context.launch(launch)


def is_view(node: Node) -> bool:
    """Return true if a read by this key may be a view: no index array takes part. A read by a scalar on the device is
    a copy."""
    return not any(isinstance(v.type, TensorType) and v.tensor.rank for v in node.operands[1:])


def _getitem(node: Node) -> Kernel:
    def kernel(context: Context, operands: list[Any]) -> Any:
        x = context.on_device(operands[0])
        try:
            key = _filled(context, node, x, operands[1:])
        except IndexError as error:
            if context.speculation is None:
                raise
            found = explained(error, node)
            assert isinstance(found, Exception)
            context.speculation.fail(found)
            return _blank(context, node, x, operands[1:])
        if not _has_index(context, key):
            return x[key]
        its = _chosen(context, x, key)
        found = context.library.empty(its.shape, x.dtype)
        _launch(context, node, its, lambda around: gather(its, found, around))
        return found

    return kernel


def _blank(context: Context, node: Node, x: Any, indices: Sequence[Any]) -> Any:
    """Zeros in place of a read that would fail, in an iteration that may lie past its loop's end."""
    roomy = np.broadcast_to(np.zeros((), bool), tuple(max(size, 1) for size in x.shape))
    first = fill(attributes.Index.of(node).key, [0] * len(indices))
    shape = roomy[tuple(0 if isinstance(item, int) else item for item in first)].shape
    context.counts.calls += 1
    return context.xp.zeros(shape, x.dtype)


def _updating(write: Callable[[Context, Node, Any, Any, Any], None]) -> Factory:
    """An op that writes to a part of its first operand: `write(context, node, x, key, value)`."""

    def factory(node: Node) -> Kernel:
        def kernel(context: Context, operands: list[Any]) -> Any:
            x = _owned(context, operands)
            value, *indices = operands
            try:
                write(context, node, x, _filled(context, node, x, indices), value)
            except ValueError:
                # The error is about all operands.
                operands.insert(0, x)
                raise
            return x

        return kernel

    return factory


def _set(context: Context, node: Node, x: Any, key: Any, value: Any) -> None:
    if _has_index(context, key):
        _scatter(context, node, x, key, value, None)
    else:
        context.counts.calls += 1
        x[key] = _scalar_or_array(context, value)


def _add(context: Context, node: Node, x: Any, key: Any, value: Any) -> None:
    if _has_index(context, key):
        _scatter(context, node, x, key, value, binary_text("add", node.result.tensor.dtype))
        return
    # With an ellipsis, the element of a scalar index is a view too.
    row = x[(*key, ...)]
    _require_fit(row.shape, value)
    add_to(context, row, scalar(_scalar_or_array(context, value).astype(x.dtype, copy=False)))


def _scatter(context: Context, node: Node, x: Any, key: Sequence[Any], value: Any, text: KernelText | None) -> None:
    its, value = _chosen(context, x, key), context.on_device(value)
    _require_fit(its.shape, value)
    _launch(context, node, its, lambda around: scatter(its, value, text, around))


def _require_fit(shape: Sequence[int], value: Any) -> None:
    """A value must broadcast to the part that it is written to: no kernel looks."""
    if np.broadcast_shapes(tuple(shape), np.shape(value)) != tuple(shape):
        raise ValueError(f"a value of shape {np.shape(value)} for a part of shape {tuple(shape)}")


def _owned(context: Context, operands: list[Any]) -> Any:
    """Take the first operand off as an array on the device that may be overwritten."""
    if not context.library.is_array(operands[0]):
        operands[0] = context.on_device(operands[0])
    x, copied = own_array(operands, context.library)
    context.counts.calls += copied
    return x


def _scalar_or_array(context: Context, value: Any) -> Any:
    return value if isinstance(value, np.generic) else context.on_device(value)


DEVICE["getitem"] = _getitem
DEVICE["setitem"] = _updating(_set)
DEVICE["additem"] = _updating(_add)
