"""Operands of array functions: accepted, made into arrays, and brought to one dtype by NumPy's own rules.

The dtypes are those of NumPy's ufunc loops, asked of NumPy itself, so promotion cannot drift away from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ctrlgrad.errors import ShapeError, TypeMismatchError
from ctrlgrad.frontend.apply import apply, cast, check_dtype, is_weak, require_numbers, type_of
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.source import here

_WEAK: dict[str, Any] = {"i": int, "f": float, "c": complex}


def shown(x: Any) -> str:
    """An operand as it appears in an error."""
    return str(type_of(x))


def has_tensor(x: Any) -> bool:
    """Whether a tensor stands somewhere in nested lists."""
    return isinstance(x, Tensor) or (isinstance(x, list | tuple) and any(has_tensor(item) for item in x))


def from_nested(operation: str, x: Any) -> Any:
    """An array of nested lists of numbers, arrays and traced tensors."""
    if not has_tensor(x):
        try:
            array = np.asarray(x)
        except ValueError as error:
            raise ShapeError(
                f"{operation}: the nested lists are ragged",
                source=here(),
                expected="lists of one length on each level",
                got=str(error),
                hint="pad the shorter ones, or keep the list and its arrays as a pytree",
            ) from error
        check_dtype(array.dtype)
        return array
    if isinstance(x, Tensor):
        return strong(x)
    rows = [from_nested(operation, item) for item in x]
    dtype = np.result_type(*(type_of(row).dtype for row in rows))  # type: ignore[union-attr]
    if len({type_of(row).rank for row in rows}) > 1:  # type: ignore[union-attr]
        raise ShapeError(
            f"{operation}: the items' ranks differ",
            source=here(),
            expected="items of one shape",
            got=", ".join(map(shown, rows)),
            hint="broadcast the smaller ones first: ctrlgrad.numpy.broadcast_to(x, shape)",
        )
    lifted = [apply("expand_dims", [cast(row, dtype)], {"axes": (0,)}) for row in rows]
    return apply("concat", lifted, {"axis": 0})


def strong(x: Any) -> Any:
    """x as an array of a dtype of its own: no longer standing for a Python number."""
    return cast(x, x.dtype) if isinstance(x, Tensor) else np.asarray(x)


def operand(operation: str, x: Any) -> Any:
    """One operand of an array function: a strong tensor or a NumPy array; a clear error for anything else."""
    require_numbers(operation, x)
    if isinstance(x, list | tuple):
        return from_nested(operation, x)
    if not isinstance(x, Tensor):
        x = np.asarray(x)
        check_dtype(x.dtype)
    return strong(x)


def operands(operation: str, xs: Sequence[Any]) -> list[Any]:
    """As `operand` for several, but Python numbers keep to themselves, for promotion to see them."""
    require_numbers(operation, *xs)
    return [from_nested(operation, x) if isinstance(x, list | tuple) else x for x in xs]


def convert(operation: str, x: Any, dtype: Any) -> Any:
    """As `cast`, with an error for a Python integer that the dtype cannot hold."""
    try:
        return cast(x, dtype)
    except OverflowError as error:
        raise TypeMismatchError(
            f"{operation}: the number does not fit the dtype",
            source=here(),
            expected=str(dtype),
            got=str(x),
            hint="cast the array to a larger dtype with .astype(...)",
        ) from error


def to_dtype(operation: str, x: Any, dtype: Any) -> Any:
    """x as an array of `dtype`; refuses to drop an imaginary part."""
    x, dtype = operand(operation, x), np.dtype(dtype)
    if type_of(x).dtype.kind == "c" and dtype.kind in "iuf":  # type: ignore[union-attr]
        raise TypeMismatchError(
            f"{operation}: a complex array does not become {dtype}",
            source=here(),
            expected="a real array",
            got=shown(x),
            hint="take numpy.real(x) or abs(x)",
        )
    return convert(operation, x, dtype)


def same_dtype(operation: str, xs: Sequence[Any]) -> list[Any]:
    """Operands as arrays of the dtype they promote to, Python numbers counting as arrays of theirs."""
    arrays = [operand(operation, x) for x in xs]
    dtype = np.result_type(*(type_of(x).dtype for x in arrays))  # type: ignore[union-attr]
    return [cast(x, dtype) for x in arrays]


def _kind(x: Any) -> Any:
    """What NumPy's promotion sees: a dtype, or a Python type for what stands for a Python number."""
    if isinstance(x, Tensor):
        return _WEAK.get(x.dtype.kind, x.dtype) if x.weak else x.dtype
    dtype = np.asarray(x).dtype
    check_dtype(dtype)
    return _WEAK.get(dtype.kind, dtype) if is_weak(x) else dtype


@lru_cache(maxsize=4096)
def _loop(ufunc: np.ufunc, kinds: tuple[Any, ...]) -> tuple[np.dtype, ...]:
    return ufunc.resolve_dtypes((*kinds, *[None] * ufunc.nout))[: ufunc.nin]


def loop_dtypes(ufunc: np.ufunc, xs: Sequence[Any], *, exact: bool = False) -> tuple[np.dtype, ...]:
    """The dtypes that NumPy's ufunc would take the operands in.

    With `exact`, a Python integer beside integer arrays keeps its value even where it does not fit their
    dtype, as NumPy's comparisons do. The value of a tensor that stands for one is not known: its dtype decides.
    """
    kinds = [_kind(x) for x in xs]
    if exact and all(kind is int or (isinstance(kind, np.dtype) and kind.kind in "biu") for kind in kinds):
        signed = any(isinstance(kind, np.dtype) and kind.kind == "i" for kind in kinds)
        kinds = [
            _holding(x, signed) if isinstance(x, int) and not isinstance(x, bool) else x.dtype if k is int else k
            for x, k in zip(xs, kinds, strict=True)
        ]
    try:
        return _loop(ufunc, tuple(kinds))
    except TypeError as error:
        raise TypeMismatchError(
            f"{ufunc.__name__}: the dtypes are not supported",
            source=here(),
            expected=f"dtypes that numpy.{ufunc.__name__} takes",
            got=", ".join(shown(x) for x in xs),
            hint="convert with .astype(...), or use logical_not / logical_xor for booleans",
        ) from error


def _holding(number: int, signed: bool) -> np.dtype:
    """The smallest dtype that holds a Python integer, a signed one beside signed operands where there is one."""
    found = np.min_scalar_type(number)
    return np.dtype(np.int64) if signed and found == np.uint64 and number <= np.iinfo(np.int64).max else found


def elementwise(op: str, ufunc: np.ufunc, *xs: Any, keep_weak: bool = False, exact: bool = False) -> Any:
    """Apply an op to operands in the dtypes of NumPy's ufunc.

    `keep_weak`: Python's own operators make Python numbers of Python numbers, so their result stays weak where
    all operands are. All other functions make an array of a dtype of its own, as NumPy's do.
    """
    xs = tuple(operands(ufunc.__name__, xs))
    dtypes = loop_dtypes(ufunc, xs, exact=exact)
    result = apply(op, [convert(ufunc.__name__, x, dtype) for x, dtype in zip(xs, dtypes, strict=True)])
    return rest_weak(result, xs) if keep_weak else result


def rest_weak(result: Any, xs: Sequence[Any]) -> Any:
    """The result, standing for a Python number where all of the operands do."""
    if isinstance(result, Tensor) and all(is_weak(x) for x in xs):
        return Tensor(result.builder, result.value, weak=True)
    return result


def truth(operation: str, x: Any) -> Any:
    """x as booleans: whether each element is other than zero."""
    return to_dtype(operation, x, np.bool_)
