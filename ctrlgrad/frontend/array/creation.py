"""Arrays made of a shape, a value, or nested lists; questions about dtypes; parts of the Array API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ctrlgrad import dtypes
from ctrlgrad.advice import check_choice
from ctrlgrad.dtypes import as_dtype, is_dtype
from ctrlgrad.errors import ShapeError, TypeMismatchError, UserInputError
from ctrlgrad.frontend.apply import check_dtype, concrete, float0, result_dtype
from ctrlgrad.frontend.array.promote import *
from ctrlgrad.frontend.functions import FUNCTIONS, array_function, described, publish
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.options import default_float

# Arrays made of a shape and a value, or of nested lists.
#
# With sizes and values that are known the result is a plain NumPy array, inside a trace too; a traced size or
# value makes a traced tensor.


def _filled(operation: str, shape: Any, value: Any, dtype: Any, device: Any) -> Any:
    check_device(operation, device)
    sizes = sizes_argument(operation, shape)
    value = operand(operation, value) if dtype is None else to_dtype(operation, value, dtype)
    if isinstance(value, Tensor) or any(isinstance(d, Tensor) for d in sizes):
        return broadcasted(value, sizes)
    check_dtype(value.dtype)
    return concrete(np.full(tuple(sizes), value))


def _filled_like(operation: str, x: Any, value: Any, dtype: Any, shape: Any, device: Any) -> Any:
    x = operand(operation, x)
    dtype = dtype_of(x) if dtype is None else dtype
    if shape is None:
        shape = shape_of(x) if None not in shape_of(x) else dims(x)
    return _filled(operation, tuple(shape) if isinstance(shape, list | tuple) else shape, value, dtype, device)


def _of_number(name: str, value: int, summary: str, example: str) -> Callable[..., Any]:
    def function(shape: Any, dtype: Any = None, *, device: Any = None) -> Any:
        if dtype is not None and as_dtype(name, dtype) == float0:
            return np.zeros(shape, float0)
        return _filled(name, shape, value, default_float() if dtype is None else dtype, device)

    return array_function()(described(function, name, summary, example))


_ZEROS = """Zeros of a shape: an int or several, any of which may be a traced integer scalar.

    Floats of the default dtype (`ctrlgrad.options`) where none is given.

    Raises:
        ShapeError: a negative size. TypeMismatchError: a size that is not an integer."""
_EMPTY = "As `zeros`: every run of a program must give the same numbers, so nothing is left uninitialised."
zeros = _of_number("zeros", 0, _ZEROS, "cnp.zeros((2,)) -> array([0., 0.])")
ones = _of_number("ones", 1, "As `zeros`, filled with ones.", "cnp.ones(2) -> array([1., 1.])")
empty = _of_number("empty", 0, _EMPTY, "cnp.empty(2) -> array([0., 0.])")


@array_function()
def full(shape: Any, fill_value: Any, dtype: Any = None, *, device: Any = None) -> Any:
    """As `zeros`, filled with a value that broadcasts to the shape and may be traced; its dtype unless given.

    >>> cnp.full(2, 7)
    array([7, 7])
    """
    return _filled("full", shape, fill_value, dtype, device)


def _like(name: str, value: int, summary: str, example: str) -> Callable[..., Any]:
    def function(x: Any, dtype: Any = None, shape: Any = None, *, device: Any = None) -> Any:
        return _filled_like(name, x, value, dtype, shape, device)

    return array_function()(described(function, name, summary, example))


_LIKE = "{} of the shape and dtype of x, unless another shape or dtype is given."
zeros_like = _like("zeros_like", 0, _LIKE.format("Zeros"), "cnp.zeros_like([1.0, 2.0]) -> array([0., 0.])")
ones_like = _like("ones_like", 1, _LIKE.format("Ones"), "cnp.ones_like([1.0, 2.0]) -> array([1., 1.])")
empty_like = _like("empty_like", 0, "As `zeros_like`; see `empty`.", "cnp.empty_like([1.0, 2.0]) -> array([0., 0.])")


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


# Questions about dtypes and shapes, answered at once: nothing is recorded.


def _dtype(x: Any) -> Any:
    return x.dtype if isinstance(x, Tensor | np.ndarray | np.generic) else x


class FloatLimits:
    """The limits of a floating-point dtype: the standard's attributes as Python's numbers, further ones as NumPy's."""

    def __init__(self, limits: Any) -> None:
        self._limits = limits
        self.bits, self.dtype = int(limits.bits), limits.dtype
        self.eps, self.max, self.min = float(limits.eps), float(limits.max), float(limits.min)
        self.smallest_normal = self.tiny = float(limits.smallest_normal)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._limits, name)

    def __repr__(self) -> str:
        return repr(self._limits)


