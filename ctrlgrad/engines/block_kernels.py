"""Stacks of interpreted code: rows that are pushed one by one in a session, and kernels that know block stacks.

The first push on an empty stack makes it a block stack. Each such stack is one run of a loop for the memory manager,
and each of its blocks a chunk. Rows are written into the block on top. It is sealed when it is full, so that its copy
out runs beside the computation; or before that, when it is read or the budget is used up. Blocks grow from a few rows
to the size for which a budget has room if each stack that is pushed on has one.

The pushes of one call are a `RowPushes`, which `rows_in_blocks` puts around it: if the call fails, its blocks are
freed.

The reference engine's kernels take a block stack as they take a list where they only need its length, or a row from
it. Rows that differ in shape, and those of a stack whose slots are written in any order, are a list, whose bytes are
counted.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from ctrlgrad import forks, memory
from ctrlgrad.engines.reference import REFERENCE, Kernels, Run
from ctrlgrad.engines.reference.control_kernels import InterpretedLoop
from ctrlgrad.engines.reference.table import InPlace, Pure, own_stack
from ctrlgrad.errors import MemoryBudgetError
from ctrlgrad.ir import OPS, Graph, Loop, Node, StackType, Trait, Use, attributes, definitions, is_loop, walk
from ctrlgrad.ir.caching import Cache
from ctrlgrad.ir.control import loop_name
from ctrlgrad.ir.flow import in_an_iteration
from ctrlgrad.memory.manager import MAKE_ROOM, Stay
from ctrlgrad.memory.profile.records import Phase
from ctrlgrad.memory.session import Session, current
from ctrlgrad.memory.turns import Turns
from ctrlgrad.records import record
from ctrlgrad.runtime.chunks import chunk_bytes, note_long
from ctrlgrad.runtime.stack import CPU, BlockStack, copied

# A stack's first block has room for so many rows, or bytes if that is more rows.
FIRST_ROWS, FIRST_BYTES = 4, 1 << 10


# Descriptions.


@record
class Pushed:
    """The values that go on one stack: a name, why they are saved, and where the user wrote them."""

    name: str
    reason: str
    source: str

    @property
    def label(self) -> str:
        return f"{self.name}{self.source}"


def describe(node: Node, number: int) -> Pushed:
    """Description of one of the stacks that a loop carries, the one with position `number` among them."""
    loop = Loop.of(node)
    carry = [c for c in loop.carries if isinstance(c.init.type, StackType)][number]
    name = carry.in_body.hint or "stack"
    push = next((event.node for event in in_an_iteration(loop, carry) if event.kind == "push"), None)
    if push is None:
        return Pushed(name, "pushed in a branch or a loop inside", _at(node))
    producer = definitions(loop.body).get(push.operands[1])
    if producer is None:
        return Pushed(name, "a value that the loop carries, needed backwards", _at(push))
    return Pushed(name, f"the result of {producer.op.name}, needed backwards", _at(producer))


def _at(node: Node) -> str:
    return f" (at {node.source})" if node.source is not None else ""


# Pushes that are run one by one.


@record
class RowPush:
    """A push by itself: the names of its loop and of what it saves, and what the loop's `swap_memory` says."""

    loop: str
    label: str
    swap: bool | None


def row_push(node: Node, producer: Node | None = None, loop: Node | None = None, swap: bool | None = None) -> RowPush:
    """Description of a push: the node that makes the row, and the loop around, as far as they are known."""
    name = node.operands[0].hint or node.result.hint or "stack"
    where = f"pushes{_at(node)}" if loop is None else loop_name(loop)
    return RowPush(where, f"{name}{_at(producer or node)}", swap)


_ROW_PUSHES: Cache[None, Mapping[Node, RowPush]] = Cache(1)


def row_pushes_of(graph: Graph) -> Mapping[Node, RowPush]:
    """All pushes of a graph, found once and kept with it."""

    def find() -> dict[Node, RowPush]:
        found: dict[Node, RowPush] = {}
        add_row_pushes(found, graph, None, None)
        return found

    return _ROW_PUSHES.get(graph, None, find)


def add_row_pushes(found: dict[Node, RowPush], graph: Graph, loop: Node | None, swap: bool | None) -> None:
    """Add the pushes of a graph that stands in a loop; of several options around a push the nearest one holds."""
    producers = definitions(graph)
    for node in graph.nodes:
        if node.op.has_use(Use.PUSH):
            found[node] = row_push(node, producers.get(node.operands[1]), loop, swap)
        inner, option = (node, attributes.Loop.of(node).swap_memory) if is_loop(node) else (loop, None)
        for region in node.regions:
            add_row_pushes(found, region, inner, swap if option is None else option)


# Blocks.


