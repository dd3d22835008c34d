"""A plan as the text of one LLVM function. The plan has decided everything; here it is only written down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from ctrlgrad.engines.llvm import frame
from ctrlgrad.engines.llvm.expressions import emit_expression
from ctrlgrad.engines.llvm.frame import Layout, Request, Status
from ctrlgrad.engines.llvm.nests import KernelWriter, element_parts
from ctrlgrad.engines.llvm.product_calls import ProductWriter, write_pack
from ctrlgrad.engines.llvm.text import Writer, memory_type_of, type_of
from ctrlgrad.plan.effects import names_of
from ctrlgrad.plan.expression import Instruction
from ctrlgrad.plan.model import (
    Array,
    Block,
    Branch,
    Buffer,
    Check,
    Compute,
    CopyStack,
    Guard,
    Kernel,
    Length,
    Load,
    Loop,
    Move,
    NewStack,
    Outside,
    Pack,
    Place,
    Plan,
    Pop,
    Product,
    Push,
    ReadRow,
    Register,
    Stack,
    Step,
    Value,
    View,
    WriteRow,
)
from ctrlgrad.plan.sizes import Size, product, row_major

_STATUS = {
    "index": Status.INDEX,
    "size": Status.SIZE,
    "iterations": Status.ITERATIONS,
    "twice": Status.TWICE,
    "empty": Status.EMPTY,
}


class PlanWriter:
    """Writes a plan as a function `void @NAME(ptr %frame)`."""

    def __init__(self, plan: Plan, vector_bytes: int) -> None:
        self.plan, self.layout, self.vector_bytes = plan, Layout(plan), vector_bytes
        self.w = Writer()
        self.registers: dict[str, str] = {}
        # Registers that live in memory: what loops carry and branches give.
        self.variables: dict[str, str] = {}
        # Addresses that are known all along, by place, and those of slots and rows, which change.
        self.addresses: dict[Place, str] = {}
        self.pointers: dict[Place, str] = {}
        self.loops: list[Loop] = []
        self.pushes: dict[int, Push] = {}
        self.reserved: set[int] = set()

    def function(self, name: str) -> str:
        self.find_pushes(self.plan.body)
        self.prologue()
        self.ticks = self.w.alloca("i64")
        self.w.line(f"store i64 {self.load_word(frame.TICKS)}, ptr {self.ticks}")
        self.block(self.plan.body)
        self.epilogue()
        self.w.line("ret void")
        return self.w.module(self.w.function(f"void @{name}(ptr %frame)"))

    # Words of the frame.

    def word(self, index: int) -> str:
        return self.w.op(f"getelementptr i64, ptr %frame, i64 {index}")

    def load_word(self, index: int, kind: str = "i64") -> str:
        return self.w.op(f"load {kind}, ptr {self.word(index)}")

    def store_word(self, index: int, value: str, kind: str = "i64") -> None:
        self.w.line(f"store {kind} {value}, ptr {self.word(index)}")

    def load_number(self, index: int, dtype: np.dtype) -> str:
        if dtype.kind == "b":
            return self.w.op(f"trunc i8 {self.load_word(index, 'i8')} to i1")
        return self.load_word(index, type_of(dtype))

    def store_number(self, index: int, register: Register) -> None:
        value = self.number(register)
        if register.dtype.kind == "b":
            self.store_word(index, self.w.op(f"zext i1 {value} to i8"), "i8")
        else:
            self.store_word(index, value, type_of(register.dtype))

    # Registers and sizes.

    def number(self, register: Register) -> str:
        if register.name in self.variables:
            return self.w.op(f"load {type_of(register.dtype)}, ptr {self.variables[register.name]}")
        return self.registers[register.name]

    def size(self, size: Size) -> str:
        text = ""
        for name in size.names:
            one = self.number(Register(name, np.dtype(np.int64)))
            text = one if not text else self.w.op(f"mul i64 {text}, {one}")
        if not text:
            return str(size.factor)
        return text if size.factor == 1 else self.w.op(f"mul i64 {text}, {size.factor}")

    # Memory.

    def prologue(self) -> None:
        plan, layout, w = self.plan, self.layout, self.w
        for number, (argument, index) in enumerate(zip(plan.arguments, layout.arguments, strict=True)):
            if isinstance(argument, tuple):
                for k, register in enumerate(argument):
                    self.registers[register.name] = self.load_number(index + k, register.dtype)
            elif isinstance(argument, Array):
                self.addresses[Place("argument", number)] = self.load_word(index, "ptr")
        for k, (register, _, _) in enumerate(plan.sizes):
            self.registers[register.name] = self.load_word(layout.sizes + k)
        for number in range(len(plan.constants)):
            self.addresses[Place("constant", number)] = self.load_word(layout.constants + number, "ptr")
        mine = [b for b in plan.buffers if b.result is None and b.is_known_at_entry]
        offsets, total = [], "0"
        for buffer in mine:
            offsets.append(total)
            size = self.padded(buffer)
            total = str(int(total) + int(size)) if total.isdigit() and size.isdigit() else w.op(f"add i64 {total}, {size}")
        if mine:
            self.ask_if(
                w.op(f"icmp ult i64 {self.load_word(frame.WORKSPACE_BYTES)}, {total}"),
                Request.GROW_WORKSPACE,
                total,
            )
            base = self.load_word(frame.WORKSPACE, "ptr")
            for buffer, offset in zip(mine, offsets, strict=True):
                address = w.op(f"getelementptr i8, ptr {base}, i64 {offset}")
                self.addresses[Place("buffer", buffer.number)] = address
        for buffer in plan.buffers:
            if buffer.result is not None and buffer.is_known_at_entry:
                self.ensure(buffer, buffer.count)
                index = layout.buffers + 2 * buffer.number
                self.addresses[Place("buffer", buffer.number)] = self.load_word(index, "ptr")

    def padded(self, buffer: Buffer) -> str:
        """The bytes of a buffer, a multiple of 64."""
        if buffer.count.is_known:
            return str((buffer.count.factor * buffer.dtype.itemsize + 63) // 64 * 64)
        nbytes = self.size(buffer.count * Size(buffer.dtype.itemsize))
        return self.w.op(f"and i64 {self.w.op(f'add i64 {nbytes}, 63')}, -64")

    def ensure(self, buffer: Buffer, count: Size) -> None:
        """A buffer of its own has room for so many elements."""
        needed = self.size(count * Size(buffer.dtype.itemsize))
        index = self.layout.buffers + 2 * buffer.number
        short = self.w.op(f"icmp ult i64 {self.load_word(index + 1)}, {needed}")
        self.ask_if(short, Request.GROW_BUFFER, str(buffer.number), needed)

    def define(self, array: Array) -> str:
        """The address of an array that is about to be written."""
        place = self.plan.places[array]
        if place.kind == "buffer" and not self.is_known(place):
            self.ensure(self.plan.buffers[place.number], array.count)
        elif place.kind == "slot":
            self.reserve(place.number)
        return self.address(place)

    def is_known(self, place: Place) -> bool:
        return self.plan.buffers[place.number].is_known_at_entry

    def address(self, place: Place) -> str:
        if place in self.addresses:
            return self.addresses[place]
        if place.kind == "buffer":
            return self.load_word(self.layout.buffers + 2 * place.number, "ptr")
        return self.w.op(f"load ptr, ptr {self.pointer(place)}")

    def pointer(self, place: Place) -> str:
        """The variable that holds the address of a slot or row."""
        if place not in self.pointers:
            self.pointers[place] = self.w.alloca("ptr")
        return self.pointers[place]

    def place_of(self, array: Array) -> str:
        return self.address(self.plan.places[array])

    def view_address(self, view: View) -> str:
        """The address of a view's first element."""
        offset = "0"
        for term in view.offset:
            text = self.size(term)
            offset = text if offset == "0" else self.w.op(f"add i64 {offset}, {text}")
        base = self.place_of(view.array)
        if offset == "0":
            return base
        nbytes = self.w.op(f"mul i64 {offset}, {view.dtype.itemsize}")
        return self.w.op(f"getelementptr i8, ptr {base}, i64 {nbytes}")

    def copy_bytes(self, target: str, source: str, nbytes: str) -> None:
        self.w.declare("void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
        self.w.line(f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {nbytes}, i1 false)")

    # Asking the driver.

    def ask(self, request: Request, a: str = "0", b: str = "0") -> None:
        """Call back; an answer other than 0 ends the run."""
        callback = self.load_word(frame.CALLBACK, "ptr")
        self.store_word(frame.REQUEST, str(int(request)))
        self.store_word(frame.A, a)
        self.store_word(frame.B, b)
        answer = self.w.op(f"call i64 {callback}(i64 0)")
        self.stop_if(self.w.op(f"icmp ne i64 {answer}, 0"), Status.RAISED)

    def ask_if(self, condition: str, request: Request, a: str = "0", b: str = "0") -> None:
        with self.when(condition):
            self.ask(request, a, b)

    @contextmanager
    def when(self, condition: str, *, unlikely: bool = True) -> Iterator[None]:
        yes, after = self.w.new_label("when"), self.w.new_label("after")
        self.w.branch_if(condition, yes, after)
        self.w.label(yes)
        yield
        self.w.branch(after)
        self.w.label(after)

    def stop_if(self, condition: str, status: Status, site: int = 0, found: str = "0", bound: str = "0") -> None:
        """End the run where a condition holds, saying why and in which iterations."""
        stop, after = self.w.new_label("stop"), self.w.new_label("on")
        self.w.branch_if(condition, stop, after)
        self.w.label(stop)
        if status is not Status.RAISED:
            self.store_word(frame.STATUS, str(int(status)))
            self.store_word(frame.SITE, str(site))
            self.store_word(frame.FOUND, found)
            self.store_word(frame.BOUND, bound)
        self.tell_position()
        self.w.line("ret void")
        self.w.label(after)

    def tell_position(self) -> None:
        """Write the iteration of each loop around."""
        for loop in self.loops:
            counter = self.number(loop.counter)
            self.store_word(self.layout.counters + loop.number, counter)
            if loop.node.attrs.get("counts_down", False):
                # What it carries first is how many iterations are left.
                (left, *_) = loop.carries
                assert isinstance(left.inside, Register)
                counter = self.w.op(f"sub {type_of(left.inside.dtype)} {self.number(left.inside)}, 1")
            self.store_word(self.layout.iterations + loop.number, counter)

    # Steps.

    def block(self, block: Block) -> None:
        for step in block.steps:
            self.step(step)

    def moves(self, block: Block) -> None:
        for move in block.moves:
            self.move(move)
        if block.stack_moves:
            for k, (_, source, target) in enumerate(block.stack_moves):
                last = k == len(block.stack_moves) - 1
                self.ask(Request.MOVE_STACKS, str(source), str(target if not last else -1 - target))

    def move(self, move: Move) -> None:
        if move.target.kind == "buffer" and not self.is_known(move.target):
            self.ensure(self.plan.buffers[move.target.number], move.array.count)
        nbytes = self.size(move.array.count * Size(move.array.dtype.itemsize))
        self.copy_bytes(self.address(move.target), self.address(move.source), nbytes)

    def step(self, step: Step) -> None:
        if isinstance(step, Compute):
            self.compute(step)
        elif isinstance(step, Load):
            address = self.view_address(step.view)
            dtype, _ = element_parts(step.view.dtype)
            for k, register in enumerate(step.results):
                self.registers[register.name] = self.load_at(address, k, dtype)
        elif isinstance(step, Kernel):
            self.kernel(step)
        elif isinstance(step, Guard):
            bad = self.w.op(f"xor i1 {self.number(step.condition)}, true")
            found = "0" if step.found is None else self.number(step.found)
            self.stop_if(bad, _STATUS[step.status], step.site, found, self.size(step.bound))
        elif isinstance(step, Product):
            self.product(step)
        elif isinstance(step, Pack):
            self.pack(step)
        elif isinstance(step, Outside):
            self.outside(step)
        elif isinstance(step, Loop):
            self.loop(step)
        elif isinstance(step, Branch):
            self.branch(step)
        elif isinstance(step, Push):
            self.push(step)
        elif isinstance(step, Pop):
            self.pop(step)
        elif isinstance(step, ReadRow):
            self.read_row(step)
        elif isinstance(step, WriteRow):
            self.write_row(step)
        elif isinstance(step, Length):
            stack = self.layout.stack(self.plan.handles[step.stack])
            count, below = self.load_word(stack + frame.COUNT), self.load_word(stack + frame.BELOW)
            self.registers[step.result.name] = self.w.op(f"add i64 {count}, {below}")
        elif isinstance(step, NewStack):
            size = "0" if step.size is None else self.number(step.size)
            if step.size is not None:
                self.row_shape(step.result)
            self.ask(Request.NEW_STACK, str(self.plan.handles[step.result]), size)
        else:
            assert isinstance(step, CopyStack)
            handles = self.plan.handles
            self.ask(Request.COPY_STACK, str(handles[step.result]), str(handles[step.stack]))

    def load_at(self, address: str, index: int, dtype: np.dtype) -> str:
        kind = memory_type_of(dtype)
        if index:
            address = self.w.op(f"getelementptr {kind}, ptr {address}, i64 {index}")
        value = self.w.op(f"load {kind}, ptr {address}, align {dtype.itemsize}")
        return self.w.op(f"trunc i8 {value} to i1") if dtype.kind == "b" else value

    def store_at(self, address: str, index: int, register: Register) -> None:
        dtype, value = register.dtype, self.number(register)
        kind = memory_type_of(dtype)
        if index:
            address = self.w.op(f"getelementptr {kind}, ptr {address}, i64 {index}")
        if dtype.kind == "b":
            value = self.w.op(f"zext i1 {value} to i8")
        self.w.line(f"store {kind} {value}, ptr {address}, align {dtype.itemsize}")

    def compute(self, step: Compute) -> None:
        def leaf(instruction: Instruction, arguments: list[str]) -> tuple[str, bool]:
            return self.number(step.operands[instruction.value]), False

        for register, text in zip(step.results, emit_expression(self.w, step.expression, leaf, 1), strict=True):
            self.registers[register.name] = text

    def kernel(self, step: Kernel) -> None:
        for write in step.writes:
            self.define(write.view.array)
            if write.base is not None and self.plan.places[write.base] != self.plan.places[write.view.array]:
                nbytes = self.size(write.base.count * Size(write.base.dtype.itemsize))
                self.copy_bytes(self.place_of(write.view.array), self.place_of(write.base), nbytes)

        def fail(holds: str, check: Check, found: str) -> None:
            bad = self.w.op(f"xor i1 {holds}, true")
            self.stop_if(bad, Status.INDEX, check.site, found, self.size(check.bound))

        KernelWriter(self.w, step, self.place_of, self.number, self.size, fail, self.vector_bytes).write()

    def product(self, step: Product) -> None:
        ProductWriter(self, step).write()

    def pack(self, step: Pack) -> None:
        write_pack(self, step)

    # Control.

    def loop(self, step: Loop) -> None:
        w, plan = self.w, self.plan
        self.moves(step.entry)
        pairs = [c for c in step.carries if isinstance(c.inside, Register)]
        for carry in pairs:
            assert isinstance(carry.inside, Register) and isinstance(carry.init, Register)
            variable = w.alloca(type_of(carry.inside.dtype))
            w.line(f"store {type_of(carry.inside.dtype)} {self.number(carry.init)}, ptr {variable}")
            self.variables[carry.inside.name] = variable
        counter = w.alloca("i64")
        self.variables[step.counter.name] = counter
        w.line(f"store i64 0, ptr {counter}")
        self.loops.append(step)
        head, body, exit = w.new_label("loop"), w.new_label("iteration"), w.new_label("end")
        left = self.begin_chunks(step)
        w.branch(head)
        w.label(head)
        self.poll(step)
        if left is not None:
            self.end_of_chunk(step, left)
        self.block(step.condition)
        w.branch_if(self.number(step.test), body, exit)
        w.label(body)
        if step.maximum is not None:
            over = w.op(f"icmp sge i64 {self.number(step.counter)}, {step.maximum}")
            self.stop_if(over, Status.ITERATIONS, step.number, self.number(step.counter), str(step.maximum))
        self.block(step.body)
        following = []
        for carry in pairs:
            assert isinstance(carry.next, Register)
            following.append(self.number(carry.next))
        self.moves(step.body)
        for carry, value in zip(pairs, following, strict=True):
            assert isinstance(carry.inside, Register)
            w.line(f"store {type_of(carry.inside.dtype)} {value}, ptr {self.variables[carry.inside.name]}")
        w.line(f"store i64 {w.op(f'add i64 {self.number(step.counter)}, 1')}, ptr {counter}")
        w.branch(head)
        w.label(exit)
        if left is not None:
            with self.when(self.is_managed()):
                self.tell_position()
                self.ask(Request.END_LOOP, str(step.number))
        self.loops.pop()
        for carry in pairs:
            assert isinstance(carry.inside, Register) and isinstance(carry.result, Register)
            self.registers[carry.result.name] = self.number(carry.inside)
        del plan

    # Loops in chunks.

    def is_managed(self) -> str:
        return self.w.op(f"icmp ne i64 {self.load_word(frame.IS_MANAGED)}, 0")

    def begin_chunks(self, step: Loop) -> str | None:
        """Tell a memory manager that a loop begins; the variable of the iterations that a chunk has left."""
        if step.number not in self.layout.chunks:
            return None
        with self.when(self.is_managed()):
            index = self.layout.captures[step.number]
            for value in self.layout.chunked[step.number].captured:
                index = self.tell_value(value, index)
            for stack in self.pushed_stacks(step):
                self.row_shape(stack)
            self.ask(Request.BEGIN_LOOP, str(step.number))
        left = self.w.alloca("i64")
        self.w.line(f"store i64 {self.load_word(self.layout.chunks[step.number])}, ptr {left}")
        return left

    def end_of_chunk(self, step: Loop, left: str) -> None:
        """Where a chunk has no iterations left, show what the loop carries and ask for another one."""
        w, index = self.w, self.layout.chunks[step.number]
        after = w.op(f"sub i64 {w.op(f'load i64, ptr {left}')}, 1")
        w.line(f"store i64 {after}, ptr {left}")
        with self.when(w.op(f"icmp slt i64 {after}, 0")):
            self.tell_position()
            at = index + 1
            for carry in step.carries:
                at = self.tell_value(carry.inside, at)
            self.ask(Request.NEXT_CHUNK, str(step.number))
            w.line(f"store i64 {w.op(f'sub i64 {self.load_word(index)}, 1')}, ptr {left}")

    def pushed_stacks(self, step: Loop) -> Iterator[Stack]:
        """The stacks that each iteration of a loop pushes on."""
        pushed = self.layout.chunked[step.number].pushed
        for carry in step.carries:
            if isinstance(carry.inside, Stack) and self.plan.handles[carry.inside] in pushed:
                yield carry.inside

    def tell_value(self, value: Value, index: int) -> int:
        """Write a number, or where an array lies and its sizes; where the next value starts."""
        if isinstance(value, Register):
            self.store_number(index, value)
        elif isinstance(value, Array):
            self.store_word(index, self.place_of(value), "ptr")
            for k, size in enumerate(value.shape, 1):
                self.store_word(index + k, self.size(size))
        return index + frame.value_words(value)

    def poll(self, step: Loop) -> None:
        """Now and then Python has its turn."""
        w = self.w
        left = w.op(f"sub i64 {w.op(f'load i64, ptr {self.ticks}')}, 1")
        w.line(f"store i64 {left}, ptr {self.ticks}")
        with self.when(w.op(f"icmp sle i64 {left}, 0")):
            self.tell_position()
            self.ask(Request.POLL, str(step.number))
            w.line(f"store i64 {self.load_word(frame.TICKS)}, ptr {self.ticks}")

    def branch(self, step: Branch) -> None:
        w = self.w
        registers = [r for r in step.results if isinstance(r, Register)]
        variables = {r.name: w.alloca(type_of(r.dtype)) for r in registers}
        exit = w.new_label("joined")
        labels = [w.new_label("case") for _ in step.blocks]
        selector = self.number(step.selector)
        if step.selector.dtype.kind == "b":
            w.branch_if(selector, labels[1], labels[0])
        else:
            kind = type_of(step.selector.dtype)
            cases = " ".join(f"{kind} {k}, label %{label}" for k, label in enumerate(labels[1:], 1))
            sign = "s" if step.selector.dtype.kind == "i" else "u"
            last = len(labels) - 1
            high = w.op(f"icmp {sign}gt {kind} {selector}, {last}")
            clamped = w.op(f"select i1 {high}, {kind} {last}, {kind} {selector}")
            w.line(f"switch {kind} {clamped}, label %{labels[0]} [ {cases} ]")
        for label, block, outputs in zip(labels, step.blocks, step.outputs, strict=True):
            w.label(label)
            # What one branch computes the others do not see.
            self.block(block)
            found = [self.number(v) for v in outputs if isinstance(v, Register)]
            self.moves(block)
            for register, value in zip(registers, found, strict=True):
                w.line(f"store {type_of(register.dtype)} {value}, ptr {variables[register.name]}")
            w.branch(exit)
        w.label(exit)
        for register in registers:
            self.registers[register.name] = w.op(f"load {type_of(register.dtype)}, ptr {variables[register.name]}")

    def epilogue(self) -> None:
        self.moves(self.plan.body)
        for result, index in zip(self.plan.results, self.layout.results, strict=True):
            if isinstance(result, tuple):
                for k, register in enumerate(result):
                    self.store_number(index + k, register)
            elif isinstance(result, Array):
                for k, size in enumerate(result.shape):
                    self.store_word(index + k, self.size(size))

    # Outside calls.

    def outside(self, step: Outside) -> None:
        index = self.layout.outside[step]
        number = str(self.layout.calls.index(step))
        self.tell_position()
        for operand in step.operands:
            index = self.tell(operand, index)
        known = all(not step.sizes or not names_of(r.shape) & {s.name for s, _, _ in step.sizes} for r in step.results if isinstance(r, Array))
        if known:
            self.tell_results(step, index)
        self.ask(Request.COMPUTE, number, self.told_rows(step))
        for register, result, axis in step.sizes:
            at = index + sum(frame.operand_words(r) for r in step.results[:result]) + 1 + axis
            self.registers[register.name] = self.load_word(at)
        if not known:
            self.tell_results(step, index)
        if any(isinstance(r, Array) for r in step.results):
            self.ask(Request.FETCH, number)
        at = index
        for result in step.results:
            if isinstance(result, tuple):
                for k, register in enumerate(result):
                    self.registers[register.name] = self.load_number(at + k, register.dtype)
            at += frame.operand_words(result)

    def told_rows(self, step: Outside) -> str:
        """Tell the shape of the rows of a stack among the results, if it is known yet; whether it is."""
        for result in step.results:
            shape = self.plan.rows[result] if isinstance(result, Stack) else None
            if isinstance(result, Stack) and shape is not None:
                known = self.registers.keys() | self.variables.keys()
                if names_of(shape) <= known:
                    self.row_shape(result)
                    return "1"
        return "0"

    def tell_results(self, step: Outside, index: int) -> None:
        for result in step.results:
            if isinstance(result, Array):
                self.store_word(index, self.define(result), "ptr")
                for k, (size, stride) in enumerate(zip(result.shape, row_major(result.shape), strict=True)):
                    self.store_word(index + 1 + k, self.size(size))
                    self.store_word(index + 1 + len(result.shape) + k, self.size(stride))
            index += frame.operand_words(result)

    def tell(self, item: Sequence[Register] | View | Stack, index: int) -> int:
        """Write an operand of an outside call; where the next one starts."""
        if isinstance(item, View):
            self.store_word(index, self.view_address(item), "ptr")
            for k, (size, stride) in enumerate(zip(item.shape, item.strides, strict=True)):
                self.store_word(index + 1 + k, self.size(size))
                self.store_word(index + 1 + len(item.shape) + k, self.size(stride))
        elif isinstance(item, tuple):
            for k, register in enumerate(item):
                self.store_number(index + k, register)
        return index + frame.operand_words(item)

    # Stacks.

    def find_pushes(self, block: Block) -> None:
        from ctrlgrad.plan.effects import walk

        for number, step in enumerate(s for s in walk(block) if isinstance(s, Push)):
            self.pushes[number] = step
        self.push_numbers = {step: number for number, step in self.pushes.items()}
        self.pop_numbers = {s: k for k, s in enumerate(s for s in walk(block) if isinstance(s, Pop))}

    def row_shape(self, stack: Stack) -> None:
        """Tell the shape of a stack's rows."""
        rows = self.plan.rows[stack]
        for k, size in enumerate(rows or ()):
            self.store_word(self.layout.shapes[self.plan.handles[stack]] + k, self.size(size))

    def row_bytes(self, stack: Stack) -> Size:
        shape = self.plan.rows[stack]
        assert shape is not None
        return product(shape) * Size(stack.dtype.itemsize)

    def reserve(self, number: int) -> None:
        """Room for the row of a push, and its address."""
        push = self.pushes[number]
        address = self.top(push.stack)
        self.w.line(f"store ptr {address}, ptr {self.pointer(Place('slot', number))}")

    def top(self, stack: Stack) -> str:
        """The address of the next row of a stack, for which there is room."""
        handle = self.plan.handles[stack]
        words = self.layout.stack(handle)
        full = self.w.op(
            f"icmp sge i64 {self.load_word(words + frame.COUNT)}, {self.load_word(words + frame.CAPACITY)}"
        )
        with self.when(full):
            self.row_shape(stack)
            self.ask(Request.FULL, str(handle))
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
        if not is_in_place:
            self.store_row(step.row, self.top(step.stack), self.row_bytes(step.stack))
        count = self.load_word(words + frame.COUNT)
        self.store_word(words + frame.COUNT, self.w.op(f"add i64 {count}, 1"))

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
        handle = self.plan.handles[step.stack]
        words = self.layout.stack(handle)
        self.ask_if(
            self.w.op(f"icmp sle i64 {self.load_word(words + frame.COUNT)}, 0"), Request.EMPTY, str(handle)
        )
        count = self.w.op(f"sub i64 {self.load_word(words + frame.COUNT)}, 1")
        self.store_word(words + frame.COUNT, count)
        address = self.row_at(step.stack, count)
        if isinstance(step.row, Array) and self.plan.places[step.row].kind == "row":
            self.w.line(f"store ptr {address}, ptr {self.pointer(self.plan.places[step.row])}")
            return
        if isinstance(step.row, Array):
            self.define(step.row)
        self.load_row(step.row, address, self.row_bytes(step.stack))

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
        with self.when(w.op(f"icmp slt i64 {at}, {below}")):
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
        with self.when(w.op(f"icmp eq i64 {self.load_word(words + frame.WRITABLE)}, 0")):
            self.row_shape(step.stack)
            self.ask(Request.OWN, str(handle))
        at_end = None
        if step.grow:
            at_end = w.op(f"icmp eq i64 {at}, {length}")
            with self.when(at_end):
                self.top(step.stack)
                count = self.load_word(words + frame.COUNT)
                self.store_word(words + frame.COUNT, w.op(f"add i64 {count}, 1"))
        marks = self.load_word(words + frame.MARKS, "ptr")
        if step.once:
            # Without marks every row is written, but for one that was just made room for.
            again = w.op(f"icmp eq ptr {marks}, null")
            if at_end is not None:
                again = w.op(f"and i1 {again}, {w.op(f'xor i1 {at_end}, true')}")
            self.stop_if(again, Status.TWICE, step.site, at, "0")
        with self.when(w.op(f"icmp ne ptr {marks}, null")):
            mark = w.op(f"getelementptr i8, ptr {marks}, i64 {at}")
            if step.once:
                written = w.op(f"icmp ne i8 {w.op(f'load i8, ptr {mark}')}, 0")
                if at_end is not None:
                    written = w.op(f"and i1 {written}, {w.op(f'xor i1 {at_end}, true')}")
                self.stop_if(written, Status.TWICE, step.site, at, "0")
            w.line(f"store i8 1, ptr {mark}")
        address = self.row_of(step.stack, at)
        if step.how == "store":
            self.store_row(step.row, address, self.row_bytes(step.stack))
        else:
            self.add_row(step, address)

    def add_row(self, step: WriteRow, address: str) -> None:
        """Add to a row, number by number."""
        from ctrlgrad.engines.llvm.nests import counted_loop

        dtype, parts = element_parts(step.stack.dtype)
        kind = memory_type_of(dtype)
        op = "fadd" if dtype.kind == "f" else "add"
        if not isinstance(step.row, View):
            for k, register in enumerate(step.row):
                at = self.w.op(f"getelementptr {kind}, ptr {address}, i64 {k}")
                total = self.w.op(f"{op} {kind} {self.w.op(f'load {kind}, ptr {at}')}, {self.number(register)}")
                self.w.line(f"store {kind} {total}, ptr {at}")
            return
        source = self.view_address(step.row)
        shape = self.plan.rows[step.stack]
        assert shape is not None
        with counted_loop(self.w, "0", self.size(product(shape) * Size(parts))) as i:
            at = self.w.op(f"getelementptr {kind}, ptr {address}, i64 {i}")
            other = self.w.op(f"getelementptr {kind}, ptr {source}, i64 {i}")
            total = self.w.op(
                f"{op} {kind} {self.w.op(f'load {kind}, ptr {at}')}, {self.w.op(f'load {kind}, ptr {other}')}"
            )
            self.w.line(f"store {kind} {total}, ptr {at}")

