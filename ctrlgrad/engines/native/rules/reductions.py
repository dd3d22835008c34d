"""Reductions and running totals in generated code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ctrlgrad.engines.native.expressions import literal, type_name
from ctrlgrad.engines.native.frames import Item
from ctrlgrad.engines.native.layout import ONE, ZERO, Ref, Scalar, Size, Sizes, Splat, plus, product, times
from ctrlgrad.engines.native.regions import RegionWriter
from ctrlgrad.engines.native.rules.table import give, rule
from ctrlgrad.ir import Node, Value


def _reduced_axes(node: Node) -> set[int]:
    rank = node.operands[0].tensor.rank
    axes = node.attrs["axes"]
    return set(range(rank)) if axes is None else {a % rank for a in axes}


def _identity(name: str, dtype: np.dtype) -> str:
    if name in ("sum", "any"):
        return literal(dtype.type(0))
    if name in ("prod", "all"):
        return literal(dtype.type(1))
    if dtype.kind == "b":
        return str(name == "min")
    if dtype.kind == "f":
        return literal(dtype.type(-np.inf if name == "max" else np.inf))
    limits = np.iinfo(dtype)
    return literal(dtype.type(limits.min if name == "max" else limits.max))


def _step(name: str, total: str, x: str, dtype: np.dtype) -> str:
    if name in ("any", "all"):
        return f"{total} {'or' if name == 'any' else 'and'} {x}"
    if dtype.kind == "b":
        return f"{total} {'or' if name == 'max' else 'and'} {x}"
    if name in ("sum", "prod"):
        text = f"{total} {'+' if name == 'sum' else '*'} {x}"
    else:
        function = {"max": "maximum", "min": "minimum"}[name]
        text = f"{function if dtype.kind == 'f' else 'integer_' + function}({total}, {x})"
    return f"{type_name(dtype)}({text})" if dtype.kind in "iuf" else text


def _reduce(e: RegionWriter, node: Node, name: str, over: set[int], result: Value) -> None:
    """Fold the axes in `over`; the result's memory has the other axes in their order."""
    x = e.tensor(node.operands[0])
    shape = x.shape
    if isinstance(x, Splat):
        x = e.copied(x)
    dtype = result.tensor.dtype
    kept = [a for a in range(len(shape)) if a not in over]
    if not kept:
        give(e, result, _reduce_all(e, name, x, dtype, e.shapes.sizes(result)))
        return
    target = e.place(result)
    own = [s for s, n in zip(target.strides, target.shape, strict=True)]
    strides = dict(zip(kept, _kept_strides(node, target, kept, shape, own), strict=True))
    flat = Ref(target.base, target.offset, tuple(shape[a] for a in kept), tuple(strides[a] for a in kept), dtype)
    if max(over, default=-1) > max(kept):
        _reduce_rows(e, name, x, flat, kept, sorted(over))
    else:
        e.copy(Splat(Scalar(_identity(name, dtype), dtype), flat.shape), flat)
        everywhere = Ref(flat.base, flat.offset, shape, tuple(strides.get(a, ZERO) for a in range(len(shape))), dtype)
        order = [a for a in range(len(shape)) if a in over] + kept
        x_, y_ = (_permuted(r, order) for r in (x, everywhere))
        with e.nest(x_.shape, [x_, y_]) as (index, element):
            value = _step(name, e.load(y_, index(1)), element(0), dtype)
            e.line(f"put({y_.base}, {index(1)}, {e.stored(value, dtype)})")
    e.frame.items[result] = target


def _kept_strides(node: Node, target: Ref, kept: Sequence[int], shape: Sizes, own: Sequence[Size]) -> list[Size]:
    """The strides of the result along the operand's axes that are kept."""
    if len(target.shape) == len(kept):
        return list(own)
    if len(target.shape) == len(shape):
        return [own[a] for a in kept]
    lead = len(shape) - len(target.shape)
    return [own[a - lead] for a in kept]


def _permuted(ref: Ref, order: Sequence[int]) -> Ref:
    return Ref(
        ref.base, ref.offset, tuple(ref.shape[a] for a in order), tuple(ref.strides[a] for a in order), ref.dtype
    )


def _reduce_all(e: RegionWriter, name: str, x: Ref, dtype: np.dtype, shape: Sizes) -> Item:
    total = e.fresh("v")
    e.line(f"{total} = {_identity(name, dtype)}")
    if name == "sum" and dtype.kind == "f" and x.is_contiguous:
        e.line(f"{total} = sum_of(shifted({x.base}, {x.offset}), {product(x.shape)}, {total})")
    else:
        with e.nest(x.shape, [x]) as (_, element):
            e.line(f"{total} = {_step(name, total, element(0), dtype)}")
    scalar = Scalar(total, dtype)
    return Splat(scalar, shape) if shape else scalar


