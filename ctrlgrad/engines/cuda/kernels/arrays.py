"""Products, reductions, scans, orders, and ops that move elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.kernels.table import DEVICE, Factory, Kernel, call, filled_shape
from ctrlgrad.engines.cuda.stacks import own_array
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


def _reduction(name: str, *, one_axis: bool = False, widens: bool = False) -> Factory:
    """A reduction that the library has; one that `widens` gives sums and products of small integers 64 bits."""

    def factory(node: Node) -> Kernel:
        axes, keepdims = attributes.Axes.of(node).axes, attributes.Reduction.of(node).keepdims
        axis = axes[0] if one_axis else axes

        def kernel(context: Context, operands: list[Any]) -> Any:
            x = context.on_device(operands[0])
            if axis == ():
                return x
            context.counts.calls += 1
            dtype = {"dtype": x.dtype} if widens else {}
            return getattr(context.xp, name)(x, axis=axis, keepdims=keepdims, **dtype)

        return kernel

    return factory


def _scan(name: str) -> Factory:
    def factory(node: Node) -> Kernel:
        axis, backwards = attributes.Axis.of(node).axis, attributes.Scan.of(node).reverse

        def kernel(context: Context, operands: list[Any]) -> Any:
            x, xp = context.on_device(operands[0]), context.xp
            fn = getattr(xp, name)
            if backwards:
                return xp.flip(fn(xp.flip(x, axis), axis=axis, dtype=x.dtype), axis)
            return fn(x, axis=axis, dtype=x.dtype)

        return call(kernel)

    return factory


def _sum_to(node: Node) -> Kernel:
    def kernel(context: Context, operands: list[Any]) -> Any:
        x, *dims = operands
        shape = filled_shape(context, attributes.Shape.of(node).shape, dims)
        x = context.on_device(x)
        lead = x.ndim - len(shape)
        over = tuple(range(lead)) + tuple(
            lead + axis for axis, d in enumerate(shape) if d == 1 and x.shape[lead + axis] != 1
        )
        if not over:
            return x
        context.counts.calls += 1
        return x.sum(axis=over, dtype=x.dtype).reshape(shape)

    return kernel


def _concat(node: Node) -> Kernel:
    axis = attributes.Axis.of(node).axis
    return call(lambda context, xs: context.xp.concatenate([context.on_device(x) for x in xs], axis=axis))


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


def _argsort(node: Node) -> Kernel:
    axis, descending = attributes.Axis.of(node).axis, attributes.Order.of(node).descending

    def kernel(context: Context, operands: list[Any]) -> Any:
        x, xp = context.on_device(operands[0]), context.xp
        if not descending:
            return xp.argsort(x, axis=axis, kind="stable")
        # The ascending order of the flipped elements, flipped: equal elements keep their order.
        order = xp.flip(xp.argsort(xp.flip(x, axis), axis=axis, kind="stable"), axis)
        return x.shape[axis] - 1 - order

    return call(kernel)


def _searchsorted(node: Node) -> Kernel:
    side = attributes.Search.of(node).side
    return call(lambda context, xs: context.xp.searchsorted(*map(context.on_device, xs), side=side))


def _nonzero(node: Node) -> Kernel:
    # The library waits for the device here: the size of the result depends on data.
    def kernel(context: Context, operands: list[Any]) -> Any:
        context.counts.reads += 1
        return context.xp.stack(context.xp.nonzero(context.on_device(operands[0])))

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


_IDENTITIES = ("stop_gradient", "barrier", "watch", "forget_sizes")
_VIEWS: dict[str, str] = {"transpose": "axes", "expand_dims": "axes", "squeeze": "axes", "flip": "axes"}

DEVICE["matmul"] = _matmul
DEVICE |= {name: _reduction(name) for name in ("max", "min", "any", "all")}
DEVICE |= {name: _reduction(name, widens=True) for name in ("sum", "prod")}
DEVICE |= {name: _reduction(name, one_axis=True) for name in ("argmax", "argmin")}
DEVICE |= {name: _scan(name) for name in ("cumsum", "cumprod")}
DEVICE |= {name: _shaped(name) for name in ("reshape", "broadcast_to")}
DEVICE |= {name: _view(name, attribute) for name, attribute in _VIEWS.items()}
DEVICE |= dict.fromkeys(_IDENTITIES, _same)
DEVICE |= {
    "sum_to": _sum_to,
    "concat": _concat,
    "iota": _iota,
    "argsort": _argsort,
    "searchsorted": _searchsorted,
    "nonzero": _nonzero,
    "fft": _fft,
}
