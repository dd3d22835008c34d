"""Constants, sizes, views and concatenations in generated code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ctrlgrad.engines.native.expressions import literal
from ctrlgrad.engines.native.frames import broadcast
from ctrlgrad.engines.native.layout import ZERO, Ref, Scalar, Sizes, Splat, plus, row_major, times
from ctrlgrad.engines.native.regions import RegionWriter
from ctrlgrad.engines.native.rules.table import give, rule
from ctrlgrad.ir import Node


@rule("constant")
def _constant(e: RegionWriter, node: Node) -> None:
    value = node.attrs["value"]
    if value.ndim == 0:
        give(e, node.result, Scalar(literal(value), value.dtype))
    elif value.size and (value == value.flat[0]).all():
        give(e, node.result, Splat(Scalar(literal(value.flat[0]), value.dtype), e.shapes.sizes(node.result)))
    else:
        give(e, node.result, e.constant(value, e.shapes.sizes(node.result)))


@rule("dim")
def _dim(e: RegionWriter, node: Node) -> None:
    (x,) = node.operands
    give(e, node.result, Scalar(f"int64({e.shapes.sizes(x)[node.attrs['axis']]})", np.dtype(np.int64)))


@rule("stop_gradient", "barrier", "watch", "forget_sizes")
def _same(e: RegionWriter, node: Node) -> None:
    e.frame.items[node.result] = e.item(node.operands[0])


def _viewed(e: RegionWriter, node: Node, view: Callable[[Ref, Sizes], Ref | None]) -> None:
    """A view: the same memory with other strides; a scalar that fills a tensor stays one."""
    shape = e.shapes.sizes(node.result)
    x = e.tensor(node.operands[0])
    if isinstance(x, Splat):
        give(e, node.result, Splat(x.scalar, shape))
        return
    found = view(x, shape)
    give(e, node.result, found if found is not None else _reshaped_copy(e, x, shape))


def _reshaped_copy(e: RegionWriter, x: Ref, shape: Sizes) -> Ref:
    copy = e.copied(x)
    return Ref(copy.base, copy.offset, shape, row_major(shape), copy.dtype)


@rule("transpose")
def _transpose(e: RegionWriter, node: Node) -> None:
    axes = node.attrs["axes"]
    _viewed(e, node, lambda x, shape: Ref(x.base, x.offset, shape, tuple(x.strides[a] for a in axes), x.dtype))


@rule("broadcast_to")
def _broadcast_to(e: RegionWriter, node: Node) -> None:
    _viewed(e, node, broadcast)


@rule("expand_dims")
def _expand_dims(e: RegionWriter, node: Node) -> None:
    new = {a % node.result.tensor.rank for a in node.attrs["axes"]}

    def view(x: Ref, shape: Sizes) -> Ref:
        old = iter(x.strides)
        return Ref(x.base, x.offset, shape, tuple(ZERO if a in new else next(old) for a in range(len(shape))), x.dtype)

    _viewed(e, node, view)


@rule("squeeze")
def _squeeze(e: RegionWriter, node: Node) -> None:
    over = {a % node.operands[0].tensor.rank for a in node.attrs["axes"]}
    _viewed(
        e,
        node,
        lambda x, shape: Ref(
            x.base, x.offset, shape, tuple(s for a, s in enumerate(x.strides) if a not in over), x.dtype
        ),
    )


@rule("flip")
def _flip(e: RegionWriter, node: Node) -> None:
    axes = node.attrs["axes"]
    over = {a % node.operands[0].tensor.rank for a in axes}

    def view(x: Ref, shape: Sizes) -> Ref:
        offset = x.offset
        for a in over:
            if x.strides[a] != ZERO:
                offset = plus(offset, f"({x.shape[a]} - 1) * {x.strides[a]}")
        strides = tuple(-s if a in over else s for a, s in enumerate(x.strides))
        return Ref(x.base, offset, shape, strides, x.dtype)

    _viewed(e, node, view)


@rule("reshape")
def _reshape(e: RegionWriter, node: Node) -> None:
    def view(x: Ref, shape: Sizes) -> Ref | None:
        if x.is_contiguous:
            return Ref(x.base, x.offset, shape, row_major(shape), x.dtype)
        return None

    _viewed(e, node, view)


@rule("iota")
def _iota(e: RegionWriter, node: Node) -> None:
    target = e.place(node.result)
    (size,) = e.shapes.sizes(node.result)
    counter = e.fresh("i")
    with e.block(f"for {counter} in range({size}):"):
        e.put(target, plus(target.offset, times(counter, target.strides[0])), counter)
    e.frame.items[node.result] = target
