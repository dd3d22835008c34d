"""Declarations of operations on arrays: complex parts, reductions, shapes, sorting, Fourier transforms, indexing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ctrlgrad.dtypes import COMPLEX_OF, REAL_OF, dtype_kind
from ctrlgrad.errors import IndexOutOfRangeError, ShapeError, TypeMismatchError
from ctrlgrad.ir import attributes
from ctrlgrad.ir.attributes import DYNAMIC, Attributes, Item, Key
from ctrlgrad.ir.graph import Node
from ctrlgrad.ir.op import Trait, Use
from ctrlgrad.ir.types import INDEX, Dim, Shape, TensorType, Type, broadcast_shapes
from ctrlgrad.ops.elementwise import add, broadcast, same_dtype
from ctrlgrad.ops.term import (
    TensorRule,
    axes,
    declared,
    default_int,
    product,
    require_integers,
    require_kind,
    require_rank,
    scalar_index,
    template,
    tensors,
)

# Ops between complex numbers and their parts, elementwise.


def _on_complex(name: str, *, real: bool) -> TensorRule:
    def infer(attrs: Attributes, x: TensorType) -> TensorType:
        if x.dtype not in REAL_OF:
            raise TypeMismatchError(f"{name}: the operand is not complex", expected="c64 or c128", got=str(x))
        return TensorType(REAL_OF[x.dtype] if real else x.dtype, x.shape)

    return infer


def _infer_complex(attrs: Attributes, re: TensorType, im: TensorType) -> TensorType:
    if re.dtype != im.dtype or re.dtype not in COMPLEX_OF:
        raise TypeMismatchError(
            "complex: the parts are not floats of one dtype", expected="f32 or f64, twice", got=f"{re} and {im}"
        )
    return broadcast("complex", (re, im), COMPLEX_OF[re.dtype])


for _name, _real in {"conj": False, "real": True, "imag": True}.items():
    add(_name, 1, _on_complex(_name, real=_real), None, total=Trait.TOTAL)


def _complex(re: Any, im: Any) -> Any:
    result = np.empty(np.broadcast_shapes(re.shape, im.shape), COMPLEX_OF[re.dtype])
    result.real, result.imag = re, im
    return result


add("complex", 2, _infer_complex, None, numpy=_complex, jax="lax.complex", total=Trait.TOTAL_IF_STATIC)


# Reductions and scans along axes. `axes` is a sorted tuple counted from the front; `keepdims` a bool.


def reduced_shape(shape: Shape, over: Sequence[int], keepdims: bool) -> Shape:
    """The shape after reducing over axes."""
    if keepdims:
        return tuple(1 if axis in over else d for axis, d in enumerate(shape))
    return tuple(d for axis, d in enumerate(shape) if axis not in over)


def _reduction(name: str, kinds: str, result: np.dtype | None = None, *, needs_elements: bool = False) -> TensorRule:
    def infer(attrs: attributes.Reduction, x: TensorType) -> TensorType:
        require_kind(name, kinds, (x,))
        over = axes(name, attrs.axes, x.rank)
        if needs_elements and any(x.shape[axis] == 0 for axis in over):
            raise ShapeError(
                f"{name}: no elements along a reduced axis",
                expected="at least one element",
                got=str(x),
                hint="concatenate a first element to it, or leave empty arrays out",
            )
        return TensorType(result or x.dtype, reduced_shape(x.shape, over, attrs.keepdims))

    return infer


# The frontend widens small integers first, as NumPy does, so `sum` and `prod` keep their operand's dtype.
# Products of floats are multiplied pair by pair, which makes their derivatives exact at zeros.
for _name, _kinds in {"sum": "iufc", "prod": "iu", "any": "b", "all": "b"}.items():
    declared(_name, 1, Trait.TOTAL, attributes=attributes.Reduction)(_reduction(_name, _kinds))
# An extreme fails only along an axis of size 0, which the type rule refuses where it is known. `argmax` and `argmin`
# are of one axis each: the index of the first extreme value, as int64.
for _name, _result in (("max", None), ("min", None), ("argmax", default_int()), ("argmin", default_int())):
    _infer = _reduction(_name, "biuf", _result, needs_elements=True)
    declared(_name, 1, Trait.TOTAL_IF_STATIC, Trait.SELECTS, attributes=attributes.Reduction)(_infer)


def _infer_scan(name: str, kinds: str) -> TensorRule:
    def infer(attrs: attributes.Axis, x: TensorType) -> TensorType:
        require_kind(name, kinds, (x,))
        axes(name, (attrs.axis,), x.rank)
        return x

    return infer


# `reverse=True` accumulates from the end: the transpose of the forward accumulation.
for _name, _kinds in {"cumsum": "iufc", "cumprod": "iu"}.items():
    declared(_name, 1, Trait.TOTAL, Trait.SHAPE_OF_FIRST, attributes=attributes.Scan)(_infer_scan(_name, _kinds))


# Ops that move elements without computing on them, and `dim`, which reads a size.
#
# A shape that is not known when the graph is built is given as a template with operands for its unknown
# dimensions; see `ctrlgrad.ops.term.template`.


@declared("constant", 0, Trait.TOTAL, Trait.CHEAP, attributes=attributes.Constant)
def _infer_constant(attrs: attributes.Constant) -> TensorType:
    return TensorType(attrs.value.dtype, attrs.value.shape)


@declared("dim", 1, Trait.TOTAL, Trait.CHEAP, attributes=attributes.Axis, uses=(Use.MEASURE,))
def _infer_dim(attrs: attributes.Axis, x: TensorType) -> TensorType:
    axes("dim", (attrs.axis,), x.rank)
    return INDEX


# 0, 1, ..., n - 1 of a shape (n,).
@declared("iota", None, Trait.TOTAL, Trait.CHEAP, attributes=attributes.Shape, further=Use.SIZE)
def _infer_iota(attrs: attributes.Shape, *dims: TensorType) -> TensorType:
    template("iota", attrs.shape, dims)
    return TensorType(INDEX.dtype, attrs.shape)


# Arguments of declarations of ops on one operand, and a shape.
_RESHAPED = (Trait.VIEW, Trait.CHEAP, Trait.TOTAL_IF_STATIC)
_SHAPED: dict[str, Any] = {"attributes": attributes.Shape, "uses": (Use.VALUE,), "further": Use.SIZE}


@declared("reshape", None, *_RESHAPED, **_SHAPED)
def _infer_reshape(attrs: attributes.Shape, x: TensorType, *dims: TensorType) -> TensorType:
    template("reshape", attrs.shape, dims)
    before, after = product(x.shape), product(attrs.shape)
    if before is not None and after is not None and before != after:
        raise ShapeError(
            "reshape: the number of elements changes",
            expected=f"{before} elements, as in {x}",
            got=f"{after} elements, {attrs.shape}",
            hint="one size may be -1 and takes what is left over",
        )
    return TensorType(x.dtype, attrs.shape)


def _broadcasts_to(shape: Shape, target: Shape) -> bool:
    joined = broadcast_shapes((target, shape))
    if joined is None or len(joined) != len(target):
        return False
    return not any(d == 1 and j not in (1, None) for d, j in zip(target, joined, strict=True))


@declared("broadcast_to", None, *_RESHAPED, **_SHAPED)
def _infer_broadcast_to(attrs: attributes.Shape, x: TensorType, *dims: TensorType) -> TensorType:
    shape = attrs.shape
    template("broadcast_to", shape, dims)
    if not _broadcasts_to(x.shape, shape):
        raise ShapeError(
            "broadcast_to: the shape does not fit",
            expected=f"a shape that {x} broadcasts to",
            got=str(shape),
            hint="add dimensions of size 1 where they are missing: x[:, None]",
        )
    return TensorType(x.dtype, shape)


# Sums over the axes in which the operand was broadcast from `shape`: the transpose of `broadcast_to`.
@declared("sum_to", None, Trait.TOTAL_IF_STATIC, **_SHAPED)
def _infer_sum_to(attrs: attributes.Shape, x: TensorType, *dims: TensorType) -> TensorType:
    shape = attrs.shape
    template("sum_to", shape, dims)
    require_kind("sum_to", "iufc", (x,))
    if len(shape) > x.rank or broadcast_shapes((x.shape, shape)) is None:
        raise ShapeError("sum_to: the shape does not fit", expected=f"a shape that broadcasts to {x}", got=str(shape))
    return TensorType(x.dtype, shape)


@declared("transpose", 1, Trait.VIEW, Trait.CHEAP, Trait.TOTAL, attributes=attributes.Axes)
def _infer_transpose(attrs: attributes.Axes, x: TensorType) -> TensorType:
    if sorted(attrs.axes) != list(range(x.rank)):
        raise ShapeError(
            "transpose: not a permutation of the axes",
            expected=f"each of {x.rank} axes once",
            got=str(attrs.axes),
            hint="numpy.moveaxis or .swapaxes moves some and keeps the rest",
        )
    return TensorType(x.dtype, tuple(x.shape[axis] for axis in attrs.axes))


@declared("expand_dims", 1, Trait.VIEW, Trait.CHEAP, Trait.TOTAL, attributes=attributes.Axes)
def _infer_expand_dims(attrs: attributes.Axes, x: TensorType) -> TensorType:
    rank = x.rank + len(attrs.axes)
    new = axes("expand_dims", attrs.axes, rank)
    old = iter(x.shape)
    return TensorType(x.dtype, tuple(1 if axis in new else next(old) for axis in range(rank)))


@declared("squeeze", 1, Trait.VIEW, Trait.CHEAP, Trait.TOTAL_IF_STATIC, attributes=attributes.Axes)
def _infer_squeeze(attrs: attributes.Axes, x: TensorType) -> TensorType:
    over = axes("squeeze", attrs.axes, x.rank)
    for axis in over:
        if x.shape[axis] not in (1, None):
            raise ShapeError(
                f"squeeze: axis {axis} is not of size 1",
                expected="an axis of size 1",
                got=str(x),
                hint="take one element along it: x[0]",
            )
    return TensorType(x.dtype, tuple(d for axis, d in enumerate(x.shape) if axis not in over))


@declared("flip", 1, Trait.VIEW, Trait.CHEAP, Trait.TOTAL, Trait.SHAPE_OF_FIRST, attributes=attributes.Axes)
def _infer_flip(attrs: attributes.Axes, x: TensorType) -> TensorType:
    axes("flip", attrs.axes, x.rank)
    return x


@declared("concat", None, Trait.MOVES, Trait.TOTAL_IF_STATIC, attributes=attributes.Axis)
def _infer_concat(attrs: attributes.Axis, *types: TensorType) -> TensorType:
    first, axis = types[0], attrs.axis
    axes("concat", (axis,), first.rank)
    shape: list[Dim] = []
    for position in range(first.rank):
        dims = [t.shape[position] if t.rank == first.rank else -1 for t in types]
        known = {d for d in dims if d is not None}
        if position == axis:
            shape.append(None if None in dims else sum(d for d in dims if d is not None))
        elif len(known) > 1:
            raise ShapeError(
                f"concat: sizes differ on axis {position}",
                expected=f"arrays like {first}, but for axis {axis}",
                got=", ".join(str(t) for t in types),
                hint="arrays may differ in the axis along which they are joined, and in no other",
            )
        else:
            shape.append(known.pop() if known else None)
    return TensorType(same_dtype("concat", types), tuple(shape))


# The size that all elements of a list of sizes are, 0 for none; an error at run time where they differ, which names
# what they are the sizes of.
@declared("common_size", 1, attributes=attributes.Described)
def _infer_common_size(attrs: Attributes, x: TensorType) -> TensorType:
    if x.dtype != INDEX.dtype or x.rank != 1:
        raise TypeMismatchError("common_size: not a list of sizes", expected=f"{INDEX.dtype}[n]", got=str(x))
    return INDEX


_SAME = (Trait.VIEW, Trait.CHEAP, Trait.SHAPE_OF_FIRST)


# The identity, after which the sizes of some axes count as unknown.
@declared("forget_sizes", 1, *_SAME, Trait.TOTAL, attributes=attributes.Axes, uses=(Use.PASS,))
def _infer_forget(attrs: attributes.Axes, x: TensorType) -> TensorType:
    over = axes("forget_sizes", attrs.axes, x.rank)
    return TensorType(x.dtype, tuple(None if axis in over else d for axis, d in enumerate(x.shape)))


_ENSURED: dict[str, Any] = {"attributes": attributes.Required, "uses": (Use.PASS,), "further": Use.SIZE}


# The identity on arrays of these sizes along some axes, which are in order; an error for any other sizes.
@declared("ensure_sizes", None, *_SAME, Trait.TOTAL_IF_STATIC, **_ENSURED)
def _infer_ensure(attrs: attributes.Required, x: TensorType, *dims: TensorType) -> TensorType:
    template("ensure_sizes", attrs.shape, dims)
    wanted = dict(zip(axes("ensure_sizes", attrs.axes, x.rank), attrs.shape, strict=True))
    given = TensorType(x.dtype, tuple(x.shape[a] if wanted.get(a) is None else wanted[a] for a in range(x.rank)))
    if any(None not in (d, n) and d != n for d, n in zip(given.shape, x.shape, strict=True)):
        raise ShapeError(attrs.problem, expected=str(given), got=str(x), hint=attrs.hint)
    return given


# Ops that find an order or positions; what they yield are int64 indices, and values follow by `getitem`.


_ORDERED = "biuf"


# The stable order along an axis.
@declared("argsort", 1, Trait.TOTAL, Trait.SHAPE_OF_FIRST, attributes=attributes.Order)
def _infer_argsort(attrs: attributes.Axis, x: TensorType) -> TensorType:
    require_kind("argsort", _ORDERED, [x])
    axes("argsort", (attrs.axis,), x.rank)
    return TensorType(INDEX.dtype, x.shape)


# The first of the stable order from the largest down; a NaN counts as the largest.
@declared("top_k", 1, Trait.TOTAL_IF_STATIC, attributes=attributes.Selection)
def _infer_top_k(attrs: attributes.Selection, x: TensorType) -> TensorType:
    require_kind("top_k", _ORDERED, [x])
    axes("top_k", (attrs.axis,), x.rank)
    size = x.shape[attrs.axis]
    if attrs.count < 0 or (size is not None and size < attrs.count):
        raise ShapeError(
            "top_k: the axis does not have as many elements",
            expected=f"0 <= k, and {attrs.count} elements or more along axis {attrs.axis}",
            got=str(x),
            hint="take fewer: k = min(k, x.shape[-1])",
        )
    shape = (*x.shape[: attrs.axis], attrs.count, *x.shape[attrs.axis + 1 :])
    return TensorType(INDEX.dtype, shape)


# For each of the second operand, how many of the first come before it: those below it, or with the side
# "right" those not above it.
@declared("searchsorted", 2, Trait.TOTAL, attributes=attributes.Search)
def _infer_searchsorted(attrs: Attributes, row: TensorType, values: TensorType) -> TensorType:
    if row.rank != 1:
        raise ShapeError(
            "searchsorted: the sorted operand is not one-dimensional",
            got=str(row),
            hint="ctrlgrad.vmap takes row by row",
        )
    if row.dtype != values.dtype or dtype_kind(row.dtype) not in _ORDERED:
        raise TypeMismatchError("searchsorted: not two operands of one real dtype", got=f"{row} and {values}")
    return TensorType(INDEX.dtype, values.shape)


# The positions of the elements other than zero, in C order: a row per axis, a column per element.
@declared("nonzero", 1, Trait.TOTAL)
def _infer_nonzero(attrs: Attributes, x: TensorType) -> TensorType:
    require_rank("nonzero", 1, x.rank, x)
    return TensorType(INDEX.dtype, (x.rank, None))


# The discrete Fourier transform along one axis: the one op that `ctrlgrad.numpy.fft` is made of.
#
# y[k] = sum over n of x[n] exp(-2 pi i k n / N), or with `inverse` exp(+2 pi i k n / N): no factor.


@declared("fft", 1, Trait.TOTAL_IF_STATIC, attributes=attributes.Transform)
def _infer_fft(attrs: attributes.Axis, x: TensorType) -> TensorType:
    (axis,) = axes("fft", (attrs.axis,), x.rank)
    require_kind("fft", "c", [x])
    if x.shape[axis] == 0:
        raise ShapeError("fft: no elements along the axis", got=str(x))
    return x


# The transform of N real numbers, of which only the first N // 2 + 1 elements are kept: the rest are their conjugates.
#
# `rfft` computes those of `fft`. `irfft` computes y[n] = sum over all k of z[k] exp(+2 pi i k n / N), without a factor,
# from them; the imaginary parts of z[0] and, for even N, of z[N / 2] do not count. N is static: sizes that are unknown
# go through `fft`.


@declared("rfft", 1, Trait.TOTAL_IF_STATIC, attributes=attributes.RealTransform)
def _infer_rfft(attrs: attributes.RealTransform, x: TensorType) -> TensorType:
    (axis,) = axes("rfft", (attrs.axis,), x.rank)
    if x.dtype.name not in ("float32", "float64"):
        raise TypeMismatchError("rfft: the operand is not real", expected="f32 or f64", got=str(x))
    if x.shape[axis] != attrs.size or not attrs.size:
        raise ShapeError("rfft: another size", expected=f"{attrs.size} elements", got=str(x))
    dtype = np.dtype(np.complex64 if x.dtype == np.float32 else np.complex128)
    return TensorType(dtype, (*x.shape[:axis], attrs.size // 2 + 1, *x.shape[axis + 1 :]))


@declared("irfft", 1, Trait.TOTAL_IF_STATIC, attributes=attributes.RealTransform)
def _infer_irfft(attrs: attributes.RealTransform, x: TensorType) -> TensorType:
    (axis,) = axes("irfft", (attrs.axis,), x.rank)
    require_kind("irfft", "c", [x])
    if x.shape[axis] != attrs.size // 2 + 1 or not attrs.size:
        raise ShapeError("irfft: another size", expected=f"{attrs.size // 2 + 1} elements", got=str(x))
    dtype = np.dtype(np.float32 if x.dtype == np.complex64 else np.float64)
    return TensorType(dtype, (*x.shape[:axis], attrs.size, *x.shape[axis + 1 :]))


# Indexing with NumPy's meaning: `getitem` reads, `setitem` replaces, `additem` adds (repeated indices add up).
#
# The key is a tuple of items in the order of the axes: an int, a `slice`, None (a new axis) or `DYNAMIC`,
# which stands for the next operand: a scalar integer or an integer array. A slice's bounds may be `DYNAMIC` too.
# An index that is out of range is an error at run time; negative indices count from the end.


def fill(key: Key, operands: Sequence[Any]) -> tuple[Any, ...]:
    """The key with its placeholders replaced by operands, ready for `array[key]`."""
    rest = iter(operands)
    return tuple(_fill_item(item, rest) for item in key)


def _fill_item(item: Item, rest: Iterator[Any]) -> Any:
    if item is DYNAMIC:
        return next(rest)
    if isinstance(item, slice):
        return slice(*(next(rest) if part is DYNAMIC else part for part in (item.start, item.stop, item.step)))
    return item


def is_advanced(key: Key, operands: Sequence[Type]) -> bool:
    """Return true if an operand is an array of rank 1 or more, so that positions may repeat."""
    return any(isinstance(t, TensorType) and t.rank > 0 for t in operands)


def indexed_shape(shape: Shape, key: Key, operands: Sequence[Type]) -> Shape:
    """The shape of `array[key]`: basic indexing, and advanced indexing as in NumPy.

    Arrays broadcast together; their dimensions stand where the first of them stood, or in front when a
    slice or a new axis separates them.
    """
    filled = fill(key, operands)
    if sum(item is not None for item in filled) != len(shape):
        raise ShapeError(
            "indexing: one item per axis", expected=f"{len(shape)} items", got=str(key), hint="x.ndim is the rank"
        )
    advanced = any(isinstance(item, TensorType) and item.rank > 0 for item in filled)
    result: list[Dim] = []
    arrays: list[Shape] = []
    places: list[int] = []
    first, axis = 0, 0
    for position, item in enumerate(filled):
        if item is None:
            result.append(1)
            continue
        dim, axis = shape[axis], axis + 1
        if isinstance(item, slice):
            result.append(_sliced(dim, item))
            continue
        if isinstance(item, int) and dim is not None and not -dim <= item < dim:
            raise IndexOutOfRangeError(
                f"indexing: index {item} is out of range on axis {axis - 1}",
                expected=f"-{dim} <= index < {dim}",
                got=str(item),
                hint="clip the index, or take x[-1] for the last",
            )
        if advanced:
            if not places:
                first = len(result)
            places.append(position)
            arrays.append(item.shape if isinstance(item, TensorType) else ())
    joined = broadcast_shapes(arrays)
    if joined is None:
        raise ShapeError(
            "indexing: the index arrays do not broadcast",
            expected="index arrays of one shape, or shapes that broadcast",
            got=", ".join(str(a) for a in arrays),
            hint="x[i[:, None], j] takes every pair of i and j",
        )
    adjacent = not places or places[-1] - places[0] + 1 == len(places)
    at = first if adjacent else 0
    return (*result[:at], *joined, *result[at:])


def _sliced(dim: Dim, item: slice) -> Dim:
    parts = (item.start, item.stop, item.step)
    if parts == (None, None, None) or parts == (None, None, -1):
        return dim
    if any(isinstance(part, TensorType) for part in parts) or dim is None:
        return None
    return len(range(*item.indices(dim)))


def _check_operands(operation: str, key: Key, operands: Sequence[Type]) -> None:
    inside_slice = []
    for item in key:
        parts = (item.start, item.stop, item.step) if isinstance(item, slice) else (item,)
        inside_slice += [isinstance(item, slice) for part in parts if part is DYNAMIC]
    if len(inside_slice) != len(operands):
        raise ShapeError(
            f"{operation}: one operand per placeholder", expected=str(len(inside_slice)), got=str(len(operands))
        )
    for t, in_slice in zip(tensors(operation, operands), inside_slice, strict=True):
        require_integers(operation, "the indices", t.dtype)
        if in_slice:
            scalar_index(operation, "a slice's bound", t)


@declared("getitem", None, Trait.MOVES, attributes=attributes.Index, uses=(Use.READ,), further=Use.INDEX)
def _infer_getitem(attrs: attributes.Index, x: TensorType, *indices: TensorType) -> TensorType:
    _check_operands("getitem", attrs.key, indices)
    return TensorType(x.dtype, indexed_shape(x.shape, attrs.key, indices))


# Arguments of the declarations of updates.
_UPDATED: dict[str, Any] = {"attributes": attributes.Index, "uses": (Use.UPDATE, Use.VALUE), "further": Use.INDEX}


@declared("setitem", None, Trait.SHAPE_OF_FIRST, **_UPDATED)
def _infer_update(attrs: attributes.Index, x: TensorType, value: TensorType, *indices: TensorType) -> TensorType:
    _check_operands("an indexed update", attrs.key, indices)
    region = indexed_shape(x.shape, attrs.key, indices)
    if x.dtype != value.dtype:
        raise TypeMismatchError(
            "an indexed update: dtypes differ",
            expected=str(x.dtype),
            got=str(value.dtype),
            hint="cast the value with .astype(x.dtype)",
        )
    if not _broadcasts_to(value.shape, region):
        raise ShapeError(
            "an indexed update: the value does not fit",
            expected=f"a shape that broadcasts to {region}",
            got=str(value),
            hint="reshape the value, or choose the index so that x[index] has the value's shape",
        )
    return x


@declared("additem", None, Trait.SHAPE_OF_FIRST, Trait.WHOLE, **_UPDATED)
def _infer_added(attrs: attributes.Index, x: TensorType, *rest: TensorType) -> TensorType:
    # `additem` takes the dtypes of `add`, which takes no booleans.
    require_kind("additem", "iufc", (x,))
    return _infer_update(attrs, x, *rest)


def is_static(key: Key) -> bool:
    """True if a key has no placeholder: then an index that fits the shape cannot fail."""
    return not any(
        item is DYNAMIC or (isinstance(item, slice) and DYNAMIC in (item.start, item.stop, item.step)) for item in key
    )


# Questions that passes ask of a node, answered from its op's traits and its types.


def is_total(node: Node) -> bool:
    """True if a node can never fail at run time, so that it may run even if the program would not have reached it."""
    traits = node.op.traits
    if Trait.TOTAL in traits:
        return True
    index = attributes.Index.find(node)
    if index is not None:
        return _is_static(node) and is_static(index.key)
    return Trait.TOTAL_IF_STATIC in traits and _is_static(node)


def _is_static(node: Node) -> bool:
    return all(isinstance(v.type, TensorType) and v.type.is_static for v in (*node.operands, *node.results))