def finfo(dtype: Any) -> FloatLimits:
    """The limits of a floating-point dtype, given itself or as an array of it; of a complex one, of its parts.

    >>> print(cnp.finfo(cnp.float32).bits)
    32
    """
    return FloatLimits(dtypes.finfo(_dtype(dtype)))


def iinfo(dtype: Any) -> Any:
    """The limits of an integer dtype, given itself or as an array of it.

    >>> print(cnp.iinfo(cnp.int8).max)
    127
    """
    return np.iinfo(as_dtype("iinfo", _dtype(dtype)))


def isdtype(dtype: Any, kind: Any) -> Any:
    """Return true if a dtype is of a kind: another dtype, a name such as "real floating", or a tuple of them.

    >>> cnp.isdtype(cnp.float32, "real floating")
    True
    """
    return dtypes.is_dtype(dtype, kind)


def issubdtype(arg1: Any, arg2: Any) -> bool:
    """True if a dtype is below another, or below an abstract one such as `floating`; bfloat16 is below `floating`.

    >>> [cnp.issubdtype(cnp.bfloat16, dtype) for dtype in (cnp.floating, cnp.float16)]
    [True, False]
    """
    return dtypes.is_subdtype(arg1, arg2)


def promote_types(type1: Any, type2: Any) -> np.dtype:
    """The smallest dtype that two dtypes promote to; as in JAX for bfloat16, as in NumPy for the rest.

    >>> [cnp.promote_types(cnp.bfloat16, dtype) for dtype in (cnp.int32, cnp.float16)]
    [dtype(bfloat16), dtype('float32')]
    """
    return dtypes.result_type(as_dtype("promote_types", type1), as_dtype("promote_types", type2))


@array_function()
def can_cast(from_: Any, to: Any, /) -> Any:
    """Return true if a dtype, or an array's dtype, becomes another without loss by promotion.

    >>> cnp.can_cast(cnp.float32, cnp.float64)
    True
    """
    return dtypes.can_cast(_dtype(from_), to)


@array_function()
def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The shape that known shapes broadcast to.

    Raises:
        ShapeError: they do not.

    >>> cnp.broadcast_shapes((2, 1), (3,))
    (2, 3)
    """
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError as error:
        raise ShapeError(
            "broadcast_shapes: the shapes do not broadcast",
            expected="sizes that are equal or 1",
            got=" and ".join(map(str, shapes)),
            source=None,
        ) from error


@array_function()
def result_type(*arrays_and_dtypes: Any) -> np.dtype:
    """The dtype that arrays, numbers and dtypes promote to; Python numbers do not widen arrays.

    >>> cnp.result_type(cnp.float32, 1.0)
    dtype('float32')
    """
    named = [x for x in arrays_and_dtypes if isinstance(x, type | np.dtype | str)]
    arrays = [x for x in arrays_and_dtypes if not isinstance(x, type | np.dtype | str)]
    return result_dtype(*(np.empty(0, as_dtype("result_type", dtype)) for dtype in named), *arrays)


def isscalar(element: Any) -> bool:
    """Return true if the argument is a Python number or an array of rank 0; as `jax.numpy.isscalar`.

    >>> cnp.isscalar(3.0), cnp.isscalar([3.0])
    (True, False)
    """
    return np.isscalar(element) or (isinstance(element, Tensor | np.ndarray) and element.ndim == 0)


def iterable(y: Any) -> bool:
    """Return true if the argument can be iterated over; an array can unless its rank is 0. As `numpy.iterable`.

    >>> cnp.iterable([1, 2]), cnp.iterable(1)
    (True, False)
    """
    return y.ndim > 0 if isinstance(y, Tensor) else np.iterable(y)


DEVICE = "cpu"
VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")


def check_device(operation: str, device: Any) -> None:
    """Refuse a device that arrays do not live on: those of a program are the host's, whatever computes it."""
    if device is not None and device != DEVICE:
        raise UserInputError(
            f"{operation}: an unknown device",
            expected=f"{DEVICE!r} or None",
            got=repr(device),
            hint="where a program runs is an option: ctrlgrad.options(engine=...)",
        )


