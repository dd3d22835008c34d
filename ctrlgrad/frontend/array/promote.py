"""Operands of array functions: accepted, made into arrays, and brought to one dtype by NumPy's own rules.

The dtypes are those of NumPy's ufunc loops, asked of NumPy itself, so promotion cannot drift away from it.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ctrlgrad.dtypes import Promotion, as_dtype, converted, dtype_kind, result_type
from ctrlgrad.errors import ShapeError, TypeMismatchError, UnknownSizeError, UserInputError
from ctrlgrad.frontend.apply import (
    apply,
    as_array,
    cast,
    check_dtype,
    is_plain,
    is_weak,
    of_default,
    require_numbers,
    shape_template,
    tensor_type,
    too_large,
    type_of,
    unknown_size,
)
from ctrlgrad.frontend.functions import publish
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir import TensorType, Type
from ctrlgrad.ir.attributes import DYNAMIC, Item, Key
from ctrlgrad.ir.control import TURNED
from ctrlgrad.ops import term
from ctrlgrad.options import default_float

# Sizes and axes: known ones as ints, unknown ones as traced scalars, and the raw ops that move dimensions.
#
# The functions here take arrays that `promote.operand` has made, and record nothing where nothing changes.


def shape_of(x: Any) -> tuple[int | None, ...]:
    """The shape, None where a dimension is unknown."""
    return x.shape if is_plain(x) or isinstance(x, np.number) else tensor_type(x).shape


def rank_of(x: Any) -> int:
    return len(shape_of(x))


def check_rank(operation: str, x: Any, least: int) -> None:
    """Require an array of this rank or more."""
    if rank_of(x) < least:
        term.require_rank(operation, least, rank_of(x), shown(x))


def dtype_of(x: Any) -> np.dtype:
    return x.dtype if is_plain(x) or isinstance(x, np.number) else tensor_type(x).dtype


def dim(x: Any, axis: int) -> Any:
    """One size: an int, or a traced scalar."""
    known = shape_of(x)[axis]
    return unknown_size(x, axis % rank_of(x)) if known is None else known


def dims(x: Any) -> list[Any]:
    """All sizes."""
    return [dim(x, axis) for axis in range(rank_of(x))]


def times(sizes: Sequence[Any]) -> Any:
    """The product of sizes: an int where all are known."""
    known = 1
    unknown: Any = None
    for size in sizes:
        if not isinstance(size, Tensor):
            known *= size
        else:
            unknown = size if unknown is None else unknown * size
    if unknown is None or known == 0:
        return known
    return unknown if known == 1 else unknown * known


def whole_number(
    operation: str, what: str, value: Any, hint: str = "convert it with int()", least: int | None = None
) -> int:
    """A Python integer of `least` or more; an error for anything else (a traced tensor explains itself)."""
    try:
        number = operator.index(value)
    except TypeError as error:
        if isinstance(value, Tensor):
            raise
        raise TypeMismatchError(
            f"{operation}: {what} is not an integer", expected="an int", got=repr(value), hint=hint
        ) from error
    if least is not None and number < least:
        raise UserInputError(f"{operation}: {what} is too small", expected=f"{least} or more", got=repr(value))
    return number


def size_argument(operation: str, what: str, value: Any, least: int | None = None) -> Any:
    """An int of `least` or more, or a traced integer scalar."""
    if not isinstance(value, Tensor):
        return whole_number(operation, what, value, least=least)
    term.scalar_index(operation, what, value.type)
    return cast(value, np.int64)


def sizes_argument(operation: str, shape: Any) -> list[Any]:
    """A shape argument: one size or several."""
    several = (
        list(shape) if isinstance(shape, list | tuple) or (isinstance(shape, np.ndarray) and shape.ndim) else [shape]
    )
    sizes = [size_argument(operation, "a size", d) for d in several]
    term.require_sizes(operation, sizes)
    return sizes


def _axis_number(operation: str, axis: Any) -> int:
    elementwise = {"max": "maximum", "min": "minimum", "amax": "maximum", "amin": "minimum", "sum": "add"}
    of_two = f"; ctrlgrad.numpy.{elementwise[operation]}(x, y) takes two arrays" if operation in elementwise else ""
    return whole_number(operation, "an axis", axis, f"convert it with int(){of_two}")


def axis_of(operation: str, axis: Any, rank: int) -> int:
    """One axis, counted from the front."""
    return term.axes_in_order(operation, [_axis_number(operation, axis)], rank)[0]


def axes_in_order(operation: str, axes: Any, rank: int) -> list[int]:
    """One axis or several, counted from the front, in the order given; an error for a repeated one."""
    several = axes if isinstance(axes, list | tuple) else (axes,)
    return term.axes_in_order(operation, [_axis_number(operation, axis) for axis in several], rank)


def axes_of(operation: str, axes: Any, rank: int) -> tuple[int, ...]:
    """Axes, sorted; all of them for None."""
    return tuple(range(rank)) if axes is None else tuple(sorted(axes_in_order(operation, axes, rank)))


def known_size(operation: str, size: int | None) -> int:
    """A size that a function needs when it is traced."""
    if size is None:
        raise UnknownSizeError(
            f"{operation}: a size is not known until the program runs",
            expected="sizes that are known when the function is traced",
            got="None",
            hint="pass arrays of known sizes; ctrlgrad.scan and ctrlgrad.fori_loop go over unknown ones",
        )
    return size


# Raw ops.


def reshaped(x: Any, sizes: Sequence[Any]) -> Any:
    """x in a shape whose sizes are all given."""
    template, unknown = shape_template(sizes)
    if not unknown and template == shape_of(x):
        return x
    return apply("reshape", [x, *unknown], {"shape": template})


def unknown_axes(t: Type) -> list[int]:
    """The axes whose sizes are not known until the program runs; none of a stack."""
    return [axis for axis, d in enumerate(t.shape) if d is None] if isinstance(t, TensorType) else []


def ensured(x: Any, sizes: Mapping[int, Any], problem: str, hint: str) -> Any:
    """x, which must have these sizes along its axes: an error at once or, where sizes are unknown, at run time.

    A stack has no axes, and no sizes to have.
    """
    if not sizes:
        return x
    known = shape_of(x)
    open_axes = tuple(a for a in sorted(sizes) if isinstance(sizes[a], Tensor) or sizes[a] != known[a])
    if not open_axes:
        return x
    template, unknown = shape_template([sizes[a] for a in open_axes])
    attrs = {"shape": template, "axes": open_axes, "problem": problem, "hint": hint}
    return apply("ensure_sizes", [x, *unknown], attrs)


def broadcasted(x: Any, sizes: Sequence[Any]) -> Any:
    template, unknown = shape_template(sizes)
    if not unknown and template == shape_of(x):
        return x
    return apply("broadcast_to", [x, *unknown], {"shape": template})


def transposed(x: Any, axes: Sequence[int]) -> Any:
    if list(axes) == list(range(len(axes))):
        return x
    return apply("transpose", [x], {"axes": tuple(axes)})


def expanded(x: Any, axes: Sequence[int]) -> Any:
    """With new axes of size 1 at the given places of the result."""
    return apply("expand_dims", [x], {"axes": tuple(sorted(axes))}) if axes else x


def squeezed(x: Any, axes: Sequence[int]) -> Any:
    return apply("squeeze", [x], {"axes": tuple(sorted(axes))}) if axes else x


def concatenated(xs: Sequence[Any], axis: int) -> Any:
    if len(xs) == 1 and isinstance(xs[0], Tensor):
        return xs[0]
    return apply("concat", list(xs), {"axis": axis})  # one array too: the result is none of the caller's arrays


def sliced(x: Any, axis: int, start: Any, stop: Any) -> Any:
    """x[start:stop] along one axis; a bound is None, an int or a traced scalar."""
    unknown: list[Any] = []

    def part(bound: Any) -> Any:
        if not isinstance(bound, Tensor):
            return bound
        unknown.append(cast(bound, np.int64))
        return DYNAMIC

    key: list[Item] = [slice(None)] * rank_of(x)
    key[axis] = slice(part(start), part(stop), None)
    return apply("getitem", [x, *unknown], {"key": tuple(key)})


def at_index(x: Any, axis: int, index: int) -> Any:
    """x[index] along one axis."""
    key: list[Item] = [slice(None)] * rank_of(x)
    key[axis] = index
    return apply("getitem", [x], {"key": tuple(key)})


def iota(size: Any) -> Any:
    """0, 1, ..., size - 1 as int64: a NumPy array for a known size."""
    if not isinstance(size, Tensor):
        return np.arange(size)
    return apply("iota", [size], {"shape": (None,)})


def laid_along(axis: int, x: Any, rank: int) -> Any:
    """A vector as an array of this rank whose axis `axis` it lies along."""
    return reshaped(x, [dim(x, 0) if place == axis else 1 for place in range(rank)])


def along(axis: int, rank: int) -> Key:
    """The key with a placeholder at one axis and all of every other one."""
    return tuple(DYNAMIC if place == axis else slice(None) for place in range(rank))


_WEAK: dict[str, Any] = {"i": int, "f": float, "c": complex}


def shown(x: Any) -> str:
    """An operand as it appears in an error."""
    return str(type_of(x))


def has_tensor(x: Any) -> bool:
    """Return true if nested lists contain a tensor."""
    return isinstance(x, Tensor) or (isinstance(x, list | tuple) and any(has_tensor(item) for item in x))


def from_nested(operation: str, x: Any) -> Any:
    """An array of nested lists of numbers, arrays and traced tensors."""
    x = unwrapped(x)
    if not has_tensor(x):
        try:
            array = as_array(x)
        except ValueError as error:
            raise ShapeError(
                f"{operation}: the nested lists are ragged",
                expected="lists of one length on each level",
                got=str(error),
                hint="pad the shorter ones, or keep the list and its arrays as a pytree",
            ) from error
        check_dtype(array.dtype)
        return array
    if isinstance(x, Tensor):
        return strong(x)
    rows = [from_nested(operation, item) for item in x]
    dtype = result_type(*map(dtype_of, rows))
    if len(set(map(rank_of, rows))) > 1:
        raise ShapeError(
            f"{operation}: the items' ranks differ",
            expected="items of one shape",
            got=", ".join(map(shown, rows)),
            hint="broadcast the smaller ones first: ctrlgrad.numpy.broadcast_to(x, shape)",
        )
    lifted = [apply("expand_dims", [cast(row, dtype)], {"axes": (0,)}) for row in rows]
    return apply("concat", lifted, {"axis": 0})


def strong(x: Any) -> Any:
    """x as an array of a dtype of its own: no longer standing for a Python number."""
    return cast(x, x.dtype) if isinstance(x, Tensor) else as_array(x)


_NOT_WRAPPED = (np.ndarray, Tensor, int, float, list, tuple, type)


def unwrapped(x: Any) -> Any:
    """The array of an object with `__jax_array__`, as in JAX; any other value unchanged."""
    if isinstance(x, _NOT_WRAPPED):
        return x
    # None on JAX's own tracers.
    as_array = getattr(x, "__jax_array__", None)
    return x if as_array is None else as_array()


def operand(operation: str, x: Any) -> Any:
    """One operand of an array function: a strong tensor or a NumPy array; a clear error for anything else."""
    if is_plain(x):
        return np.asarray(x)
    x = unwrapped(x)
    require_numbers(operation, x)
    if isinstance(x, list | tuple):
        return from_nested(operation, x)
    if not isinstance(x, Tensor):
        x = as_array(x)
        check_dtype(x.dtype)
    return strong(x)


def operands(operation: str, xs: Sequence[Any]) -> list[Any]:
    """As `operand` for several operands, but Python numbers stay Python numbers, so that they promote weakly."""
    if all(map(is_plain, xs)):
        return list(xs)
    xs = list(map(unwrapped, xs))
    require_numbers(operation, *xs)
    return [from_nested(operation, x) if isinstance(x, list | tuple) else x for x in xs]


def to_dtype(operation: str, x: Any, dtype: Any) -> Any:
    """x as an array of `dtype`; refuses to drop an imaginary part, and Python integers that it cannot hold."""
    if is_plain(x) and x.dtype is dtype:
        return np.asarray(x)
    given, x, dtype = x, operand(operation, x), as_dtype(operation, dtype)
    if isinstance(given, int | list | tuple) and isinstance(x, np.ndarray) and dtype_kind(x.dtype) in "iu":
        try:
            return np.asarray(given, dtype)
        except OverflowError as error:
            raise too_large(operation, given, dtype) from error
    if dtype_kind(dtype_of(x)) == "c" and dtype_kind(dtype) in "iuf":
        raise TypeMismatchError(
            f"{operation}: a complex array does not become {dtype}",
            expected="a real array",
            got=shown(x),
            hint="take numpy.real(x) or abs(x)",
        )
    return cast(x, dtype, operation)


def same_dtype(operation: str, xs: Sequence[Any]) -> list[Any]:
    """Operands as arrays of the dtype they promote to, Python numbers counting as arrays of theirs."""
    arrays = [operand(operation, x) for x in xs]
    dtypes = [dtype_of(x) for x in arrays]
    dtype = dtypes[0] if dtypes.count(dtypes[0]) == len(dtypes) else result_type(*dtypes)
    return [cast(x, dtype) for x in arrays]


def _kind(x: Any) -> Any:
    """Operand for NumPy's promotion: a dtype, or a Python type for a value that promotes like a Python number."""
    if isinstance(x, Tensor):
        return _WEAK.get(dtype_kind(x.dtype), x.dtype) if x.weak else x.dtype
    if is_plain(x):
        return x.dtype
    if is_weak(x) and not isinstance(x, bool):
        # However large it is: whether a dtype holds it is seen when it takes that dtype.
        return next(kind for kind in (int, float, complex) if isinstance(x, kind))
    dtype = as_array(x).dtype
    check_dtype(dtype)
    return dtype


