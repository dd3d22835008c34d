"""Plans as text, for readers of graphs' text: buffers with all that lies in them, then steps over values.

a7: f64[3,n0] @b1 over a5    an array; where it lies: a buffer, an argument, a constant, the slot of a push, a popped
                             row; and what lay in its buffer before
a4[8*r3; 2,1]                a view: the elements from 8*r3 on, so many apart along each axis; a.T is a transpose
(a2 or c1[0; 1,n0])          what lies there, or among the columns of it that were laid out
kernel [2,3] { ... }         formulas at each point; #1 is the position along axis 1, %0 what is used again
a9 at [0; 0,1] = sum of ...  where a point writes: along axis 0 to one place
function of 3 steps: b1 near the next steps are a function, which has a buffer on the machine's stack; of a stack, the
                             words of its block are in variables
# ...                        where the driver may be asked for something
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.ir.types import dtype_name
from ctrlgrad.plan import model
from ctrlgrad.plan.chunks import loops_in_chunks
from ctrlgrad.plan.effects import defines, walk
from ctrlgrad.plan.expression import Expression, Instruction
from ctrlgrad.plan.model import (
    ROLES,
    Array,
    Block,
    FlatRows,
    Kernel,
    Plan,
    Push,
    Register,
    RowsAcross,
    Stack,
    Step,
    Vectors,
    View,
    Write,
)
from ctrlgrad.plan.places import Buffer, Place
from ctrlgrad.plan.sizes import ONE, Size, row_major

# Expressions as formulas: a line for each output, and one for what is needed more than once or would be too long.


# The text of a leaf, by its instruction and the texts of its arguments.
Leaf = Callable[[Instruction, Sequence[str]], str]
# Longer formulas are cut.
WIDEST = 72

# Operators and how tightly they bind.
_LOGIC = {"or": ("or", 1), "xor": ("xor", 2), "and": ("and", 3)}
_INFIX = {"less": ("<", 4), "less_equal": ("<=", 4), "greater": (">", 4), "greater_equal": (">=", 4)}
_INFIX |= {"equal": ("==", 4), "not_equal": ("!=", 4), "add": ("+", 6), "subtract": ("-", 6)}
_INFIX |= {"multiply": ("*", 7), "divide": ("/", 7)}
_ATOM = 9


@dataclass(frozen=True, slots=True)
class _Text:
    text: str
    binds: int = _ATOM

    def within(self, tightness: int) -> str:
        return self.text if self.binds >= tightness else f"({self.text})"


def formulas(expression: Expression, leaf: Leaf, used: Sequence[int]) -> tuple[list[str], list[str]]:
    """Lines that name what is shared, and the formulas of the outputs; `used` are the outputs that are shown."""
    written = _Formulas(expression, leaf, used)
    return list(written.lines()), [written.texts[output].text for output in expression.outputs]


class _Formulas:
    def __init__(self, expression: Expression, leaf: Leaf, used: Sequence[int]) -> None:
        self.expression, self.leaf = expression, leaf
        self.uses = Counter(a for instruction in expression.instructions for a in instruction.args)
        self.uses.update(expression.outputs[output] for output in used)
        self.texts: list[_Text] = []

    def lines(self) -> Iterator[str]:
        named = 0
        for number, instruction in enumerate(self.expression.instructions):
            text = self.text(instruction)
            is_leaf = instruction.op in ("constant", "scalar", "index") or (
                instruction.op == "load" and not instruction.args
            )
            if not is_leaf and (self.uses[number] > 1 or len(text.text) > WIDEST):
                name = f"%{named}"
                named += 1
                yield f"{name}: {dtype_name(instruction.dtype)} = {text.text}"
                text = _Text(name)
            self.texts.append(text)

    def text(self, instruction: Instruction) -> _Text:
        op = instruction.op
        args = [self.texts[a] for a in instruction.args]
        if op == "constant":
            value = instruction.value.item()
            return _Text(
                str(value) if dtype_kind(instruction.dtype) == "b" else repr(value), 8 if str(value)[0] == "-" else 9
            )
        if op in ("load", "scalar", "index"):
            return _Text(self.leaf(instruction, [a.text for a in args]))
        # Of integers, "and" is one of bits, and "divide" goes towards zero.
        infix = (_INFIX | _LOGIC) if dtype_kind(instruction.dtype) == "b" else _INFIX
        if op in infix and not (op == "divide" and dtype_kind(instruction.dtype) in "iu"):
            sign, binds = infix[op]
            # A right operand that binds as tightly keeps its parentheses: float operators are not associative.
            return _Text(f"{args[0].within(binds)} {sign} {args[1].within(binds + 1)}", binds)
        if op == "negative":
            return _Text(f"-{args[0].within(8)}", 8)
        name = dtype_name(instruction.dtype) if op == "convert" else instruction.value if op == "call" else op
        return _Text(f"{name}({', '.join(a.text for a in args)})")


MAY_FILL = "  # a full block asks for another one"


def format_plan(plan: Plan) -> str:
    """The text of a plan, placed or not yet."""
    return "\n".join(_Printer(plan).lines())


class _Printer:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.pushes = {step: number for number, step in enumerate(s for s in walk(plan.body) if isinstance(s, Push))}
        # Arrays that each buffer holds, in the order of the text, and the current one.
        self.holds: dict[int, list[str]] = {buffer.number: [] for buffer in plan.buffers}
        self.now: dict[int, str] = {}
        # Tiles of kernels and loops, as text.
        self.tiled = dict(_tiled(plan))
        self.chunked = {c.loop: c for c in loops_in_chunks(plan) if c.pushes} if plan.handles else {}

    def lines(self) -> Iterator[str]:
        plan = self.plan
        steps = list(self.block(plan.body, "  "))
        yield f"plan {plan.name}({', '.join(self.argument(a) for a in plan.arguments)}) {{"
        for register, argument, axis in plan.sizes:
            yield f"  {register}: i64 = size of argument {argument}, axis {axis}"
        for array, value in plan.constants:
            yield f"  {self.declared(array)} = constant of {value.size} elements"
        for buffer in plan.buffers:
            yield f"  {self.buffer(buffer)}"
        if plan.near:
            yield f"  keep near: {', '.join(f'stack {handle}' for handle in plan.near)}"
        yield from steps
        yield f"  return {', '.join(map(self.named, plan.results))}"
        yield "}"

    def buffer(self, buffer: Buffer) -> str:
        kind = "" if buffer.result is None else f", result {buffer.result}"
        when = "" if buffer.is_known_at_entry else ", as large as what it holds"
        when += ", on the machine's stack" if buffer.number in self.plan.local else ""
        held = ", ".join(self.holds[buffer.number])
        return f"buffer {buffer}: {buffer.count} x {dtype_name(buffer.dtype)}{kind}{when}: {held}"

    # Values.

    def argument(self, item: object) -> str:
        return ", ".join(map(self.declared, item)) if isinstance(item, tuple) else self.declared(item)

    def named(self, item: object) -> str:
        """Text of an operand; a complex number is two registers."""
        if isinstance(item, tuple):
            return f"({', '.join(map(str, item))})" if len(item) == 2 else ", ".join(map(str, item))
        return self.view(item) if isinstance(item, View) else str(item)

    def declared(self, item: object) -> str:
        """A value with its type and place."""
        if isinstance(item, Register):
            return f"{item}: {dtype_name(item.dtype)}"
        if isinstance(item, Array):
            return f"{item}: {dtype_name(item.dtype)}[{','.join(map(str, item.shape))}]{self.at(item)}"
        if isinstance(item, Stack):
            rows = self.plan.rows[item]
            shape = "?" if rows is None else "run" if item.holds == "elements" else ",".join(map(str, rows))
            handle = f" @stack {self.plan.handles[item]}" if item in self.plan.handles else ""
            what = " of sizes" if item.holds == "sizes" else ""
            return f"{item}: stack{what}<{dtype_name(item.dtype)}[{shape}]>{handle}"
        assert isinstance(item, tuple)
        return ", ".join(map(self.declared, item))

    def at(self, array: Array) -> str:
        place = self.plan.places.get(array)
        return "" if place is None else f" @{self.place(place)}"

    def place(self, place: Place) -> str:
        return f"b{place.number}" if place.kind == "buffer" else str(place)

    def defined(self, item: object, over: Array | None = None) -> str:
        """A value at its definition: it comes to lie over what lay there. `over` is said elsewhere."""
        text = self.declared(item)
        if isinstance(item, Array):
            return text + self.put(item, over)
        return ", ".join(map(self.defined, item)) if isinstance(item, tuple) else text

    def put(self, array: Array, over: Array | None = None) -> str:
        place = self.plan.places.get(array)
        if place is None or place.kind != "buffer":
            return ""
        before = self.now.get(place.number)
        self.hold(place.number, array)
        return "" if before in (None, array.name) or (over is not None and before == over.name) else f" over {before}"

    def hold(self, buffer: int, array: Array) -> None:
        self.now[buffer] = array.name
        if array.name not in self.holds[buffer]:
            self.holds[buffer].append(array.name)

    def filling(self, array: Array) -> str:
        place = self.plan.places.get(array)
        return MAY_FILL if place is not None and place.kind == "slot" else ""

    def view(self, view: View, indices: Sequence[str] = (), strides: Sequence[Size] = ()) -> str:
        array = view.array
        if not indices and view == array.view:
            return array.name
        is_transposed = view.shape == array.shape[::-1] and view.strides == row_major(array.shape)[::-1]
        if not indices and not view.offset and is_transposed and len(view.shape) == 2:
            return f"{array}.T"
        return array.name + self.elements(view, indices, strides)

    def elements(self, view: View, indices: Sequence[str] = (), strides: Sequence[Size] = ()) -> str:
        moved = [index if s == ONE else f"{s}*({index})" for index, s in zip(indices, strides, strict=True)]
        offset = " + ".join([*map(str, view.offset), *moved]) or "0"
        return f"[{offset}; {','.join(map(str, view.strides))}]" if view.strides else f"[{offset}]"

    # Steps.

    def block(self, block: Block, indent: str) -> Iterator[str]:
        for step in block.steps:
            if (piece := self.plan.pieces.get(step)) is not None:
                near = [*(f"stack {n}" for n in piece.near), *(f"b{n}" for n in piece.local)]
                yield f"{indent}function of {len(piece.steps)} steps: {', '.join(near) or 'nothing'} near"
            yield from (indent + line for line in self.step(step))
            if step in self.plan.ahead:
                ahead = self.plan.ahead[step]
                where = f"{ahead.rows} rows above" if ahead.rows > 0 else "the row below"
                yield f"{indent}prefetch {where}, if a row has {ahead.least} to {ahead.most} bytes"
            if step in self.plan.releases:
                released = self.plan.releases[step]
                items = [f"b{n}" for n in released.buffers] + [f"stack {n}" for n in released.stacks]
                yield f"{indent}release {', '.join(items)}"
        for move in block.moves:
            if move.target.kind == "buffer":
                self.hold(move.target.number, move.array)
            before, after = self.place(move.source), self.place(move.target)
            if move.exchanges:
                yield f"{indent}exchange {before} and {after}, which has {move.array} then"
            else:
                yield f"{indent}copy {move.array} from {before} to {after}"
        for stack, source, target in block.stack_moves:
            yield f"{indent}move {stack} from stack {source} to stack {target}"

    def step(self, step: Step) -> Iterator[str]:
        if not step.text:
            yield from getattr(self, step.kind)(step)
            return
        roles = ROLES[step.__class__]
        shown = {name: self.named(getattr(step, name)) for name in roles["Reads"] + roles["Updates"]}
        shown |= {name: self.defined(getattr(step, name)) for name in roles["Defines"]}
        yield step.text.format_map(shown) + "".join(self.filling(v) for v in defines(step) if isinstance(v, Array))

    def compute(self, step: model.Compute) -> Iterator[str]:
        leaf = lambda instruction, args: step.operands[instruction.value].name
        shared, found = formulas(step.expression, leaf, range(len(step.results)))
        yield from shared
        yield from (f"{self.declared(r)} = {f}" for r, f in zip(step.results, found, strict=True))

    def guard(self, step: model.Guard) -> Iterator[str]:
        numbers = "" if step.found is None else f", found {step.found}, bound {step.bound}"
        yield f"guard {step.condition}: {step.status}{numbers}"

    def product(self, step: model.Product) -> Iterator[str]:
        packed = "" if step.packed is None else f" packed as {step.packed}"
        base = self.updated(step.base, step.result)
        order = " in order" if step.in_order else ""
        product = f"{self.view(step.a)} @ {self.view(step.b)}{packed}{order}{base}{self.filling(step.result)}"
        yield f"{self.defined(step.result, step.base)} = {product}"

    def columns(self, step: model.Columns) -> Iterator[str]:
        where = "" if all(size.is_known for size in step.view.shape) else ", if rows are short"
        yield f"{self.defined(step.result)} = columns of {self.view(step.view)}{where}"

    def cumulate(self, step: model.Cumulate) -> Iterator[str]:
        order = ", the last first" if step.reverse else ""
        total = "" if step.total == step.view.dtype else f", in {step.total}"
        across = "columns" if step.view.shape[2] != ONE else "positions"
        lanes = f", lanes along {across}{self.parts(step)}"
        given = f"{step.how}s along positions of {self.view(step.view)}{order}{total}{lanes}"
        yield f"{self.defined(step.result)} = {given}{self.filling(step.result)}"

    def transform(self, step: model.Transform) -> Iterator[str]:
        given = f"{step.how} of {step.n} numbers along positions of {self.view(step.view)}{self.parts(step)}"
        yield f"{self.defined(step.result)} = {given}{self.filling(step.result)}"

    def parts(self, step: Kernel | model.Cumulate | model.Transform) -> str:
        """Text of the parts of a step that threads share."""
        share = self.plan.shares.get(step)
        if share is None:
            return ""
        along = ",".join(map(str, share.axes))
        own = " with results of their own" if share.has_results else ""
        if share.at_run_time:
            return f", at most {share.parts} parts of {share.unit} positions or more along {along}{own}"
        return f", {share.parts} parts along {along}{own}"

    def factorise(self, step: model.Factorise) -> Iterator[str]:
        given = ", ".join(self.view(view) for view in (step.a, step.b) if view is not None)
        done, most = self.declared(step.done), "" if step.largest is None else f", {step.largest} rows at most"
        triangle = ""
        if step.triangle is not None:
            unit = " and ones on the diagonal" if step.triangle.unit_diagonal else ""
            triangle = f", by the {'lower' if step.triangle.lower else 'upper'} triangle{unit}"
        turned = ", transposed" if step.transposed else ""
        yield f"{self.defined(step.result)}; {done} = {step.how} of {given}{turned}{triangle}{most}"

    def outside(self, step: model.Outside) -> Iterator[str]:
        results = ", ".join(self.defined(r) for r in step.results)
        sizes = "".join(f"; {r} = its size of result {k}, axis {axis}" for r, k, axis in step.sizes)
        operands = ", ".join(map(self.named, step.operands))
        yield f"{results} = outside {step.node.op.name}({operands}){sizes}  # Python is called"

    def push(self, step: model.Push) -> Iterator[str]:
        slot = Place("slot", self.pushes[step])
        is_there = isinstance(step.row, View) and self.plan.places.get(step.row.array) == slot
        how = "made in its slot" if is_there else f"copied to slot {slot.number}{MAY_FILL}"
        yield f"{self.declared(step.result)} = push {step.stack}, {self.named(step.row)}, {how}"

    def write_row(self, step: model.WriteRow) -> Iterator[str]:
        how = {"store": "write", "add": "add to", "clear": "clear"}[step.how]
        grow = ", or one more" if step.grow else ""
        row = f"{step.index} of {step.stack}{grow}, {self.named(step.row)}"
        yield f"{self.declared(step.result)} = {how} row {row}"

    def new_stack(self, step: model.NewStack) -> Iterator[str]:
        yield f"{self.declared(step.result)} = new stack" + (f" of {step.size} rows" if step.size else "")

    def kernel(self, step: Kernel) -> Iterator[str]:
        def leaf(instruction: Instruction, args: Sequence[str]) -> str:
            if instruction.op == "scalar":
                return str(step.numbers[instruction.value])
            if instruction.op == "index":
                return f"#{instruction.value}"
            number, part = instruction.value
            operand = step.operands[number]
            text = self.view(operand.view, args, operand.gathered)
            if operand.columns is not None:
                text = f"({text} or {self.view(operand.columns)})"
            return text + (".real", ".imag")[part] if dtype_kind(operand.view.dtype) == "c" else text

        used = [o for write in step.writes for o in (*write.outputs, *write.indices)]
        used += [check.output for check in step.checks]
        shared, found = formulas(step.expression, leaf, used)
        vectors = self.plan.vectors.get(step)
        registers, form = ((), "") if vectors is None else (vectors.registers, _vectors(vectors))
        form = (" as a function" if step in self.plan.functions else "") + form
        yield f"kernel [{','.join(map(str, step.space))}]{form}{self.parts(step)}{self.tiled.get(step, '')} {{"
        yield from (f"  {line}" for line in shared)
        for k, write in enumerate(step.writes):
            yield f"  {self.write(write, found)}{', in registers' if k in registers else ''}"
        yield from (f"  check {found[check.output]}: {check.status}" for check in step.checks)
        yield "}"

    def write(self, write: Write, found: Sequence[str]) -> str:
        view, array = write.view, write.view.array
        values = self.named(tuple(found[o] for o in write.outputs))
        how = "" if write.how == "store" else f"{write.how} of "
        indices = [found[o] for o in write.indices]
        is_all = view == array.view or array.count == ONE
        where = "" if is_all else f" at {self.elements(view, indices, write.scattered)}"
        after = self.updated(write.base, array) + self.filling(array)
        return f"{self.defined(array, write.base)}{where} = {how}{values}{after}"

    def updated(self, base: Array | None, result: Array) -> str:
        if base is None:
            return ""
        places = self.plan.places
        if not places:
            return f", the rest as {base}"
        return f", updates {base} in place" if places[base] == places[result] else f", updates a copy of {base}"

    # Control.

    def loop(self, step: model.Loop) -> Iterator[str]:
        chunks = self.chunked.get(step)
        after = "" if chunks is None else "  # a chunk may end before an iteration"
        after += "" if chunks is None or not chunks.can_repeat else ", and be run again"
        at_most = "" if step.maximum is None else f", {step.maximum} at most"
        inline = ", elementary functions inline" if step in self.plan.inlined else ""
        inline += self.tiled.get(step, "")
        yield f"loop {step.number}, iteration {step.counter}{at_most}{inline} {{{after}"
        for c in step.carries:
            yield f"  carry {self.defined(c.inside)} = {c.init}, then {c.next}; at last {c.result}"
        if step.entry.moves:
            yield "  entry {"
            yield from self.block(step.entry, "    ")
            yield "  }"
        yield "  cond {"
        yield from self.block(step.condition, "    ")
        yield f"    yield {step.test}"
        yield "  }"
        yield "  body {"
        yield from self.block(step.body, "    ")
        yield f"    yield {', '.join(str(c.next) for c in step.carries)}"
        yield "  }"
        yield "}"
        for c in step.carries:
            if isinstance(c.result, Array):
                self.put(c.result)

    def branch(self, step: model.Branch) -> Iterator[str]:
        yield f"branch on {step.selector} {{"
        before = dict(self.now)
        for number, (block, outputs) in enumerate(zip(step.blocks, step.outputs, strict=True)):
            self.now = dict(before)
            yield f"  case {number} {{"
            yield from self.block(block, "    ")
            yield f"    yield {', '.join(map(str, outputs))}"
            yield "  }"
        yield f"}} : {', '.join(map(self.declared, step.results))}"
        for result in step.results:
            if isinstance(result, Array):
                self.put(result)


def _vectors(vectors: Vectors) -> str:
    """The text of a kernel's vector form."""
    text = {"points": ", without loops", "sections": ", cut into functions", "loops": ""}[vectors.style]
    if vectors.width > 1:
        text += f", vectors of {vectors.width}" + (f", {vectors.unroll} a turn" if vectors.unroll > 1 else "")
        text += ", the last one masked" if vectors.masks else ""
    for form in vectors.rows:
        if isinstance(form, FlatRows):
            text += f", {form.rows} rows end to end as {form.vectors} vectors of {form.width}"
        elif isinstance(form, RowsAcross):
            text += f", {form.width * form.together} rows side by side"
        else:
            text += f", {form.rows} short rows together"
    return text


def _tiled(plan: Plan) -> Iterator[tuple[Step, str]]:
    """The text of the tiles of each kernel or loop that runs tile by tile."""
    for step, tiles in plan.tiles.items():
        text = f", tiles of {tiles.points}"
        if isinstance(step, model.Loop):
            yield step, text
            continue
        for kernel, lag in zip(tiles.kernels, tiles.lags, strict=True):
            behind = f", {' + '.join(map(str, lag))} behind" if lag else ""
            yield kernel, f"{text}{' after the kernel above' if kernel is not step else ''}{behind}"
