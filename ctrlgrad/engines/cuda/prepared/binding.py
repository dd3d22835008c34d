"""A prepared body in memory: the list of its launches in the processor's memory, and buffers and rows on the card.

The list is written once. Another run of the loop has other addresses of captures and buffers, numbers of the host and a
stream: these are named in the list, and set when the run begins. Between two runs it has no memory on the card.

The rows that a run pushes, or pops off, lie in the stack's last block, and a run ends before the block is full, or
empty. Where only the card knows how many rows an iteration has, the block may be too short for them. They lie in memory
of the run's own then, and are pushed on the stack after the run. So blocks are full, however iterations run. Numbers of
the host are sent to the card before a run that pops them, and read after a run that pushes them.

Where the data decides how many rows are pushed, the memory that an iteration needs is unknown; as a rule it is the most
that any iteration has needed so far. Where an iteration needs more, the run is repeated from its beginning, with as
much memory as it turned out to need. Where only the card knows how many rows are popped, the block on top may have
fewer. The rows, with those of the blocks below, lie in memory of the run's own then, and a run that would have popped
more is repeated with twice as many. Below the last row there may be meaningless rows, which keep a pass that reads
wrong rows within this memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.kernels import joined
from ctrlgrad.engines.cuda.library import ArrayLibrary, Launcher
from ctrlgrad.engines.cuda.prepared import graphs, walker
from ctrlgrad.engines.cuda.prepared.entries import (
    MEMORY,
    TRIPS,
    WORD,
    ListWriter,
    NumberWord,
    bits_of,
)
from ctrlgrad.engines.cuda.prepared.graphs import Capture
from ctrlgrad.engines.cuda.prepared.model import (
    BOOL,
    ENDLESS,
    INT64,
    Affine,
    Carried,
    CarriedArray,
    CarriedRows,
    Fixed,
    Flag,
    Given,
    PreparedBody,
    Register,
    Rows,
    Shape,
    View,
    Word,
    contiguous,
    wrapped,
)
from ctrlgrad.engines.cuda.prepared.reading import Input, StackValue, TableValue, Unusable
from ctrlgrad.engines.cuda.program import Context, Program, Values
from ctrlgrad.engines.cuda.sites import Site
from ctrlgrad.engines.cuda.stacks import DeviceRows, DeviceStack, Stack, own_array
from ctrlgrad.engines.reference.table import own_stack
from ctrlgrad.errors import ExecutionError
from ctrlgrad.ir import TensorType


class Table(list[Any]):
    """Rows in one array, and which of them were written; None where all were."""

    def __init__(self, rows: Any, marks: Any) -> None:
        super().__init__((rows, marks))

    @property
    def rows(self) -> Any:
        return self[0]

    @property
    def marks(self) -> Any:
        return self[1]


def inputs_of(
    library: ArrayLibrary,
    program: Program,
    shared: Sequence[Any],
    carry: Sequence[Any],
    tables: Mapping[int, TensorType],
) -> tuple[Input, ...]:
    """The values that a body begins with, by slot; the marks of carried tables are carried behind all else.

    Args:
        tables: elements of the stacks whose rows are read and written by index, by slot.
    """
    found, carries = list[Input](), len(carry)
    for slot, x in enumerate((*shared, *carry)):
        position = slot - len(shared)
        is_carried = position >= 0
        source = Carried(position) if is_carried else Given(slot)
        rows = _rows_of(x, tables[slot]) if slot in tables else None
        if rows is not None:
            shape, is_full = rows
            marks = View.whole(Carried(carries) if is_carried else Given(slot, is_marks=True), BOOL, shape[:1])
            carries += is_carried
            table = View.whole(source, tables[slot].dtype, shape)
            found.append(TableValue(table, None if is_full and not is_carried else marks))
        elif library.is_array(x):
            # A carry lies in buffers, which are contiguous.
            view = View.whole(source, x.dtype, tuple(x.shape))
            found.append(view if is_carried else replace(view, strides=tuple(x.strides)))
        elif isinstance(x, np.generic):
            found.append(_number(x.dtype, slot, is_carried and program.outputs[position] != slot))
        elif slot in tables or isinstance(x, DeviceRows):
            found.append(Unusable("a stack is a list of rows"))
        elif is_carried:
            found.append(StackValue(position, Affine(0), not isinstance(x, DeviceStack)))
        else:
            found.append(Unusable("a stack of another loop is read"))
    return tuple(found)


def _number(dtype: np.dtype, slot: int, changes: bool) -> Input:
    if dtype == INT64:
        return Affine(0, ((slot, 1),))
    return Unusable(f"a number of {dtype} changes on the host") if changes else Fixed(dtype, slot=slot)


def _rows_of(stack: Table | Stack, element: TensorType) -> tuple[Shape, bool] | None:
    """Shape of a stack as an array, and whether all rows were written; None if they differ, or are on the host."""
    if isinstance(stack, Table):
        return tuple(stack.rows.shape), stack.marks is None
    if isinstance(stack, DeviceStack):
        shapes, is_full = {block.storage.shape[1:] for block in stack.blocks}, True
    elif isinstance(stack, DeviceRows):
        written = [tuple(row.shape) for row in stack if row is not None]
        shapes, is_full = set(written), len(written) == len(stack)
    else:
        return None
    if not shapes and element.is_static:
        shapes = {tuple(d for d in element.shape if d is not None)}
    return ((len(stack), *shapes.pop()), is_full) if len(shapes) == 1 and len(stack) else None


def as_table(context: Context, stack: Table | Stack, its: View) -> Table:
    """A stack as a table. The rows of a block stay where they lie."""
    if isinstance(stack, Table):
        return stack
    if isinstance(stack, DeviceStack):
        (block, *others) = stack.blocks
        array = block.storage.array
        if others or array is None:
            return Table(joined(context, stack), None)
        return Table(array if block.count == len(array) else array[: block.count], None)
    written = np.array([row is not None for row in stack])
    marks = None if written.all() else context.on_device(written)
    context.counts.calls += 1
    if not written.any():
        # A row that was not written is read as zeros, whatever its memory holds.
        return Table(context.xp.zeros(its.shape, its.dtype), marks)
    blank = None if marks is None else context.xp.zeros(its.shape[1:], its.dtype)
    return Table(context.xp.stack([blank if row is None else row for row in stack]), marks)


def as_stack(context: Context, table: Table) -> Stack:
    """Stack form of a table, outside of launch lists. Waits for the marks."""
    (written,) = context.on_host(table.marks)
    if written is None or written.all():
        return DeviceStack.of(context.library, table.rows)
    return DeviceRows(table.rows[number, ...] if is_there else None for number, is_there in enumerate(written))


def captured(context: Context, shared: Sequence[Any], inputs: Sequence[Input]) -> dict[Given, Any]:
    """Captures of a loop by slot; a table is two arrays."""
    given: dict[Given, Any] = {}
    for slot, (x, its) in enumerate(zip(shared, inputs, strict=False)):
        if not isinstance(its, TableValue):
            given[Given(slot)] = x
            continue
        table = as_table(context, x, its.rows)
        given[Given(slot)] = context.xp.ascontiguousarray(table.rows)
        given[Given(slot, is_marks=True)] = table.marks
    return given


def array_buffer(context: Context, its: CarriedArray, carry: list[Any], position: int) -> Any:
    """The buffer of a carried array, with what it is. Raises `MemoryError`, and leaves the carry as it was."""
    library, holder = context.library, [carry[position]]
    carry[position] = None
    try:
        array, was_copied = own_array(holder, library)
        context.counts.calls += was_copied
        holder = [array]
        if tuple(array.strides) != contiguous(its.shape, its.dtype):
            array = library.empty(its.shape, its.dtype)
            array[...] = holder[0]
            context.counts.calls += 1
    except MemoryError:
        carry[position] = holder[0]
        raise
    return array


# Numbers of a stack of the host's that a run has on the card at most, and where only the card knows how many it needs;
# and bytes of a run's own memory, where few rows are expected.
MOST_NUMBERS, OWN_NUMBERS, OWN_BYTES = 1 << 16, 1 << 12, 1 << 12


@dataclass(frozen=True)
class RowMemory:
    """Place of the next row to push, or of the end of the next row to pop, and the number of rows that fit.

    Attributes:
        most: how many an iteration is expected to push, where the data says that, or to pop, where only the card knows.
        is_whole: whether the stack has no other rows, so nothing can be popped but these.
    """

    address: int
    capacity: int
    most: int = 0
    is_whole: bool = False


class StackRows:
    """One carried stack of a loop that runs, by its position in the carry."""

    def __init__(self, context: Context, position: int, its: CarriedRows) -> None:
        self.context, self.its, self.position = context, its, position
        # The most rows that an iteration has pushed, or popped, as far as anybody has counted.
        self.most = max(its.at_least, 1)
        # Where rows lie that are not in the stack, while a run lasts.
        self._aside: Any = None

    def _own(self, carry: Values) -> Stack:
        """Make the carry the only owner of its stack, and return the stack."""
        holder = [carry[self.position]]
        carry[self.position] = None
        stack: Stack = own_stack(holder)
        carry[self.position] = stack
        return stack

    # Before a run.

    def there(self, carry: Values, is_needed: bool = True) -> int:
        """Number of contiguous rows that a run may push or pop. If one is needed at once, a block may be added."""
        its, stack = self.its, self._own(carry)
        if not isinstance(stack, DeviceStack):
            if its.is_known:
                return MOST_NUMBERS if its.pushes else min(len(stack), MOST_NUMBERS)
            return self._numbers(stack)
        if self._pops_endless:
            return its.at_least if not len(stack) or stack.top_rows(its.shape) else 0
        if its.is_known:
            if its.pushes:
                return stack.free_rows(its.shape) if is_needed else stack.open_rows(its.shape)
            return stack.top_rows(its.shape)
        if self._is_aside(stack):
            return self._rows_aside
        return stack.open_rows(its.shape) if its.pushes else stack.top_rows(its.shape)

    def _numbers(self, stack: list[Any]) -> int:
        """Number of scalars that may be pushed or popped, where only the card knows how many are. Off an empty stack
        it is an iteration's number: such an iteration pops none."""
        if self.its.pushes:
            return max(OWN_NUMBERS, 2 * self.most)
        return min(len(stack), OWN_NUMBERS) if stack else self.most

    def _is_aside(self, stack: DeviceStack) -> bool:
        """Return true if an iteration's rows lie in memory of the run's own. That holds for rows that it may push
        beyond the open block, and for an empty stack, off which no iteration pops."""
        if self.its.is_known:
            return False
        return stack.open_rows(self.its.shape) < self.most if self.its.pushes else not len(stack)

    @property
    def _rows_aside(self) -> int:
        return self._plenty if self.its.is_endless else self.most

    @property
    def _plenty(self) -> int:
        """Capacity when the number of rows per iteration is unknown; rows of arrays without elements have no bytes."""
        return max(2 * self.most, OWN_BYTES // max(self.its.row_bytes, 1))

    def lent(self, carry: Values, needed: int) -> RowMemory:
        """Memory for the rows of a run: so many, where the host knows that.

        Raises `MemoryError`.
        """
        its, stack, self._aside = self.its, carry[self.position], None
        if self._pops_endless:
            return self._taken(stack)
        if isinstance(stack, DeviceStack):
            if self._is_aside(stack):
                return self._empty(self._rows_aside)
            if its.is_known and not needed:
                return RowMemory(0, 0)
            array, count = stack.top()
            capacity = stack.open_rows(its.shape) if its.pushes else count
            return self._memory(array, count, capacity)
        if its.pushes:
            return self._empty(max(needed, 1) if its.is_known else self._numbers(stack))
        count = needed if its.is_known else self._numbers(stack)
        numbers = np.array(stack[max(len(stack) - count, 0) :] or [0] * max(count, 1), its.dtype)
        self._aside = self.context.on_device(numbers)
        return self._memory(self._aside, count, count)

    def more(self, rows: int) -> RowMemory:
        """Memory for the rows of a run that has pushed so many. Raises `MemoryError`."""
        return self._empty(rows + self.most + self.its.at_least)

    # Popped as often as only the card knows.

    @property
    def _pops_endless(self) -> bool:
        return self.its.is_endless and not self.its.pushes

    def _taken(self, stack: Stack) -> RowMemory:
        """Memory of the rows on top: in the block, or aside."""
        its = self.its
        if not isinstance(stack, DeviceStack):
            return self.taken_aside(stack, max(OWN_NUMBERS, 2 * self.most))
        count = stack.top_rows(its.shape)
        is_whole = count == len(stack) and its.least == its.at_least <= count
        if not is_whole and its.usable(count) < self.most:
            return self.taken_aside(stack, self._plenty)
        return replace(self._memory(stack.top()[0], count, count), is_whole=is_whole)

    def taken_aside(self, stack: Stack, wanted: int) -> RowMemory:
        """So many rows as they come off the stack, if there are. Raises `MemoryError`."""
        its, context = self.its, self.context
        there = stack.alike(its.shape) if isinstance(stack, DeviceStack) else len(stack)
        count = min(there, wanted)
        # No pass reads these that has all of its rows.
        below = its.at_least - min(count, its.least)
        if isinstance(stack, DeviceStack):
            self._aside = context.library.empty((below + count, *its.shape), its.dtype)
            context.counts.calls += stack.copy_to(self._aside[below:])
        else:
            self._aside = context.on_device(np.array([0] * below + stack[len(stack) - count :], its.dtype))
        return replace(self._memory(self._aside, below + count, below + count), is_whole=count == there)

    def _empty(self, rows: int) -> RowMemory:
        self._aside = self.context.library.empty((rows, *self.its.shape), self.its.dtype)
        return self._memory(self._aside, 0 if self.its.pushes else rows, rows)

    def _memory(self, array: Any, count: int, capacity: int) -> RowMemory:
        address = self.context.library.address(array) + count * self.its.row_bytes
        return RowMemory(address, capacity, self.most)

    # Behind it.

    def moved(self, carry: Values, rows: int) -> None:
        """Rows were pushed, or popped (below 0)."""
        stack, aside = carry[self.position], self._aside
        self._aside = None
        if not isinstance(stack, DeviceStack):
            self._moved_on_host(stack, rows, aside)
        elif rows < 0:
            stack.take_off(-rows)
        elif aside is not None:
            self.context.counts.calls += stack.extend(aside[:rows])
        elif rows:
            stack.commit(rows)

    def _moved_on_host(self, stack: list[Any], rows: int, aside: Any) -> None:
        if rows > 0:
            stack.extend(self.context.on_host(aside[:rows])[0])
        elif -rows > len(stack):
            raise ExecutionError("stack: popped more values than were pushed")
        elif rows:
            del stack[rows:]


def pushed_too_many(form: PreparedBody, rows: Mapping[int, RowMemory], counts: Mapping[int, int]) -> dict[int, int]:
    """Number of rows pushed on each stack that had too little memory for them."""
    pushed = {position: counts[position] for position, its in form.endless.items() if its.pushes}
    return {n: count for n, count in pushed.items() if count > form.endless[n].usable(rows[n].capacity)}


# Graphs of a list that are kept: calls whose arrays lie here and there by turns find theirs again.
GRAPHS = 4
_BYTE = np.dtype(np.uint8)


class Binding:
    """The list of a loop's launches. One run of the loop has it at a time, between `begin` and `end`."""

    def __init__(self, body: PreparedBody, inputs: Sequence[Input], context: Context) -> None:
        self.body, self.library, self.precision = body, context.library, context.precision
        # Of what is carried, what the body is told of it.
        self._inputs = inputs[len(inputs) + len(body.marks) - len(body.carries) :]
        # The buffer of each array that is carried.
        self.carried: dict[Carried, Any] = {}
        self._given: Mapping[Given, Any] = {}
        self._memory: Any = None
        # Where an index that is out of range is noted, if any may be.
        self._flag: Any = None
        self._launcher: Launcher | None = None
        # True once all of the list has been called: everything that CUDA loads at a first call is loaded.
        self.is_warm = False
        # That of the list as it is, if there is one; and those that are kept, what was asked for last at the end.
        # Each has the list as it was, and the address of the memory that its products have while it runs.
        self.graph: graphs.LoopGraph | None = None
        self._graphs: OrderedDict[tuple[tuple[int, ...], int], graphs.LoopGraph] = OrderedDict()
        # Why its last launch was not.
        self.refused: graphs.Refused | None = None
        self._workspace: Any = None
        # Launches of the run under way.
        self._launched = walker.Counts()
        self._moment = self._number = 0
        self._writer = ListWriter(body, self.library, self.precision)
        self.list = self._writer.list

    def begin(self, context: Context, given: Mapping[Given, Any], carry: list[Any]) -> None:
        """Have memory, and name it in the list.

        Args:
            given: captures, constants and numbers of the host.
            carry: the loop's carry. An array with no other reference becomes a buffer; a shared one is copied into one.

        Raises `MemoryError` where there is no memory for the buffers; what is carried is in `carry` then.
        """
        self._given, self.carried, self._number = given, {}, context.run_number
        taken: list[tuple[Carried, list[Any], int]] = []
        try:
            # Products have a workspace, which counts in a session.
            self._launcher = self.library.launcher(self.body.products > 0)
            self._memory = self.library.empty((self.body.placement.nbytes,), _BYTE)
            if Flag() in self.list.named:
                self._flag = context.index_flag()
            for position in self.positions:
                for part, holder, number in self._parts(context, carry, position):
                    its = self.body.carries[part]
                    assert isinstance(its, CarriedArray)
                    self.carried[Carried(part)] = array_buffer(context, its, holder, number)
                    taken.append((Carried(part), holder, number))
            for position in self.positions:
                carry[position] = None
        except MemoryError:
            for name, holder, number in taken:
                holder[number] = self.carried[name]
            self.end()
            raise
        for named in self.list.named:
            self.list.set(named, self._word(named, context))
        self.graph = None

    def _parts(self, context: Context, carry: list[Any], position: int) -> list[tuple[int, list[Any], int]]:
        """The arrays of a carry: the position of the buffer of each, and where the carry holds it."""
        marks = self.body.marks.get(position)
        if marks is None:
            return [(position, carry, position)]
        given = self._inputs[position]
        assert isinstance(given, TableValue)
        table = carry[position] = as_table(context, carry[position], given.rows)
        if table.marks is None:
            context.counts.calls += 1
            table[1] = context.xp.ones(given.rows.shape[:1], np.bool_)
        return [(position, table, 0), (marks, table, 1)]

    @property
    def positions(self) -> list[int]:
        """Of the loop's carries that lie in buffers."""
        return [n for n, its in enumerate(self.body.carries[: len(self._inputs)]) if isinstance(its, CarriedArray)]

    def end(self) -> None:
        """Let go of all memory."""
        self._given, self.carried, self._memory, self._workspace, self._flag = {}, {}, None, None, None

    @property
    def _called(self) -> Launcher:
        assert self._launcher is not None
        return self._launcher

    def carry(self, position: int) -> Any:
        """The array, or the table, that is carried at a position now."""
        array = self.carried[Carried(position)]
        marks = self.body.marks.get(position)
        return array if marks is None else Table(array, self.carried[Carried(marks)])

    def has(self, position: int, value: Any) -> bool:
        """Return true if `value` is the current carry at a position."""
        found = self.carry(position)
        if isinstance(found, Table) and isinstance(value, Table):
            return found.rows is value.rows and found.marks is value.marks
        return found is value

    def run(
        self,
        iterations: int,
        rows: Mapping[int, RowMemory],
        integers: Mapping[int, int],
        in_graph: bool = False,
        moment: int = 0,
    ) -> walker.Counts:
        """Put iterations on the library's stream; what was launched by itself.

        Where only the card knows how many rows an iteration has (`is_known` is false), there may be fewer of them: see
        `counted`.

        Args:
            rows: of each stack that is pushed on or popped off, where its rows lie.
            integers: those of the host, by their slots.
            moment: the number of now, which is noted with an index that is out of range.
            in_graph: by the graph.
        """
        self._moment = moment
        values = [self._value(word, iterations, rows, integers) for word in self.body.words]
        for number, count, start in self._writer.set:
            its = values[start : start + count]
            self.list.words[number : number + count] = its + its[-1:] * (count - len(its))
        self._launched = walker.Counts()
        self._walk(0, self._writer.first)
        if not in_graph or not self._launch_graph():
            for first, trips in self._writer.counted.values():
                if isinstance(trips, Affine):
                    self.list.words[first + TRIPS] = trips.value(integers)
            if self.body.is_known:
                self.list.words[self._writer.counted[0][0] + TRIPS] = iterations
            # There is a first iteration: the card is asked behind it.
            self._walk(self._writer.first + 2 * (not self.body.is_known), self._writer.last)
        self.is_warm = True
        return self._launched

    def counted(self, context: Context) -> dict[Word, int]:
        """The words behind a run that the card has ended: counters, rows and iterations."""
        (words,) = context.on_host(self._memory[: WORD * len(self.body.words)])
        return dict(zip(self.body.words, map(int, words.view(np.int64)), strict=True))

    def saved(self) -> list[tuple[Any, Any]]:
        """The current carry and the run's flag, each with a copy. Raises `MemoryError`."""
        found = (*self.carried.values(), *([] if self._flag is None else [self._flag]))
        return [(x, self.library.xp.array(x)) for x in found]

    def restore(self, saved: Sequence[tuple[Any, Any]]) -> None:
        """Have what was carried when the run began, where it lay, and what had been noted by then."""
        for target, array in saved:
            target[...] = array

    def _value(self, word: Word, iterations: int, rows: Mapping[int, RowMemory], integers: Mapping[int, int]) -> int:
        match word:
            case Register("counter" | "before" | "short"):
                return 0
            case Register("limit"):
                return iterations
            case Register("goes_on"):
                return 1
            case Register("run"):
                return self._number
            case Register("began"):
                return self._moment
            case Register("capacity", position):
                its = rows[position]
                return ENDLESS if its.is_whole else self._rows(position).usable(its.capacity)
            case Register("last_slot", position):
                return rows[position].capacity - self._rows(position).at_least
            case Register("most", position):
                return rows[position].most
            case Affine():
                return wrapped(word.value(integers))
            case View(Rows(position)):
                return rows[position].address + word.offset + word.moved.value(integers)
        raise AssertionError(word)

    def _rows(self, position: int) -> CarriedRows:
        its = self.body.carries[position]
        assert isinstance(its, CarriedRows)
        return its

    def _launch_graph(self) -> bool:
        """Launch the graph; false where it was refused: nothing of it has run."""
        assert self.graph is not None
        try:
            self.graph.launch(self._called.stream)
        except graphs.Refused as refused:
            self._forget()
            self.refused = refused.with_traceback(None)
        except graphs.GraphFailed as failed:
            self._forget()
            raise self._called.error(walker.KERNEL, failed.status) from None
        return self.refused is None

    def _walk(self, first: int, last: int, stream: int | None = None) -> None:
        """Go through entries of the list."""
        called, address = self._called, self.list.address + WORD * self._writer.begin
        try:
            found = walker.run(address, first, last, called.functions, stream or called.stream)
        except walker.Failed as failed:
            if stream is not None:
                raise
            raise called.error(failed.kind, failed.status) from None
        if stream is None:
            self._launched.kernels += found.kernels
            self._launched.products += found.products
            self._launched.reads += found.reads

    # The graph.

    def has_graph(self) -> bool:
        """Return true if there is a graph of the list in its current state.

        Raises `MemoryError` where there is no memory for the products' workspace.
        """
        key = self.list.state, self._have_workspace()
        self.graph = self._graphs.get(key)
        if self.graph is not None:
            self._graphs.move_to_end(key)
        return self.graph is not None

    @property
    def may_have_graph(self) -> bool:
        """Return true if there is a graph of this list, whatever the address of its products' workspace."""
        return any(state == self.list.state for state, _ in self._graphs)

    @property
    def kept_graphs(self) -> int:
        return len(self._graphs)

    def _forget(self) -> None:
        """The graph is of no use."""
        self._graphs = OrderedDict((key, its) for key, its in self._graphs.items() if its is not self.graph)
        self.graph = None

    def _have_workspace(self) -> int:
        """Products have memory from now on until the run ends; its address, or 0 where there are no products."""
        if not self.body.products:
            return 0
        if self._workspace is None:
            self._workspace = self.library.empty((self._called.workspace_bytes,), _BYTE)
        return self.library.address(self._workspace)

    def capture(self) -> None:
        """Have a graph of the list, which ends where the loop does.

        Raises `graphs.Refused`, and `MemoryError` where there is no memory for the products' workspace.
        """
        addresses = self._called.graphs()
        if isinstance(addresses, str):
            raise graphs.Refused(addresses)
        stopped = self.library.address(self.library.stopped())
        driver = graphs.GraphDriver(addresses)
        capture = Capture(self._writer, self._walk, self._called, stopped)
        # A capture may neither compile nor load them.
        self.library.prepare(capture.kernels, self.precision != "ieee")
        functions = [self.library.function(spec, self.precision != "ieee") for spec in capture.kernels]
        place = self._have_workspace()
        try:
            for function in functions:
                driver.call("cuFuncLoad", function)
            with self._called.capturing(self._workspace) as stream:
                self.graph = graphs.LoopGraph(driver, stream, capture.parts())
            self._graphs[self.list.state, place] = self.graph
            while len(self._graphs) > GRAPHS:
                self._graphs.popitem(last=False)
        except graphs.GraphFailed as failed:
            raise self._called.error(walker.KERNEL, failed.status) from None
        except walker.Failed as failed:
            raise self._called.error(failed.kind, failed.status) from None

    def _word(self, named: object, context: Context) -> int:
        """Current value of a named word of the list."""
        match named:
            case Given():
                return self.library.address(self._given[named])
            case Carried():
                return self.library.address(self.carried[named])
            case NumberWord(Fixed(dtype, _, slot), position):
                assert slot is not None
                return bits_of(dtype, self._given[Given(slot)])[position]
            case Site():
                return context.sites.listed(named)
            case Flag():
                return self.library.address(context.index_flag())
        if named is MEMORY:
            return self.library.address(self._memory)
        return self._called.handle