@lru_cache(maxsize=4096)
def _loop(ufunc: np.ufunc, kinds: tuple[Any, ...], result: np.dtype | None) -> tuple[np.dtype, ...]:
    promotion = Promotion(kinds if result is None else (*kinds, result))
    slots = (*promotion.kinds[: ufunc.nin], *[None] * ufunc.nout)
    if result is None:
        found = ufunc.resolve_dtypes(slots)
    else:
        wanted = promotion.kinds[-1]
        found = ufunc.resolve_dtypes(slots, signature=(*[None] * ufunc.nin, *[wanted] * ufunc.nout))
    return tuple(map(promotion.result, found[: ufunc.nin]))


def loop_dtypes(ufunc: np.ufunc, xs: Sequence[Any], result: np.dtype | None = None) -> tuple[np.dtype, ...]:
    """The dtypes that NumPy's ufunc would take the operands in, or would to give this dtype."""
    kinds = [_kind(x) for x in xs]
    try:
        found = _loop(ufunc, tuple(kinds), result)
    except TypeError as error:
        raise TypeMismatchError(
            f"{ufunc.__name__}: the dtypes are not supported",
            expected=f"dtypes that numpy.{ufunc.__name__} takes",
            got=", ".join(shown(x) for x in xs),
            hint="convert with .astype(...), or use logical_not / logical_xor for booleans",
        ) from error
    if result is not None or any(isinstance(kind, np.dtype) and dtype_kind(kind) in "fc" for kind in kinds):
        return found
    return tuple(map(of_default, found))