def _reduce_rows(e: RegionWriter, name: str, x: Ref, target: Ref, kept: Sequence[int], over: Sequence[int]) -> None:
    """The last axes are folded: one total per row."""
    rows = Ref(x.base, x.offset, target.shape, tuple(x.strides[a] for a in kept), x.dtype)
    inner_shape, inner_strides = tuple(x.shape[a] for a in over), tuple(x.strides[a] for a in over)
    with e.nest(target.shape, [rows, target]) as (index, _):
        start, end = index(0), index(1)
        row = Ref(x.base, start, inner_shape, inner_strides, x.dtype)
        item = _reduce_all(e, name, row, target.dtype, ())
        assert isinstance(item, Scalar)
        e.line(f"put({target.base}, {end}, {e.stored(item.text, target.dtype)})")


@rule("sum", "prod", "max", "min", "any", "all")
def _reduction(e: RegionWriter, node: Node) -> None:
    _reduce(e, node, node.op.name, _reduced_axes(node), node.result)


@rule("sum_to")
def _sum_to(e: RegionWriter, node: Node) -> None:
    x = node.operands[0]
    shape, wanted = e.shapes.sizes(x), e.shapes.sizes(node.result)
    lead = len(shape) - len(wanted)
    over = set(range(lead)) | {lead + a for a, d in enumerate(wanted) if d == ONE and shape[lead + a] != ONE}
    if not over:
        e.frame.items[node.result] = e.item(x)
        return
    _reduce(e, node, "sum", over, node.result)


@rule("argmax", "argmin")
def _arg_extreme(e: RegionWriter, node: Node) -> None:
    x = e.ref(node.operands[0])
    axis = node.attrs["axes"][0] % len(x.shape)
    kept = [a for a in range(len(x.shape)) if a != axis]
    shape = e.shapes.sizes(node.result)
    sign = ">" if node.op.name == "argmax" else "<"
    target = e.place(node.result) if shape else None
    kept_shape = tuple(x.shape[a] for a in kept)
    rows = Ref(x.base, x.offset, kept_shape, tuple(x.strides[a] for a in kept), x.dtype)
    tensors = [rows]
    if target is not None:
        own = target.strides if len(shape) == len(kept) else tuple(target.strides[a] for a in kept)
        tensors.append(Ref(target.base, target.offset, kept_shape, own, target.dtype))
    best, place = e.fresh("v"), e.fresh("v")
    if target is None:
        e.line(f"{place} = 0")
    with e.nest(kept_shape, tensors) as (index, _):
        start = index(0)
        e.line(f"{best} = {e.load(rows, start)}")
        e.line(f"{place} = 0")
        counter, value = e.fresh("i"), e.fresh("v")
        with e.block(f"for {counter} in range(1, {x.shape[axis]}):"):
            e.line(f"{value} = {e.load(rows, plus(start, times(counter, x.strides[axis])))}")
            # The first NaN wins, as in NumPy.
            nan = f" or ({value} != {value} and {best} == {best})" if x.dtype.kind == "f" else ""
            with e.block(f"if {value} {sign} {best}{nan}:"):
                e.line(f"{best} = {value}")
                e.line(f"{place} = {counter}")
        if target is not None:
            e.line(f"put({target.base}, {index(1)}, {place})")
    e.frame.items[node.result] = target if target is not None else Scalar(place, np.dtype(np.int64))


@rule("cumsum", "cumprod")
def _cumulative(e: RegionWriter, node: Node) -> None:
    x = e.ref(node.operands[0])
    axis = node.attrs["axis"] % len(x.shape)
    target = e.place(node.result)
    kept = [a for a in range(len(x.shape)) if a != axis]
    shape = tuple(x.shape[a] for a in kept)
    sides = [Ref(r.base, r.offset, shape, tuple(r.strides[a] for a in kept), r.dtype) for r in (x, target)]
    total, name = e.fresh("v"), "sum" if node.op.name == "cumsum" else "prod"
    with e.nest(shape, sides) as (index, _):
        start, end = index(0), index(1)
        e.line(f"{total} = {_identity(name, x.dtype)}")
        counter = e.fresh("i")
        size = x.shape[axis]
        order = f"range({size} - 1, -1, -1)" if node.attrs["reverse"] else f"range({size})"
        with e.block(f"for {counter} in {order}:"):
            value = e.load(x, plus(start, times(counter, x.strides[axis])))
            e.line(f"{total} = {_step(name, total, value, x.dtype)}")
            e.put(target, plus(end, times(counter, target.strides[axis])), total)
    e.frame.items[node.result] = target
