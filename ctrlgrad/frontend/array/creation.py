"""Arrays made of a shape and a value, or of nested lists.

With sizes and values that are known the result is a plain NumPy array, inside a trace too; a traced size or
value makes a traced tensor.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad.errors import UserInputError
from ctrlgrad.frontend.apply import check_dtype
from ctrlgrad.frontend.array.array_api import check_device
from ctrlgrad.frontend.array.dims import broadcasted, dims, dtype_of, expanded, rank_of, shape_of, sizes_argument
from ctrlgrad.frontend.array.promote import from_nested, operand, to_dtype
from ctrlgrad.frontend.concrete import concrete
from ctrlgrad.frontend.float0 import float0
from ctrlgrad.frontend.functions import array_function
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.options import default_float
from ctrlgrad.source import here


def _filled(operation: str, shape: Any, value: Any, dtype: Any, device: Any) -> Any:
    check_device(operation, device)
    sizes = sizes_argument(operation, shape)
    value = operand(operation, value) if dtype is None else to_dtype(operation, value, dtype)
    if isinstance(value, Tensor) or any(isinstance(d, Tensor) for d in sizes):
        return broadcasted(value, sizes)
    check_dtype(value.dtype)
    return concrete(np.full(tuple(sizes), value))


def _of_one_number(operation: str, shape: Any, value: int, dtype: Any, device: Any) -> Any:
    """Zeros or ones, in the default dtype where the dtype is not given or None."""
    if dtype is not None and np.dtype(dtype) == float0:
        return np.zeros(shape, float0)
    return _filled(operation, shape, value, default_float() if dtype is None else dtype, device)


def _filled_like(operation: str, x: Any, value: Any, dtype: Any, shape: Any, device: Any) -> Any:
    x = operand(operation, x)
    dtype = dtype_of(x) if dtype is None else dtype
    if shape is None:
        shape = shape_of(x) if None not in shape_of(x) else dims(x)
    return _filled(operation, tuple(shape) if isinstance(shape, list | tuple) else shape, value, dtype, device)


@array_function()
def zeros(shape: Any, dtype: Any = None, *, device: Any = None) -> Any:
    """Zeros of a shape: an int or several, any of which may be a traced integer scalar.

    Floats of the default dtype (`ctrlgrad.options`) where none is given.

    Raises:
        ShapeError: a negative size. TypeMismatchError: a size that is not an integer.

    >>> cnp.zeros((2,))
    array([0., 0.])
    """
    return _of_one_number("zeros", shape, 0, dtype, device)


@array_function()
def ones(shape: Any, dtype: Any = None, *, device: Any = None) -> Any:
    """As `zeros`, filled with ones.

    >>> cnp.ones(2)
    array([1., 1.])
    """
    return _of_one_number("ones", shape, 1, dtype, device)


@array_function()
def empty(shape: Any, dtype: Any = None, *, device: Any = None) -> Any:
    """As `zeros`: every run of a program must give the same numbers, so nothing is left uninitialised.

    >>> cnp.empty(2)
    array([0., 0.])
    """
    return _of_one_number("empty", shape, 0, dtype, device)


@array_function()
def full(shape: Any, fill_value: Any, dtype: Any = None, *, device: Any = None) -> Any:
    """As `zeros`, filled with a value that broadcasts to the shape and may be traced; its dtype unless given.

    >>> cnp.full(2, 7)
    array([7, 7])
    """
    return _filled("full", shape, fill_value, dtype, device)


@array_function()
def zeros_like(x: Any, dtype: Any = None, shape: Any = None, *, device: Any = None) -> Any:
    """Zeros of the shape and dtype of x, unless another shape or dtype is given.

    >>> cnp.zeros_like([1.0, 2.0])
    array([0., 0.])
    """
    return _filled_like("zeros_like", x, 0, dtype, shape, device)


@array_function()
def ones_like(x: Any, dtype: Any = None, shape: Any = None, *, device: Any = None) -> Any:
    """Ones of the shape and dtype of x, unless another shape or dtype is given.

    >>> cnp.ones_like([1.0, 2.0])
    array([1., 1.])
    """
    return _filled_like("ones_like", x, 1, dtype, shape, device)


@array_function()
def empty_like(x: Any, dtype: Any = None, shape: Any = None, *, device: Any = None) -> Any:
    """As `zeros_like`; see `empty`.

    >>> cnp.empty_like([1.0, 2.0])
    array([0., 0.])
    """
    return _filled_like("empty_like", x, 0, dtype, shape, device)


@array_function()
def full_like(x: Any, fill_value: Any, dtype: Any = None, shape: Any = None, *, device: Any = None) -> Any:
    """A value, which may be traced, in the shape and dtype of x, unless another shape or dtype is given.

    >>> cnp.full_like([1.0, 2.0], 7)
    array([7., 7.])
    """
    return _filled_like("full_like", x, fill_value, dtype, shape, device)


def _as_array(operation: str, x: Any, dtype: Any) -> Any:
    if not isinstance(x, Tensor | int | list | tuple):
        x = from_nested(operation, x)
    return concrete(operand(operation, x) if dtype is None else to_dtype(operation, x, dtype))


def _is_shared(result: Any, x: Any) -> bool:
    """Return true if the result shares memory with an array of the caller, which may change later."""
    return isinstance(result, np.ndarray) and not isinstance(x, list | tuple) and np.may_share_memory(result, x)


@array_function()
def asarray(
    x: Any, dtype: Any = None, order: str | None = None, *, copy: bool | None = None, device: Any = None
) -> Any:
    """x as an array: nested lists may hold traced tensors beside numbers and arrays.

    Args:
        x: an array, a number, or nested lists of them.
        dtype: its dtype where it is not given by x.
        order: accepted for NumPy; a graph's arrays have no order in memory.
        copy: True never returns x itself, False always does (a UserInputError where it cannot), None where it can.
        device: "cpu" or None.

    Raises:
        ShapeError: the lists are ragged. TypeMismatchError: a dtype that no graph holds, such as text.

    >>> cnp.asarray([1, 2], dtype=cnp.float32)
    array([1., 2.], dtype=float32)
    """
    check_device("asarray", device)
    result = _as_array("asarray", x, dtype)
    if copy is False and not (isinstance(result, Tensor) and result is x) and not _is_shared(result, x):
        raise UserInputError(
            "asarray: this needs a copy",
            source=here(),
            expected="an array of the dtype that is asked for",
            got=f"{type(x).__name__}" + ("" if dtype is None else f" as {np.dtype(dtype)}"),
            hint="leave copy=False out",
        )
    return np.array(result) if copy and _is_shared(result, x) else result


@array_function()
def array(
    x: Any, dtype: Any = None, copy: bool = True, order: str | None = None, ndmin: int = 0, *, device: Any = None
) -> Any:
    """As `asarray`, but never x itself where x could change later, unless `copy` is False.

    `ndmin` puts axes of size 1 in front, up to this rank.

    >>> cnp.array([[1, 2]])
    array([[1, 2]])
    """
    check_device("array", device)
    result = _as_array("array", x, dtype)
    result = concrete(np.array(result)) if copy and isinstance(result, np.ndarray) else result
    return expanded(result, range(ndmin - rank_of(result))) if rank_of(result) < ndmin else result


__all__ = [
    "array",
    "asarray",
    "empty",
    "empty_like",
    "full",
    "full_like",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
]