@lru_cache(maxsize=4096)
def _is_own_loop(ufunc: np.ufunc, dtypes: tuple[np.dtype, ...]) -> bool:
    """Return true if arrays of these dtypes, float32 to complex128, enter NumPy's ufunc as they are."""
    if not all(dtype.char in "fdFD" for dtype in dtypes):
        return False
    try:
        return _loop(ufunc, dtypes, None) == dtypes
    except TypeError:
        return False  # said by `loop_dtypes`


def _as_they_are(ufunc: np.ufunc, xs: Sequence[Any]) -> Sequence[Any] | None:
    """Operands as arrays, if they are arrays that need no conversion, or arrays of one float dtype and Python floats.

    That takes half of the time of an operation on small arrays. None for all other operands.
    """
    dtypes = tuple([x.dtype for x in xs if is_plain(x)])
    if len(dtypes) == len(xs):
        return xs if _is_own_loop(ufunc, dtypes) else None
    if not dtypes or dtypes[0].char not in "fd" or dtypes.count(dtypes[0]) + [*map(type, xs)].count(float) < len(xs):
        return None
    if not _is_own_loop(ufunc, dtypes[:1] * len(xs)):
        return None
    return [converted(np.asarray(x), dtypes[0]) if type(x) is float else x for x in xs]


