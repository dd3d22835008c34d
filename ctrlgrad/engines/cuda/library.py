"""Interface that the engine needs from an array library.

The engine names no library: it is given one. `cupy_library` adapts CuPy; the tests have a stand-in on NumPy that
refuses what CuPy refuses (mixing with NumPy's arrays, implicit copies to the host).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ctrlgrad.memory.devices.device import Device, Piece

if TYPE_CHECKING:
    from ctrlgrad.engines.cuda.kernel import KernelLaunch, Spec
    from ctrlgrad.engines.cuda.prepared.walker import Functions


class Memory(Protocol):
    """Account of a run's arrays."""

    @property
    def device(self) -> Any:
        """The memory manager's device, which the library made for the session; the run is on its compute stream."""

    def count(self, nbytes: int) -> Any:
        """Before memory for an array is allocated: what the memory is to hold on to as long as it lives."""

    def allocate(self, nbytes: int) -> Any:
        """Allocate by the memory manager, where the library itself has no memory left; the result is held as in
        `count`."""


class CopyDevice(Device, Protocol):
    """The same device as tiers and streams, for copies beside the computation; it computes on the library's stream."""

    @property
    def due(self) -> deque[Piece]:
        """Pieces of the first tier whose arrays have died, to be freed. A finalizer may append at any point."""

    def piece_of(self, array: Any) -> Piece:
        """The memory of a contiguous array of the library's as a piece of the first tier.

        The array is to be held as long as a copy uses the piece.
        """

    def host_bytes(self, piece: Piece) -> np.ndarray:
        """A piece of the second tier, pinned host memory, as an array, uint8 `[bytes]`."""


class Launcher(Protocol):
    """Functions and handles that a prepared list of launches needs; see `ctrlgrad.engines.cuda.prepared.walker`."""

    @property
    def functions(self) -> Functions:
        """Their addresses."""

    @property
    def stream(self) -> int:
        """The stream that the library's work is on, for CUDA."""

    @property
    def handle(self) -> int:
        """The handle of products, which are on that stream; 0 where there are none."""

    def error(self, kind: int, status: int) -> Exception:
        """Error for a status that a function of this kind returned."""

    def graphs(self) -> Mapping[str, int] | str:
        """The addresses of the driver's functions for graphs (`ctrlgrad.engines.cuda.prepared.graphs`), by their names,
        or why there are none."""

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the workspace of products in a graph: the largest piece of the workspace outside graphs."""

    def capturing(self, workspace: Any) -> AbstractContextManager[int]:
        """A stream that nothing else uses, for a capture; products are on it too meanwhile, with this workspace.

        `workspace` is an array of bytes, or None where there are no products.
        """


class ArrayLibrary(Protocol):
    """Arrays on a device, and one stream on which all work on them is put in order."""

    @property
    def name(self) -> str:
        """ "cuda:0"."""

    @property
    def xp(self) -> Any:
        """A namespace with NumPy's functions for the library's arrays."""

    def running(self, memory: Memory | None = None) -> AbstractContextManager[None]:
        """Put the work of a block of code on the library's stream; in a session on its device's, and count memory."""

    def is_array(self, x: Any) -> bool:
        """Return true if x is an array on a device."""

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> Any:
        """An array whose elements are not set."""

    def strided(self, array: Any, shape: Sequence[int], strides: Sequence[int], offset: int) -> Any:
        """A view of an array's memory: strides, and the offset from the array's first element, in bytes."""

    def borrowed(self, array: Any, owner: object) -> Any:
        """An array in the memory of another one, which holds an owner as long as it or a view of it lives."""

    def upload(self, x: Any) -> Any:
        """A device array of a host array or scalar."""

    def lent(self, x: Any) -> Any:
        """A view of an array on the device, of this library or another: its memory is the caller's, so it has a base.

        What was put on the producer's stream so far is waited for, by the stream alone where the producer can say so.
        """

    def read(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        """Copies on the host. Waits for what was put on the stream so far, and for nothing else."""

    def copier(self) -> CopyDevice:
        """The device for copies beside the computation, made once."""

    def launch(self, launch: KernelLaunch, contracts: bool) -> None:
        """Launch a kernel on arrays and scalars; `contracts`: a product and a sum may be rounded once."""

    def address(self, array: Any) -> int:
        """Address of an array's first element."""

    def prepare(self, specs: Sequence[Spec], contracts: bool) -> None:
        """`function` will be asked for these: they may be compiled meanwhile, several at once."""

    def function(self, spec: Spec, contracts: bool) -> int:
        """The compiled form of a kernel that is launched by its parameters; it lives as long as the library."""

    def launcher(self, multiplies: bool) -> Launcher:
        """Launcher of lists on the stream; `multiplies`: their products need a handle."""

    def take_flag(self) -> Any:
        """`FLAG_WORDS` zeros, int64 (`ctrlgrad.engines.cuda.sites`), for one run: they are kept from run to run."""

    def give_back_flag(self, flag: Any) -> None:
        """A run is over that has left it as it was."""

    def mark(self) -> Any:
        """An event behind the work so far."""

    def wait(self, event: Any) -> None:
        """Wait for one. Python has turns meanwhile: Ctrl-C is seen."""

    def stopped(self) -> Any:
        """A word on the card, int64: the number of a run whose graphs are to end."""

    def stop(self, run: int) -> None:
        """Stop the graphs of a run, and wait until they have ended: their results are dropped."""

    def multiply(self, given: Sequence[int]) -> None:
        """Put products on the stream, by cuBLAS's arguments after the handle (`ctrlgrad.engines.cuda.products`)."""
