"""The plan: what a compiling engine does for a whole graph, as data.

A plan is a tree of blocks of steps over *values*: registers (numbers), arrays (dense, in C order) and stacks. Every
value is defined by exactly one step and never changes: an update makes a new array of an old one. Where values lie in
memory, and so who overwrites whom, is said apart from the steps, by `Plan.places`: two arrays may share a buffer if one
is dead before the other is written. So a step states which *value* it reads, the placement where that is to be found,
and `ctrlgrad.plan.checker` proves that what lies there is what the step wants.

Views (slices, transposes, broadcasts, reversals) are not computed: a step reads an array through a `View`. Values and
views are in `values`, kernels in `kernels`, which are part of this module for those who import it.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal

import numpy as np

from ctrlgrad.ir import Node
from ctrlgrad.ir.attributes import Triangle
from ctrlgrad.plan.expression import Expression
from ctrlgrad.plan.kernels import Cascade as Cascade
from ctrlgrad.plan.kernels import Check as Check
from ctrlgrad.plan.kernels import How as How
from ctrlgrad.plan.kernels import Kernel as Kernel
from ctrlgrad.plan.kernels import Operand as Operand
from ctrlgrad.plan.kernels import Write as Write
from ctrlgrad.plan.places import Buffer as Buffer
from ctrlgrad.plan.places import Place as Place
from ctrlgrad.plan.places import Release as Release
from ctrlgrad.plan.sizes import ZERO, Size, Sizes
from ctrlgrad.plan.values import Array as Array
from ctrlgrad.plan.values import Numbers as Numbers
from ctrlgrad.plan.values import Register as Register
from ctrlgrad.plan.values import Stack as Stack
from ctrlgrad.plan.values import Value as Value
from ctrlgrad.plan.values import View as View
from ctrlgrad.records import record


@record(eq=False)
class Compute:
    """Numbers from numbers. `scalar` leaves of the expression are positions in `operands`."""

    expression: Expression
    operands: tuple[Register, ...]
    results: tuple[Register, ...]


@record(eq=False)
class Load:
    """The one element of a view (two registers for a complex one)."""

    view: View
    results: Numbers


@record
class Site:
    """A place in the user's code that may fail."""

    node: Node
    axis: int = 0


# What a plan takes for granted, until a run shows that it is not so: that sizes which come together are equal; that the
# rows of a stack have one shape.
Assumption = Literal["equal", "rows"]
GuardStatus = Literal["index", "size", "iterations", "twice", "empty", "value", "equal", "rows"]


@record(eq=False)
class Guard:
    """Registers that must hold for the run to go on: `condition` true, else the failure of `site`.

    Where an `Assumption` does not hold, the graph needs another plan; all else is an error.
    """

    condition: Register
    status: GuardStatus
    site: int
    found: Register | None = None
    bound: Size = ZERO


@record(eq=False)
class Product:
    """`result = a @ b` (+ `base`): matrices along the last two axes, the axes before them equal batches."""

    result: Array
    a: View
    b: View
    base: Array | None = None
    # The right side as `Pack` has laid it out.
    packed: Array | None = None
    node: Node | None = None


@record(eq=False)
class Pack:
    """The right side of products, laid out as they read it fastest, before the loops that leave it as it is."""

    result: Array
    view: View


@record(eq=False)
class Columns:
    """A matrix of short rows, laid out column after column, before the loops that leave it as it is: kernels that
    reduce its rows take them side by side. Longer rows, and a matrix that has more elements than the result, are not
    laid out: those kernels read it as it is.
    """

    result: Array
    view: View


@record(eq=False)
class Factorise:
    """Factors of matrices along the last two axes, and what they are for; the axes before are equal batches.

    "solve": x with a @ x = b. "triangular_solve": the same by a `triangle` of a. "cholesky": the lower factor.
    "pivots": the diagonal of U in LU, the first element times the sign of the exchanges; zeros for a singular matrix.
    `done` is false, and the result means nothing, where a matrix has no answer or more than `largest` rows.
    """

    how: Literal["solve", "triangular_solve", "cholesky", "pivots"]
    result: Array
    a: View
    b: View | None
    done: Register
    # None: matrices of any size.
    largest: int | None
    node: Node
    triangle: Triangle | None = None


@record(eq=False)
class Outside:
    """An op that the reference engine's kernel computes; sizes that only it knows come back as registers."""

    node: Node
    operands: tuple[tuple[Register, ...] | View | Stack, ...]
    results: tuple[tuple[Register, ...] | Array | Stack, ...]
    # Registers of sizes of the results: (result, axis) each.
    sizes: tuple[tuple[Register, int, int], ...] = ()

    @property
    def consumed(self) -> tuple[int, ...]:
        """The stack operands that it may change in place: they become the first results."""
        return (0,) if self.node.op.updates and isinstance(self.operands[0], Stack) else ()


