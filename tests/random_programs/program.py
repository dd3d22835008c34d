"""A random program as data.

Every name stands for one value. Operands are names or Python literals, as text. A line has two forms, the one with
ctrlgrad's functions and the plain one; a construct has none: `source` writes both forms of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from random_programs.kinds import Kind, Unknown, Variable


@dataclass(frozen=True)
class Line:
    """`target = expression`."""

    target: str
    traced: str
    plain: str
    operation: str


@dataclass(frozen=True)
class Block:
    """Statements, and the operands that they give."""

    statements: tuple[Statement, ...]
    results: tuple[str, ...]


@dataclass(frozen=True)
class Structure:
    """Form of several values that travel as one pytree."""

    form: Literal["tuple", "dict", "nested", "bare"] = "tuple"


@dataclass(frozen=True)
class Carried:
    """A value of a loop's carry: its name inside, what it starts from (in each form), its name afterwards."""

    inner: str
    start: str
    out: str
    plain_start: str | None = None


@dataclass(frozen=True)
class While:
    carry: tuple[Carried, ...]
    structure: Structure
    condition: Block
    body: Block
    maximum: int | None = None


@dataclass(frozen=True)
class For:
    index: str
    lower: str
    upper: str
    carry: tuple[Carried, ...]
    structure: Structure
    body: Block
    # Purpose, where it is not plain.
    note: str = ""


@dataclass(frozen=True)
class Row:
    """A row of a tensor, one per iteration: its name, and the tensor."""

    inner: str
    rows: str


@dataclass(frozen=True)
class Collected:
    """Rows that a scan collects: the name, and the shape of a row as text, for a scan without iterations."""

    out: str
    row_shape: str


@dataclass(frozen=True)
class Scan:
    """The body's results: the carry, then what is collected. `length`: an operand where there are no rows."""

    form: Literal["scan", "map", "foldl", "foldr"]
    rows: tuple[Row, ...]
    length: str | None
    reverse: bool
    carry: tuple[Carried, ...]
    structure: Structure
    collected: tuple[Collected, ...]
    body: Block
    # Further arguments, as text, that change nothing but how it runs.
    more: str = ""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a branch or function, and what it is called with; `mapped`: along an axis, row by row."""

    inner: str
    operand: str
    mapped: bool = False
    axis: int = 0


@dataclass(frozen=True)
class Branch:
    form: Literal["cond", "switch", "case"]
    # One for a cond or switch; for a case one per block but the last.
    selectors: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    structure: Structure
    blocks: tuple[Block, ...]
    outs: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True)
class Call:
    """`grad`: its results are the gradients of the block's one result, one for each parameter.

    `jvp`, `linearize`: its one result is the derivative of the block's one result along `directions`.
    """

    form: Literal["plain", "function", "checkpoint", "custom_jvp", "custom_vjp", "grad", "jvp", "linearize", "vmap"]
    parameters: tuple[Parameter, ...]
    structure: Structure
    block: Block
    outs: tuple[str, ...]
    # Of a vmap: what a row of each result is, as text, for the case that there is none.
    rows: tuple[str, ...] = ()
    # Where the rows of each result lie.
    out_axes: tuple[int, ...] = ()
    # Of a derivative: what it may use from outside.
    visible: tuple[str, ...] = ()
    directions: tuple[str, ...] = ()
    # Of a checkpoint: the name of its policy.
    policy: str = ""
    # Of a custom rule: how it takes the function's derivative.
    rule: Literal["later", "kept", "pushed", "linearized", "pulled twice"] = "later"


Statement = Line | While | For | Scan | Branch | Call


@dataclass(frozen=True)
class Argument:
    """A parameter of the program with its value."""

    variable: Variable
    value: np.ndarray

    @property
    def spec(self) -> tuple[tuple[int | None, ...], np.dtype]:
        """Its declared shape and dtype."""
        dims = getattr(self.variable.kind, "dims", ())
        return tuple(None if isinstance(d, Unknown) else d for d in dims), self.value.dtype


@dataclass(frozen=True)
class Program:
    arguments: tuple[Argument, ...]
    body: Block
    result_kinds: tuple[Kind, ...]
    # True if it cuts gradients, which finite differences see through.
    cuts: bool
    # True if its derivatives pass through numbers that round coarsely.
    coarse: bool = False
    # True if it is traced with Python's own control flow, by AutoGraph.
    python: bool = False

    @property
    def is_reverse_only(self) -> bool:
        """Return true if a function has a rule for reverse mode only."""
        return "call custom_vjp" in self.contents()

    @property
    def has_unknown_sizes(self) -> bool:
        return any(None in argument.spec[0] for argument in self.arguments)

    def contents(self) -> Counter[str]:
        """Count of each construct and operation, and the depth of nesting ("depth")."""
        found: Counter[str] = Counter()
        for statement, depth in _walk(self.body, 0):
            found.update([_label(statement), *_traits(statement)])
            found["depth"] = max(found["depth"], depth)
        if self.python:
            found["Python's control flow"] += 1
        if any(0 in argument.value.shape for argument in self.arguments):
            found["axis without elements"] += 1
        if any(argument.value.size >= 64 for argument in self.arguments):
            found["large array"] += 1
        elif any(max(argument.value.shape, default=0) > 8 for argument in self.arguments):
            found["long axis"] += 1
        return found


def blocks_of(statement: Statement) -> tuple[Block, ...]:
    if isinstance(statement, Line):
        return ()
    if isinstance(statement, While):
        return (statement.condition, statement.body)
    if isinstance(statement, For | Scan):
        return (statement.body,)
    return statement.blocks if isinstance(statement, Branch) else (statement.block,)


def _walk(block: Block, depth: int) -> Iterator[tuple[Statement, int]]:
    for statement in block.statements:
        blocks = blocks_of(statement)
        yield statement, depth + bool(blocks)
        for inner in blocks:
            yield from _walk(inner, depth + 1)


def _label(statement: Statement) -> str:
    if isinstance(statement, Line):
        return statement.operation
    if isinstance(statement, Scan):
        return f"{statement.form} reversed" if statement.reverse and statement.form == "scan" else statement.form
    if isinstance(statement, Branch):
        return statement.form
    if isinstance(statement, Call):
        return f"call {statement.form}"
    return "while_loop" if isinstance(statement, While) else "fori_loop"


def _traits(statement: Statement) -> Iterator[str]:
    """Special features of the program."""
    if isinstance(statement, Scan) and statement.more:
        yield "rows by several"
    if isinstance(statement, While | For | Scan):
        if any(c.inner == r for c, r in zip(statement.carry, statement.body.results, strict=False)):
            yield "carry passed through"
        if isinstance(statement, While) and statement.maximum is not None:
            yield "maximum_iterations"
    elif isinstance(statement, Branch):
        blocks = statement.blocks
        if len(blocks) == 1:
            yield "switch of one branch"
        if any(not block.statements for block in blocks):
            yield "empty branch"
        if len(blocks) > 1 and all(block == blocks[0] for block in blocks):
            yield "identical branches"
        if any(not any(result[0].islower() for result in block.results) for block in blocks):
            yield "constant branch"
    if isinstance(statement, Call):
        if statement.policy:
            yield "checkpoint by a policy"
        if any(p.axis for p in statement.parameters):
            yield "vmap along another axis"
        if any(statement.out_axes):
            yield "vmap to another axis"
        if statement.form in ("custom_jvp", "custom_vjp"):
            yield f"rule: {statement.rule}"
    if isinstance(statement, Branch | For) and statement.note:
        yield statement.note
