"""Steps on stacks as LLVM text: what compiled code sees of a stack is its last block, in words of the frame."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence, Set

from ctrlgrad.engines.native import frame, shared_code
from ctrlgrad.engines.native.frame import Request, Status
from ctrlgrad.engines.native.loops import counted_loop
from ctrlgrad.engines.native.plan_text import PlanText
from ctrlgrad.engines.native.reductions import combine, element_parts
from ctrlgrad.engines.native.text import memory_type_of
from ctrlgrad.plan.decisions import entries
from ctrlgrad.plan.effects import blocks_of, names_of, walk
from ctrlgrad.plan.model import (
    Ahead,
    Array,
    Block,
    CopyStack,
    FromStack,
    NewStack,
    Outside,
    Plan,
    Pop,
    Push,
    ReadRow,
    Register,
    Stack,
    ToStack,
    View,
    WriteRow,
)
from ctrlgrad.plan.places import Place
from ctrlgrad.plan.sizes import Size, product

# Stacks that may have unwritten rows: only their pushes and writes must mark the rows that they fill.


def partly_written(plan: Plan) -> frozenset[int]:
    """The handles of stacks some of whose rows may never have been written."""
    begun = [a for a in plan.arguments if isinstance(a, Stack)]
    for step in walk(plan.body):
        if isinstance(step, NewStack) and step.size is not None:
            begun.append(step.result)
        elif isinstance(step, Outside):
            begun += [r for r in step.results if isinstance(r, Stack)]
    return _reached({plan.handles[stack] for stack in begun} | cleared(plan), set(_passed_on(plan)))


def cleared(plan: Plan) -> frozenset[int]:
    """The handles of stacks that are cleared and then written once, by this plan or by another that is given them.

    They have marks from the first cleared slot on, also where all rows were written until then.
    """
    writes = [step for step in walk(plan.body) if isinstance(step, WriteRow)]
    last = [step.stack for step in writes if step.once] + [r for r in plan.results if isinstance(r, Stack)]
    passed = {(target, source) for source, target in _passed_on(plan)}
    wanted = _reached({plan.handles[stack] for stack in last}, passed)
    return wanted & {plan.handles[step.stack] for step in writes if step.how == "clear"}


def _reached(begun: Set[int], passed: Set[tuple[int, int]]) -> frozenset[int]:
    found = set(begun)
    while more := {target for source, target in passed if source in found} - found:
        found |= more
    return frozenset(found)


def _passed_on(plan: Plan) -> Iterator[tuple[int, int]]:
    """Pairs of handles: rows may go from the first to the second."""
    yield from _moved(plan.body)
    for step in walk(plan.body):
        if isinstance(step, CopyStack):
            yield plan.handles[step.stack], plan.handles[step.result]
        elif isinstance(step, Outside):
            stacks = ([plan.handles[s] for s in side if isinstance(s, Stack)] for side in (step.operands, step.results))
            yield from itertools.product(*stacks)
        for block in blocks_of(step):
            yield from _moved(block)


def _moved(block: Block) -> Iterator[tuple[int, int]]:
    for _, source, target in block.stack_moves:
        yield source, target


class StackText(PlanText):
    """Writes pushes, pops, and reads and writes of rows."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.pushes = dict(enumerate(step for step in walk(plan.body) if isinstance(step, Push)))
        self.push_numbers = {step: number for number, step in self.pushes.items()}
        self.partly_written, self.cleared = partly_written(plan), cleared(plan)

    def define(self, array: Array) -> str:
        """The address of an array that is about to be written."""
        place = self.plan.places[array]
        if place.kind == "buffer" and not self.is_known(place):
            self.ensure(self.plan.buffers[place.number], array.count)
        elif place.kind == "slot":
            self.reserve(place.number)
        return self.address(place)

    def is_shape_known(self, stack: Stack) -> bool:
        """Return true if the shape of a stack's rows follows from what has been computed so far."""
        shape = self.plan.rows[stack]
        return shape is not None and self.has_numbers(names_of(shape))

    def row_shape(self, stack: Stack) -> None:
        """Tell the shape of a stack's rows."""
        rows = self.plan.rows[stack]
        for k, size in enumerate(rows or ()):
            self.store_word(self.layout.shapes[self.plan.handles[stack]] + k, self.size(size))

    def ask_of_stack(self, name: str, stack: Stack, *numbers: str, is_told_shape: bool = False) -> str:
        """Call a function of `shared_code` for a step on a stack; its result."""
        handle = self.plan.handles[stack]
        given = [str(self.layout.stack(handle)), str(handle), *numbers]
        if not is_told_shape:
            return self.ask_by(name, *given)
        rows = self.plan.rows[stack] or ()
        return self.ask_by(
            name, *given, str(self.layout.shapes.get(handle, 0)), *(self.size(size) for size in rows), rank=len(rows)
        )

    def new_stack(self, step: NewStack) -> None:
        """An empty stack, or one of rows that were never written; asked for unless the last one can begin again."""
        handle, is_known = self.plan.handles[step.result], self.is_shape_known(step.result)
        if step.size is not None:
            self.new_rows(step.result, self.number(step.size), is_known)
            return
        if not is_known:
            # The words have the shape of the last run, or of the last iteration.
            self.ask(Request.NEW_STACK, str(handle), str(frame.SHAPE_UNKNOWN))
            return
        if not self.near:
            self.ask_of_stack("begin", step.result, is_told_shape=True)
            return
        words = self.layout.stack(handle)
        with self.w.when(self.w.op(f"xor i1 {self.may_begin_again(step.result)}, true")):
            self.row_shape(step.result)
            self.ask(Request.NEW_STACK, str(handle))
        for word in (words + frame.COUNT, words + frame.IDLE):
            self.store_word(word, "0")

    def new_rows(self, stack: Stack, size: str, is_known: bool) -> None:
        """A stack of so many rows that were never written; asked for unless the last one can begin again."""
        handle = self.plan.handles[stack]
        if not is_known:
            self.ask(Request.NEW_STACK, str(handle), size)
            return
        words = self.layout.stack(handle)
        # No stack has so few rows: one whose rows have another shape does not begin again.
        wanted = self.w.op(f"select i1 {self.has_told_shape(stack)}, i64 {size}, i64 -1")
        block = (self.load_word(words + part) for part in (frame.BASE, frame.COUNT))
        self.w.declare("void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
        begun = self.call_shared("begin_unwritten", str(words), *block, wanted, self.size(self.row_bytes(stack)))
        with self.w.when(self.w.op(f"xor i1 {begun}, true")):
            self.row_shape(stack)
            self.ask(Request.NEW_STACK, str(handle), size)
        with self.w.when(self.w.op(f"icmp eq i64 {size}, 0")):
            self.store_word(words + frame.COUNT, "0")

    def may_begin_again(self, stack: Stack) -> str:
        """Emit the test that a stack is one block, owned by it alone, whose rows have the stack's shape."""
        found = self.call_shared("may_begin_again", str(self.layout.stack(self.plan.handles[stack])))
        return self.w.op(f"and i1 {found}, {self.has_told_shape(stack)}")

    def has_told_shape(self, stack: Stack) -> str:
        """Emit the test that the shape of a stack's rows is the one that was told last."""
        handle, found = self.plan.handles[stack], "true"
        for k, size in enumerate(self.plan.rows[stack] or ()):
            told = self.load_word(self.layout.shapes[handle] + k)
            found = self.w.op(f"and i1 {found}, {self.w.op(f'icmp eq i64 {told}, {self.size(size)}')}")
        return found

    def row_bytes(self, stack: Stack) -> Size:
        shape = self.plan.rows[stack]
        assert shape is not None
        return product(shape) * Size(stack.dtype.itemsize)

    def reserve(self, number: int) -> None:
        """Room for the row of a push, and its address."""
        push = self.pushes[number]
        address = self.top(push)
        self.w.line(f"store ptr {address}, ptr {self.pointer(Place('slot', number))}")

    def fetch(self, nbytes: Size, address: str, ahead: Ahead | None) -> None:
        """Prefetch a row above or below one of so many bytes. Rows whose sizes differ are taken to be as long as the
        one before."""
        if ahead is None:
            return
        is_up = ahead.rows > 0
        step = shared_code.LINE if is_up else -shared_code.LINE
        # The line before the first one: that of the row's beginning, or of its end where lines go down.
        further = self.size(nbytes * Size(ahead.rows if is_up else ahead.rows + 1))
        at = self.w.add(self.w.op(f"ptrtoint ptr {address} to i64"), self.w.add(further, str(-step if is_up else 0)))
        self.w.declare("void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self.call_shared("fetch", at, str(step), self.size(nbytes), str(ahead.least), str(ahead.most))

    def top(self, step: Push | WriteRow) -> str:
        """The address of the next rows of a step's stack, for which there is room."""
        rows = entries(step)
        address = self.room(step.stack, self.size(rows))
        self.fetch(self.row_bytes(step.stack) * rows, address, self.plan.ahead.get(step))
        return address

    def room(self, stack: Stack, rows: str) -> str:
        """The address of the next rows of a stack; a full block asks for another one."""
        if not self.near:
            return self.ask_of_stack("room", stack, self.size(self.row_bytes(stack)), rows, is_told_shape=True)
        handle = self.plan.handles[stack]
        words = self.layout.stack(handle)
        count = self.w.add(self.load_word(words + frame.COUNT), rows)
        with self.w.when(self.w.op(f"icmp sgt i64 {count}, {self.load_word(words + frame.CAPACITY)}")):
            self.row_shape(stack)
            self.ask(Request.FULL, str(handle), rows)
        return self.row_at(stack, self.load_word(words + frame.COUNT))

    def row_at(self, stack: Stack, index: str) -> str:
        """The address of a row of the current block."""
        words = self.layout.stack(self.plan.handles[stack])
        nbytes = self.w.op(f"mul i64 {index}, {self.size(self.row_bytes(stack))}")
        return self.w.op(f"getelementptr i8, ptr {self.load_word(words + frame.BASE, 'ptr')}, i64 {nbytes}")

    def push(self, step: Push) -> None:
        words = self.layout.stack(self.plan.handles[step.stack])
        number = self.push_numbers[step]
        slot = Place("slot", number)
        is_in_place = isinstance(step.row, View) and self.plan.places[step.row.array] == slot
        rows = entries(step)
        if not is_in_place:
            self.store_row(step.row, self.top(step), self.row_bytes(step.stack) * rows)
        count = self.load_word(words + frame.COUNT)
        if self.plan.handles[step.stack] in self.partly_written:
            self.mark(words, count)
        self.store_word(words + frame.COUNT, self.w.add(count, self.size(rows)))

    def mark(self, words: int, at: str) -> None:
        """Note that a row is written, where marks are kept: then all rows lie in one block."""
        marks = self.load_word(words + frame.MARKS, "ptr")
        with self.w.when(self.w.op(f"icmp ne ptr {marks}, null")):
            self.w.line(f"store i8 1, ptr {self.w.op(f'getelementptr i8, ptr {marks}, i64 {at}')}")

    def store_row(self, row: View | Sequence[Register], address: str, nbytes: Size) -> None:
        if isinstance(row, View):
            self.copy_bytes(address, self.view_address(row), self.size(nbytes))
            return
        for k, register in enumerate(row):
            self.store_at(address, k, register)

    def load_row(self, row: Array | Sequence[Register], address: str, nbytes: Size) -> None:
        if isinstance(row, Array):
            self.copy_bytes(self.place_of(row), address, self.size(nbytes))
            return
        for k, register in enumerate(row):
            self.registers[register.name] = self.load_at(address, k, register.dtype)

    def pop(self, step: Pop) -> None:
        rows = entries(step)
        address = self.taken_off(step.stack, self.size(rows))
        self.fetch(self.row_bytes(step.stack) * rows, address, self.plan.ahead.get(step))
        if isinstance(step.row, Array) and self.plan.places[step.row].kind == "row":
            self.w.line(f"store ptr {address}, ptr {self.pointer(self.plan.places[step.row])}")
            return
        if isinstance(step.row, Array):
            self.define(step.row)
        self.load_row(step.row, address, self.row_bytes(step.stack) * rows)

    def taken_off(self, stack: Stack, rows: str) -> str:
        """The address of the last rows of a stack, which are taken off; an empty block asks for the one below."""
        if not self.near:
            return self.ask_of_stack("last", stack, self.size(self.row_bytes(stack)), rows)
        handle = self.plan.handles[stack]
        words = self.layout.stack(handle)
        is_short = self.w.op(f"icmp slt i64 {self.load_word(words + frame.COUNT)}, {rows}")
        self.ask_if(is_short, Request.EMPTY, str(handle), rows)
        count = self.w.op(f"sub i64 {self.load_word(words + frame.COUNT)}, {rows}")
        self.store_word(words + frame.COUNT, count)
        return self.row_at(stack, count)

    def to_stack(self, step: ToStack) -> None:
        """A stack of an array's rows; asked for unless the last one can begin again, and has room for them."""
        handle = self.plan.handles[step.result]
        words, count = self.layout.stack(handle), self.size(step.rows.shape[0])
        source = self.view_address(step.rows)
        has_room = self.w.op(f"icmp sge i64 {self.load_word(words + frame.CAPACITY)}, {count}")
        is_ready = self.w.op(f"and i1 {has_room}, {self.may_begin_again(step.result)}")
        with self.w.when(self.w.op(f"xor i1 {is_ready}, true")):
            self.row_shape(step.result)
            self.ask(Request.NEW_ROWS, str(handle), count)
        for word, number in ((frame.COUNT, count), (frame.IDLE, "0")):
            self.store_word(words + word, number)
        target = self.load_word(words + frame.BASE, "ptr")
        self.copy_bytes(target, source, self.size(product(step.rows.shape) * Size(step.rows.dtype.itemsize)))

    def from_stack(self, step: FromStack) -> None:
        handle = self.plan.handles[step.stack]
        words, place = self.layout.stack(handle), self.plan.places[step.result]
        if place.kind == "row" and not self.near:
            rows = self.ask_of_stack("joined", step.stack)
            self.w.line(f"store ptr {rows}, ptr {self.pointer(place)}")
            return
        is_split = self.w.op(f"icmp ne i64 {self.load_word(words + frame.BELOW)}, 0")
        if place.kind == "row":
            self.ask_if(is_split, Request.JOIN, str(handle))
            self.w.line(f"store ptr {self.load_word(words + frame.BASE, 'ptr')}, ptr {self.pointer(place)}")
            return
        target = self.define(step.result)
        split, whole, after = (self.w.new_label(name) for name in ("split", "whole", "copied"))
        self.w.branch_if(is_split, split, whole)
        self.w.label(split)
        self.ask(Request.COPY_ROWS, str(handle), self.w.op(f"ptrtoint ptr {target} to i64"))
        self.w.branch(after)
        self.w.label(whole)
        nbytes = self.size(step.result.count * Size(step.result.dtype.itemsize))
        self.copy_bytes(target, self.load_word(words + frame.BASE, "ptr"), nbytes)
        self.w.branch(after)
        self.w.label(after)

    def found_row(self, stack: Stack, index: Register, site: int, grow: bool) -> tuple[str, str]:
        """The position of an index among all rows, which are in the current block then; and how many they are."""
        w, handle = self.w, self.plan.handles[stack]
        words = self.layout.stack(handle)
        count, below = self.load_word(words + frame.COUNT), self.load_word(words + frame.BELOW)
        length = w.op(f"add i64 {count}, {below}")
        given = self.number(index)
        negative = w.op(f"icmp slt i64 {given}, 0")
        at = w.op(f"select i1 {negative}, i64 {w.op(f'add i64 {given}, {length}')}, i64 {given}")
        if grow:
            over = w.op(f"icmp ugt i64 {at}, {length}")
            same = w.op(f"icmp eq i64 {given}, {length}")
            bad = w.op(f"or i1 {over}, {w.op(f'and i1 {negative}, {same}')}")
        else:
            bad = w.op(f"icmp uge i64 {at}, {length}")
        self.stop_if(bad, Status.INDEX, site, given, length)
        with self.w.when(w.op(f"icmp slt i64 {at}, {below}")):
            self.row_shape(stack)
            self.ask(Request.GATHER, str(handle))
        return at, length

    def row_of(self, stack: Stack, at: str) -> str:
        """The address of the row at a position among all rows."""
        words = self.layout.stack(self.plan.handles[stack])
        return self.row_at(stack, self.w.op(f"sub i64 {at}, {self.load_word(words + frame.BELOW)}"))

    def read_row(self, step: ReadRow) -> None:
        at, _ = self.found_row(step.stack, step.index, step.site, False)
        if isinstance(step.row, Array):
            self.define(step.row)
        self.load_row(step.row, self.row_of(step.stack, at), self.row_bytes(step.stack))

    def write_row(self, step: WriteRow) -> None:
        w, handle = self.w, self.plan.handles[step.stack]
        words = self.layout.stack(handle)
        at, length = self.found_row(step.stack, step.index, step.site, step.grow)
        with self.w.when(w.op(f"icmp eq i64 {self.load_word(words + frame.WRITABLE)}, 0")):
            self.row_shape(step.stack)
            self.ask(Request.OWN, str(handle))
        if step.how == "clear" and handle in self.cleared:
            with self.w.when(w.op(f"icmp eq ptr {self.load_word(words + frame.MARKS, 'ptr')}, null")):
                self.row_shape(step.stack)
                self.ask(Request.MARK, str(handle))
        at_end = None
        if step.grow:
            at_end = w.op(f"icmp eq i64 {at}, {length}")
            with self.w.when(at_end):
                self.top(step)
                count = self.load_word(words + frame.COUNT)
                self.store_word(words + frame.COUNT, w.op(f"add i64 {count}, 1"))
        marks = self.load_word(words + frame.MARKS, "ptr")
        if step.once:
            # Without marks every row is written, but for one that was just made room for.
            again = w.op(f"icmp eq ptr {marks}, null")
            if at_end is not None:
                again = w.op(f"and i1 {again}, {w.op(f'xor i1 {at_end}, true')}")
            self.stop_if(again, Status.TWICE, step.site, at, "0")
        with self.w.when(w.op(f"icmp ne ptr {marks}, null")):
            mark = w.op(f"getelementptr i8, ptr {marks}, i64 {at}")
            if step.once:
                written = w.op(f"icmp ne i8 {w.op(f'load i8, ptr {mark}')}, 0")
                if at_end is not None:
                    written = w.op(f"and i1 {written}, {w.op(f'xor i1 {at_end}, true')}")
                self.stop_if(written, Status.TWICE, step.site, at, "0")
            w.line(f"store i8 {int(step.how != 'clear')}, ptr {mark}")
        address = self.row_of(step.stack, at)
        if step.how == "add":
            self.add_row(step, address)
        else:
            self.store_row(step.row, address, self.row_bytes(step.stack))

    def add_row(self, step: WriteRow, address: str) -> None:
        """Add to a row, number by number."""
        dtype, parts = element_parts(step.stack.dtype)
        kind = memory_type_of(dtype)
        if not isinstance(step.row, View):
            for k, register in enumerate(step.row):
                at = self.w.op(f"getelementptr {kind}, ptr {address}, i64 {k}")
                total = combine(self.w, "sum", dtype, self.w.op(f"load {kind}, ptr {at}"), self.number(register), 1)
                self.w.line(f"store {kind} {total}, ptr {at}")
            return
        source = self.view_address(step.row)
        shape = self.plan.rows[step.stack]
        assert shape is not None
        with counted_loop(self.w, "0", self.size(product(shape) * Size(parts))) as i:
            at = self.w.op(f"getelementptr {kind}, ptr {address}, i64 {i}")
            other = self.w.op(f"getelementptr {kind}, ptr {source}, i64 {i}")
            a, b = (self.w.op(f"load {kind}, ptr {side}") for side in (at, other))
            total = combine(self.w, "sum", dtype, a, b, 1)
            self.w.line(f"store {kind} {total}, ptr {at}")
