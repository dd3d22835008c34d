"""Parts of the LLVM text that all steps share: words of the frame, registers, memory, and requests to the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.engines.native import frame, shared_code
from ctrlgrad.engines.native.frame import Layout, Request, Status
from ctrlgrad.engines.native.text import Writer, is_number, memory_type_of, type_of
from ctrlgrad.ir import attributes
from ctrlgrad.plan.model import Array, Loop, Plan, Register, Release, Step, Value, View
from ctrlgrad.plan.places import Buffer, Place
from ctrlgrad.plan.sizes import Size

Item = TypeVar("Item")

# The most numbers that a function of a long plan loads where it starts; more would lie on the thread's stack.
MOST_LOADED = 256
# The most numbers and arrays that one function exchanges with the frame.
MOST_APART = 64


def from_word(word: int, kind: str, write: Callable[[str], str]) -> str:
    """Load from a word of the frame, where `write` writes."""
    return write(f"load {kind}, ptr {write(f'getelementptr i64, ptr %frame, i64 {word}')}")


class PieceText:
    """A function of some steps of a plan, while it is written, and its call.

    It takes the frame and the counters of the loops around, and gives whether the run has ended. Buffers it finds by
    the frame, in whose words arguments, carried numbers and numbers of other functions lie, too: a long plan may have
    more of them than a thread's stack has room for.
    """

    def __init__(self, number: int, outer: Writer) -> None:
        self.name, self.w = f"piece{number}", Writer(outer)
        self.parameters, self.arguments = ["ptr %frame"], ["ptr %frame"]
        self.registers: dict[str, str] = {}
        # Count of numbers that it loads from the frame where it starts.
        self.loaded = 0
        # The piece's numbers that other pieces read.
        self.given: set[str] = set()
        self.result = ""

    def captured(self, kind: str, outside: str) -> str:
        """The name inside of a value of the plan's function; a number that is known is written as it is."""
        if not outside.startswith("%"):
            return outside
        name = f"%a{len(self.parameters)}"
        self.parameters.append(f"{kind} {name}")
        self.arguments.append(f"{kind} {outside}")
        return name

    def give(self, name: str, kind: str, word: int) -> None:
        """Leave a number in a word of the frame."""
        self.given.add(name)
        place = self.w.op(f"getelementptr i64, ptr %frame, i64 {word}")
        self.w.line(f"store {kind} {self.registers[name]}, ptr {place}")

    def __str__(self) -> str:
        """The line of its call: at the end of the plan's function it is known which numbers were read."""
        return f"  {self.result} = call i1 @{self.name}({', '.join(self.arguments)})"

    def text(self, vector_bytes: int) -> str:
        self.w.line("ret i1 false")
        signature = f"internal i1 @{self.name}({', '.join(self.parameters)}) noinline"
        return self.w.function(signature, vector_bytes)


