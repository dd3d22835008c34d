"""Reads and writes of each step without blocks, in order."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np

from ctrlgrad.plan import model
from ctrlgrad.plan.checking.decisions import check_tiles
from ctrlgrad.plan.checking.memory import Cell, Content, PlanError, Pointer, RunningStack, Token, described
from ctrlgrad.plan.chunks import loops_in_chunks
from ctrlgrad.plan.effects import blocks_of, defines, names_of, numbers_of, reads, walk
from ctrlgrad.plan.model import (
    Array,
    Branch,
    FromStack,
    Kernel,
    Loop,
    NewStack,
    Operand,
    Outside,
    Piece,
    Plan,
    Pop,
    Product,
    Push,
    ReadRow,
    Stack,
    Step,
    ToStack,
    Value,
    View,
    Write,
    WriteRow,
)
from ctrlgrad.plan.places import Place
from ctrlgrad.plan.reductions import may_combine
from ctrlgrad.plan.sharing import shared_axes
from ctrlgrad.plan.sizes import ONE, ZERO, Size, Sizes, divided, product, row_major

# State of a replay: the value that each name stands for, the contents of memory, and how it is read and written.


# Rows of a stack by their contents, the last first.
Rows = tuple[Any, ...]


class State:
    """One run of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.tokens: dict[str, Token] = {}
        self.rows: dict[Token, Rows] = {}
        self.cells: dict[Place, Cell] = {}
        self.pointers: dict[Place, Pointer] = {}
        self.stacks: dict[int, RunningStack] = {}
        self.iterations: list[tuple[int, int]] = []
        self.in_chunks = {found.loop for found in loops_in_chunks(plan)}
        # Steps in progress, outermost first.
        self.at: list[Step | str] = []
        self._scopes: list[list[str]] = [[]]
        pushes = [step for step in walk(plan.body) if isinstance(step, Push)]
        self.pushes = dict(enumerate(pushes))
        self.push_numbers = {step: number for number, step in enumerate(pushes)}
        # The base of each updated array.
        kernels = [step for step in walk(plan.body) if isinstance(step, Kernel)]
        self.bases = {write.view.array: write.base for kernel in kernels for write in kernel.writes}
        self.bases.update({step.result: step.base for step in walk(plan.body) if isinstance(step, Product)})
        self.steps = 0
        # The function in progress; None for the plan's own.
        self.piece: Piece | None = None
        # The stacks that an outside call reads, by position.
        self.operands: dict[int, RunningStack] = {}

    # Decisions and computations that subclasses supply.

    def goes_on(self, step: Loop, iteration: int) -> bool:
        """Return true if an iteration runs, after its condition."""
        raise NotImplementedError

    def chosen(self, step: Branch) -> int:
        """The number of the block that runs."""
        raise NotImplementedError

    def capacity(self) -> int:
        """Capacity of a stack's next block, in rows."""
        raise NotImplementedError

    def chunk_ends(self) -> bool:
        """Return true if a chunk of a loop ends before this iteration."""
        raise NotImplementedError

    def chunk_ended(self, step: Loop, iteration: int) -> None:
        """A chunk of a loop has ended before an iteration, or the loop after the last one."""

    def row_index(self, step: ReadRow | WriteRow, length: int) -> int | None:
        """Index of the row that is read or written, from the start; None where the stack has no rows."""
        raise NotImplementedError

    def new_rows(self, step: NewStack | ToStack | Outside, result: Stack) -> int:
        """Number of rows of a new stack."""
        raise NotImplementedError

    def allocated(self, cell: Cell, array: Array) -> None:
        """An array is about to be written to a cell."""

    def computed(self, step: Step, reads: Sequence[Cell], writes: Sequence[Cell]) -> None:
        """A step computes: it reads the cells `reads`, in the order of its fields, and leaves arrays in the cells
        `writes`."""

    def copied(self, array: Array, source: Cell, target: Cell) -> None:
        """An array is copied as it is."""

    def put_row(self, step: Push | WriteRow, source: Cell | None, target: Cell) -> None:
        """A row is written: from an array's cell, or from numbers."""

    def got_row(self, step: Pop | ReadRow, source: Cell, target: Cell | None) -> None:
        """A row is read: into an array's cell, or into numbers; in place where the cells are one."""

    def got_rows(self, step: FromStack, sources: Sequence[Cell], target: Cell) -> None:
        """All rows of a stack are read into an array's cell."""

    def carried(self, sources: Sequence[Value], targets: Sequence[Value]) -> None:
        """Numbers go on under other names, all at once."""

    def entered(self, step: Loop) -> None:
        """A loop begins."""

    def counted(self, step: Loop, iteration: int) -> None:
        """An iteration begins."""

    # Failing.

    def fail(self, text: str) -> NoReturn:
        where = "".join(f"\n  in {each if isinstance(each, str) else _headline(each)}" for each in reversed(self.at))
        run = ", ".join(f"iteration {i} of loop {loop}" for loop, i in self.iterations)
        raise PlanError(f"plan {self.plan.name}: {text}{where}" + (f"\n  {run}" if run else ""))

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        self.at.append(what)
        yield
        self.at.pop()

    # Names.

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Scope of definitions: names defined inside are forgotten at its end."""
        self._scopes.append([])
        yield
        for name in self._scopes.pop():
            del self.tokens[name]

    def define(self, value: Value, token: Token | None = None) -> Token:
        """A name stands for a value from now on, by itself for a new one."""
        if value.name in self.tokens:
            self.fail(f"{value.name} is defined twice")
        found = Token(value.name, tuple(self.iterations)) if token is None else token
        self.tokens[value.name] = found
        self._scopes[-1].append(value.name)
        return found

    def wanted(self, value: Value) -> Token:
        found = self.tokens.get(value.name)
        if found is None:
            self.fail(f"{value.name} is read where it is not defined")
        return found

    def sees(self, names: Iterator[str] | Sequence[str]) -> None:
        for name in names:
            if name not in self.tokens:
                self.fail(f"the number {name} is read where it is not defined")

    # Places.

    def place_of(self, array: Array) -> Place:
        place = self.plan.places.get(array)
        if place is None:
            self.fail(f"{array} has no place")
        return place

    def cell_at(self, place: Place, what: object) -> Cell:
        """The memory of a place."""
        if place.kind in ("slot", "row"):
            pointer = self.pointers.get(place)
            if pointer is None:
                self.fail(f"{what} is wanted in {place}, which was never reached")
            if not pointer.is_valid:
                self.fail(f"{what} is wanted in {place}, whose block its stack has closed since")
            return pointer.cell
        if place not in self.cells:
            self.fail(f"{what} is wanted in {place}, which is not there")
        return self.cells[place]

    def read(self, array: Array) -> Cell:
        """Cell of an array; the array must be in it."""
        return self.read_at(self.place_of(array), array)

    def read_at(self, place: Place, array: Array) -> Cell:
        wanted, cell = self.wanted(array), self.cell_at(place, array)
        if cell.content is not wanted:
            self.fail(f"{wanted} is wanted in {place}, where {described(cell.content)} lies")
        if place.kind == "buffer" and not self.plan.buffers[place.number].is_known_at_entry:
            # It may have come by another name, whose size was said in another way.
            cell.room = self.room_of(array)
        return cell

    def written(self, array: Array) -> Cell:
        """Cell that an array is about to be written to."""
        return self.room_at(self.place_of(array), array)

    def room_at(self, place: Place, array: Array) -> Cell:
        """Memory for an array at a place that may be written."""
        if place.kind == "slot":
            self.reserve(place, array)
        elif place.kind != "buffer":
            self.fail(f"{array} is written to {place}, which is never written")
        cell = self.cell_at(place, array)
        if place.kind == "buffer":
            self.check_room(place, cell, array)
        return cell

    def check_room(self, place: Place, cell: Cell, array: Array) -> None:
        buffer = self.plan.buffers[place.number]
        if buffer.dtype.itemsize != array.dtype.itemsize:
            self.fail(f"{array}, {array.dtype} elements, is written to {place}, of {buffer.dtype}")
        count = array.count
        if buffer.is_known_at_entry:
            fits = count == buffer.count or (
                count.is_known and buffer.count.is_known and count.factor <= buffer.count.factor
            )
            if not fits:
                self.fail(f"{array}, {count} elements, is written to {place}, which has room for {buffer.count}")
            return
        room = self.room_of(array)
        if cell.room != room:
            # It may have to be larger, and then it is another one.
            cell.room, cell.content = room, None

    def room_of(self, array: Array) -> object:
        """Number of elements of an array in this iteration, as a comparable value."""
        self.sees(array.count.names)
        return (array.count.factor, tuple(self.tokens[name] for name in array.count.names))

    def reserve(self, place: Place, array: Array) -> None:
        """The row that a push will count, before the push."""
        push = self.pushes.get(place.number)
        if push is None or not isinstance(push.row, View) or array not in self.versions_of(push.row.array):
            self.fail(f"{array} is written to {place}, which is not that of its push")
        self.check_row(push.stack, array)
        stack = self.stack_at(self.handle_of(push.stack))
        self.pointers[place] = Pointer(stack.top(), stack, stack.epoch)

    def versions_of(self, array: Array) -> set[Array]:
        """An array, what it is an update of, and so on."""
        found = {array}
        while (base := self.bases.get(array)) is not None and base not in found:
            found.add(base)
            array = base
        return found

    def check_row(self, stack: Stack, array: Array) -> None:
        fits = stack.holds == "elements" or self.plan.rows.get(stack) == array.shape
        if not fits or stack.dtype != array.dtype:
            self.fail(f"{array} is not of the shape and type of the rows of {stack}")

    # Stacks.

    def handle_of(self, stack: Stack) -> int:
        handle = self.plan.handles.get(stack)
        if handle is None:
            self.fail(f"{stack} has no handle")
        return handle

    def stack_at(self, handle: int) -> RunningStack:
        if self.piece is not None and handle in self.plan.near:
            self.fail(f"the words of stack handle {handle} are kept by the function around")
        if handle not in self.stacks:
            self.fail(f"nothing is held by stack handle {handle}")
        return self.stacks[handle]

    def stack(self, stack: Stack) -> RunningStack:
        """Stack in the handle of a version; it must hold that version, with all rows unchanged."""
        wanted, handle = self.wanted(stack), self.handle_of(stack)
        found = self.stack_at(handle)
        if found.version is not wanted:
            self.fail(f"{wanted} is wanted in stack handle {handle}, which holds {found.version}")
        return found

    def check_rows(self, stack: RunningStack) -> None:
        """Every row is what was pushed."""
        cells, rows = list(stack.cells()), list(listed(self.rows[stack.version]))
        if len(cells) != len(rows):
            self.fail(f"{stack.version} has {len(cells)} rows in place of {len(rows)}")
        for position, (cell, row) in enumerate(zip(cells, reversed(rows), strict=True)):
            if cell.content != row:
                self.fail(
                    f"row {position} of {stack.version} is {described(cell.content)} in place of {described(row)}"
                )

    def hold(self, stack: Stack, rows: Sequence[Content]) -> RunningStack:
        """A handle holds a new object with these rows."""
        token = self.define(stack)
        self.rows[token] = functools.reduce(lambda below, row: (row, below), rows, ())
        found = RunningStack(token, self.capacity)
        for row in rows:
            found.top().content = row
            found.grow()
        found.settle()
        handle = self.handle_of(stack)
        if handle in self.stacks:
            self.stacks[handle].epoch += 1
        self.stacks[handle] = found
        return found

    def updated(self, running: RunningStack, before: Stack, result: Stack, rows: Rows) -> None:
        """A stack was changed in place."""
        if self.handle_of(before) != self.handle_of(result):
            self.fail(f"{result} is {before} changed in place, and has another handle")
        running.version = self.define(result)
        self.rows[running.version] = rows


def listed(rows: Rows) -> Iterator[Any]:
    while rows:
        row, rows = rows
        yield row


def _headline(step: Step) -> str:
    results = ", ".join(str(value) for value in defines(step))
    return f"{type(step).__name__.lower()}" + (f" of {results}" if results else "")


# Test that a kernel may write where it reads: each element only at the point that reads it for the last time.
#
# Points run in any order, several at once; each reads all that it needs before it writes. So an element that a point
# writes must be read by no other point. Where all sizes are known, the elements are compared. Where one is not, both
# views must be the same, and meet no element twice, which their axes tell: numbers tried in the place of sizes would
# be ones that no run has, such as a part that is longer than the whole.


# Views of more points are compared with each other by their form alone.
MOST_POINTS = 1 << 12


def reads_only_what_it_writes(operand: Operand, write: Write) -> bool:
    """Return true if a kernel may write over what it reads as `operand`: no point reads what another one writes."""
    if operand.gathered or write.indices:
        return False
    if write.how != "store" and write.base is None:
        # The start of the reduction is written before anything is read.
        return False
    read, written = operand.view, write.view
    if read.shape != written.shape:
        return False
    if ZERO in read.shape:
        return True
    # Offsets that have other names may be equal or not: only equal ones are known.
    pairs = zip(read.strides, written.strides, read.shape, strict=True)
    same = read.offset == written.offset and all(s == t or size == ONE for s, t, size in pairs)
    if same and _meets_no_element_twice(written):
        return True
    if names_of((*read.shape, *read.strides, *read.offset, *written.strides, *written.offset)):
        return False
    points = math.prod(size.factor for size in read.shape)
    return (same or points <= MOST_POINTS) and _is_safe(_key(read), _key(written))


def _meets_no_element_twice(view: View) -> bool:
    """Return true if each axis of a view goes along another axis of its array, as those of a slice do, in any order.

    That a slice lies within its array is the lowering's duty: how long it is may be a number that only a run knows.
    """
    whole = list(zip(view.array.shape, row_major(view.array.shape), strict=True))
    found: set[int] = set()
    for size, stride in zip(view.shape, view.strides, strict=True):
        if size == ONE:
            continue
        # An axis of the array along which one goes by a known step; of several, the outermost one.
        axis = next((k for k, (_, its) in enumerate(whole) if _is_multiple(stride, its)), None)
        if axis is None or axis in found:
            return False
        length = whole[axis][0]
        if size.names == length.names and size.factor > length.factor:
            return False
        found.add(axis)
    return True


def _is_multiple(stride: Size, of: Size) -> bool:
    step = divided(stride, of)
    return step is not None and step.is_known and step != ZERO


_View = tuple[Sizes, Sizes, Sizes]


def _key(view: View) -> _View:
    return (view.offset, view.shape, view.strides)


@functools.lru_cache(maxsize=4096)
def _is_safe(read: _View, written: _View) -> bool:
    """Return true if no point reads what another one writes, of views whose sizes are known."""
    shape = tuple(size.factor for size in read[1])
    a, b = (_addresses(view[0], view[2], shape) for view in (read, written))
    # A read address that several points write is unsafe; one that a single point writes must be read by that point.
    order = np.argsort(b, kind="stable")
    ordered = b[order]
    if (ordered[1:] == ordered[:-1]).any() and np.isin(a, ordered[1:][ordered[1:] == ordered[:-1]]).any():
        return False
    at = np.minimum(np.searchsorted(ordered, a), max(len(ordered) - 1, 0))
    hit = (ordered[at] == a) if len(ordered) else np.zeros(0, bool)
    return bool((order[at][hit] == np.arange(len(a))[hit]).all())


def _addresses(offset: Sizes, strides: Sizes, shape: tuple[int, ...]) -> np.ndarray:
    total = np.full(shape, sum(term.factor for term in offset), np.int64)
    for axis, stride in enumerate(strides):
        steps = np.arange(shape[axis], dtype=np.int64) * stride.factor
        total += steps.reshape((-1,) + (1,) * (len(shape) - axis - 1))
    return total.ravel()


class Steps(State):
    """The steps of a run."""

    def step(self, step: Step) -> None:
        if not blocks_of(step):
            self.sees([register.name for register in numbers_of(step)])
        getattr(self, f"on_{step.kind}", self.plain)(step)

    def plain(self, step: Step) -> None:
        """A step that reads values all the time while it writes arrays and gives numbers."""
        if any(isinstance(value, Stack) for value in defines(step)) or blocks_of(step):
            self.fail(f"a step of a kind without a rule, {step.kind}")
        found = [self.stack(value) if isinstance(value, Stack) else self.read(value) for value in reads(step)]
        cells = [cell for cell in found if isinstance(cell, Cell)]
        arrays = [value for value in defines(step) if isinstance(value, Array)]
        targets: list[Cell] = []
        for array in arrays:
            target = self.written(array)
            if any(target is other for other in (*cells, *targets)):
                self.fail(f"{array} is written to {self.place_of(array)}, which is still read")
            self.allocated(target, array)
            targets.append(target)
        self.computed(step, cells, targets)
        for value in defines(step):
            self.define(value)
        for array, target in zip(arrays, targets, strict=True):
            target.content = self.wanted(array)

    def check_parts(self, share: model.Share, length: int) -> None:
        if not (share.parts - 1) * share.unit < length <= share.parts * share.unit:
            self.fail(f"{share.parts} parts of {share.unit} positions are not its {length} positions")

    def check_share(self, step: model.Kernel, share: model.Share) -> None:
        """Check that the parts of a kernel are all of it, and that no two of them write the same element."""
        length = math.prod(step.space[axis].factor for axis in share.axes)
        between = set(range(share.axes[0], share.axes[-1])).difference(share.axes)
        if [*share.axes] != sorted({*share.axes}) or any(step.space[axis] != ONE for axis in between):
            self.fail(f"it is cut along axes {share.axes}, which do not lie side by side")
        if not share.at_run_time:
            self.check_parts(share, length)
        elif min(share.unit, share.parts) < 1:
            self.fail(f"at most {share.parts} parts of {share.unit} positions or more")
        axes = [axis for axis in share.axes if step.space[axis] != ONE]
        is_row = all(size == ONE or axis in axes for axis, size in enumerate(step.space))
        for write in step.writes:
            stands_still = [write.view.strides[axis] == ZERO for axis in axes]
            if share.has_results and all(stands_still):
                if (
                    not may_combine(write.how, is_row and not share.at_run_time)
                    or write.base is not None
                    or write.scattered
                ):
                    self.fail(f"{write.view.array} is a {write.how}, whose parts are not combined")
            elif any(stands_still):
                self.fail(f"parts that threads share write the same elements of {write.view.array}")
            elif write.scattered and not set(axes) <= set(shared_axes(step)):
                self.fail(f"parts that threads share may scatter to the same elements of {write.view.array}")

    def on_cumulate(self, step: model.Cumulate) -> None:
        shape = step.view.shape
        if len(shape) != 3 or not step.view.is_dense or product(shape) != step.result.count:
            self.fail(f"{step.result} is not that of the rows, positions and columns of a dense view")
        if (share := self.plan.shares.get(step)) is not None:
            if share.axes not in ((0,), (1,), (2,)) or share.has_results != (share.axes == (1,)):
                self.fail(f"parts along {share.axes} of what grows along positions, and results of their own or not")
            self.check_parts(share, shape[share.axes[0]].factor)
        self.plain(step)

    def on_transform(self, step: model.Transform) -> None:
        shape, half = step.view.shape, Size(step.n // 2 + 1)
        expected, count = (half if step.how == how else Size(step.n) for how in ("irfft", "rfft"))
        if len(shape) != 3 or not step.view.is_dense or shape[1] != expected:
            self.fail(f"{step.view} has no {expected} positions between the rows and columns of a dense view")
        if step.result.count != shape[0] * count * shape[2]:
            self.fail(f"{step.result} has not {count} elements for each of its rows and columns")
        if (share := self.plan.shares.get(step)) is not None:
            if share.axes != (0, 2) or share.has_results:
                self.fail(f"parts along {share.axes}, not along rows and columns, or results of their own")
            self.check_parts(share, (shape[0] * shape[2]).factor)
        self.plain(step)

    def on_kernel(self, step: model.Kernel) -> None:
        if (tiles := self.plan.tiles.get(step)) is not None:
            check_tiles(tiles, self.plan.places, self.fail)
        if (share := self.plan.shares.get(step)) is not None:
            self.check_share(step, share)
        targets: list[Cell] = []
        for write in step.writes:
            array = write.view.array
            base = None if write.base is None else self.read(write.base)
            cell = self.written(array)
            if base is None:
                targets.append(cell)
                continue
            assert write.base is not None
            if base.content is None:
                self.fail(f"{write.base} is lost where it lies, since it grows")
            if (write.base.count, write.base.dtype) != (array.count, array.dtype):
                self.fail(f"{array} is an update of {write.base}, which has another size or type")
            if cell is not base:
                self.allocated(cell, array)
                self.copied(write.base, base, cell)
                cell.content = base.content
            targets.append(cell)
        reads = [self.read(operand.view.array) for operand in step.operands]
        columns = [self.read(operand.columns.array) for operand in step.operands if operand.columns is not None]
        for k, (write, cell) in enumerate(zip(step.writes, targets, strict=True)):
            place = self.place_of(write.view.array)
            if any(cell is other for other in columns):
                self.fail(f"{write.view.array} is written over columns in {place}, which are still read")
            if any(cell is other for other in targets[:k]):
                self.fail(f"{write.view.array} and another result are both written to {place}")
            for operand, other in zip(step.operands, reads, strict=True):
                if other is cell and not reads_only_what_it_writes(operand, write):
                    self.fail(
                        f"{write.view.array} is written to {place} before {operand.view.array} has been read there"
                    )
        for k, (write, cell) in enumerate(zip(step.writes, targets, strict=True)):
            if write.base is not None and cell.content is not self.wanted(write.base):
                self.fail(f"{write.base}, of which {write.view.array} is an update, is overwritten in {targets[k]}")
        self.computed(step, [*reads, *columns], targets)
        for write, cell in zip(step.writes, targets, strict=True):
            cell.content = self.define(write.view.array)

    def on_product(self, step: model.Product) -> None:
        base = None if step.base is None else self.read(step.base)
        cell = self.written(step.result)
        if base is not None:
            assert step.base is not None
            if base.content is None:
                self.fail(f"{step.base} is lost where it lies, since it grows")
            if base is not cell:
                self.allocated(cell, step.result)
                self.copied(step.base, base, cell)
                cell.content = base.content
        else:
            self.allocated(cell, step.result)
        arrays = [step.a.array, step.b.array, *([] if step.packed is None else [step.packed])]
        reads = [self.read(array) for array in arrays]
        if any(cell is other for other in reads):
            self.fail(f"{step.result} is written to {self.place_of(step.result)}, which is still read")
        self.computed(step, reads, [cell])
        cell.content = self.define(step.result)

    def on_outside(self, step: model.Outside) -> None:
        reads: list[Cell] = []
        operands: dict[int, RunningStack] = {}
        for position, item in enumerate(step.operands):
            if isinstance(item, View):
                reads.append(self.read(item.array))
            elif isinstance(item, Stack):
                running = operands[position] = self.stack(item)
                running.settle()
                self.check_rows(running)
        arrays = [result for result in step.results if isinstance(result, Array)]
        stacks = [result for result in step.results if isinstance(result, Stack)]
        for register, _, _ in step.sizes:
            self.define(register)
        for result in step.results:
            if isinstance(result, tuple):
                for register in result:
                    self.define(register)
        consumed = [operands[position] for position in step.consumed]
        kept = [running for position, running in operands.items() if position not in step.consumed]
        for stack in stacks:
            if any(self.stacks.get(self.handle_of(stack)) is other for other in kept):
                self.fail(f"{stack} is put in the place of a stack that is still there")
        self.operands = operands
        for running in consumed:
            self.stacks = {handle: other for handle, other in self.stacks.items() if other is not running}
        self.computed(step, reads, [])
        targets: list[Cell] = []
        for result in arrays:
            cell = self.written(result)
            if any(cell is other for other in (*reads, *targets)):
                self.fail(f"{result} is written to {self.place_of(result)}, which is read or written otherwise")
            self.allocated(cell, result)
            targets.append(cell)
        for result, cell in zip(arrays, targets, strict=True):
            cell.content = self.define(result)
        for result in stacks:
            count = self.new_rows(step, result)
            self.hold(result, [Token(f"row {k} of {result}") for k in range(count)])
        self.finished(step, targets)

    def finished(self, step: model.Outside, targets: Sequence[Cell]) -> None:
        """The results of an outside call come to their places."""

    def on_push(self, step: model.Push) -> None:
        running = self.stack(step.stack)
        source: Cell | None = None
        content: Content
        if step.stack.holds == "elements" and not (isinstance(step.row, View) and step.row.is_dense):
            self.fail(f"what is pushed on {step.stack} is no run of elements")
        if isinstance(step.row, View):
            array = step.row.array
            source = self.read(array)
            slot = Place("slot", self.push_numbers[step])
            target = running.top()
            if self.place_of(array) == slot:
                if source is not target or not self.pointers[slot].is_valid:
                    self.fail(f"{array} is in {slot}, which is not the next row of {step.stack}")
                content = self.wanted(array)
            else:
                if source is target:
                    self.fail(f"{array} is pushed to where it lies")
                lies = self.place_of(array)
                if source is not None and lies.kind in ("slot", "row") and not self.pointers[lies].is_valid:
                    self.fail(f"{array} lies in a block that this push closes")
                content = Token(f"row of {step.result}", tuple(self.iterations))
                self.put_row(step, source, target)
        else:
            target = running.top()
            content = tuple(self.wanted(register) for register in step.row)
            self.put_row(step, None, target)
        target.content = content
        running.grow()
        self.updated(running, step.stack, step.result, (content, self.rows[running.version]))

    def on_pop(self, step: model.Pop) -> None:
        running = self.stack(step.stack)
        rows = self.rows[running.version]
        cell = running.pop()
        if cell is None:
            if rows:
                self.fail(f"{step.stack} has no rows")
            cell, content, below = self.underflow(step), None, ()
        else:
            if not rows:
                self.fail(f"{step.stack} has rows in place of none")
            content, below = rows
            if cell.content != content:
                self.fail(f"the last row of {step.stack} is {described(cell.content)} in place of {described(content)}")
        self.updated(running, step.stack, step.result, below)
        if not isinstance(step.row, Array):
            self.got_row(step, cell, None)
            for register in step.row:
                self.define(register)
            return
        self.check_row(step.stack, step.row)
        place = self.place_of(step.row)
        token = self.define(step.row)
        if place.kind == "row":
            # The row is what was pushed, by another name.
            cell.content = self.tokens[step.row.name] = content if isinstance(content, Token) else token
            self.pointers[place] = Pointer(cell, running, running.epoch)
            self.got_row(step, cell, cell)
            return
        target = self.room_at(place, step.row)
        self.allocated(target, step.row)
        self.got_row(step, cell, target)
        target.content = token

    def underflow(self, step: model.Pop) -> Cell:
        """Cell of a row popped from an empty stack. A replay that does not count iterations allows it: any row."""
        return Cell()

    def indexed(self, step: model.ReadRow | model.WriteRow) -> tuple[RunningStack, list[Any], int | None]:
        """The stack with its rows in one block, their contents, the first first, and which is meant."""
        running = self.stack(step.stack)
        running.gather()
        self.check_rows(running)
        rows = list(listed(self.rows[running.version]))[::-1]
        return running, rows, self.row_index(step, len(rows))

    def on_read_row(self, step: model.ReadRow) -> None:
        running, _, index = self.indexed(step)
        cell = Cell() if index is None else list(running.cells())[index]
        if isinstance(step.row, Array):
            self.check_row(step.stack, step.row)
            target = self.written(step.row)
            self.allocated(target, step.row)
            self.got_row(step, cell, target)
            target.content = self.define(step.row)
            return
        self.got_row(step, cell, None)
        for register in step.row:
            self.define(register)

    def on_write_row(self, step: model.WriteRow) -> None:
        running, rows, index = self.indexed(step)
        source = self.read(step.row.array) if isinstance(step.row, View) else None
        content = Token(f"row of {step.result}", tuple(self.iterations))
        if index == len(rows):
            target = running.top()
            running.grow()
            rows.append(content)
        elif index is None:
            target = Cell()
        else:
            target, rows[index] = list(running.cells())[index], content
        self.put_row(step, source, target)
        target.content = content
        self.updated(running, step.stack, step.result, functools.reduce(lambda below, row: (row, below), rows, ()))

    def on_new_stack(self, step: model.NewStack) -> None:
        count = self.new_rows(step, step.result)
        self.hold(step.result, [Token(f"row {k} of {step.result}") for k in range(count)])
        self.computed(step, [], [])

    def on_to_stack(self, step: model.ToStack) -> None:
        if not step.rows.is_dense or self.plan.rows[step.result] != step.rows.shape[1:]:
            self.fail(f"the rows of {step.rows.array} are not those of {step.result}")
        self.computed(step, [self.read(step.rows.array)], [])
        count = self.new_rows(step, step.result)
        self.hold(step.result, [Token(f"row {k} of {step.result}", tuple(self.iterations)) for k in range(count)])

    def on_from_stack(self, step: model.FromStack) -> None:
        running = self.stack(step.stack)
        running.gather()
        self.check_rows(running)
        fits = step.stack.holds == "elements" or self.plan.rows[step.stack] == step.result.shape[1:]
        if not fits or step.stack.dtype != step.result.dtype:
            self.fail(f"{step.result} is not of the shape and type of the rows of {step.stack}")
        place, sources = self.place_of(step.result), list(running.cells())
        if place.kind == "row":
            target = Cell()
            self.pointers[place] = Pointer(target, running, running.epoch, running.version)
        else:
            target = self.room_at(place, step.result)
        self.allocated(target, step.result)
        self.got_rows(step, sources, target)
        target.content = self.define(step.result)

    def on_copy_stack(self, step: model.CopyStack) -> None:
        running = self.stack(step.stack)
        handle = self.handle_of(step.result)
        if handle == self.handle_of(step.stack):
            self.fail(f"{step.result} is a copy, and has the handle of {step.stack}")
        token = self.define(step.result)
        if handle in self.stacks:
            self.stacks[handle].epoch += 1
        self.stacks[handle] = running.copy(token)
        self.rows[token] = self.rows[running.version]
        self.check_rows(self.stacks[handle])
