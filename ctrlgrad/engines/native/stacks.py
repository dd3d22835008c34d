"""The stacks of a running plan: compiled code sees one block of each, in a few words of the frame.

The block that it sees is open: pushes fill it, pops empty it, reads and writes of single rows find all rows in it. Then
the words say how many rows of it are in use. A stack that has not been touched yet shows no block, only how many rows
lie below.

A stack that begins anew does so in memory that it had (`FrameStack.begin`): within a run compiled code finds its
block, or the largest that was emptied; between two runs there is room for what the last one pushed.

In a memory session the loops of a plan run in chunks, whose blocks a manager copies away or computes again. At the
head of an iteration a loop that pushes may end its chunk: what was pushed is sealed, and the stacks get fresh blocks of
the next chunk, with room for so many iterations. Loops inside push into further blocks of the same chunk. To have a
chunk's blocks again, the loop is run as a plan of its own, from a copy of what its carries began the chunk with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from ctrlgrad import memory
from ctrlgrad.engines.block_kernels import handed_out, turns_of_rows
from ctrlgrad.engines.native import frame as fields
from ctrlgrad.engines.native.frame import Layout
from ctrlgrad.engines.native.frame_memory import FrameMemory
from ctrlgrad.engines.native.memory import address_of, array_at
from ctrlgrad.errors import ExecutionError, MemoryBudgetError, forget_values
from ctrlgrad.ir import attributes
from ctrlgrad.ir.control import loop_name
from ctrlgrad.memory import Chunk, Manager
from ctrlgrad.memory.manager import GIVE_BACK
from ctrlgrad.memory.profile.records import Phase
from ctrlgrad.memory.session import current
from ctrlgrad.memory.turns import in_turns
from ctrlgrad.passes import CHUNK_BYTES
from ctrlgrad.plan.chunks import ChunkedLoop, LoopPlan
from ctrlgrad.plan.model import Loop, Plan, Stack, Step, Value
from ctrlgrad.plan.sizes import Sizes
from ctrlgrad.records import record
from ctrlgrad.runtime.chunks import (
    UNBOUNDED,
    ChunkDriver,
    Closed,
    EntryState,
    Lengths,
    ManagedLoop,
    Replay,
    chunk_bytes,
    leaving_bytes,
    note_long,
)
from ctrlgrad.runtime.stack import (
    CPU,
    MOST_AHEAD,
    Block,
    Blocks,
    BlockStack,
    ClaimedRows,
    Resident,
    Storage,
    from_rows,
    resident,
    resized,
)

# Rows of the first block of a stack; each further one has twice as many, up to the bytes of a chunk.
FIRST_ROWS, LEAST_ROWS = 256, 16
# The most bytes that a stack keeps between two runs: beyond, asking for a block costs little beside filling it.
MOST_KEPT = 1 << 20
# Under a budget, the share of a chunk's bytes that a block of a stack inside it has at most.
SHARE = 4

# Words of a stack of which compiled code sees nothing.
_NOTHING = np.zeros(fields.STACK_WORDS, np.int64).data

# Gives memory for a block: (handle, shape, dtype).
Source = Callable[[int, tuple[int, ...], np.dtype], Storage]


class FrameStack:
    """One handle: a stack and its words."""

    def __init__(self, handle: int, words: np.ndarray, dtype: np.dtype, rows: Sizes | None) -> None:
        self.handle, self.words, self.dtype, self.is_ragged = handle, words, dtype, rows is None
        # Shape of a row, if the plan has it as numbers.
        known = rows is not None and all(size.is_known for size in rows)
        self.row = tuple(size.factor for size in rows) if rows is not None and known else None
        # Python's memory views are quick to read and write.
        self.integers = words.data
        self.stack: Any = None
        # The block that compiled code sees.
        self.open: Block | None = None
        # Allocator of new blocks, None for memory outside any budget; and the number of rows of its last block.
        self.source: Source | None = None
        self.last_rows = 0
        # The most rows that there has been room for since the stack was cleared.
        self.most_rows = 0
        # The most rows that had to lie in one block, to be read as one array: the next ones get one from the beginning.
        self.joined_rows = 0
        self.is_indexed = False
        # Memory of a block that was emptied, for the next one.
        self.spare: np.ndarray | None = None

    def clear(self) -> None:
        """Forget everything: drop the references to what was pushed."""
        self.spare = None
        if self.open is not None:
            self.open.storage.close()
        self.stack, self.open, self.source, self.is_indexed = None, None, None, False
        self.most_rows = 0
        self.words[:] = 0

    def begin(self, shape: Sequence[int], capacity: int = 0) -> None:
        """An empty stack, in memory that it had; with room for so many rows, if any are asked for."""
        self.begin_empty(shape)
        spare = self.spare
        if spare is not None and (spare.shape[1:] != tuple(shape) or len(spare) < self.joined_rows):
            spare = self.spare = None
        if spare is not None:
            capacity = max(capacity, len(spare))
        if capacity:
            self.lend(self.memory, tuple(shape), capacity)

    def begin_empty(self, shape: Sequence[int]) -> None:
        """An empty stack without room: compiled code asks for it before the first row."""
        self.keep(self.open)
        spare, most_rows = self.spare, self.most_rows
        self.clear()
        self.hold(BlockStack(self.dtype, tuple(shape)))
        self.spare, self.most_rows = spare, most_rows
        self.words[fields.WRITABLE] = 1

    def rest(self) -> None:
        """Forget what was pushed, as `clear`. Keep an empty block for the next run if the stack alone owns one."""
        if self.may_begin_unwritten():
            # Compiled code wipes it.
            self.words[fields.IDLE] = 0
            return
        if self.open is None or self.source is not None or self.is_indexed or self.stack.written is not None:
            self.clear()
            return
        rows = min(max(self.most_rows, self.joined_rows), MOST_KEPT // max(self.row_bytes(self.stack.shape), 1))
        if len(self.stack.blocks) == 1 and self.is_own(self.open) and self.words[fields.CAPACITY] >= rows:
            # The one block is such a block.
            self.open.count = 0
            self.words[fields.COUNT] = self.words[fields.IDLE] = 0
            return
        self.begin(self.stack.shape, rows if rows >= max(LEAST_ROWS, self.joined_rows) else 0)

    def may_begin_unwritten(self) -> bool:
        """Return true if the next run may have as many unwritten rows in this block, which is small."""
        if self.open is None or self.source is not None or self.stack.written is None:
            return False
        is_alone = len(self.stack.blocks) == 1 and self.is_own(self.open) and bool(self.words[fields.WRITABLE])
        return is_alone and self.words[fields.CAPACITY] * self.row_bytes(self.stack.shape) <= MOST_KEPT

    # Between compiled code and the rest.

    def hold(self, stack: Any, shape: tuple[int, ...] | None = None, most_bytes: int | None = None) -> None:
        """Take a stack over: a block stack, or a list of rows of a shape, in blocks of at most so many bytes."""
        if isinstance(stack, list) and not self.is_ragged:
            if shape is None:
                shape = next((np.shape(row) for row in stack if row is not None), self.row)
                if shape is None:
                    # Of rows that were never written the plan has to know the shape: memory is made for it.
                    if stack:
                        raise ExecutionError(
                            "machine code was given rows without a known shape", got=f"{len(stack)} rows"
                        )
                    shape = ()
            most_rows = None if most_bytes is None else max(1, most_bytes // max(self.row_bytes(shape), 1))
            if most_rows is not None and min(most_rows, len(stack)) > 1:
                note_long()
            stack = from_rows(self.dtype, shape, stack, most_rows)
        if self.open is not None:
            self.open.storage.close()
        self.stack, self.open = stack, None
        self.hide()
        if isinstance(stack, BlockStack) and stack.written is not None:
            self.gather()

    def settle(self) -> Any:
        """The stack as it is now; compiled code sees no block any more."""
        self.close()
        self.hide()
        return self.stack

    def close(self) -> None:
        """Note how many rows the open block has, and close it."""
        block, self.open = self.open, None
        if block is None:
            return
        block.count = self.integers[fields.COUNT]
        block.most = max(block.most, block.count)
        storage = block.storage
        storage.close()
        if isinstance(storage, ClaimedRows):
            self.stack.blocks.pop()
            below = self.stack.blocks[-1]
            below.count += block.count
            below.most = max(below.most, below.count)
            storage.memory.release(below.count)
        elif not block.count:
            last = self.stack.blocks.pop()
            assert last is block
            self.keep(block)
            storage.free()
        elif isinstance(storage, Resident) and self.integers[fields.CAPACITY]:
            storage.release(block.count)

    def keep(self, block: Block | None) -> None:
        """Keep the memory of a block that compiled code could write to, where no session counts memory."""
        if block is None or not self.is_own(block):
            return
        assert isinstance(block.storage, Resident)
        array = block.storage.array
        if current() is None and (self.spare is None or len(array) > len(self.spare)):
            self.spare = array

    def is_own(self, open_block: Block) -> bool:
        """Return true if this stack alone owns all of the open block's memory."""
        # A closed block has no capacity, and `ClaimedRows` share their memory with rows of another stack.
        return bool(self.integers[fields.CAPACITY]) and type(open_block.storage) is Resident

    def memory(self, handle: int, shape: tuple[int, ...], dtype: np.dtype) -> Storage:
        """Memory for a block: what an emptied one had, where it is enough."""
        spare, self.spare = self.spare, None
        if spare is not None and spare.shape[1:] == shape[1:] and len(spare) >= shape[0]:
            return Resident(spare)
        return resident(shape, dtype, "rows of a stack")

    def hide(self) -> None:
        self.integers[:] = _NOTHING
        if self.stack is not None:
            self.integers[fields.BELOW] = len(self.stack)

    def show(self, block: Block, is_writable: bool) -> None:
        """Let compiled code see the last block."""
        array = block.storage.open()
        self.open = block
        stack = self.stack
        words = self.integers
        words[fields.BASE] = address_of(array)
        words[fields.COUNT] = block.count
        # A closed block takes no more rows, those that were popped from it neither: another stack may hold it too.
        words[fields.CAPACITY] = len(array) if is_writable else 0
        words[fields.BELOW] = len(stack) - block.count
        words[fields.WRITABLE] = is_writable
        words[fields.MARKS] = 0 if stack.written is None else address_of(stack.written)

    def row_bytes(self, shape: Sequence[int]) -> int:
        return math.prod(shape) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        if not isinstance(self.stack, BlockStack):
            return 0
        count = self.integers[fields.COUNT] + self.integers[fields.BELOW]
        return count * self.row_bytes(self.stack.shape)

    # Requests of compiled code.

    def new(self, size: int, shape: Sequence[int]) -> None:
        """An empty stack, or one of rows that were never written."""
        if size == fields.SHAPE_UNKNOWN and not self.is_ragged:
            self.begin_empty((0,) * len(shape))
            return
        if not (self.is_ragged or size):
            self.begin(shape)
            return
        self.clear()
        size = max(size, 0)
        self.hold([None] * size if self.is_ragged else resized(BlockStack(self.dtype, tuple(shape)), size))

    def new_rows(self, count: int, shape: tuple[int, ...]) -> None:
        """Rows that compiled code is about to fill."""
        if not count:
            self.begin_empty(shape)
            return
        self.clear()
        self.stack = BlockStack(self.dtype, shape)
        block = Block(resident((count, *shape), self.dtype), count)
        self.stack.add(block)
        self.show(block, True)

    def join(self) -> None:
        """All rows in one block, to be read."""
        stack = self.settle()
        self.joined_rows = max(self.joined_rows, len(stack))
        if len(stack):
            self.show(stack.join(), False)

    def copy_rows(self, address: int) -> None:
        """Copy all rows to memory."""
        stack = self.settle()
        stack.copy_to(array_at(address, (len(stack), *stack.shape), None, self.dtype))

    def grow(self, shape: tuple[int, ...], rows: int) -> None:
        """Room for so many rows more, in one piece."""
        count = self.integers[fields.COUNT] + self.integers[fields.BELOW]
        if self.stack.written is not None or (count and self.is_indexed):
            # `gather` takes room for twice as many. Under a budget one more row is asked for, else several.
            least = LEAST_ROWS if current() is None else 1
            self.gather(count + max(1, min(least, MOST_AHEAD // max(self.row_bytes(shape), 1))))
            return
        # There is room for several times as many. A block that was closed has none for no rows either.
        rows = max(rows, 1)
        piece = max(self.row_bytes(shape) * rows, 1)
        if current() is None:
            if self.open is None and self.extend(shape, rows):
                return
            least = max(1, min(LEAST_ROWS, MOST_AHEAD // piece))
            capacity = max(least, min(2 * self.last_capacity() // rows or FIRST_ROWS, CHUNK_BYTES // piece)) * rows
            if not count:
                capacity = max(capacity, self.joined_rows)
        else:
            # Memory counts: several stacks have to find room.
            capacity = 2 * self.last_rows // rows or LEAST_ROWS
            capacity = max(1, min(capacity, chunk_bytes() // SHARE // piece)) * rows
            if capacity > rows:
                note_long()
        self.lend(self.source or self.memory, shape, capacity)

    def lend(self, source: Source, shape: tuple[int, ...], capacity: int) -> None:
        """A fresh block on top, with room for so many rows."""
        below = self.open
        stack = self.settle()
        if below is not None and below.count:
            below.storage.settle()
        if not stack.blocks and stack.shape != shape:
            # An empty stack takes the shape of its first row.
            stack = self.stack = BlockStack(self.dtype, shape)
        block = Block(source(self.handle, (capacity, *shape), self.dtype), 0)
        stack.add(block)
        self.show(block, True)
        # A chunk that runs again has the room of its first run.
        self.last_rows = self.integers[fields.CAPACITY]
        self.most_rows = max(self.most_rows, self.integers[fields.BELOW] + capacity)

    def put_below(self, storages: Sequence[Storage], rows: int) -> None:
        """Closed blocks of so many rows each come under the open one."""
        top = self.stack.blocks.pop()
        for storage in storages:
            self.stack.add(Block(storage, rows))
        self.stack.add(top)
        self.words[fields.BELOW] = top.below

    def last_capacity(self) -> int:
        """For how many rows the last block had room, or how many it had in use where it is closed."""
        if self.open is None:
            return self.stack.blocks[-1].most if self.stack.blocks else 0
        storage = self.open.storage
        return len(storage.memory.array if isinstance(storage, ClaimedRows) else storage.open())

    def extend(self, shape: tuple[int, ...], rows: int) -> bool:
        """Claim unwritten rows behind the last block, if there are as many; else each run would leave a block, however
        few its rows."""
        last = self.stack.blocks[-1] if self.stack.blocks else None
        if last is None or not isinstance(last.storage, Resident) or self.stack.shape != shape:
            return False
        if len(last.storage.array) - last.count < rows or not last.storage.claim(last.count):
            return False
        block = Block(ClaimedRows(last.storage, last.count), 0)
        self.stack.add(block)
        self.show(block, True)
        return True

    def close_block(self) -> None:
        """The open block takes no more rows: it is cut to those that it has."""
        block = self.open
        self.settle()
        if block is not None and block.count:
            block.storage.shrink(block.count)
        self.last_rows = 0

    def back(self, rows: int) -> None:
        """The block below one that has been emptied, off the end of which so many rows are to be taken."""
        stack = self.settle()
        if not stack or stack.blocks[-1].count < rows:
            raise ExecutionError("stack: popped more values than were pushed")
        self.show(stack.blocks[-1], False)

    def gather(self, capacity: int = 0) -> None:
        """All rows in one block, which may be written to, with room for so many."""
        stack = self.settle()
        self.is_indexed = True
        count = len(stack)
        if not count and stack.written is None:
            self.words[fields.WRITABLE] = 1
            if not capacity:
                return
        storage = stack.whole(max(capacity, count))
        block = Block(storage, count)
        stack.blocks = [block]
        array = storage.open()
        if stack.written is not None and len(stack.written) < len(array):
            marks = np.zeros(len(array), np.uint8)
            marks[: len(stack.written)] = stack.written
            stack.written = marks
        self.show(block, True)

    def mark(self) -> None:
        """Marks of rows that are all written; compiled code is about to clear one."""
        stack = self.settle()
        stack.written = np.ones(len(stack), np.uint8)
        self.gather()


# A call while it runs, as chunks, outside calls and errors see it. `runtime` has the frame and the program.


class Positions(Protocol):
    """The loops around each step and each place that may fail, the outermost first."""

    steps: dict[Step, tuple[Loop, ...]]
    sites: dict[int, tuple[Loop, ...]]


class Program(Protocol):
    """A plan with its machine code."""

    has_effects: bool
    calls_back: bool

    @property
    def positions(self) -> Positions: ...

    def __call__(self, arguments: Sequence[Any]) -> list[Any]: ...

    def loop_program(self, number: int, *, pushes: bool) -> tuple[Program, LoopPlan]: ...

    def run_again(
        self, arguments: Sequence[Any], chunks: Iterator[Chunk], ran: Sequence[Any], scratch: np.ndarray | None
    ) -> list[Any]: ...


class OutsideCalls(Protocol):
    """Record of the calls that compiled code made into Python."""

    @property
    def callbacks(self) -> int: ...


class Frame(Protocol):
    """The words and the memory of one call."""

    layout: Layout
    plan: Plan
    words: np.ndarray
    memory: FrameMemory
    stacks: list[FrameStack]
    # That of a memory session, which puts itself here.
    session: Any
    held: Any

    @property
    def program(self) -> Program: ...

    @property
    def outside(self) -> OutsideCalls: ...

    def run(self, arguments: Sequence[Any]) -> list[Any]: ...

    def rest(self) -> None: ...

    def dispose(self) -> None: ...

    def give_back(self) -> None: ...

    def put(self, index: int, dtype: np.dtype, value: Any) -> None: ...

    def number(self, index: int, dtype: np.dtype) -> Any: ...

    def row_shape(self, handle: int) -> tuple[int, ...]: ...

    def label(self, handle: int) -> str: ...

    def told(self, values: Sequence[Value], index: int) -> list[Any]: ...

    def kept(self, value: Value, given: Any) -> Any: ...


# The first chunk is short, since most loops are; the least and the most iterations of one.
FIRST_ITERATIONS, LEAST_ITERATIONS, MOST_ITERATIONS = 256, 16, 1 << 16


@record
class _Length:
    """Number of iterations that a chunk ran, and capacity of its first blocks in iterations."""

    iterations: int
    capacity: int


def manager() -> Manager:
    """The memory manager of this call."""
    session = current()
    assert session is not None
    return session.manager(CPU)


class Session:
    """One call of a program in a session.

    Where chunks are longer than they must be, or computed again by a choice that measured times made, and there turns
    out to be no room for that, the call begins anew with copies of short chunks: whether a budget suffices is no matter
    of times. A call that is refused beside another thread's begins anew when that is over, unless it calls the user's
    Python, which may wait for that thread. A call that has effects cannot begin anew, and keeps to copies of short
    chunks from the start.
    """

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.loops: dict[int, tuple[FrameLoop, ChunkDriver[_Length]]] = {}
        # The names of the loops that began while more than the least memory was open to them. Another thread's call may
        # keep them to the least meanwhile: this call can begin anew all the same.
        self.begun: set[str] = set()
        self.has_effects, self.calls_back = frame.program.has_effects, frame.program.calls_back
        self.rows_leave = any(isinstance(result, Stack) for result in frame.plan.results)

    def run(self, arguments: Any) -> list[Any]:
        if self.has_effects:
            return handed_out(self._run(arguments))
        program = self.frame.program
        if self.calls_back:
            return self._run_or_begin_anew(program, arguments)
        all_turns = {manager().turns, *turns_of_rows(arguments)}
        return in_turns(all_turns, lambda: self._run_or_begin_anew(program, arguments), lambda: program(arguments))

    def _run_or_begin_anew(self, program: Program, arguments: Any) -> list[Any]:
        try:
            # Rows that leave the call as arrays are read in its turn, and while it can begin anew.
            return handed_out(self._run(arguments))
        except MemoryBudgetError as error:
            changed = [name for name in self.begun if manager().keep_to_least(name)]
            if not changed:
                raise
            forget_values(error)
        return program(arguments)

    def _run(self, arguments: Any) -> list[Any]:
        frame = self.frame
        frame.session = self
        frame.words[fields.IS_MANAGED] = 1
        token = GIVE_BACK.set((*GIVE_BACK.get(), frame.give_back))
        try:
            return frame.run(arguments)
        except BaseException:
            # What the loops captured counts as long as they are held.
            while self.loops:
                self.loops.popitem()[1][1].abandon()
            raise
        finally:
            GIVE_BACK.reset(token)
            frame.dispose()

    def begin(self, number: int) -> None:
        name = loop_name(self.frame.layout.loops[number].node)
        if self.has_effects:
            manager().keep_to_least(name)
        elif not manager().planner.keeps_to_least(name):
            self.begun.add(name)
        roles = self.frame.layout.chunked[number]
        loop = FrameLoop(self.frame, roles)
        driver = self._driver(loop, roles)
        self.loops[number] = loop, driver
        # Where there may be several chunks, the first iteration begins the first one.
        loop.allow(0 if isinstance(driver.lengths, Lengths) else driver.before())

    def _driver(self, loop: FrameLoop, roles: ChunkedLoop) -> ChunkDriver[_Length]:
        # Rows that leave the call are copied unless the user asks otherwise: a pullback holds no states of its loops.
        may_repeat = roles.can_repeat and not (self.rows_leave and not attributes.Loop.of(roles.loop.node).checkpoint)
        replay = LoopReplay(self.frame, roles) if may_repeat else None
        phase: Phase = "backward" if roles.pops else "forward"
        runs = ManagedLoop(roles.loop.node, manager(), replay, phase, pushes=roles.pushes)
        if not roles.pushes:
            return ChunkDriver(loop, runs, UNBOUNDED)
        least = 1 if chunk_bytes() < CHUNK_BYTES else LEAST_ITERATIONS
        # A chunk of what loops inside push alone is over when they have pushed enough.
        first = FIRST_ITERATIONS if roles.pushed else MOST_ITERATIONS
        # They may be long if their bytes are known, no others are read meanwhile, and they are read in this call, which
        # can begin anew.
        may_grow = not (roles.pushed_inside or roles.pops or self.rows_leave)
        nbytes = leaving_bytes() if self.rows_leave else chunk_bytes()
        return ChunkDriver(loop, runs, Lengths(first, MOST_ITERATIONS, least, may_grow, len(roles.pushed), nbytes))

    def next(self, number: int) -> None:
        """At the head of an iteration: as many have run as were allowed."""
        loop, driver = self.loops[number]
        iterations = loop.iterations()
        if driver.chunk is not None:
            driver.after(iterations)
        capacity = driver.before()
        # How much loops inside push is seen after each iteration.
        loop.allow(
            1 if loop.roles.pushed_inside else capacity, driver.runs.passing() if capacity == loop.capacity else 0
        )

    def end(self, number: int) -> None:
        loop, driver = self.loops.pop(number)
        driver.finish(loop.iterations())


class Again:
    """One call of a loop's own program, which fills the blocks of chunks again, or none where it has no pushes.

    `chunks` gives each chunk when the one before it is filled; `ran` says how they ran. The frame is kept for the next
    such call.
    """

    def __init__(self, frame: Frame, chunks: Iterator[memory.Chunk], ran: Sequence[_Length]) -> None:
        self.frame, self.chunks, self.ran = frame, chunks, iter(ran)
        self.left = len(ran)
        self.loop: FrameLoop | None = None

    def run(self, arguments: Any) -> list[Any]:
        frame = self.frame
        frame.session = self
        frame.words[fields.IS_MANAGED] = self.left > 0
        token = GIVE_BACK.set((*GIVE_BACK.get(), frame.give_back))
        try:
            results = frame.run(arguments)
        except BaseException:
            if self.loop is not None:
                self.loop.abandon()
            frame.dispose()
            raise
        finally:
            GIVE_BACK.reset(token)
        frame.rest()
        return results

    def begin(self, number: int) -> None:
        self.loop = FrameLoop(self.frame, self.frame.layout.chunked[number])
        self.next(number)

    def next(self, number: int) -> None:
        loop = self.loop
        assert loop is not None
        if loop.chunk is not None:
            loop.close(loop.iterations())
        ran = next(self.ran)
        loop.lend(next(self.chunks), ran.capacity)
        # The loop ends by itself with the last chunk, before it asks for another one.
        self.left -= 1
        loop.allow(ran.iterations if self.left else UNBOUNDED)

    def end(self, number: int) -> None:
        assert self.loop is not None
        self.loop.close(self.loop.iterations())
        self.loop.finish()


class FrameLoop:
    """A loop of a frame, as the driver of its chunks sees it."""

    def __init__(self, frame: Frame, roles: ChunkedLoop) -> None:
        self.frame, self.roles = frame, roles
        self.index = frame.layout.chunks[roles.loop.number]
        self.handles = (*roles.pushed, *roles.pushed_inside)
        self.chunk: Blocks | None = None
        self.capacity = self.counted = self.bytes_before = self.passing = 0
        self.passing_word = frame.layout.passing.get(roles.loop.number)

    def allow(self, iterations: int, passing: int = 0) -> None:
        """Set the number of iterations until the next request, and how many chunks may reuse the same blocks first."""
        self.frame.words[self.index] = iterations
        if self.passing_word is not None:
            self.passing = self.frame.words[self.passing_word] = passing

    def iterations(self) -> int:
        """Return the number of iterations of this chunk since the last call. Rows of earlier chunks that ran in the
        same blocks are put below this chunk's."""
        before = self.counted
        self.counted = int(self.frame.words[self.frame.layout.counters + self.roles.loop.number])
        overwritten = 0 if self.passing_word is None else self.passing - int(self.frame.words[self.passing_word])
        if overwritten:
            assert isinstance(self.chunk, ManagedLoop)
            chunks = self.chunk.overwritten(overwritten, _Length(self.capacity, self.capacity))
            for number, handle in enumerate(self.roles.pushed):
                self.frame.stacks[handle].put_below([blocks[number] for blocks in chunks], self.capacity)
            self.bytes_before += overwritten * self.capacity * self.bytes_each()
            self.passing -= overwritten
        return self.counted - before - overwritten * self.capacity

    def iteration_bytes(self) -> float:
        """Of what loops inside push nothing is known: they are given as much again."""
        return 2 * self.bytes_each() if self.roles.pushed_inside else self.bytes_each()

    def bytes_each(self) -> int:
        """Bytes of a row of each stack that every iteration pushes on."""
        return sum(self.frame.stacks[h].row_bytes(self.frame.row_shape(h)) for h in self.roles.pushed)

    def lend(self, chunk: Blocks, iterations: int) -> None:
        """Lend blocks to the stacks that each iteration pushes on; the remaining stacks request blocks when a row
        comes."""
        self.chunk, self.capacity = chunk, iterations
        for handle in self.roles.pushed:
            self.frame.stacks[handle].lend(self.block, self.frame.row_shape(handle), iterations)
        for handle in self.roles.pushed_inside:
            self.frame.stacks[handle].source = self.block

    def block(self, handle: int, shape: tuple[int, ...], dtype: np.dtype) -> Storage:
        assert self.chunk is not None
        return self.chunk.block(shape, dtype, self.frame.label(handle))

    def pushed_bytes(self) -> int:
        return self._bytes() - self.bytes_before

    def _bytes(self) -> int:
        return sum(self.frame.stacks[h].nbytes for h in self.handles)

    def close(self, iterations: int) -> Closed[_Length]:
        for handle in self.handles:
            self.frame.stacks[handle].close_block()
        self.bytes_before = self._bytes()
        return Closed(_Length(iterations, self.capacity))

    def sealed(self) -> None:
        self.chunk = None

    def finish(self) -> None:
        for handle in self.handles:
            self.frame.stacks[handle].source = None

    def abandon(self) -> None:
        for handle in self.handles:
            self.frame.stacks[handle].clear()

    # State at the start of a chunk.

    def carried(self) -> list[Any]:
        """The numbers and arrays that the loop carries now; arrays are views of its memory."""
        return self.frame.told([c.inside for c in self.roles.loop.carries], self.index + 1)

    def state_bytes(self) -> int:
        return sum(x.nbytes for x in self.carried() if x is not None)

    def snapshot(self) -> tuple[EntryState, int]:
        state = EntryState(tuple(None if x is None else x.copy() for x in self.carried()))
        return state, state.nbytes


class LoopReplay(Replay[_Length]):
    """Runs a loop as a plan of its own for as many iterations as a chunk had."""

    def __init__(self, frame: Frame, roles: ChunkedLoop) -> None:
        super().__init__()
        self.frame = frame
        self.roles = roles
        self.program, found = frame.program.loop_program(roles.loop.number, pushes=True)
        captured = frame.told(found.captured, frame.layout.captures[roles.loop.number])
        # Captures in the plan's own memory may be overwritten later and are copied. The arguments are held: rows that
        # leave the call may be computed again after it.
        self.captured = {value: frame.kept(value, x) for value, x in zip(found.captured, captured, strict=True)}
        self.held = frame.held
        # For each carry the dtype of a stack; None for numbers and arrays.
        carried = [c.inside for c in roles.loop.carries]
        self.stacks = [inside.dtype if isinstance(inside, Stack) else None for inside in carried]

    def advance(self, state: EntryState, chunks: Iterator[memory.Chunk], first: int, last: int) -> EntryState:
        """One run of the loop's own program fills the blocks of all."""
        carry = [x if d is None else BlockStack(d, ()) for d, x in zip(self.stacks, state.carry, strict=True)]
        ran = [self.ran[index] for index in range(first, last)]
        arguments = [np.int64(sum([each.iterations for each in ran])), *self.captured.values(), *carry]
        results = self.program.run_again(arguments, chunks, ran, self.frame.memory.scratch)
        return EntryState(tuple([x if d is None else None for d, x in zip(self.stacks, results, strict=True)]))

    def skip(self, state: EntryState, first: int, last: int) -> EntryState:
        """One run of so many iterations, which pushes nothing."""
        iterations = sum([self.ran[index].iterations for index in range(first, last)])
        program, found = self.frame.program.loop_program(self.roles.loop.number, pushes=False)
        carry = [x for d, x in zip(self.stacks, state.carry, strict=True) if d is None]
        arguments = [np.int64(iterations), *(self.captured[value] for value in found.captured), *carry]
        results = iter(program.run_again(arguments, iter(()), (), self.frame.memory.scratch))
        return EntryState(tuple([next(results) if d is None else None for d in self.stacks]))
