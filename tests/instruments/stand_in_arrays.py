"""The stand-in's arrays: NumPy's, which refuse what CuPy's refuse, and tell their library what is read and written.

Whatever computes with elements goes through `computed`, or tells of itself: what a library does with arrays is known,
by whatever road (see `instruments.recorded`). A view is no work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.engines.cuda.library import Memory

if TYPE_CHECKING:
    from instruments.stand_in import StandIn

# Of a thread: the library that it works with, and the session's memory that it counts its arrays against.
CURRENT = threading.local()


def memory_at(interface: Mapping[str, Any], owner: object = None) -> np.ndarray:
    """The memory that a CUDA array interface tells of, which is the processor's here; the array holds the owner."""
    memory = type("Memory", (), {"__array_interface__": {**interface, "version": 3}, "owner": owner})
    return np.asarray(memory())


class StandInArray:
    """An array on the device that there is not."""

    __slots__ = ("_held", "base", "data", "home")
    __array_ufunc__ = None

    def __init__(self, data: np.ndarray, base: StandInArray | None = None, held: object = None) -> None:
        memory: Memory | None = getattr(CURRENT, "memory", None)
        self.home: StandIn | None = getattr(CURRENT, "library", None)
        # Objects that live as long as the array's memory.
        self._held = memory.count(data.nbytes) if base is None and held is None and memory is not None else held
        self.data = data
        self.base = base
        if base is None and held is None and self.home is not None:
            self.home.allocated(self)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("implicit conversion of a device array to a NumPy array")

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.data.__array_interface__, "version": 3, "stream": 7}

    def __dlpack__(self, **options: Any) -> Any:
        return self.data.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __bool__(self) -> bool:
        raise TypeError("implicit conversion of a device array to a bool")

    __int__ = __float__ = __index__ = __bool__

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[StandInArray]:
        return (self[i] for i in range(len(self)))

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "strides", "dtype", "ndim", "size", "nbytes"):
            return getattr(self.data, name)
        raise AttributeError(name)

    def __getitem__(self, key: Any) -> StandInArray:
        assert not _has_array(key), "reads at index arrays are the library's"
        return StandInArray(self._part(key), self.root())

    def __setitem__(self, key: Any, value: Any) -> None:
        assert not _has_array(key), "writes at index arrays are the library's"
        place = self._part(key)
        place[...] = operand(value)
        _tell([value], [StandInArray(place, self)])

    def _part(self, key: Any) -> np.ndarray:
        """A view, of an element too."""
        found = self.data[key]
        return (
            found if isinstance(found, np.ndarray) else self.data[(*key, ...) if isinstance(key, tuple) else (key, ...)]
        )

    def root(self) -> StandInArray:
        return self if self.base is None else self.base

    def astype(self, dtype: Any, copy: bool = True) -> StandInArray:
        return self if not copy and self.dtype == dtype else computed(self.data.astype(dtype), [self])

    def view(self, dtype: Any) -> StandInArray:
        return StandInArray(self.data.view(dtype), self.root())

    def sum(self, **options: Any) -> StandInArray:
        return computed(self.data.sum(**options), [self])

    def reshape(self, shape: Sequence[int]) -> StandInArray:
        return computed(self.data.reshape(shape), [self])

    @property
    def real(self) -> StandInArray:
        return StandInArray(self.data.real, self.root())

    @real.setter
    def real(self, value: StandInArray) -> None:
        self.data.real = operand(value)
        _tell([value], [self])

    @property
    def imag(self) -> StandInArray:
        return StandInArray(self.data.imag, self.root())

    @imag.setter
    def imag(self, value: StandInArray) -> None:
        self.data.imag = operand(value)
        _tell([value], [self])


def refuse_flushing(name: str, arguments: Sequence[Any]) -> None:
    """CuPy's own kernels flush subnormal float32 numbers: they may move floats, and compute with other dtypes."""
    for x in arguments:
        dtype = getattr(x, "dtype", None)
        if dtype is not None and dtype_kind(dtype) in "fc" and dtype not in (np.float64, np.complex128):
            raise AssertionError(f"{name} of {dtype} takes subnormal numbers for zero")


def _operator(name: str) -> Callable[[StandInArray, Any], StandInArray]:
    def method(self: StandInArray, other: Any) -> StandInArray:
        refuse_flushing(name, [self, other])
        return computed(getattr(self.data, name)(operand(other)), [self, other])

    return method


for _name in ("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__mod__", "__lt__", "__gt__"):
    setattr(StandInArray, _name, _operator(_name))


def operand(x: Any) -> Any:
    """Arguments of a function of the library: its arrays and scalars, and no array of NumPy's."""
    if isinstance(x, StandInArray):
        check_home(x)
        return x.data
    if isinstance(x, np.ndarray):
        raise TypeError("unsupported type: a NumPy array")
    if isinstance(x, list | tuple):
        return type(x)(map(operand, x))
    return x


def check_home(x: StandInArray) -> None:
    here = getattr(CURRENT, "library", None)
    assert x.home is here or None in (x.home, here), "work on an array of another device"


def _has_array(key: Any) -> bool:
    return any(isinstance(item, StandInArray) for item in (key if isinstance(key, tuple) else (key,)))


def _tell(reads: Sequence[Any], writes: Sequence[Any]) -> None:
    library = getattr(CURRENT, "library", None)
    if library is not None:
        library.launched(reads, writes)


def computed(result: Any, reads: Sequence[Any]) -> Any:
    """Results made of arrays, as arrays; the library is told, unless all of it is views."""
    found = wrapped(result, reads)
    given = {id(x) for x in reads}
    results = found if isinstance(found, list | tuple) else [found]
    written = [x for x in results if x.base is None and id(x) not in given]
    if written:
        _tell(reads, written)
    return found


def wrapped(result: Any, arguments: Sequence[Any]) -> Any:
    if isinstance(result, list | tuple):
        return type(result)(wrapped(x, arguments) for x in result)
    array = np.asarray(result)
    if not array.size:
        return StandInArray(array.copy())  # NumPy does not say whose view nothing is
    for x in arguments:
        if isinstance(x, StandInArray) and array is x.data:
            return x
        if isinstance(x, StandInArray) and array.base is not None and np.may_share_memory(array, x.data):
            return StandInArray(array, x.root())
    return StandInArray(array)


__all__ = ["CURRENT", "StandInArray", "check_home", "computed", "memory_at", "operand", "refuse_flushing"]
