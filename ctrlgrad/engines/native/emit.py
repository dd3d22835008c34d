"""A plan as the text of one LLVM function, or of several where it is long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.engines.native import frame, library
from ctrlgrad.engines.native.expressions import emit_call, emit_expression
from ctrlgrad.engines.native.frame import Request, Status
from ctrlgrad.engines.native.loops import counted, counted_loop
from ctrlgrad.engines.native.nests import KernelWriter, cannot_fail
from ctrlgrad.engines.native.outside_text import TurnsText
from ctrlgrad.engines.native.reductions import element_parts
from ctrlgrad.engines.native.shared_nests import SharedKernel
from ctrlgrad.engines.native.text import Captures, Writer, type_of
from ctrlgrad.plan import model
from ctrlgrad.plan.axes import Axis
from ctrlgrad.plan.expression import Instruction
from ctrlgrad.plan.model import Array, Block, Check, Compute, Kernel, Loop, Move, Register, Step, Tiles, Value, Vectors
from ctrlgrad.plan.outlining import grouped
from ctrlgrad.plan.sizes import Size
from ctrlgrad.plan.tiling import length_of

# Kernels that the plan makes functions (`Plan.functions`), as LLVM text.


def call_kernel(
    writer: Writer,
    kernel: Kernel,
    place: Callable[[Array], str],
    number: Callable[[Register], str],
    size: Callable[[Size], str],
    vectors: Vectors,
) -> None:
    """Write a call of a kernel's function `void @nestK(addresses, numbers, sizes)`."""
    given, inner = Captures(), Writer(writer)
    KernelWriter(
        inner,
        kernel,
        lambda array: given.take(array, "ptr", lambda: place(array)),
        lambda register: given.take(register, type_of(register.dtype), lambda: number(register)),
        lambda wanted: given.take(wanted, "i64", lambda: size(wanted)),
        cannot_fail,
        vectors,
    ).write()
    writer.call("nest", inner, given, vectors.nbytes)


# Groups of kernels and loops that run tile by tile (see `ctrlgrad.plan.tiling`).


class Stretch(KernelWriter):
    """Writes a kernel for the points from `first` to `end` of its one axis."""

    first, end = "0", "0"

    def ends(self, depth: int, axis: Axis) -> tuple[str, str]:
        return self.first, self.end

    def has_rest(self, axis: Axis, width: int) -> bool:
        return True


def write_tiles(
    writer: Writer,
    tiles: Tiles,
    size: Callable[[Size], str],
    nest: Callable[[type[Stretch], Kernel], Stretch],
) -> None:
    """A loop over tiles; `nest` gives the writer of a kernel, of the class that it is told."""
    w = writer
    for name in ("smin", "smax"):
        w.declare(f"i64 @llvm.{name}.i64(i64, i64)")

    def of(name: str, a: str, b: str) -> str:
        return w.op(f"call i64 @llvm.{name}.i64(i64 {a}, i64 {b})")

    lengths = [size(length_of(kernel)) for kernel in tiles.kernels]
    lags, end = [], "0"
    for length, terms in zip(lengths, tiles.lags, strict=True):
        lag = "0"
        for term in terms:
            lag = w.add(lag, size(term))
        lags.append(lag)
        end = of("smax", end, w.add(length, lag))
    with counted_loop(w, "0", end, tiles.points) as start:
        for kernel, length, lag in zip(tiles.kernels, lengths, lags, strict=True):
            at = start if lag == "0" else w.op(f"sub i64 {start}, {lag}")
            after = of("smin", w.op(f"add i64 {at}, {tiles.points}"), length)
            first = at if lag == "0" else of("smax", at, "0")
            with w.when(w.op(f"icmp slt i64 {first}, {after}")):
                stretch = nest(Stretch, kernel)
                stretch.first, stretch.end = first, after
                stretch.write()


@contextmanager
def loop_over_tiles(writer: Writer, length: str, points: int) -> Iterator[tuple[str, str]]:
    """A loop over tiles of as many points, at least one, though it be empty; gives where each begins and ends."""
    w = writer
    for name in ("smin", "smax"):
        w.declare(f"i64 @llvm.{name}.i64(i64, i64)")
    end = w.op(f"call i64 @llvm.smax.i64(i64 {length}, i64 1)")
    with counted_loop(w, "0", end, points) as start:
        after = w.op(f"add i64 {start}, {points}")
        yield start, w.op(f"call i64 @llvm.smin.i64(i64 {after}, i64 {length})")


AnyNest = TypeVar("AnyNest", bound=KernelWriter)

_STATUS = {
    "index": Status.INDEX,
    "size": Status.SIZE,
    "iterations": Status.ITERATIONS,
    "twice": Status.TWICE,
    "empty": Status.EMPTY,
    "value": Status.VALUE,
    "equal": Status.EQUAL,
    "rows": Status.ROWS,
}