def axes_of(row: Any) -> tuple[int, ...] | None:
    """The axes of an array by their strides, the longest first; None where they come as in memory."""
    if row.ndim < 2 or row.flags.c_contiguous:
        return None
    return tuple(sorted(range(row.ndim), key=lambda axis: -abs(row.strides[axis])))


class RowBlock:
    """A block that takes rows one by one, and is a chunk of its own."""

    def __init__(
        self,
        pushes: RowPushes,
        loop: memory.LoopMemory,
        chunk: memory.Chunk,
        block: memory.Block,
        axes: tuple[int, ...] | None,
    ) -> None:
        self.loop, self.capacity = loop, block.shape[0]
        self._pushes, self._chunk, self._block, self._used, self._axes = pushes, chunk, block, 0, axes
        # None when no more rows are taken.
        self._array = self._seen(block.array)
        self._began = time.perf_counter()
        # Another thread may settle it at any time.
        self._lock = forks.lock()
        self.close, self.free, self.shrink, self.manager = block.close, block.free, block.shrink, block.manager

    def _seen(self, array: Any) -> Any:
        """The block's array with the axes of rows as they were pushed."""
        if self._axes is None:
            return array
        back = np.argsort(self._axes) + 1
        return array.transpose(0, *(int(axis) for axis in back))

    def put(self, row: Any) -> bool:
        """Write the next row; False where no more are taken, or none with its order of axes."""
        with self._lock:
            if self._array is None or axes_of(row) != self._axes:
                return False
            self._array[self._used] = row
            self._used += 1
            if self._used == self.capacity:
                self._seal()
        return True

    def settle(self) -> None:
        """No more rows are taken: the block may be copied, and leave."""
        with self._lock:
            if self._array is not None:
                self._seal()

    def _seal(self) -> None:
        self._array = None
        if self._used < self.capacity:
            self._block.shrink(self._used)
        self._chunk.seal(time.perf_counter() - self._began)
        self._pushes.settled(self)

    def open(self) -> Any:
        self.settle()
        return self._seen(self._block.open())

    def share(self) -> None:
        self.settle()
        self._block.share()


class RowTails:
    """Gives one stack its blocks."""

    def __init__(self, pushes: RowPushes, push: RowPush) -> None:
        self.pushes, self.push = pushes, push
        self.loop = pushes.manager.loop(push.loop, swap=push.swap)

    def tail(self, row: Any, before: int) -> RowBlock:
        """An empty block for rows like this one; `before` is how many the one below it took, 0 without one."""
        axes = axes_of(row)
        shape = np.shape(row) if axes is None else tuple(row.shape[axis] for axis in axes)
        chunk = self.loop.begin()
        try:
            block = self._block(chunk, shape, row.dtype, self.pushes.capacity(row.nbytes, before))
        except BaseException:
            chunk.discard()
            raise
        tail = RowBlock(self.pushes, self.loop, chunk, block, axes)
        self.pushes.began(tail)
        return tail

    def _block(self, chunk: memory.Chunk, shape: tuple[int, ...], dtype: np.dtype, rows: int) -> memory.Block:
        """A block of so many rows, or of as many as there is room for."""
        while True:
            try:
                return chunk.block((rows, *shape), dtype, self.push.label)
            except MemoryBudgetError:
                if rows == 1:
                    raise
            rows //= 2


