"""Memory of a frame: a workspace for arrays whose sizes follow from the arguments', scratch memory of products, and
buffers that are sized when they are needed."""

from __future__ import annotations

import numpy as np

from ctrlgrad.engines.native import frame
from ctrlgrad.engines.native.frame import Layout
from ctrlgrad.engines.native.memory import address_of
from ctrlgrad.memory.session import current
from ctrlgrad.plan.effects import names_of
from ctrlgrad.plan.model import Array
from ctrlgrad.runtime.stack import empty

# Bytes that a frame keeps from one call to the next: allocating so little again would cost a short call more than
# keeping it. All memory of a frame that holds more goes back to the pool, which has a limit, and which a budget
# empties.
IDLE_BYTES = 1 << 18

_BYTE = np.dtype(np.uint8)


class FrameMemory:
    """The memory of one frame, and its words that say where it is."""

    def __init__(self, words: np.ndarray, layout: Layout) -> None:
        self.words, self.layout, self.plan = words, layout, layout.plan
        self.integers = words.data
        self.workspace: np.ndarray | None = None
        self.scratch: np.ndarray | None = None
        # By address: compiled code exchanges the memory of two buffers by their words.
        self.held: dict[int, np.ndarray] = {}
        self.buffer_of = {b.result: b.number for b in self.plan.buffers if b.result is not None}
        # Results whose shapes the arguments' sizes do not tell. Results of known shapes are allocated before each run.
        known = {register.name for register, _, _ in self.plan.sizes}
        results = ((k, r.shape) for k, r in enumerate(self.plan.results) if isinstance(r, Array))
        self.grown_results = {k for k, shape in results if not names_of(shape) <= known}
        self.result_buffers = {self.buffer_of[k] for k in self.grown_results}
        self.movable = [b.number for b in self.plan.buffers if b.is_free_to_move]

    @property
    def nbytes(self) -> int:
        held = sum(x.nbytes for x in self.held.values()) if self.held else 0
        return self.integers[frame.WORKSPACE_BYTES] + self.integers[frame.SCRATCH_BYTES] + held

    def grow_workspace(self, nbytes: int) -> None:
        self.workspace = None
        self.workspace = empty((nbytes,), _BYTE, "memory for temporary arrays")
        self.words[frame.WORKSPACE] = address_of(self.workspace)
        self.words[frame.WORKSPACE_BYTES] = nbytes

    def grow_scratch(self, nbytes: int) -> None:
        self.scratch = None
        self.take_scratch(empty((nbytes,), _BYTE, "scratch of products"))

    def take_scratch(self, memory: np.ndarray) -> None:
        """Scratch memory that may be another frame's too, of which one computes at a time."""
        self.scratch = memory
        self.words[frame.SCRATCH] = address_of(memory)
        self.words[frame.SCRATCH_BYTES] = memory.nbytes

    def grow(self, number: int, nbytes: int) -> None:
        """Room for so many bytes in a buffer."""
        index = self.layout.buffer(number)
        before = int(self.words[index + frame.BYTES])
        self.release(number)
        if number in self.result_buffers:
            # An array of the result's own dtype that is no view: the caller gets it as it is.
            dtype = self.plan.buffers[number].dtype
            memory = np.empty(nbytes // dtype.itemsize, dtype)
        else:
            # Where memory counts, no more than is asked for.
            capacity = nbytes if current() is not None else max(nbytes, 2 * before)
            memory = empty((capacity,), _BYTE, "a temporary")
        address = address_of(memory)
        self.held[address] = memory
        self.words[index + frame.ADDRESS], self.words[index + frame.BYTES] = address, memory.nbytes

    def result(self, number: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """The memory of a result that was grown, as an array of its own."""
        index = self.layout.buffer(self.buffer_of[number])
        memory = self.held.get(int(self.words[index + frame.ADDRESS]))
        if memory is None or 0 in shape:
            return np.empty(shape, dtype)
        # It is as large, or was taken for a larger array that it served before.
        memory.resize(shape, refcheck=False)
        return memory

    # Giving back.

    def release(self, number: int) -> None:
        """Drop the frame's reference to a buffer's memory."""
        index = self.layout.buffer(number)
        self.held.pop(int(self.words[index + frame.ADDRESS]), None)
        self.words[index + frame.ADDRESS] = self.words[index + frame.BYTES] = 0

    def release_results(self) -> None:
        """Hand grown results to the caller: drop the frame's references to them."""
        for number in self.result_buffers:
            self.release(number)

    def give_back(self) -> None:
        """Let go of what the plan does not need any more."""
        for number in self.movable:
            if self.words[self.layout.buffer(number) + frame.BUFFER_IDLE]:
                self.release(number)

    def shrink(self) -> None:
        """After a call: let go of all, where it is more than `IDLE_BYTES`."""
        if self.nbytes > IDLE_BYTES:
            self.clear()

    def clear(self) -> None:
        self.workspace = self.scratch = None
        self.words[frame.WORKSPACE_BYTES] = self.words[frame.SCRATCH_BYTES] = 0
        self.held.clear()
        for number in (*self.movable, *self.result_buffers):
            self.release(number)