class PlanText:
    """The function of a plan while it is written."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.layout, self.vector_bytes = plan, Layout(plan), plan.vector_bytes
        self.w = Writer()
        self.registers: dict[str, str] = {}
        # Values of numbers by what computes them, in the block that is being written.
        self.known: dict[str, str] = {}
        # True while the loop that is being written inlines elementary functions of scalars.
        self.calls_in_place = False
        # Of a plan that is cut into pieces: the piece that is being written, None for the plan's own function, and the
        # numbers that other pieces have computed.
        self.piece: PieceText | None = None
        self.given: dict[str, PieceText] = {}
        # Words of the frame that hold such numbers, and numbers of the plan's own function, by name.
        self.numbers: dict[str, int] = {}
        self.in_frame: dict[str, int] = {}
        self.taken = 0
        self.bases: dict[int, str] = {}
        self.outer: dict[str, Any] = {}
        self.is_cut = bool(plan.pieces)
        # Where buffers begin in the workspace.
        self.offsets: dict[Place, str] = {}
        # Addresses that are known all along, by place, and those of slots and rows, which change.
        self.addresses: dict[Place, str] = {}
        self.pointers: dict[Place, str] = {}
        # For temporaries on the stack, where the driver is shown a copy: their own address must stay in the function.
        self.shown: dict[Place, str] = {}
        self.loops: list[Loop] = []
        # Of a loop that runs tile by tile: where the tile begins and ends.
        self.stretch: tuple[str, str] | None = None
        # Functions that the plan's calls: parts of nests that threads share.
        self.parts: list[str] = []
        self.pieces: list[PieceText] = []
        # Functions for what the plan's does at many places, by name.
        self.shared: dict[str, str] = {}
        # Blocks that end the run, by the loops around.
        self.exits: dict[tuple[tuple[int, str], ...], str] = {}
        # Words that variables stand for.
        self.near: dict[int, str] = {}

    def word(self, index: int) -> str:
        """The address of a word, or of the variable that stands for it."""
        return self.near.get(index) or self.frame_word(index)

    def frame_word(self, index: int) -> str:
        return self.w.op(f"getelementptr i64, ptr %frame, i64 {index}")

    def bring_near(self, handles: Iterable[int]) -> None:
        """Keep words of stacks in variables, which become registers, between two times that the driver is asked."""
        parts = (frame.BASE, frame.COUNT, frame.CAPACITY)
        self.near = {self.layout.stack(handle) + part: self.w.alloca("i64") for handle in handles for part in parts}
        self.read_near()

    def read_near(self) -> None:
        for index, variable in self.near.items():
            self.w.line(f"store i64 {self.w.op(f'load i64, ptr {self.frame_word(index)}')}, ptr {variable}")

    def write_near(self) -> None:
        for index, variable in self.near.items():
            value = self.w.op(f"load i64, ptr {variable}")
            self.w.line(f"store i64 {value}, ptr {self.frame_word(index)}")

    def load_word(self, index: int, kind: str = "i64") -> str:
        return self.w.op(f"load {kind}, ptr {self.word(index)}")

    def store_word(self, index: int, value: str, kind: str = "i64") -> None:
        self.w.line(f"store {kind} {value}, ptr {self.word(index)}")

    def load_number(self, index: int, dtype: np.dtype) -> str:
        if dtype_kind(dtype) == "b":
            return self.w.op(f"trunc i8 {self.load_word(index, 'i8')} to i1")
        return self.load_word(index, type_of(dtype))

    def store_number(self, index: int, register: Register) -> None:
        value = self.number(register)
        if dtype_kind(register.dtype) == "b":
            self.store_word(index, self.w.op(f"zext i1 {value} to i8"), "i8")
        else:
            self.store_word(index, value, type_of(register.dtype))

    def number(self, register: Register) -> str:
        name = register.name
        found = self.registers.get(name)
        if found is not None:
            return found
        if self.piece is None:
            return self.from_frame(register, self.w.op)
        if name not in self.in_frame and (name in self.outer["registers"] or name not in self.outer["given"]):
            with self.around():
                outside = self.number(register)
            found = self.piece.captured(type_of(register.dtype), outside)
        elif self.piece.loaded < MOST_LOADED:
            found = self.from_frame(register, self.w.at_entry)
            self.piece.loaded += 1
        else:
            return self.from_frame(register, self.w.op)
        self.registers[name] = found
        return found

    def from_frame(self, register: Register, write: Callable[[str], str]) -> str:
        """A number of the plan's own function or of another piece, loaded where `write` writes."""
        name, kind = register.name, type_of(register.dtype)
        word = self.in_frame.get(name)
        if word is None:
            piece = (self.given if self.piece is None else self.outer["given"])[name]
            inside = piece.registers[name]
            if not inside.startswith("%"):
                return inside
            word = self.numbers.get(name)
            if word is None:
                word = self.numbers[name] = self.take_words(1)
            if name not in piece.given:
                piece.give(name, kind, word)
        return from_word(word, kind, write)

    def take_words(self, count: int) -> int:
        """Words of the frame for numbers of a long plan; the first one."""
        first = self.layout.numbers + self.taken
        self.taken += count
        assert first + count <= self.layout.words, "a number that no step defines"
        return first

    def has_numbers(self, names: set[str]) -> bool:
        """Return true if registers have been computed so far."""
        known = self.registers.keys() | self.given.keys() | self.in_frame.keys()
        return names <= known if self.piece is None else names <= known | self.outer["registers"].keys()

    @contextmanager
    def around(self) -> Iterator[None]:
        """The plan's own function again, while another one is written."""
        inside = {name: getattr(self, name) for name in self.outer}
        outer, self.outer = self.outer, {}
        self.__dict__.update(outer)
        yield
        outer.update({name: getattr(self, name) for name in outer})
        self.outer = outer
        self.__dict__.update(inside)

    def size(self, size: Size) -> str:
        text = "1"
        for name in size.names:
            text = self.w.multiply(text, self.number(Register(name, np.dtype(np.int64))))
        return self.w.multiply(text, str(size.factor))

    def prologue(self) -> None:
        plan, layout, w = self.plan, self.layout, self.w
        for number, (argument, index) in enumerate(zip(plan.arguments, layout.arguments, strict=True)):
            if isinstance(argument, tuple):
                for k, register in enumerate(argument):
                    if self.is_cut:
                        self.in_frame[register.name] = index + k
                    else:
                        self.registers[register.name] = self.load_number(index + k, register.dtype)
            elif isinstance(argument, Array) and not self.is_cut:
                self.addresses[Place("argument", number)] = self.load_word(index, "ptr")
        for k, (register, _, _) in enumerate(plan.sizes):
            if self.is_cut:
                self.in_frame[register.name] = layout.sizes + k
            else:
                self.registers[register.name] = self.load_word(layout.sizes + k)
        for number in () if self.is_cut else range(len(plan.constants)):
            self.addresses[Place("constant", number)] = self.load_word(layout.constants + number, "ptr")
        mine = [b for b in plan.buffers if b.result is None and b.is_known_at_entry]
        offsets, total = [], "0"
        for buffer in mine:
            offsets.append(total)
            size = self.padded(buffer)
            total = w.add(total, size)
        if mine:
            self.ask_if(
                w.op(f"icmp ult i64 {self.load_word(frame.WORKSPACE_BYTES)}, {total}"), Request.GROW_WORKSPACE, total
            )
            base = self.load_word(frame.WORKSPACE, "ptr")
            self.offsets = {Place("buffer", b.number): offset for b, offset in zip(mine, offsets, strict=True)}
            for buffer, offset in zip(mine, offsets, strict=True) if self.is_cut else ():
                if not is_number(offset):
                    self.store_word(layout.offsets + buffer.number, offset)
            for buffer in () if self.is_cut else mine:
                place = Place("buffer", buffer.number)
                self.addresses[place] = w.op(f"getelementptr i8, ptr {base}, i64 {self.offsets[place]}")
                if buffer.number in plan.local:
                    self.keep_local(buffer.number)
        results = [b for b in plan.buffers if b.result is not None and b.is_known_at_entry]
        self.each_apart(results, lambda buffer: self.ensure(buffer, buffer.count))
        for buffer in () if self.is_cut else results:
            index = layout.buffer(buffer.number)
            self.addresses[Place("buffer", buffer.number)] = self.load_word(index + frame.ADDRESS, "ptr")

    def keep_local(self, number: int) -> None:
        """Put a buffer on the stack of the function that is written."""
        buffer, place = self.plan.buffers[number], Place("buffer", number)
        self.shown[place] = self.address(place)
        self.addresses[place] = self.w.alloca(f"[{buffer.count.factor * buffer.dtype.itemsize} x i8]", 64)

    def padded(self, buffer: Buffer) -> str:
        """The bytes of a buffer, a multiple of 64."""
        if buffer.count.is_known:
            return str((buffer.count.factor * buffer.dtype.itemsize + 63) // 64 * 64)
        nbytes = self.size(buffer.count * Size(buffer.dtype.itemsize))
        return self.w.op(f"and i64 {self.w.op(f'add i64 {nbytes}, 63')}, -64")

    def ensure(self, buffer: Buffer, count: Size) -> None:
        """A buffer of its own has room for so many elements."""
        needed = self.size(count * Size(buffer.dtype.itemsize))
        index = self.layout.buffer(buffer.number)
        self.store_word(index + frame.BUFFER_IDLE, "0")
        short = self.w.op(f"icmp ult i64 {self.load_word(index + frame.BYTES)}, {needed}")
        self.ask_if(short, Request.GROW_BUFFER, str(buffer.number), needed)

    def release(self, step: Step) -> None:
        """Mark what a step was the last to use: where bytes are short, the driver takes it back."""
        released = self.plan.releases.get(step, Release())
        for number in released.buffers:
            self.store_word(self.layout.buffer(number) + frame.BUFFER_IDLE, "1")
        for handle in released.stacks:
            self.store_word(self.layout.stack(handle) + frame.IDLE, "1")

    def is_known(self, place: Place) -> bool:
        return self.plan.buffers[place.number].is_known_at_entry

    def address(self, place: Place) -> str:
        if place in self.addresses:
            return self.addresses[place]
        if place in self.offsets or place.kind in ("argument", "constant"):
            return self.fixed_address(place)
        if place.kind == "buffer":
            return self.load_word(self.layout.buffer(place.number) + frame.ADDRESS, "ptr")
        return self.w.op(f"load ptr, ptr {self.pointer(place)}")

    def fixed_address(self, place: Place) -> str:
        """An address that stays, in a plan of several functions: each finds it by the frame where it starts."""
        write = self.w.op if self.piece is None else self.w.at_entry
        if place.kind == "argument":
            word = self.layout.arguments[place.number]
        else:
            word = frame.WORKSPACE if place in self.offsets else self.layout.constants + place.number
        base = self.bases.get(word)
        if base is None:
            base = from_word(word, "ptr", write)
        if place in self.offsets:
            offset = self.offsets[place]
            if not is_number(offset):
                offset = from_word(self.layout.offsets + place.number, "i64", write)
            address = write(f"getelementptr i8, ptr {base}, i64 {offset}")
        else:
            address = base
        if self.piece is not None:
            self.bases[word], self.addresses[place] = base, address
        return address

    def pointer(self, place: Place) -> str:
        """The variable that holds the address of a slot or row; a word of the frame in a long plan."""
        if self.is_cut:
            return self.frame_word(self.layout.pointers[place])
        if place not in self.pointers:
            self.pointers[place] = self.w.alloca("ptr")
        return self.pointers[place]

    def place_of(self, array: Array) -> str:
        return self.address(self.plan.places[array])

    def shown_address(self, array: Array) -> str:
        """The address of an array that the driver reads."""
        place = self.plan.places[array]
        if place in self.shown:
            nbytes = self.size(array.count * Size(array.dtype.itemsize))
            self.copy_bytes(self.shown[place], self.address(place), nbytes)
            return self.shown[place]
        return self.address(place)

    def view_address(self, view: View) -> str:
        """The address of a view's first element."""
        offset = "0"
        for term in view.offset:
            offset = self.w.add(offset, self.size(term))
        base = self.place_of(view.array)
        if offset == "0":
            return base
        nbytes = self.w.multiply(offset, str(view.dtype.itemsize))
        return self.w.op(f"getelementptr i8, ptr {base}, i64 {nbytes}")

    def scratch(self, name: str, sizes: Sequence[str]) -> str:
        """Memory for a routine: as many bytes as the routine of this name says."""
        return self.scratch_of(self.scratch_bytes(name, sizes))

    def scratch_bytes(self, name: str, sizes: Sequence[str]) -> str:
        self.w.declare(f"i64 @{name}({', '.join('i64' for _ in sizes)})")
        return self.w.op(f"call i64 @{name}({', '.join(f'i64 {size}' for size in sizes)})")

    def scratch_of(self, nbytes: str) -> str:
        """Memory of so many bytes for a routine."""
        if not self.near:
            return self.ask_by("scratch", nbytes)
        short = self.w.op(f"icmp ult i64 {self.load_word(frame.SCRATCH_BYTES)}, {nbytes}")
        self.ask_if(short, Request.GROW_SCRATCH, nbytes)
        return self.load_word(frame.SCRATCH, "ptr")

    def copy_bytes(self, target: str, source: str, nbytes: str) -> None:
        self.w.declare("void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
        self.w.line(f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {nbytes}, i1 false)")

    def load_at(self, address: str, index: int, dtype: np.dtype) -> str:
        kind = memory_type_of(dtype)
        if index:
            address = self.w.op(f"getelementptr {kind}, ptr {address}, i64 {index}")
        value = self.w.op(f"load {kind}, ptr {address}, align {dtype.itemsize}")
        return self.w.op(f"trunc i8 {value} to i1") if dtype_kind(dtype) == "b" else value

    def store_at(self, address: str, index: int, register: Register) -> None:
        dtype, value = register.dtype, self.number(register)
        kind = memory_type_of(dtype)
        if index:
            address = self.w.op(f"getelementptr {kind}, ptr {address}, i64 {index}")
        if dtype_kind(dtype) == "b":
            value = self.w.op(f"zext i1 {value} to i8")
        self.w.line(f"store {kind} {value}, ptr {address}, align {dtype.itemsize}")

    def call_shared(self, name: str, *numbers: str, rank: int | None = None) -> str:
        """Call a function of `shared_code`; its result, if it has one."""
        function = shared_code.function(name, rank)
        for needed in (*map(shared_code.function, function.calls), function):
            self.shared.setdefault(needed.name, needed.text)
        given = ", ".join(["ptr %frame", *(f"i64 {number}" for number in numbers)])
        call = f"call {function.result} @{function.name}({given})"
        if function.result == "void":
            self.w.line(call)
            return ""
        return self.w.op(call)

    def ask_by(self, name: str, *numbers: str, rank: int | None = None) -> str:
        """Call a function of `shared_code` that asks where it has to; its result.

        Where words are kept in variables, it is better to ask here: a function finds them in the frame.
        """
        assert not self.near
        result = self.call_shared(name, *numbers, rank=rank)
        is_address = shared_code.function(name, rank).result == "ptr"
        ends = self.w.op(f"icmp eq ptr {result}, {shared_code.ENDED}") if is_address else result
        self.stop_if(ends, Status.RAISED)
        return result

    def ask(self, request: Request, a: str = "0", b: str = "0") -> None:
        """Call back; an answer other than 0 ends the run."""
        self.write_near()
        ends = self.call_shared("ask", str(int(request)), a, b)
        self.read_near()
        self.stop_if(ends, Status.RAISED)

    def ask_if(self, condition: str, request: Request, a: str = "0", b: str = "0") -> None:
        with self.w.when(condition):
            self.ask(request, a, b)

    def stop_if(self, condition: str, status: Status, site: int = 0, found: str = "0", bound: str = "0") -> None:
        """End the run where a condition holds, saying why and in which iterations."""
        # Before a loop's first iteration its counter is another value than in the loop.
        around = tuple((loop.number, self.number(loop.counter)) for loop in self.loops)
        known, after = self.exits.get(around), self.w.new_label("on")
        is_told = status is Status.RAISED
        stop = known if known and is_told else self.w.new_label("stop")
        self.w.branch_if(condition, stop, after)
        if stop != known:
            self.w.label(stop)
            if not is_told:
                self.call_shared("tell_failure", str(int(status)), str(site), found, bound)
                stop = known or self.w.new_label("exit")
                self.w.branch(stop)
        if known is None:
            if not is_told:
                self.w.label(stop)
            self.exits[around] = stop
            self.tell_position()
            self.w.line("ret void" if self.piece is None else "ret i1 true")
        self.w.label(after)

    def tell_position(self) -> None:
        """Write the iteration of each loop around."""
        for loop in self.loops:
            counter = self.number(loop.counter)
            self.store_word(self.layout.counters + loop.number, counter)
            if attributes.Loop.of(loop.node).counts_down:
                # The first carry is the number of iterations left.
                (left, *_) = loop.carries
                assert isinstance(left.inside, Register)
                counter = self.w.op(f"sub {type_of(left.inside.dtype)} {self.number(left.inside)}, 1")
            self.store_word(self.layout.iterations + loop.number, counter)

    @property
    def is_outer(self) -> bool:
        """True while the own function of a long plan is written: its numbers lie in the frame."""
        return self.is_cut and self.piece is None

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Context of code that becomes a function of its own, and its call."""
        piece = PieceText(len(self.pieces), self.w)
        inside: dict[str, Any] = {"w": piece.w, "registers": piece.registers, "piece": piece}
        inside |= {
            "addresses": {},
            "shown": {},
            "exits": {},
            "near": {},
            "known": {},
            "given": {},
            "bases": {},
        }
        self.outer = {name: getattr(self, name) for name in inside}
        self.__dict__.update(inside)
        yield
        outer, self.outer = self.outer, {}
        self.__dict__.update(outer)
        self.pieces.append(piece)
        for name in piece.registers:
            self.given.setdefault(name, piece)
        piece.result = self.w.fresh()
        self.w.late_line(piece)
        self.stop_if(piece.result, Status.RAISED)

    def each_apart(self, items: Iterable[Item], write: Callable[[Item], object]) -> None:
        """Write each item; of many, some in a function each where the own function of a long plan is written."""
        items = list(items)
        if not self.is_outer or len(items) <= MOST_APART:
            for item in items:
                write(item)
            return
        for start in range(0, len(items), MOST_APART):
            with self.apart():
                for item in items[start : start + MOST_APART]:
                    write(item)

    def tell_values(self, values: Iterable[Value], index: int) -> None:
        """Write numbers, and where arrays lie and their sizes, one behind the other."""
        places = []
        for value in values:
            places.append((value, index))
            index += frame.value_words(value)
        self.each_apart(places, lambda each: self.tell_value(*each))

    def tell_value(self, value: Value, index: int) -> None:
        """Write a number, or where an array lies and its sizes."""
        if isinstance(value, Register):
            self.store_number(index, value)
        elif isinstance(value, Array):
            self.store_word(index, self.shown_address(value), "ptr")
            for k, size in enumerate(value.shape, 1):
                self.store_word(index + k, self.size(size))
