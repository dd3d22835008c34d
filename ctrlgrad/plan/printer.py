"""Plans as text: steps over values, and behind each array where it lies."""

from __future__ import annotations

from collections.abc import Iterator

from ctrlgrad.plan.expression import Expression
from ctrlgrad.plan.model import (
    Array,
    Block,
    Branch,
    Compute,
    CopyStack,
    Factorise,
    FromStack,
    Guard,
    Kernel,
    Length,
    Load,
    Loop,
    NewStack,
    Outside,
    Pack,
    Plan,
    Pop,
    Product,
    Push,
    ReadRow,
    Stack,
    Step,
    ToStack,
    View,
    WriteRow,
)


def format_plan(plan: Plan) -> str:
    """The text of a plan."""
    return "\n".join(_Printer(plan).lines())


class _Printer:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def lines(self) -> Iterator[str]:
        plan = self.plan
        yield f"plan {plan.name}({', '.join(self.declared(a) for a in plan.arguments)}) {{"
        for register, argument, axis in plan.sizes:
            yield f"  {register} = size of argument {argument}, axis {axis}"
        for buffer in plan.buffers:
            kind = "" if buffer.result is None else f", result {buffer.result}"
            when = "" if buffer.is_known_at_entry else ", sized when it is needed"
            yield f"  buffer {buffer}: {buffer.count} x {buffer.dtype.name}{kind}{when}"
        for array, value in plan.constants:
            yield f"  {self.declared(array)} = constant of {value.size} elements"
        yield from self.block(plan.body, "  ")
        yield f"  return {', '.join(self.named(r) for r in plan.results)}"
        yield "}"

    def named(self, item: object) -> str:
        if isinstance(item, tuple):
            return " + i ".join(map(str, item)) if len(item) == 2 else ", ".join(map(str, item))
        if isinstance(item, View):
            return self.view(item)
        return str(item)

    def declared(self, item: object) -> str:
        """A value with its type and place."""
        if isinstance(item, Array):
            shape = ",".join(map(str, item.shape))
            return f"{item}: {item.dtype.name}[{shape}]{self.at(item)}"
        if isinstance(item, Stack):
            rows = self.plan.rows[item]
            shape = "?" if rows is None else ",".join(map(str, rows))
            handle = f" @stack {self.plan.handles[item]}" if item in self.plan.handles else ""
            return f"{item}: stack {item.dtype.name}[{shape}]{handle}"
        if isinstance(item, tuple):
            return self.named(item)
        return str(item)

    def at(self, array: Array) -> str:
        place = self.plan.places.get(array)
        return "" if place is None else f" @{f'b{place.number}' if place.kind == 'buffer' else place}"

    def view(self, view: View) -> str:
        if view == view.array.view:
            return str(view.array)
        offset = " + ".join(map(str, view.offset)) or "0"
        strides = ",".join(map(str, view.strides))
        return f"{view.array}[{offset}; {strides}]"

    def expression(self, expression: Expression, indent: str) -> Iterator[str]:
        for line in str(expression).splitlines():
            yield indent + line

    def block(self, block: Block, indent: str) -> Iterator[str]:
        for step in block.steps:
            yield from (indent + line for line in self.step(step))
            if released := self.plan.releases.get(step):
                names = [f"b{n}" for n in released.buffers] + [f"stack {n}" for n in released.stacks]
                yield f"{indent}release {', '.join(names)}"
        for move in block.moves:
            yield f"{indent}copy {move.array} from {move.source} to {move.target}"
        for stack, source, target in block.stack_moves:
            yield f"{indent}move {stack} from stack {source} to stack {target}"

    def step(self, step: Step) -> Iterator[str]:
        if isinstance(step, Compute):
            yield f"{', '.join(map(str, step.results))} = compute({', '.join(map(str, step.operands))})"
            yield from self.expression(step.expression, "    ")
        elif isinstance(step, Load):
            yield f"{self.named(step.results)} = load {self.view(step.view)}"
        elif isinstance(step, Kernel):
            operands = [self.view(o.view) + (" gathered" if o.gathered else "") for o in step.operands]
            inputs = ", ".join([*operands, *map(str, step.numbers)])
            yield f"kernel [{','.join(map(str, step.space))}] ({inputs})"
            yield from self.expression(step.expression, "    ")
            for w in step.writes:
                base = "" if w.base is None else f" over {w.base}{self.at(w.base)}"
                target = (
                    self.declared(w.view.array)
                    if w.view == w.view.array.view
                    else (f"{self.declared(w.view.array)} {self.view(w.view)}")
                )
                yield f"    {w.how} {', '.join(f'output {o}' for o in w.outputs)} -> {target}{base}"
            for check in step.checks:
                yield f"    check output {check.output}"
        elif isinstance(step, Guard):
            yield f"guard {step.condition}: {step.status}"
        elif isinstance(step, Product):
            base = "" if step.base is None else f" + {step.base}"
            packed = "" if step.packed is None else f" (packed as {step.packed})"
            yield f"{self.declared(step.result)} = {self.view(step.a)} @ {self.view(step.b)}{packed}{base}"
        elif isinstance(step, Pack):
            yield f"{self.declared(step.result)} = packed {self.view(step.view)}"
        elif isinstance(step, Factorise):
            operands = ", ".join(self.view(view) for view in (step.a, step.b) if view is not None)
            yield f"{self.declared(step.result)}, {step.done} = {step.how} of {operands}, {step.largest} rows at most"
        elif isinstance(step, Outside):
            results = ", ".join(self.declared(r) for r in step.results)
            yield f"{results} = outside {step.node.op.name}({', '.join(map(self.named, step.operands))})"
        elif isinstance(step, Push):
            yield f"{self.declared(step.result)} = push {step.stack}, {self.named(step.row)}"
        elif isinstance(step, Pop):
            yield f"{self.declared(step.result)}, {self.declared(step.row)} = pop {step.stack}"
        elif isinstance(step, ReadRow):
            yield f"{self.declared(step.row)} = row {step.index} of {step.stack}"
        elif isinstance(step, WriteRow):
            yield f"{self.declared(step.result)} = {step.how} row {step.index} of {step.stack}, {self.named(step.row)}"
        elif isinstance(step, Length):
            yield f"{step.result} = length of {step.stack}"
        elif isinstance(step, NewStack):
            yield f"{self.declared(step.result)} = new stack" + (f" of {step.size}" if step.size else "")
        elif isinstance(step, ToStack):
            yield f"{self.declared(step.result)} = stack of the rows of {self.view(step.rows)}"
        elif isinstance(step, FromStack):
            yield f"{self.declared(step.result)} = all rows of {step.stack}"
        elif isinstance(step, CopyStack):
            yield f"{self.declared(step.result)} = copy of {step.stack}"
        elif isinstance(step, Loop):
            yield f"loop {step.number}, iteration {step.counter} {{"
            for c in step.carries:
                yield f"    {self.declared(c.inside)} starts as {c.init}, goes on as {c.next}, ends as {c.result}"
            yield from self.block(step.entry, "    ")
            yield "  while"
            yield from self.block(step.condition, "    ")
            yield f"  {step.test}:"
            yield from self.block(step.body, "    ")
            yield "}"
        else:
            assert isinstance(step, Branch)
            yield f"branch on {step.selector}: {', '.join(self.declared(r) for r in step.results)} {{"
            for block, outputs in zip(step.blocks, step.outputs, strict=True):
                yield "  case"
                yield from self.block(block, "    ")
                yield f"    yield {', '.join(map(str, outputs))}"
            yield "}"
