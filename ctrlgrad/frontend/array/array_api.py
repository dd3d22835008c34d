"""Parts of the Array API besides array functions: devices, versions, and arrays of other libraries."""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad.dtypes import is_dtype
from ctrlgrad.errors import TypeMismatchError, UserInputError
from ctrlgrad.frontend.apply import check_dtype
from ctrlgrad.frontend.functions import FUNCTIONS, array_function
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.options import default_float
from ctrlgrad.source import here

DEVICE = "cpu"
VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")


def check_device(operation: str, device: Any) -> None:
    """Refuse a device that arrays do not live on: those of a program are the host's, whatever computes it."""
    if device is not None and device != DEVICE:
        raise UserInputError(
            f"{operation}: an unknown device",
            source=here(),
            expected=f"{DEVICE!r} or None",
            got=repr(device),
            hint="where a program runs is an option: ctrlgrad.options(engine=...)",
        )


def check_version(api_version: str | None) -> None:
    """Refuse a version of the Array API that the namespace does not follow."""
    if api_version is not None and api_version not in VERSIONS:
        raise UserInputError(
            "__array_namespace__: an unknown version of the Array API",
            source=here(),
            expected=", ".join(VERSIONS),
            got=repr(api_version),
        )


def to_device(x: Tensor, device: Any, stream: Any) -> Tensor:
    """The tensor itself, which is on the one device that there is."""
    check_device("to_device", device)
    if stream is not None:
        raise UserInputError("to_device: the host has no streams", source=here(), expected="None", got=repr(stream))
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
        """The one device that there is."""
        return DEVICE

    def devices(self) -> list[str]:
        """All devices."""
        return [DEVICE]

    def default_dtypes(self, *, device: Any = None) -> dict[str, np.dtype]:
        """The dtypes of what is made without one."""
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
        raise TypeMismatchError("from_dlpack: no DLPack", expected="an array with __dlpack__", got=type(x).__name__)
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


__all__ = [
    "from_dlpack",
    "ndarray",
]