def elementwise(op: str, ufunc: np.ufunc, *xs: Any, boolean: str | None = None) -> Any:
    """Apply an op to operands in the dtypes of NumPy's ufunc; `boolean` is the op for booleans.

    The result has a dtype of its own, as NumPy's have, also for Python numbers.
    """
    if (arrays := _as_they_are(ufunc, xs)) is not None:
        return apply(op, arrays)
    xs = tuple(operands(ufunc.__name__, xs))
    dtypes = loop_dtypes(ufunc, xs)
    if boolean is not None and all(dtype == np.bool_ for dtype in dtypes):
        op = boolean
    return apply(op, [cast(x, dtype, ufunc.__name__) for x, dtype in zip(xs, dtypes, strict=True)])


def compared(op: str, ufunc: np.ufunc, x1: Any, x2: Any) -> Any:
    """As `elementwise`, for a comparison: a Python integer keeps its value beside integers that cannot take it."""
    if (arrays := _as_they_are(ufunc, (x1, x2))) is not None:
        return apply(op, arrays)
    x1, x2 = operands(ufunc.__name__, (x1, x2))
    for n, x, order in ((x2, x1, (0, 1)), (x1, x2, (1, 0))):
        side = _outside(n, x)
        if side:
            # All elements of x lie on one side of it.
            is_true = bool(ufunc(*(side * place for place in order)))
            return apply("equal" if is_true else "not_equal", [x, x])
    if _kind(x1) is int and _kind(x2) is int:
        # NumPy compares two Python integers as objects.
        return elementwise(op, ufunc, *(cast(x, np.int64) for x in (x1, x2)))
    first, second = loop_dtypes(ufunc, (x1, x2))
    if first != second:
        # NumPy has no dtype that holds both int64 and uint64, and compares them as they are.
        a, b = cast(x1, first), cast(x2, second)
        if dtype_kind(first) == "i":
            return _signed_with_unsigned(op, a, b)
        return _signed_with_unsigned(TURNED.get(op, op), b, a)
    return elementwise(op, ufunc, x1, x2)