def check_version(api_version: str | None) -> None:
    """Refuse a version of the Array API that the namespace does not follow."""
    check_choice("__array_namespace__", "api_version", api_version, (None, *VERSIONS))


def to_device(x: Tensor, device: Any, stream: Any) -> Tensor:
    """The tensor itself: arrays have one device."""
    check_device("to_device", device)
    check_choice("to_device", "stream", stream, [None])
    return x


FUNCTIONS["__to_device__"] = to_device
FUNCTIONS["__check_version__"] = check_version


class ArrayNamespaceInfo:
    """Description of this Array API namespace; the result of the standard's `__array_namespace_info__()`.

    >>> cnp.__array_namespace_info__().default_device()
    'cpu'
    """

    def capabilities(self) -> dict[str, Any]:
        """Boolean masks and shapes that depend on data are allowed; a shape has 64 axes at most."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        """List with the only device."""
        return DEVICE

    def devices(self) -> list[str]:
        """All devices."""
        return [DEVICE]

    def default_dtypes(self, *, device: Any = None) -> dict[str, np.dtype]:
        """The default dtypes of new arrays."""
        check_device("default_dtypes", device)
        real = default_float()
        return {
            "real floating": real,
            "complex floating": np.result_type(real, np.complex64),
            "integral": np.dtype(np.int64),
            "indexing": np.dtype(np.int64),
        }

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, np.dtype]:
        """The dtypes of a kind, such as "real floating", or of a tuple of kinds; all of them for None."""
        check_device("dtypes", device)
        names = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 complex64 complex128"
        found = {name: np.dtype(name) for name in names.split()}
        return found if kind is None else {name: dtype for name, dtype in found.items() if is_dtype(dtype, kind)}


def __array_namespace_info__() -> ArrayNamespaceInfo:
    """Describe this Array API namespace: its devices, dtypes and capabilities.

    >>> sorted(cnp.__array_namespace_info__().dtypes(kind="real floating"))
    ['float32', 'float64']
    """
    return ArrayNamespaceInfo()


@array_function()
def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Any:
    """An array of another library by DLPack, in the memory that it has unless `copy` is true.

    A traced tensor is returned as it is.

    >>> cnp.from_dlpack(np.arange(3))
    array([0, 1, 2])
    """
    check_device("from_dlpack", device)
    if isinstance(x, Tensor):
        return x
    if not hasattr(x, "__dlpack__"):
        raise TypeMismatchError(
            "from_dlpack: no DLPack", expected="an array with __dlpack__", got=type(x).__name__, hint="use asarray"
        )
    found = np.from_dlpack(x)
    check_dtype(found.dtype)
    return found.copy() if copy else found


class _Arrays(type):
    """Metaclass of `ndarray`: traced tensors and NumPy's arrays are its instances."""

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, Tensor | np.ndarray)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, Tensor | np.ndarray)


class ndarray(metaclass=_Arrays):
    """The type of arrays, traced and concrete ones; as `jax.numpy.ndarray`. Make one by `ctrlgrad.numpy.array`.

    >>> isinstance(cnp.zeros(2), cnp.ndarray)
    True
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise TypeMismatchError(
            "ndarray: not a constructor",
            expected="a check of a type, or an annotation",
            got="ndarray(...)",
            hint="ctrlgrad.numpy.array(x), .zeros(shape), .empty(shape)",
        )


publish(__name__, "ArrayNamespaceInfo", "FloatLimits", "check_device", "check_version", "to_device")
