"""Long plans as several functions: LLVM's time grows with the square of a function's text, so each has a bounded one.

A function of steps in a row takes the frame and the counters of the loops around it. It gives whether the run has
ended. Buffers it finds by the frame, in whose words arguments, carried numbers and numbers of other functions lie, too:
a long plan may have more of them than a thread's stack has room for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ctrlgrad.engines.native.text import Writer
from ctrlgrad.plan.effects import binds, blocks_of, defines, reads, walk, yields
from ctrlgrad.plan.model import Array, Block, Compute, Kernel, Loop, Plan, Register, Step

# The most weight of a plan that is one function, and of a function of another plan. A weight is about a line of text.
WHOLE, PIECE = 6000, 1500


def weight_of(step: Step) -> int:
    """About how many lines of text a step becomes."""
    found = 0
    if isinstance(step, Kernel):
        found = 20 + 2 * len(step.expression.instructions) + 4 * (len(step.operands) + len(step.writes))
    elif isinstance(step, Compute):
        found = len(step.expression.instructions)
    elif isinstance(step, Loop):
        found = 40 + 4 * len(step.carries)
    else:
        found = 20
    return found + sum(weight_of(inner) for block in blocks_of(step) for inner in block.steps)


def is_cut(plan: Plan) -> bool:
    """Return true for a plan that becomes several functions."""
    return sum(map(weight_of, plan.body.steps)) > WHOLE


def in_pieces(step: Step, plan: Plan) -> bool:
    """Return true for a step with blocks that becomes several functions, not a part of one."""
    return is_cut(plan) and weight_of(step) > PIECE


def exchanged(plan: Plan) -> int:
    """The most numbers that the functions of a plan may leave in the frame: all that its steps define."""
    return len({v.name for step in walk(plan.body) for v in (*defines(step), *binds(step)) if isinstance(v, Register)})


class Piece:
    """A function of some steps of a plan, while it is written, and its call."""

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


def touched(plan: Plan, block: Block) -> Counter[int]:
    """Count the uses of each buffer in a block, with the blocks and moves inside it."""
    found: Counter[int] = Counter()

    def note(values: Iterable[object]) -> None:
        for value in values:
            if isinstance(value, Array) and value in plan.places and plan.places[value].kind == "buffer":
                found[plan.places[value].number] += 1

    def note_moves(block: Block) -> None:
        found.update(p.number for m in block.moves for p in (m.source, m.target) if p.kind == "buffer")

    note_moves(block)
    for step in block.steps:
        note((*reads(step), *defines(step)))
        note(yields(step))
        if isinstance(step, Loop):
            note(c.inside for c in step.carries)
            note_moves(step.entry)
        for inner in blocks_of(step):
            found.update(touched(plan, inner))
    return found
