"""An array library that is as strict as CuPy, on NumPy, for tests without a card.

Its arrays do not mix with NumPy's, do not turn into them by themselves, give arrays of rank 0 where NumPy gives
scalars, and wrap index arrays around where NumPy raises. Kernels are run from the very text that is compiled on a card:
`run_text` reads a statement as Python, which it is too, with NumPy's functions under the names of the preamble's.

In a session every array that is no view asks for its bytes before it is there, as CuPy's allocator does, and memory
that a memory manager has taken back is overwritten by the simulated device: who still reads it sees that.

Copies beside the computation are those of a simulated device, whose threads take their time: memory is poison until a
copy into it is over, and again when it has been given back. A copy out that does not wait for all work so far is an
error, and so is work on an array of another device.
"""

from __future__ import annotations

import functools
import itertools
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CodeType
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.kernel import KernelText
from ctrlgrad.engines.cuda.library import Memory, Rows
from ctrlgrad.engines.precision import Precision
from ctrlgrad.memory.devices.device import Piece, Stream
from ctrlgrad.memory.devices.simulated import SimulatedDevice
from instruments.driver import OnDriver
from instruments.kernel_functions import MEANING

# Of a thread: the library that it works with, and the session's memory that it counts its arrays against.
_CURRENT = threading.local()


def memory_at(interface: Mapping[str, Any]) -> np.ndarray:
    """The memory that a CUDA array interface tells of, which is the processor's here."""
    memory = type("Memory", (), {"__array_interface__": {**interface, "version": 3}})
    return np.asarray(memory())


class StandInArray:
    """An array on the device that there is not."""

    __slots__ = ("_held", "base", "data", "home")
    __array_ufunc__ = None

    def __init__(self, data: np.ndarray, base: StandInArray | None = None, held: object = None) -> None:
        memory: Memory | None = getattr(_CURRENT, "memory", None)
        self.home: StandIn | None = getattr(_CURRENT, "library", None)
        # What lives as long as the array's memory.
        self._held = memory.count(data.nbytes) if base is None and held is None and memory is not None else held
        self.data = data
        self.base = base

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
        found, is_view = self.data[_index(key, self.shape)], not _has_array(key)
        if is_view and not isinstance(found, np.ndarray):
            found = self.data[(*key, ...) if isinstance(key, tuple) else (key, ...)]
        return StandInArray(np.asarray(found), self._root() if is_view else None)

    def __setitem__(self, key: Any, value: Any) -> None:
        place = self.data[_index(key, self.shape)]
        if self.home is not None and isinstance(place, np.ndarray):
            self.home.launched([value], [StandInArray(place, self)])
        self.data[_index(key, self.shape)] = _operand(value)

    def _root(self) -> StandInArray:
        return self if self.base is None else self.base

    def astype(self, dtype: Any, copy: bool = True) -> StandInArray:
        return self if not copy and self.dtype == dtype else StandInArray(self.data.astype(dtype))

    def view(self, dtype: Any) -> StandInArray:
        return StandInArray(self.data.view(dtype))

    def sum(self, **options: Any) -> StandInArray:
        return StandInArray(np.asarray(self.data.sum(**options)))

    def reshape(self, shape: Sequence[int]) -> StandInArray:
        return _wrapped(self.data.reshape(shape), [self])

    @property
    def real(self) -> StandInArray:
        return StandInArray(self.data.real, self._root())

    @real.setter
    def real(self, value: StandInArray) -> None:
        self.data.real = value.data

    @property
    def imag(self) -> StandInArray:
        return StandInArray(self.data.imag, self._root())

    @imag.setter
    def imag(self, value: StandInArray) -> None:
        self.data.imag = value.data


def _operator(name: str) -> Callable[[StandInArray, Any], StandInArray]:
    def method(self: StandInArray, other: Any) -> StandInArray:
        return StandInArray(np.asarray(getattr(self.data, name)(_operand(other))))

    return method


for _name in ("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__mod__", "__lt__", "__gt__"):
    setattr(StandInArray, _name, _operator(_name))


def _operand(x: Any) -> Any:
    """What a function of the library takes: its arrays and scalars, and no array of NumPy's."""
    if isinstance(x, StandInArray):
        _check_home(x)
        return x.data
    if isinstance(x, np.ndarray):
        raise TypeError("unsupported type: a NumPy array")
    if isinstance(x, list | tuple):
        return type(x)(map(_operand, x))
    return x


def _check_home(x: StandInArray) -> None:
    here = getattr(_CURRENT, "library", None)
    assert x.home is here or None in (x.home, here), "work on an array of another device"


def _has_array(key: Any) -> bool:
    return any(isinstance(item, StandInArray) for item in (key if isinstance(key, tuple) else (key,)))