class RowPushes:
    """The stacks of one call in a session, on which interpreted code pushes."""

    def __init__(self, session: Session, described: Callable[[], Mapping[Node, RowPush]]) -> None:
        self._session, self._described = session, described
        self._lock = forks.lock()
        self._blocks: weakref.WeakSet[RowBlock] = weakref.WeakSet()
        self._growing: weakref.WeakSet[RowBlock] = weakref.WeakSet()
        # The most blocks that took rows at one time: so many stacks share what one chunk may push.
        self._most = 1

    @property
    def manager(self) -> memory.Manager:
        return self._session.manager(CPU)

    def tails(self, node: Node) -> RowTails:
        """New source of blocks for a stack that a node pushes on: one run of a loop."""
        return RowTails(self, self._push(node))

    def _push(self, node: Node) -> RowPush:
        return self._described().get(node) or row_push(node)

    def capacity(self, row_bytes: int, before: int) -> int:
        """Number of rows of a stack's next block, after one of `before` rows."""
        most = chunk_bytes() // self._most // max(row_bytes, 1)
        found = max(1, min(most, max(FIRST_ROWS, FIRST_BYTES // max(row_bytes, 1), 2 * before)))
        if found > 1:
            note_long()
        return found

    def began(self, block: RowBlock) -> None:
        """A block takes rows."""
        with self._lock:
            self._blocks.add(block)
            self._growing.add(block)
            self._most = max(self._most, len(self._growing))

    def settled(self, block: RowBlock) -> None:
        """A block takes no more rows."""
        with self._lock:
            self._growing.discard(block)

    def settle(self) -> bool:
        """Let all blocks that take rows leave, since room is short; answers whether there were any."""
        with self._lock:
            growing = list(self._growing)
        for block in growing:
            block.settle()
        return bool(growing)

    def stays(self, node: Node, shape: tuple[int, ...], other: tuple[int, ...]) -> None:
        """Rows of a stack turn out to differ in shape: from now on they are counted, and stay."""
        push, manager = self._push(node), self.manager
        with manager.lock:
            manager.recorder.fall_back(
                f"{push.label} in {push.loop}: its rows stay where they are, for they differ in shape: {shape}, {other}"
            )

    def abandon(self) -> None:
        """Abandon the blocks that the call has pushed, after its failure."""
        for loop in {block.loop for block in list(self._blocks)}:
            loop.abandon()


_PUSHES: ContextVar[RowPushes | None] = ContextVar("rows in blocks", default=None)


def row_pushes() -> RowPushes | None:
    """Pushes of the current call; None where rows stay where they are."""
    return _PUSHES.get()


@contextmanager
def rows_in_blocks(described: Callable[[], Mapping[Node, RowPush]]) -> Iterator[None]:
    """Around a call in a session: rows go into blocks.

    `described` tells of the call's pushes, where one is asked for. Rows come back with the order of axes that they had,
    so that sums over them have the same bits.
    """
    session = current()
    assert session is not None
    pushes = RowPushes(session, described)
    token, settling = _PUSHES.set(pushes), MAKE_ROOM.set(pushes.settle)
    try:
        yield
    except BaseException:
        pushes.abandon()
        raise
    finally:
        MAKE_ROOM.reset(settling)
        _PUSHES.reset(token)


# Kernels.

Control = Callable[[Node, Kernels], Callable[[list[Any], Run], Any]]


def as_lists(values: Sequence[Any]) -> list[Any]:
    """Values with each block stack as the list of its rows."""
    return [as_list(x) for x in values]


def as_list(value: Any) -> Any:
    """A value, a block stack as the list of its rows."""
    return value.rows() if isinstance(value, BlockStack) else value


def copies_of(values: Sequence[Any]) -> list[Any]:
    """Values with another stack of the same rows for each block stack: pops leave the caller's as it is."""
    return [x.copy() if isinstance(x, BlockStack) else x for x in values]


def lists_of(values: Sequence[Any]) -> list[Any]:
    """As `as_lists`, of stacks that another thread may read at the same time."""
    return as_lists(copies_of(values))


def handed_out(values: Sequence[Any]) -> list[Any]:
    """Results of a call: a stack stays in its blocks if memory managers have all of them, else it becomes a list."""
    return [_handed_out(x) if isinstance(x, BlockStack) else x for x in values]


def _handed_out(stack: BlockStack) -> Any:
    managers: set[Any] = {getattr(block.storage, "manager", None) for block in stack.blocks}
    if not managers or None in managers:
        return stack.rows()
    stack.rest()
    if stack.tail is not None:
        stack.tail.settle()
    # Pushes of another call need another source of blocks.
    stack.tail = stack.tails = None
    stack.stays = [Stay(manager) for manager in managers]
    return stack


def turns_of_rows(values: Sequence[Any]) -> set[Turns]:
    """Turns under the budgets, ended ones too, in whose memory rows of stacks lie, and are read."""
    return {stay.manager.turns for x in values for stay in getattr(x, "stays", None) or ()}


def _pure(table: Pure) -> Pure:
    def factory(node: Node) -> Callable[..., Any]:
        kernel = table(node)
        return lambda *operands: kernel(*as_lists(operands))

    return factory


def _in_place(table: InPlace) -> InPlace:
    def factory(node: Node) -> Callable[[list[Any], Run], Any]:
        kernel = table(node)

        def run_kernel(operands: list[Any], run: Run) -> Any:
            for i in range(len(operands)):
                if isinstance(operands[i], BlockStack):
                    operands[i] = _counted_rows(operands[i])
            return kernel(operands, run)

        return run_kernel

    return factory


def _counted(row: Any) -> np.ndarray:
    """A copy of a row; in a session its bytes count."""
    return copied(np.asarray(row), "a row that stays where it is")


def _counted_rows(stack: BlockStack) -> list[Any]:
    if current() is None:
        return stack.rows()
    return [None if row is None else _counted(row) for row in stack.rows()]


def _to_tensor(node: Node) -> Callable[..., Any]:
    kernel = REFERENCE.pure["stack_to_tensor"](node)
    # An empty stack may not know the shape of its rows; the operands do.
    return lambda s, *dims: s.tensor() if isinstance(s, BlockStack) and s.blocks else kernel(as_list(s), *dims)


def _rows(node: Node) -> Callable[..., Any]:
    kernel = REFERENCE.pure["stack_rows"](node)
    axis = attributes.Axis.of(node).axis
    return lambda s: np.full(len(s), s.shape[axis], np.int64) if isinstance(s, BlockStack) else kernel(s)


def _concat(node: Node) -> Callable[..., Any]:
    kernel = REFERENCE.pure["stack_concat"](node)
    if attributes.Axis.of(node).axis != 0:
        return lambda s, *rest: kernel(*as_lists([s]), *rest)
    # Rows of one shape, one below the other: their elements lie as they should.
    return lambda s, *rest: (
        s.tensor().reshape(len(s) * s.shape[0], *s.shape[1:]) if isinstance(s, BlockStack) else kernel(s, *rest)
    )


def _sum(node: Node) -> Callable[..., Any]:
    """Two stacks, row by row, are a stack of the same kind."""
    kernel = REFERENCE.pure["stack_sum"](node)

    def add(a: Any, b: Any) -> Any:
        longer, shorter = (b, a) if len(a) < len(b) else (a, b)
        if isinstance(longer, BlockStack) and not shorter:
            return longer.copy()
        pushes = row_pushes()
        if pushes is None or not _are_alike(a, b):
            return kernel(*[_counted_rows(x) if isinstance(x, BlockStack) else x for x in (a, b)])
        total = BlockStack(longer.dtype, longer.shape, tails=pushes.tails(node))
        others = iter(shorter)
        for row in longer:
            other = next(others, None)
            total.push(row if other is None else row + other)
        return total

    return add


def _are_alike(a: Any, b: Any) -> bool:
    stacks = isinstance(a, BlockStack) and isinstance(b, BlockStack)
    return stacks and a.shape == b.shape and a.written is None and b.written is None


def _push(node: Node) -> Callable[[list[Any], Run], Any]:
    """In a session a row goes into a block; on a list that holds rows already it is one more of them, and counts."""
    kernel = _in_place(REFERENCE.in_place["stack_push"])(node)

    def push(operands: list[Any], run: Run) -> Any:
        if not operands[0]:
            pushes = row_pushes()
            if pushes is not None and not _is_of(operands[0], operands[1]):
                operands[0] = BlockStack(operands[1].dtype, np.shape(operands[1]), tails=pushes.tails(node))
        if isinstance(operands[0], BlockStack) and _takes(node, operands[0], operands[1]):
            s = own_stack(operands)
            s.push(operands[0])
            run.counters.pushed(node, operands[0])
            return s
        if current() is not None:
            operands[1] = _counted(operands[1])
        return kernel(operands, run)

    return push


def _is_of(s: Any, row: Any) -> bool:
    return isinstance(s, BlockStack) and s.shape == np.shape(row)


def _takes(node: Node, s: BlockStack, row: Any) -> bool:
    """Return true if a block stack takes a row as it is: in a session, and if the row has the shape of the stack's
    rows."""
    pushes = row_pushes()
    if pushes is None or s.written is not None:
        return False
    if not _is_of(s, row):
        pushes.stays(node, s.shape, np.shape(row))
        return False
    if s.tails is None or not s.blocks:
        # A loop in machine code made it, or all its rows were popped: another run begins.
        s.tails = pushes.tails(node)
    return True


def _in_blocks() -> Kernels:
    """The reference engine's kernels, able to take block stacks."""
    pure, in_place = dict(REFERENCE.pure), dict(REFERENCE.in_place)
    pure |= {op: _pure(table) for op, table in pure.items() if Trait.STACK in OPS[op].traits}
    in_place |= {op: _in_place(table) for op, table in in_place.items() if Trait.STACK in OPS[op].traits}
    in_place |= {"stack_push": _push, "stack_pop": REFERENCE.in_place["stack_pop"]}
    pure |= {
        "stack_length": REFERENCE.pure["stack_length"],
        "stack_read": REFERENCE.pure["stack_read"],
        "stack_sum": _sum,
        "stack_to_tensor": _to_tensor,
        "stack_rows": _rows,
        "stack_concat": _concat,
    }
    return Kernels("reference in blocks", pure, in_place, {**REFERENCE.control, "while": NotedLoop})


class NotedLoop(InterpretedLoop):
    """A `while` node whose time a session records, where it is the outermost one."""

    def __init__(self, node: Node, kernels: Kernels) -> None:
        super().__init__(node, kernels)
        pops = any(inner.op.has_use(Use.POP) for inner in walk(node.regions[1]))
        self.phase: Phase = "backward" if pops else "forward"

    def __call__(self, values: list[Any], run: Run) -> Any:
        session = current()
        if session is None or run.iterations:
            return super().__call__(values, run)
        with session.manager(CPU).recorder.running(loop_name(self.node), self.phase):
            return super().__call__(values, run)


# Kernels of engines without machine code in a session: the reference engine's kernels, to the bit.
IN_BLOCKS = _in_blocks()