def _signed_with_unsigned(name: str, a: Any, b: Any) -> Any:
    """Compare int64 with uint64: a negative number is below every uint64; the rest compare as uint64."""
    negative = apply("less", [a, np.zeros((), np.int64)])
    of_others = apply(name, [cast(a, np.uint64), b])
    if name in ("less", "less_equal", "not_equal"):
        return apply("logical_or", [negative, of_others])
    return apply("logical_and", [apply("logical_not", [negative]), of_others])


def _outside(n: Any, x: Any) -> int:
    """1 for a Python integer above the dtype of an array of integers, -1 for one below it, else 0."""
    if isinstance(n, Tensor) or _kind(n) is not int:
        return 0
    t = type_of(x) if isinstance(x, Tensor) or _kind(x) is not int else TensorType(np.dtype(np.int64))
    if not isinstance(t, TensorType) or dtype_kind(t.dtype) not in "biu":
        return 0
    # Booleans are compared with integers as int64.
    bounds = np.iinfo(np.int64 if dtype_kind(t.dtype) == "b" else t.dtype)
    return 1 if n > bounds.max else -1 if n < bounds.min else 0


_BOOL = np.dtype(bool)


def truth(operation: str, x: Any) -> Any:
    """x as booleans: whether each element is other than zero."""
    return to_dtype(operation, x, _BOOL)


def double_dtype(dtype: np.dtype) -> np.dtype:
    """Result dtype where NumPy computes in double precision: the default float, or a wider one."""
    return default_float() if dtype_kind(dtype) in "biu" else result_type(dtype, default_float())


def floats(operation: str, x: Any) -> Any:
    """x as an array of floats or complex numbers."""
    x = operand(operation, x)
    return cast(x, default_float()) if dtype_kind(dtype_of(x)) in "biu" else x


publish(__name__)