def _index(key: Any, shape: tuple[int, ...]) -> Any:
    """A key for NumPy; index arrays are wrapped around, as CuPy does it instead of raising."""
    if not isinstance(key, tuple):
        key = (key,)
    found, axis = [], 0
    for item in key:
        if isinstance(item, StandInArray):
            item = item.data % shape[axis] if shape[axis] else item.data
        found.append(item)
        axis += item is not None
    return tuple(found)


def _wrapped(result: Any, arguments: Sequence[Any]) -> Any:
    if isinstance(result, list | tuple):
        return type(result)(_wrapped(x, arguments) for x in result)
    array = np.asarray(result)
    if not array.size:
        return StandInArray(array.copy())  # NumPy does not say whose view nothing is
    for x in arguments:
        if isinstance(x, StandInArray) and array is x.data:
            return x
        if isinstance(x, StandInArray) and array.base is not None and np.may_share_memory(array, x.data):
            return StandInArray(array, x._root())
    return StandInArray(array)


class _Namespace:
    """NumPy's functions for the library's arrays."""

    def __init__(self, module: Any, library: StandIn) -> None:
        self._module = module
        self._library = library

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if not callable(found):
            return _Namespace(found, self._library)

        def function(*args: Any, out: StandInArray | None = None, **options: Any) -> Any:
            self._library.work += 1
            arguments = [_operand(x) for x in args]
            self._library.launched(args, [out])
            if out is not None:
                found(*arguments, out=out.data, **options)
                return out
            return _wrapped(found(*arguments, **options), args)

        return function


_STATEMENT = re.compile(r"(?:(?P<dtype>\w+) )?(?P<name>\w+) = (?P<value>.+);")


def run_text(text: KernelText, inputs: Sequence[Any], before: Sequence[Any] = ()) -> list[np.ndarray]:
    """The outputs of a kernel's text, each of the shape that its statement gives. `before` are the outputs so far."""
    named = [*zip(text.inputs, inputs, strict=True), *zip(text.outputs, before, strict=False)]
    names: dict[str, Any] = {p.name: x for p, x in named}
    dtypes = {p.name: p.dtype for p in text.outputs}
    for name, dtype, value in _statements(text.operation):
        names[name] = np.asarray(eval(value, MEANING, names)).astype(dtype or dtypes[name])
    return [names[p.name] for p in text.outputs]


@functools.cache
def _statements(operation: str) -> list[tuple[str, str | None, CodeType]]:
    """Of each statement the name that it defines, the dtype that it declares, and its value as Python.

    Kept, since a loop launches a kernel again and again.
    """
    found = []
    for line in operation.split("\n"):
        statement = _STATEMENT.fullmatch(line)
        assert statement is not None, line
        found.append((statement["name"], statement["dtype"], compile(statement["value"], "<kernel>", "eval")))
    return found


def _by_row(rows: Rows) -> tuple[np.ndarray, tuple[np.ndarray, ...], np.ndarray]:
    """An array, the rows of it in their order, and what is for each."""
    whole, places, order, value = (_operand(x) for x in (rows.whole, rows.places, rows.order, rows.value))
    assert np.all(places[:-1] <= places[1:]) and value.flags.c_contiguous
    assert value.shape == (len(places), np.prod(whole.shape[rows.axes :]))
    shape = whole.shape[: rows.axes], whole.shape[rows.axes :]
    return whole, np.unravel_index(places, shape[0]), value[order].reshape(-1, *shape[1])