@record(eq=False)
class Push:
    """A row on top of a stack; on one of elements a run of them, in one piece."""

    stack: Stack
    row: View | Numbers
    result: Stack
    node: Node


@record(eq=False)
class Pop:
    """The last row of a stack, read in place: the row lies there until the stack is popped again.

    Off a stack of elements the run that was pushed last, of as many elements as the row has.
    """

    stack: Stack
    result: Stack
    row: Array | Numbers
    node: Node


@record(eq=False)
class ReadRow:
    """The row at an index, copied."""

    stack: Stack
    index: Register
    row: Array | Numbers
    site: int


@record(eq=False)
class WriteRow:
    """A stack with another row at an index; "add" adds to the row; `grow` appends at the length."""

    stack: Stack
    index: Register
    row: View | Numbers
    result: Stack
    how: Literal["store", "add"]
    grow: bool
    once: bool
    site: int


@record(eq=False)
class Length:
    """How many rows a stack has, or how many elements, where it holds those."""

    stack: Stack
    result: Register


@record(eq=False)
class NewStack:
    """A stack of `size` rows that were never written."""

    result: Stack
    size: Register | None
    node: Node


@record(eq=False)
class ToStack:
    """A stack of the rows of an array, the elements of which lie side by side; they are copied."""

    rows: View
    result: Stack
    node: Node


@record(eq=False)
class FromStack:
    """All rows of a stack, or all elements, the first first, as one array: read in place, if nobody needs the stack
    more, or copied."""

    stack: Stack
    result: Array
    node: Node


@record(eq=False)
class CopyStack:
    """Another stack of the same rows: the old one is needed after an update of the new one."""

    stack: Stack
    result: Stack


@record
class Carry:
    """One carried value: its start, its value inside an iteration, the next one, and the last."""

    init: Value
    inside: Value
    next: Value
    result: Value


@record
class Move:
    """A copy between places when a block ends: `array`, which lies in `source`, also lies in `target` from now on.

    With `exchanges` nothing is copied: the two buffers, sized when they are needed, exchange their memory.
    """

    array: Array
    source: Place
    target: Place
    exchanges: bool = False


@record(eq=False)
class Block:
    """Steps in order, then moves in order: what the block gives comes to where it is wanted."""

    steps: tuple[Step, ...]
    moves: tuple[Move, ...] = ()
    # Stacks likewise: (version, its handle, the handle that is wanted).
    stack_moves: tuple[tuple[Stack, int, int], ...] = ()


@record(eq=False)
class Loop:
    """Runs `body` as long as `test` holds after `condition`."""

    carries: tuple[Carry, ...]
    condition: Block
    test: Register
    body: Block
    # How many iterations have run; inside, the number of this one.
    counter: Register
    maximum: int | None
    node: Node
    number: int
    # What the carries start with, brought to their places before the first iteration.
    entry: Block = Block(())


@record(eq=False)
class Branch:
    """Runs block number `selector` (clamped); its `outputs` become the results."""

    selector: Register
    blocks: tuple[Block, ...]
    outputs: tuple[tuple[Value, ...], ...]
    results: tuple[Value, ...]
    node: Node


Step = (
    Compute
    | Load
    | Kernel
    | Cascade
    | Guard
    | Product
    | Pack
    | Columns
    | Factorise
    | Outside
    | Push
    | Pop
    | ReadRow
    | WriteRow
    | Length
    | NewStack
    | ToStack
    | FromStack
    | CopyStack
    | Loop
    | Branch
)


@record(eq=False)
class Plan:
    """A whole graph. `arguments` and `results` are in the graph's order (a complex number is two registers)."""

    name: str
    arguments: tuple[Numbers | Array | Stack, ...]
    # Registers of the sizes of array arguments: (register, argument, axis), each size once.
    sizes: tuple[tuple[Register, int, int], ...]
    body: Block
    results: tuple[Numbers | Array | Stack, ...]
    constants: tuple[tuple[Array, np.ndarray], ...]
    sites: tuple[Site, ...]
    # The shape of each stack's rows; None where they may differ.
    rows: dict[Stack, Sizes | None]
    buffers: tuple[Buffer, ...] = ()
    places: dict[Array, Place] = field(default_factory=dict)
    # The handle of each stack version; versions of one handle share memory.
    handles: dict[Stack, int] = field(default_factory=dict)
    # What each step is the last to use.
    releases: dict[Step, Release] = field(default_factory=dict)
