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

import itertools
import math
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ctrlgrad.dtypes import BFLOAT16
from ctrlgrad.engines.cuda.indexing import FLAG, IndexSpec, UpdateSpec
from ctrlgrad.engines.cuda.kernel import KernelLaunch, KernelText
from ctrlgrad.engines.cuda.library import Memory
from ctrlgrad.engines.cuda.reductions import KernelSpec
from ctrlgrad.engines.cuda.sites import FLAG_WORDS
from ctrlgrad.engines.device_array import type_on_card
from ctrlgrad.memory.devices.device import Piece, Stream
from instruments.driver import HANDLE, OnDriver
from instruments.simulated import SimulatedDevice
from instruments.stand_in_arrays import CURRENT, StandInArray, check_home, computed, memory_at, operand, refuse_flushing
from instruments.text import run_text

# Functions of CuPy 14's that have no loops, or no templates, for bfloat16.
_WITHOUT_BFLOAT16 = {"all", "any", "argmax", "argmin", "argsort", "cumprod", "cumsum", "nonzero", "searchsorted"}
# Functions that do more than to move elements, or to sort them.
_COMPUTING = {"add", "subtract", "multiply", "sum", "tanh", "nonzero", "searchsorted"}


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
            arguments = [operand(x) for x in args]
            if name in _COMPUTING:
                refuse_flushing(name, arguments)
            if name in _WITHOUT_BFLOAT16 and any(getattr(x, "dtype", None) == BFLOAT16 for x in arguments):
                raise TypeError(f"{name} has no bfloat16")
            if out is not None:
                found(*arguments, out=out.data, **options)
                self._library.launched(args, [out])
                return out
            return computed(found(*arguments, **options), args)

        return function