class StandIn(OnDriver):
    """The library. It refuses work outside of `running`, and remembers the kernels that it was given."""

    _numbers = itertools.count()

    def __init__(self, **copies: Any) -> None:
        # A graph keeps the programs of each library by its name.
        self.name = f"stand-in {next(self._numbers)}"
        self._namespace = _Namespace(np, self)
        self._depths = threading.local()
        self.texts: dict[KernelText, None] = {}
        # How the copies beside the computation go: what a simulated device can be told.
        self._copies = copies
        self._copier: StandInCopier | None = None
        super().__init__(run_text)

    def prepared(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        self.launched(*([StandInArray(x, held="its owner's") for x in arrays] for arrays in (reads, writes)))

    @property
    def depth(self) -> int:
        """How many `running` blocks the thread is in."""
        return getattr(self._depths, "depth", 0)

    @property
    def xp(self) -> Any:
        assert self.depth, "work outside of the stream"
        return self._namespace

    @contextmanager
    def running(self, memory: Memory | None = None) -> Iterator[None]:
        before = getattr(_CURRENT, "memory", None), getattr(_CURRENT, "library", None)
        self._depths.depth = self.depth + 1
        _CURRENT.memory, _CURRENT.library = memory, self
        try:
            yield
        finally:
            self._depths.depth -= 1
            _CURRENT.memory, _CURRENT.library = before

    def launched(self, reads: Sequence[Any], writes: Sequence[Any]) -> None:
        """Called before each piece of work with what it reads and writes, arrays among other things."""

    def copier(self) -> StandInCopier:
        if self._copier is None:
            self._copier = StandInCopier(self, **self._copies)
        return self._copier

    def borrowed(self, array: StandInArray, owner: object) -> StandInArray:
        return StandInArray(array.data, held=(owner, array))

    def is_array(self, x: Any) -> bool:
        return isinstance(x, StandInArray)

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> StandInArray:
        # What is read before it is written shows.
        return StandInArray(np.full(tuple(shape), 113, np.uint8 if dtype.kind == "b" else dtype).astype(dtype))

    def upload(self, x: Any) -> StandInArray:
        return StandInArray(np.array(x))

    def lent(self, x: Any) -> StandInArray:
        if isinstance(x, StandInArray):
            return StandInArray(x.data, x._root())
        interface = x.__cuda_array_interface__
        owner = StandInArray(memory_at(interface), held=x)
        return StandInArray(owner.data, owner)

    def read(self, arrays: Sequence[StandInArray]) -> list[np.ndarray]:
        return [_operand(x).copy() for x in arrays]

    def kernel(self, text: KernelText, contracts: bool) -> Callable[[Sequence[Any], Sequence[Any]], None]:
        self.texts[text] = None

        def run(inputs: Sequence[Any], outputs: Sequence[StandInArray]) -> None:
            assert self.depth, "work outside of the stream"
            self.work += 1
            shape = outputs[0].shape
            given = []
            for parameter, x in zip(text.inputs, inputs, strict=True):
                assert x.dtype == parameter.dtype, (parameter, x.dtype)
                given.append(np.broadcast_to(_operand(x), shape) if isinstance(x, StandInArray) else x)
                assert isinstance(x, StandInArray | np.generic), type(x)
            for parameter, out in zip(text.outputs, outputs, strict=True):
                assert out.dtype == parameter.dtype and out.shape == shape
            self.launched(inputs, outputs)
            with np.errstate(all="ignore"):
                for out, value in zip(outputs, run_text(text, given), strict=True):
                    out.data[...] = value

        return run

    def check_indices(self, indices: StandInArray, size: int, site: int, flag: StandInArray) -> None:
        bad = indices.data[(indices.data < -size) | (indices.data >= size)]
        if bad.size and not flag.data[0]:
            flag.data[:] = site, bad.reshape(-1)[0], size

    def add_rows(self, rows: Rows) -> None:
        np.add.at(*_by_row(rows))

    def write_rows(self, rows: Rows) -> None:
        whole, places, value = _by_row(rows)
        for place, row in zip(zip(*places, strict=True), value, strict=True):
            whole[place] = row

    def matmul(self, a: StandInArray, b: StandInArray, precision: Precision) -> StandInArray:
        found: StandInArray = self.xp.matmul(a, b)
        return found

    def add_product(self, total: StandInArray, a: StandInArray, b: StandInArray, precision: Precision) -> None:
        total.data += a.data @ b.data


class StandInDevice(SimulatedDevice):
    """The device of the stand-in's memory manager. What is computed has been computed: the host is the stream."""

    def __init__(self, capacities: Mapping[str, int] | None = None, **options: Any) -> None:
        super().__init__(capacities or {"device": 1 << 30, "host": 1 << 30}, blocking=True, **options)

    def array(self, piece: Piece, shape: Sequence[int], dtype: np.dtype) -> StandInArray:
        return StandInArray(super().array(piece, shape, dtype), held="the manager's")


class StandInCopier(StandInDevice):
    """The device of copies beside the computation; see `ctrlgrad.engines.cuda.library.CopyDevice`."""

    def __init__(self, library: StandIn, **options: Any) -> None:
        super().__init__(**options)
        self.due: deque[Piece] = deque()
        self._library = library
        # How much of the work copies out have waited for.
        self._waited_for = 0
        record, wait = self.compute.record, self.out.wait

        def recorded() -> Any:
            event: Any = record()
            event.work = library.work
            return event

        def waited(event: Any) -> None:
            self._waited_for = max(self._waited_for, event.work)
            wait(event)

        self.compute.record, self.out.wait = recorded, waited  # type: ignore[method-assign]

    def copy(self, source: Piece, target: Piece, nbytes: int, stream: Stream) -> None:
        if stream is self.out:
            assert self._waited_for == self._library.work, "copied out before it was computed"
        super().copy(source, target, nbytes, stream)

    def piece_of(self, array: StandInArray) -> Piece:
        _check_home(array)
        piece = self.tiers[0].allocate(0)
        piece.nbytes, piece.handle.data = array.nbytes, array.data.reshape(-1).view(np.uint8)
        assert piece.handle.data.base is not None, "the memory of another array"
        return piece

    def host_bytes(self, piece: Piece) -> np.ndarray:
        return self.peek(piece)

    @property
    def used(self) -> dict[str, int]:
        """Bytes of each tier that somebody has, when what is due has been freed."""
        while self.due:
            self.tiers[0].free(self.due.popleft())
        return {tier.name: tier.used for tier in self.tiers}


__all__ = ["StandIn", "StandInArray", "StandInCopier", "StandInDevice", "run_text"]
