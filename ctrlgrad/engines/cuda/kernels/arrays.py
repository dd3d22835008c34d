"""Products, reductions, scans, orders, and ops that move elements."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from ctrlgrad.dtypes import BFLOAT16, computed_dtype, dtype_kind
from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.kernels.elementwise import converted
from ctrlgrad.engines.cuda.kernels.table import DEVICE, Factory, Kernel, call, filled_shape
from ctrlgrad.engines.cuda.reductions.model import ReductionText
from ctrlgrad.engines.cuda.reductions.ops import (
    REDUCTIONS,
    SCANS,
    check_elements,
    node_text,
    reduced_shape,
    summed_axes,
)
from ctrlgrad.engines.cuda.reductions.running import compute, cumulate, reduce
from ctrlgrad.engines.cuda.stacks import own_array
from ctrlgrad.engines.cuda.texts import copy_text
from ctrlgrad.engines.reference.array_kernels import require_sizes
from ctrlgrad.ir import Node, attributes


def _matmul(node: Node) -> Kernel:
    def kernel(context: Context, operands: list[Any]) -> Any:
        a, b = map(context.on_device, operands)
        context.counts.products += 1
        return context.library.matmul(a, b, context.precision)

    return kernel


def add_product(context: Context, operands: list[Any]) -> Any:
    """A product added to the first operand, in place where nothing else holds that."""
    operands[0] = context.on_device(operands[0])
    total, copied = own_array(operands, context.library)
    context.counts.calls += copied
    context.counts.products += 1
    a, b = map(context.on_device, operands)
    context.library.add_product(total, a, b, context.precision)
    return total


def _sortable(context: Context, x: Any) -> Any:
    """An array that the library sorts: it cannot sort bfloat16."""
    return converted(context, x, computed_dtype(x.dtype)) if x.dtype == BFLOAT16 else x


def _comparable(context: Context, x: Any) -> Any:
    """An array whose elements the library tells apart: subnormal numbers are zero for it, but for those of float64."""
    return converted(context, x, np.dtype(np.float64)) if dtype_kind(x.dtype) == "f" else x


def _reduction(node: Node) -> Kernel:
    """Kernel of a reduction that is not fused."""
    axes, text = attributes.Axes.of(node).axes, node_text(node)

    def kernel(context: Context, operands: list[Any]) -> Any:
        x = context.on_device(operands[0])
        check_elements(node, x.shape, axes)
        return _reduced(context, text, x, axes, reduced_shape(node, x.shape)) if axes else x

    return kernel


def _reduced(context: Context, text: ReductionText, x: Any, axes: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    (written,) = text.results
    result = context.library.empty(shape, np.dtype(written.dtype))
    reduce(context, text, tuple(x.shape), axes, [x], [], [result])
    return result


def _scan(node: Node) -> Kernel:
    axis, backwards, text = attributes.Axis.of(node).axis, attributes.Scan.of(node).reverse, node_text(node)

    def kernel(context: Context, operands: list[Any]) -> Any:
        x = context.on_device(operands[0])
        result = context.library.empty(tuple(x.shape), x.dtype)
        seen = [context.xp.flip(a, axis) if backwards else a for a in (x, result)]
        cumulate(context, text, axis, *seen)
        return result

    return kernel


def _sum_to(node: Node) -> Kernel:
    text = node_text(node)

    def kernel(context: Context, operands: list[Any]) -> Any:
        x, *dims = operands
        shape = filled_shape(context, attributes.Shape.of(node).shape, dims)
        x = context.on_device(x)
        axes = summed_axes(x.shape, shape)
        return _reduced(context, text, x, axes, shape) if axes else x

    return kernel


def _concat(node: Node) -> Kernel:
    """Parts that are written one by one: those of one shape are outputs of the kernels that make them."""
    axis, dtype = attributes.Axis.of(node).axis, node.result.tensor.dtype
    text = copy_text(dtype, dtype)

    def kernel(context: Context, operands: list[Any]) -> Any:
        parts = [context.on_device(x) for x in operands]
        first, ends = parts[0].shape, list(itertools.accumulate(x.shape[axis] for x in parts))
        whole = context.library.empty((*first[:axis], ends[-1], *first[axis + 1 :]), dtype)
        for part, end in zip(parts, ends, strict=True):
            if (*part.shape[:axis], *part.shape[axis + 1 :]) != (*first[:axis], *first[axis + 1 :]):
                raise ValueError(f"a part of shape {part.shape} beside one of shape {first}")
            place = whole[(*(slice(None),) * axis, slice(end - part.shape[axis], end))]
            compute(context, text, tuple(part.shape), [part], [place])
        return whole

    return kernel


def _iota(node: Node) -> Kernel:
    shape = attributes.Shape.of(node).shape
    return call(lambda context, dims: context.xp.arange(filled_shape(context, shape, dims)[0], dtype=np.int64))


def _shaped(name: str) -> Factory:
    """An op that gives its operand another shape, without touching data where the library can."""

    def factory(node: Node) -> Kernel:
        def kernel(context: Context, operands: list[Any]) -> Any:
            x, *dims = operands
            shape = filled_shape(context, attributes.Shape.of(node).shape, dims)
            return getattr(context.xp, name)(context.on_device(x), shape)

        return kernel

    return factory


def _view(name: str, attribute: str) -> Factory:
    def factory(node: Node) -> Kernel:
        given = getattr(node.attrs, attribute)
        return lambda context, operands: getattr(context.xp, name)(context.on_device(operands[0]), given)

    return factory


def _same(node: Node) -> Kernel:
    return lambda context, operands: operands[0]


def _ensure_sizes(node: Node) -> Kernel:
    def kernel(context: Context, operands: list[Any]) -> Any:
        x, *dims = operands
        require_sizes(node, np.shape(x), filled_shape(context, attributes.Required.of(node).shape, dims))
        return x

    return kernel


def _argsort(node: Node) -> Kernel:
    axis, descending = attributes.Axis.of(node).axis, attributes.Order.of(node).descending

    def kernel(context: Context, operands: list[Any]) -> Any:
        x = _sortable(context, context.on_device(operands[0]))
        return _descending(context, x, axis) if descending else context.xp.argsort(x, axis=axis, kind="stable")

    return call(kernel)


def _descending(context: Context, x: Any, axis: int) -> Any:
    """The ascending order of the flipped elements, flipped: equal elements keep their order."""
    xp = context.xp
    return x.shape[axis] - 1 - xp.flip(xp.argsort(xp.flip(x, axis), axis=axis, kind="stable"), axis)


def _top_k(node: Node) -> Kernel:
    axis, count = attributes.Axis.of(node).axis, attributes.Selection.of(node).count
    first = (*[slice(None)] * axis, slice(0, count))

    def kernel(context: Context, operands: list[Any]) -> Any:
        x = _sortable(context, context.on_device(operands[0]))
        if x.shape[axis] < count:
            raise ValueError("fewer elements than are selected")
        return _descending(context, x, axis)[first]

    return call(kernel)


def _searchsorted(node: Node) -> Kernel:
    side = attributes.Search.of(node).side

    def kernel(context: Context, operands: list[Any]) -> Any:
        return context.xp.searchsorted(*(_comparable(context, context.on_device(x)) for x in operands), side=side)

    return call(kernel)


def _nonzero(node: Node) -> Kernel:
    # The library waits for the device here: the size of the result depends on data.
    def kernel(context: Context, operands: list[Any]) -> Any:
        context.counts.reads += 1
        return context.xp.stack(context.xp.nonzero(converted(context, context.on_device(operands[0]), np.dtype(bool))))

    return call(kernel)


def _fft(node: Node) -> Kernel:
    axis, dtype, inverse = (
        attributes.Axis.of(node).axis,
        node.result.tensor.dtype,
        attributes.Transform.of(node).inverse,
    )

    def kernel(context: Context, operands: list[Any]) -> Any:
        x, fft = context.on_device(operands[0]), context.xp.fft
        found = fft.ifft(x, axis=axis, norm="forward") if inverse else fft.fft(x, axis=axis)
        return found.astype(dtype, copy=False)

    return call(kernel)


def _real_fft(node: Node) -> Kernel:
    given, dtype = attributes.RealTransform.of(node), node.result.tensor.dtype

    def kernel(context: Context, operands: list[Any]) -> Any:
        x, fft = context.on_device(operands[0]), context.xp.fft
        if node.op.name == "rfft":
            return fft.rfft(x, axis=given.axis).astype(dtype, copy=False)
        return fft.irfft(x, given.size, axis=given.axis, norm="forward").astype(dtype, copy=False)

    return call(kernel)


_IDENTITIES = ("stop_gradient", "barrier", "watch", "forget_sizes")
_VIEWS: dict[str, str] = {"transpose": "axes", "expand_dims": "axes", "squeeze": "axes", "flip": "axes"}

DEVICE["matmul"] = _matmul
DEVICE |= dict.fromkeys(REDUCTIONS, _reduction)
DEVICE |= dict.fromkeys(SCANS, _scan)
DEVICE |= {name: _shaped(name) for name in ("reshape", "broadcast_to")}
DEVICE |= {name: _view(name, attribute) for name, attribute in _VIEWS.items()}
DEVICE |= dict.fromkeys(_IDENTITIES, _same)
DEVICE |= {
    "ensure_sizes": _ensure_sizes,
    "sum_to": _sum_to,
    "concat": _concat,
    "iota": _iota,
    "argsort": _argsort,
    "top_k": _top_k,
    "searchsorted": _searchsorted,
    "nonzero": _nonzero,
    "fft": _fft,
    "rfft": _real_fft,
    "irfft": _real_fft,
}