class PlanWriter(TurnsText):
    """Writes a plan as a function `void @NAME(ptr %frame)`."""

    def function(self, name: str) -> str:
        self.prologue()
        self.bring_near(self.plan.near)
        self.block(self.plan.body)
        self.epilogue()
        self.write_near()
        self.w.line("ret void")
        function = self.w.function(f"void @{name}(ptr %frame)", self.vector_bytes)
        pieces = [piece.text(self.vector_bytes) for piece in self.pieces]
        return self.w.module(*self.shared.values(), *self.parts, *pieces, function)

    def block(self, block: Block) -> None:
        outside, self.known = self.known, {}
        steps = iter(block.steps)
        own: list[Step] = []
        for step in steps:
            piece = self.plan.pieces.get(step)
            if piece is None:
                own.append(step)
                continue
            self.steps(own)
            own = []
            for _ in piece.steps[1:]:
                next(steps)
            with self.apart():
                for number in piece.local:
                    self.keep_local(number)
                self.bring_near(piece.near)
                self.steps(piece.steps)
                self.write_near()
        self.steps(own)
        self.known = outside

    def steps(self, steps: Sequence[Step]) -> None:
        for tiles, group in grouped(self.plan, steps):
            if tiles is None:
                self.step(group[0])
                self.release(group[0])
            else:
                self.tiles(tiles, group)

    def tiles(self, tiles: Tiles, steps: Sequence[Step]) -> None:
        for step in steps:
            if isinstance(step, Compute):
                self.compute(step)
        for kernel in tiles.kernels:
            for write in kernel.writes:
                self.define(write.view.array)
        write_tiles(self.w, tiles, self.size, self.nest)
        for step in steps:
            self.release(step)

    def moves(self, block: Block) -> None:
        for move in block.moves:
            self.move(move)
        if block.stack_moves:
            for k, (_, source, target) in enumerate(block.stack_moves):
                last = k == len(block.stack_moves) - 1
                self.ask(Request.MOVE_STACKS, str(source), str(target if not last else -1 - target))

    def move(self, move: Move) -> None:
        if move.exchanges:
            source, target = (self.layout.buffer(place.number) for place in (move.source, move.target))
            for word in range(frame.BUFFER_WORDS):
                first, second = self.load_word(source + word), self.load_word(target + word)
                self.store_word(source + word, second)
                self.store_word(target + word, first)
            return
        if move.target.kind == "buffer" and not self.is_known(move.target):
            self.ensure(self.plan.buffers[move.target.number], move.array.count)
        nbytes = self.size(move.array.count * Size(move.array.dtype.itemsize))
        self.copy_bytes(self.address(move.target), self.address(move.source), nbytes)

    def step(self, step: Step) -> None:
        getattr(self, step.kind)(step)

    def load(self, step: model.Load) -> None:
        address = self.view_address(step.view)
        dtype, _ = element_parts(step.view.dtype)
        for k, register in enumerate(step.results):
            self.registers[register.name] = self.load_at(address, k, dtype)

    def guard(self, step: model.Guard) -> None:
        bad = self.w.op(f"xor i1 {self.number(step.condition)}, true")
        found = "0" if step.found is None else self.number(step.found)
        self.stop_if(bad, _STATUS[step.status], step.site, found, self.size(step.bound))

    def length(self, step: model.Length) -> None:
        stack = self.layout.stack(self.plan.handles[step.stack])
        count, below = self.load_word(stack + frame.COUNT), self.load_word(stack + frame.BELOW)
        self.registers[step.result.name] = self.w.op(f"add i64 {count}, {below}")

    def copy_stack(self, step: model.CopyStack) -> None:
        handles = self.plan.handles
        self.ask(Request.COPY_STACK, str(handles[step.result]), str(handles[step.stack]))

    def compute(self, step: Compute) -> None:
        def leaf(instruction: Instruction, arguments: list[tuple[str, bool]]) -> tuple[str, bool]:
            return self.number(step.operands[instruction.value]), False

        found = emit_expression(self.w, step.expression, leaf, 1, call=self.elementary, known=self.known)
        for register, text in zip(step.results, found, strict=True):
            self.registers[register.name] = text

    def elementary(
        self, writer: Writer, name: str, result: np.dtype, names: list[str], dtypes: list[np.dtype], width: int
    ) -> str:
        """A call of an elementary function on numbers, or its code."""
        if self.calls_in_place:
            return library.emit_in_place(writer, name, names, dtypes[0], width, self.known)
        return emit_call(writer, name, result, names, dtypes, width)

    def kernel(self, step: Kernel) -> None:
        """A kernel: memory for its results, with the arrays that it updates; then its nest, inline or as a function."""
        for write in step.writes:
            self.define(write.view.array)
            if write.base is not None and self.plan.places[write.base] != self.plan.places[write.view.array]:
                nbytes = self.size(write.base.count * Size(write.base.dtype.itemsize))
                self.copy_bytes(self.place_of(write.view.array), self.place_of(write.base), nbytes)
        if self.stretch is not None:
            stretch = self.nest(Stretch, step)
            stretch.first, stretch.end = self.stretch
            stretch.write()
            return
        share = self.plan.shares.get(step)
        if share is not None:
            given = (self.place_of, self.number, self.size, self.fail, self.plan.vectors[step])
            self.parts.append(SharedKernel(self.w, step, share, *given, f"part{len(self.parts)}").write())
            return
        if step in self.plan.functions:
            call_kernel(self.w, step, self.place_of, self.number, self.size, self.plan.vectors[step])
            return
        self.nest(KernelWriter, step).write()

    def nest(self, kind: type[AnyNest], kernel: Kernel) -> AnyNest:
        """The writer of a kernel, of a class."""
        return kind(self.w, kernel, self.place_of, self.number, self.size, self.fail, self.plan.vectors[kernel])

    def fail(self, holds: str, check: Check, found: str) -> None:
        """End the run where a check of a kernel does not hold."""
        bad = self.w.op(f"xor i1 {holds}, true")
        found = found if check.status == "index" else "0"
        self.stop_if(bad, _STATUS[check.status], check.site, found, self.size(check.bound))

    # Imports inside the methods: a plan without products, factors, transforms, columns or cumulative operations does
    # not load their writers.

    def product(self, step: model.Product) -> None:
        from ctrlgrad.engines.native.product_calls import ProductWriter

        ProductWriter(self, step).write()

    def pack(self, step: model.Pack) -> None:
        from ctrlgrad.engines.native.product_calls import write_pack

        write_pack(self, step)

    def columns(self, step: model.Columns) -> None:
        from ctrlgrad.engines.native.short_rows import write_columns

        write_columns(self, step)

    def cumulate(self, step: model.Cumulate) -> None:
        from ctrlgrad.engines.native.cumulative import write_cumulate

        write_cumulate(self, step)

    def transform(self, step: model.Transform) -> None:
        from ctrlgrad.engines.native.transform_calls import write_transform

        write_transform(self, step)

    def factorise(self, step: model.Factorise) -> None:
        from ctrlgrad.engines.native.factor_calls import FactorsWriter

        FactorsWriter(self, step).write()

    def for_each(self, pairs: Sequence[tuple[Register, Register]], write: Callable[[Register, str], None]) -> None:
        """Write what each first register is for, given the number of the second one."""
        if not self.is_outer:
            # Numbers first: a second register may be one that `write` changes.
            for register, number in [(register, self.number(value)) for register, value in pairs]:
                write(register, number)
        else:
            self.each_apart(pairs, lambda pair: write(pair[0], self.number(pair[1])))

    def in_words(self, registers: Iterable[Register]) -> None:
        """Have numbers lie in words of the frame, one behind the other."""
        for register in registers:
            self.in_frame[register.name] = self.take_words(1)

    def to_word(self, register: Register, value: str) -> None:
        self.store_word(self.in_frame[register.name], value, type_of(register.dtype))

    def loop(self, step: Loop) -> None:
        self.moves(step.entry)
        carried = [c.inside for c in step.carries if isinstance(c.inside, Register)]
        results = [c.result for c in step.carries if isinstance(c.result, Register)]
        tiles = self.plan.tiles.get(step)
        if self.is_outer:
            self.in_words((*carried, *results))
            carried, results = [], []
        variables = {register: self.w.alloca(type_of(register.dtype)) for register in (step.counter, *carried)}
        if tiles is None:
            self.iterations(step, variables)
        else:
            with loop_over_tiles(self.w, self.size(length_of(tiles.kernels[0])), tiles.points) as self.stretch:
                self.iterations(step, variables)
            self.stretch = None
            for register, variable in variables.items():
                self.registers[register.name] = self.w.op(f"load {type_of(register.dtype)}, ptr {variable}")
        for inside, result in zip(carried, results, strict=True):
            self.registers[result.name] = self.number(inside)

    def carry(self, step: Loop, values: Sequence[Value], variables: dict[Register, str]) -> None:
        """Have a loop's carried numbers be those of `values`."""
        numbers = [v for v in values if isinstance(v, Register)]
        carried = [c.inside for c in step.carries if isinstance(c.inside, Register)]
        if not self.is_outer:

            def write(register: Register, value: str) -> None:
                self.w.line(f"store {type_of(register.dtype)} {value}, ptr {variables[register]}")

            self.for_each(list(zip(carried, numbers, strict=True)), write)
        elif carried:
            # The words of the results hold the new numbers until all of them are known, and the last ones for good.
            results = [c.result for c in step.carries if isinstance(c.result, Register)]
            self.for_each(list(zip(results, numbers, strict=True)), self.to_word)
            source, target = (self.frame_word(self.in_frame[v[0].name]) for v in (results, carried))
            self.copy_bytes(target, source, str(8 * len(carried)))

    def iterations(self, step: Loop, variables: dict[Register, str]) -> None:
        """A loop from its carries' places on, numbers in variables or words of the frame."""
        w = self.w
        self.carry(step, [c.init for c in step.carries], variables)
        w.line(f"store {type_of(step.counter.dtype)} 0, ptr {variables[step.counter]}")
        self.registers[step.counter.name] = "0"
        for carry in step.carries:
            if isinstance(carry.inside, Register) and carry.inside in variables:
                assert isinstance(carry.init, Register)
                self.registers[carry.inside.name] = self.number(carry.init)
        self.loops.append(step)
        outside, self.calls_in_place = self.calls_in_place, step in self.plan.inlined
        head, body, exit = w.new_label("loop"), w.new_label("iteration"), w.new_label("end")
        left = self.begin_chunks(step)
        ticks, word = w.alloca("i64"), self.layout.ticks + step.number
        w.line(f"store i64 {self.load_word(word)}, ptr {ticks}")
        w.branch(head)
        w.label(head)
        for register, variable in variables.items():
            self.registers[register.name] = w.op(f"load {type_of(register.dtype)}, ptr {variable}")
        self.poll(step, ticks)
        if left is not None:
            self.end_of_chunk(step, left)
        self.block(step.condition)
        w.branch_if(self.number(step.test), body, exit)
        w.label(body)
        if step.maximum is not None:
            over = w.op(f"icmp sge i64 {self.number(step.counter)}, {step.maximum}")
            self.stop_if(over, Status.ITERATIONS, step.number, self.number(step.counter), str(step.maximum))
        self.block(step.body)
        self.moves(step.body)
        self.carry(step, [c.next for c in step.carries], variables)
        after = w.op(f"add i64 {self.number(step.counter)}, 1")
        w.line(f"store i64 {counted(w, after)}, ptr {variables[step.counter]}")
        w.branch(head)
        w.label(exit)
        self.store_word(word, w.op(f"load i64, ptr {ticks}"))
        if left is not None:
            self.end_chunks(step)
        self.loops.pop()
        self.calls_in_place = outside

    def branch(self, step: model.Branch) -> None:
        w = self.w
        registers = [r for r in step.results if isinstance(r, Register)]
        is_outer = self.is_outer
        if is_outer:
            self.in_words(registers)
        variables = {} if is_outer else {r: w.alloca(type_of(r.dtype)) for r in registers}

        def write(register: Register, value: str) -> None:
            w.line(f"store {type_of(register.dtype)} {value}, ptr {variables[register]}")

        exit = w.new_label("joined")
        labels = [w.new_label("case") for _ in step.blocks]
        selector = self.number(step.selector)
        if dtype_kind(step.selector.dtype) == "b":
            w.branch_if(selector, labels[1], labels[0])
        else:
            kind = type_of(step.selector.dtype)
            cases = " ".join(f"{kind} {k}, label %{label}" for k, label in enumerate(labels[1:], 1))
            sign = "s" if dtype_kind(step.selector.dtype) == "i" else "u"
            last = len(labels) - 1
            high = w.op(f"icmp {sign}gt {kind} {selector}, {last}")
            clamped = w.op(f"select i1 {high}, {kind} {last}, {kind} {selector}")
            w.line(f"switch {kind} {clamped}, label %{labels[0]} [ {cases} ]")
        for label, block, outputs in zip(labels, step.blocks, step.outputs, strict=True):
            w.label(label)
            # Numbers that one branch computes are not visible in the other branches.
            self.block(block)
            self.moves(block)
            numbers = [v for v in outputs if isinstance(v, Register)]
            self.for_each(list(zip(registers, numbers, strict=True)), self.to_word if is_outer else write)
            w.branch(exit)
        w.label(exit)
        for register, variable in variables.items():
            self.registers[register.name] = w.op(f"load {type_of(register.dtype)}, ptr {variable}")

    def epilogue(self) -> None:
        self.moves(self.plan.body)
        for result, index in zip(self.plan.results, self.layout.results, strict=True):
            if isinstance(result, tuple):
                for k, register in enumerate(result):
                    self.store_number(index + k, register)
            elif isinstance(result, Array):
                for k, size in enumerate(result.shape):
                    self.store_word(index + k, self.size(size))