class StandIn(OnDriver):
    """The library. It refuses work outside of `running`, and remembers the kernels that it was given."""

    _numbers = itertools.count()

    def __init__(self, **copies: Any) -> None:
        # A graph keeps the programs of each library by its name.
        self.name = f"stand-in {next(self._numbers)}"
        self._namespace = _Namespace(np, self)
        self._depths = threading.local()
        self._flags: list[StandInArray] = []
        self._stopped = StandInArray(np.zeros(1, np.int64), held="the library's")
        # The kernels of reads and updates by indices outside of lists.
        self.indexings: dict[IndexSpec, None] = {}
        self.texts: dict[KernelText, None] = {}
        # How the copies beside the computation go: what a simulated device can be told.
        self._copies = copies
        self._copier: StandInCopier | None = None
        super().__init__()

    def prepared(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        self.launched(*([StandInArray(x, held="its owner's") for x in arrays] for arrays in (reads, writes)))

    @property
    def depth(self) -> int:
        """Number of `running` blocks that the thread is in."""
        return getattr(self._depths, "depth", 0)

    @property
    def xp(self) -> Any:
        assert self.depth, "work outside of the stream"
        return self._namespace

    @contextmanager
    def running(self, memory: Memory | None = None) -> Iterator[None]:
        before = getattr(CURRENT, "memory", None), getattr(CURRENT, "library", None)
        self._depths.depth = self.depth + 1
        CURRENT.memory, CURRENT.library = memory, self
        try:
            yield
        finally:
            self._depths.depth -= 1
            CURRENT.memory, CURRENT.library = before

    def launched(self, reads: Sequence[Any], writes: Sequence[Any]) -> None:
        """Called for each piece of work with what it reads and writes, arrays among other things."""

    def allocated(self, array: StandInArray) -> None:
        """Called for each array in memory of its own."""

    def copier(self) -> StandInCopier:
        if self._copier is None:
            self._copier = StandInCopier(self, **self._copies)
        return self._copier

    def strided(self, array: StandInArray, shape: Sequence[int], strides: Sequence[int], offset: int) -> StandInArray:
        root = array.root().data
        if not math.prod(shape):
            return StandInArray(np.empty(tuple(shape), array.dtype), array.root())
        words = {"data": (array.data.ctypes.data + offset, False), "shape": tuple(shape), "strides": tuple(strides)}
        found = memory_at(array.data.__array_interface__ | words, root).view(array.dtype)
        low, high = np.lib.array_utils.byte_bounds(root)
        mine = np.lib.array_utils.byte_bounds(found)
        assert low <= mine[0] and mine[1] <= high, "a view beyond its array"
        return StandInArray(found, array.root())

    def borrowed(self, array: StandInArray, owner: object) -> StandInArray:
        return StandInArray(array.data, held=(owner, array))

    def is_array(self, x: Any) -> bool:
        return isinstance(x, StandInArray)

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> StandInArray:
        self.driver.graph_calls.forbid("allocation")
        # Values that are read before they are written show.
        return StandInArray(np.full(tuple(shape), 113, np.uint8 if dtype.kind == "b" else dtype).astype(dtype))

    def upload(self, x: Any) -> StandInArray:
        found = StandInArray(np.array(x))
        self.launched([], [found])
        return found

    def lent(self, x: Any) -> StandInArray:
        if isinstance(x, StandInArray):
            return StandInArray(x.data, x.root())
        # The dtype is DLPack's to say: the interface has no name for bfloat16.
        owner = StandInArray(memory_at(x.__cuda_array_interface__).view(type_on_card(x)[0]), held=x)
        return StandInArray(owner.data, owner)

    def read(self, arrays: Sequence[StandInArray]) -> list[np.ndarray]:
        self.driver.graph_calls.forbid("waiting")
        self.launched(arrays, [])
        return [operand(x).copy() for x in arrays]

    def launch(self, launch: KernelLaunch, contracts: bool) -> None:
        assert self.depth, "work outside of the stream"
        self.seen(launch.spec)
        self.work += 1
        spec, arguments = launch.spec, launch.arguments
        assert all(isinstance(x, StandInArray | np.generic) for x in arguments)
        if not isinstance(spec, KernelSpec):
            self._index(launch)
            return
        read = len(spec.reads)
        self.launched(arguments[:read], arguments[read:])
        self.driver.reduce(spec, [operand(x) for x in arguments], launch.numbers)

    def _index(self, launch: KernelLaunch) -> None:
        spec, arguments = launch.spec, launch.arguments
        assert isinstance(spec, IndexSpec)
        self.indexings[spec] = None
        read = len(spec.reads)
        # A destination that is added to is read, too, and so is a flag.
        written = list(zip(spec.writes, arguments[read:], strict=True))
        adds = isinstance(spec, UpdateSpec) and spec.text is not None
        changed = [x for p, x in written if p == FLAG or (p.name == "x" and adds)]
        self.launched((*arguments[:read], *changed), arguments[read:])
        self.driver.index(launch, [operand(x) for x in arguments])

    def take_flag(self) -> StandInArray:
        flag = self._flags.pop() if self._flags else StandInArray(np.zeros(FLAG_WORDS, np.int64), held="the library's")
        assert not flag.data.any()
        self.flag_taken(flag)
        return flag

    def mark(self) -> Any:
        return None

    def wait(self, event: Any) -> None:
        self.driver.graph_calls.forbid("waiting")

    def stopped(self) -> StandInArray:
        self.flag_taken(self._stopped)
        return self._stopped

    def stop(self, run: int) -> None:
        self._stopped.data[...] = run

    def flag_taken(self, flag: StandInArray) -> None:
        """Called with memory that a run has which was there before it."""

    def give_back_flag(self, flag: StandInArray) -> None:
        self._flags.append(flag)

    def multiply(self, given: Sequence[int]) -> None:
        assert self.depth, "work outside of the stream"
        self.driver.multiply((HANDLE, *given))


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
        check_home(array)
        piece = self.tiers[0].allocate(0)
        piece.nbytes, piece.handle.data = array.nbytes, array.data.reshape(-1).view(np.uint8)
        assert piece.handle.data.base is not None, "the memory of another array"
        return piece

    def host_bytes(self, piece: Piece) -> np.ndarray:
        return self.peek(piece)

    @property
    def used(self) -> dict[str, int]:
        """Bytes in use in each tier, after due blocks have been freed."""
        while self.due:
            self.tiers[0].free(self.due.popleft())
        return {tier.name: tier.used for tier in self.tiers}


__all__ = ["StandIn", "StandInArray", "StandInCopier", "StandInDevice", "memory_at", "run_text"]
