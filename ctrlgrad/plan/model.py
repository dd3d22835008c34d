"""The plan: what a compiling engine does for a whole graph, as data.

A plan is a tree of blocks of steps over *values*: registers (numbers), arrays (dense, in C order) and stacks. Every
value is defined by exactly one step and never changes: an update makes a new array of an old one. Where values lie in
memory, and so who overwrites whom, is said apart from the steps, by `Plan.places`: two arrays may share a buffer if one
is dead before the other is written. So a step states which *value* it reads, the placement where that is to be found,
and `ctrlgrad.plan.checker` proves that what lies there is what the step wants.

Views (slices, transposes, broadcasts, reversals) are not computed: a step reads an array through a `View`.

Each field of a step declares its role. What a step reads and defines (`effects`), which methods of printers, checkers
and engines it goes to (`Step.kind`), and for most steps its text follow from its declaration:

Reads       values that the step needs; of a `Size`, the registers that it is made of
Updates     a value that the step needs and makes another one of: the first value that the same class defines
Defines     values that there are from now on, for the steps after it
Attribute   all else
Parts       records with roles of their own (`@part`)
Runs        blocks inside the step
Binds       values that there are in these blocks alone
Yields      values that these blocks end with
"""

from __future__ import annotations

import re
from dataclasses import Field, field, fields
from typing import Annotated, Any, ClassVar, Literal, TypeVar, dataclass_transform

import numpy as np

from ctrlgrad.ir import Node
from ctrlgrad.ir.attributes import Triangle
from ctrlgrad.plan.expression import Expression
from ctrlgrad.plan.places import Buffer as Buffer
from ctrlgrad.plan.places import Place as Place
from ctrlgrad.plan.places import Release as Release
from ctrlgrad.plan.sizes import ONE, ZERO, Size, Sizes, product, row_major
from ctrlgrad.records import record

# Values that steps read and define: registers, arrays, stacks, and views of arrays.


@record
class Register:
    """A real number, or a bool. A complex number is two of them."""

    name: str
    dtype: np.dtype

    def __hash__(self) -> int:
        return hash(self.name)  # a plan has one value of a name; all that is told of it would cost more to look at

    def __str__(self) -> str:
        return self.name


@record
class Array:
    """A dense array in C order."""

    name: str
    dtype: np.dtype
    shape: Sizes

    def __hash__(self) -> int:
        return hash(self.name)  # a plan has one value of a name; all that is told of it would cost more to look at

    @property
    def count(self) -> Size:
        return product(self.shape)

    @property
    def view(self) -> View:
        """All of it."""
        return View(self, (), self.shape, row_major(self.shape))

    def __str__(self) -> str:
        return self.name


@record
class View:
    """Elements of an array: those at the sum of `offset` and of position times stride along each axis, in elements.

    A stride of 0 repeats, a negative one goes backwards.
    """

    array: Array
    offset: tuple[Size, ...]
    shape: Sizes
    strides: Sizes

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    @property
    def is_dense(self) -> bool:
        """True if the elements are contiguous in C order."""
        expected = row_major(self.shape)
        return all(s == e or size == ONE for s, e, size in zip(self.strides, expected, self.shape, strict=True))

    @property
    def is_whole(self) -> bool:
        """True if the view is all of the array, in its order."""
        return not self.offset and self.is_dense and product(self.shape) == self.array.count


# Content of a stack: rows of one shape; or, of rows whose sizes differ, their elements end to end, or their sizes along
# one axis.
Holds = Literal["rows", "elements", "sizes"]


@record
class Stack:
    """A version of a run-time list of rows of one dtype.

    Of rows whose sizes differ there are several: one of elements, on which a row is pushed, and off which it is taken,
    as a run of numbers, and one of sizes for each axis along which they differ.
    """

    name: str
    dtype: np.dtype
    holds: Holds = "rows"

    def __hash__(self) -> int:
        return hash(self.name)  # a plan has one value of a name; all that is told of it would cost more to look at

    def __str__(self) -> str:
        return self.name


Value = Register | Array | Stack
Numbers = tuple[Register, ...]


Class = TypeVar("Class", bound=type)
T = TypeVar("T")
Reads = Annotated[T, "reads"]
Updates = Annotated[T, "updates"]
Defines = Annotated[T, "defines"]
Attribute = Annotated[T, "attribute"]
Parts = Annotated[T, "parts"]
Runs = Annotated[T, "runs"]
Binds = Annotated[T, "binds"]
Yields = Annotated[T, "yields"]

ROLES: dict[type, dict[str, tuple[str, ...]]] = {}
"""Of each class of steps and of parts, the names of its fields by role."""

STEPS: list[type[Step]] = []
"""The classes of steps."""


def _with_roles(cls: Any) -> Any:
    names: dict[str, tuple[str, ...]] = dict.fromkeys(
        ("Reads", "Updates", "Defines", "Attribute", "Parts", "Runs", "Binds", "Yields"), ()
    )
    for f in fields(cls):
        role = str(f.type).partition("[")[0]
        if role not in names:
            raise TypeError(f"{cls.__name__}.{f.name}: {f.type} is no role, expected one of {', '.join(names)}")
        names[role] += (f.name,)
    ROLES[cls] = names
    return cls


@dataclass_transform(frozen_default=True, field_specifiers=(field, Field))
def part(cls: Class) -> Class:
    """A record that is a part of steps, each field with a role."""
    return _with_roles(record(cls))  # type: ignore[no-any-return]


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field, Field))
def step(cls: Class) -> Class:
    """A class of steps, each field with a role. A step equals itself only."""
    made = _with_roles(record(eq=False)(cls))
    made.kind = re.sub("(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
    STEPS.append(made)
    return made  # type: ignore[no-any-return]


class Step:
    """One instruction of a plan. The slots keep what `effects` has found out about it."""

    __slots__ = ("_deep_reads", "_defines", "_numbers_of", "_reads", "_updates")

    # By what name printers, checkers and engines have a method for it: that of the class, as `copy_stack`.
    kind: ClassVar[str]
    # Its text, where that follows from its fields alone.
    text: ClassVar[str] = ""


@step
class Compute(Step):
    """Numbers from numbers. `scalar` leaves of the expression are positions in `operands`."""

    expression: Attribute[Expression]
    operands: Reads[tuple[Register, ...]]
    results: Defines[tuple[Register, ...]]


@step
class Load(Step):
    """The one element of a view (two registers for a complex one)."""

    view: Reads[View]
    results: Defines[Numbers]
    text = "{results} = load {view}"


@record
class Site:
    """A place in the user's code that may fail."""

    node: Node
    axis: int = 0


# Assumptions of a plan, until a run refutes them: sizes that come together are equal; the rows of a stack have one
# shape.
Assumption = Literal["equal", "rows"]
GuardStatus = Literal["index", "size", "iterations", "twice", "empty", "value", "equal", "rows"]


@step
class Guard(Step):
    """Registers that must hold for the run to go on: `condition` true, else the failure of `site`.

    Where an `Assumption` does not hold, the graph needs another plan; all else is an error.
    """

    condition: Reads[Register]
    status: Attribute[GuardStatus]
    site: Attribute[int]
    found: Reads[Register | None] = None
    bound: Reads[Size] = ZERO


@part
class Operand:
    """A read of a kernel: a view over the kernel's space, further moved by index instructions.

    A `load` instruction with arguments reads at the view's position plus each argument times its stride in `gathered`.
    `value` of a load of a complex array is (operand, 0 for the real and 1 for the imaginary part).
    """

    view: Reads[View]
    gathered: Reads[Sizes] = ()
    # The same elements as `Columns` has laid them out, of use where that has.
    columns: Reads[View | None] = None


How = Literal["store", "sum", "dot", "product", "max", "min", "argmax", "argmin"]


@part
class Write:
    """A write of a kernel at each point of its space: outputs of its expression (two for a complex array).

    `how` is "store", or the reduction over the axes along which the view's stride is 0: "sum", "product", "max", "min";
    "dot", the sum of the products of two outputs, each product rounded once with the sum; "argmax", "argmin", the least
    of two outputs' second where the first is the extreme, along the innermost axes, without base. All elements of the
    array that are not written are those of `base`; without a base they are undefined. A sum without base starts at 0.
    With `scattered` strides, the view is moved by the outputs called `indices`; "sum" then adds up at equal places.
    """

    view: Defines[View]
    outputs: Attribute[tuple[int, ...]]
    how: Attribute[How] = "store"
    base: Updates[Array | None] = None
    indices: Attribute[tuple[int, ...]] = ()
    scattered: Reads[Sizes] = ()


@part
class Check:
    """An output of an expression that must be true; `found` and `bound` are outputs or registers for the message."""

    output: Attribute[int]
    site: Attribute[int]
    found: Attribute[int]
    bound: Reads[Size]
    status: Attribute[Literal["index", "value"]] = "index"


@step
class Kernel(Step):
    """A nest of loops over `space` that evaluates one expression at each point."""

    space: Reads[Sizes]
    operands: Parts[tuple[Operand, ...]]
    numbers: Reads[tuple[Register, ...]]
    expression: Attribute[Expression]
    writes: Parts[tuple[Write, ...]]
    # Outputs of the expression that must be true everywhere, and what failed otherwise.
    checks: Parts[tuple[Check, ...]] = ()
    # Where it comes from, for reports.
    nodes: Attribute[tuple[Node, ...]] = ()


@step
class Product(Step):
    """`result = a @ b` (+ `base`): matrices along the last two axes, the axes before them equal batches.

    `in_order`: the bits of an element do not depend on where the rows of `a` are cut, nor, with a base, on where its
    columns are.
    """

    result: Defines[Array]
    a: Reads[View]
    b: Reads[View]
    base: Updates[Array | None] = None
    # The right side as `Pack` has laid it out.
    packed: Reads[Array | None] = None
    in_order: Attribute[bool] = False
    node: Attribute[Node | None] = None


@step
class Pack(Step):
    """The right side of products, laid out as they read it fastest, before the loops that leave it as it is."""

    result: Defines[Array]
    view: Reads[View]
    text = "{result} = pack {view}"


@step
class Columns(Step):
    """A matrix of short rows, laid out column after column, before the loops that leave it as it is: kernels that
    reduce its rows take them side by side. Longer rows, and a matrix that has more elements than the result, are not
    laid out: those kernels read it as it is.
    """

    result: Defines[Array]
    view: Reads[View]


@step
class Cumulate(Step):
    """Sums or products of the elements of a dense view up to each one along the second of three axes: rows, positions,
    columns. With `reverse` they begin at the last position. Totals are of dtype `total` and rounded where they are
    written."""

    how: Attribute[Literal["sum", "product"]]
    result: Defines[Array]
    view: Reads[View]
    total: Attribute[np.dtype]
    reverse: Attribute[bool]


Spectrum = Literal["fft", "inverse_fft", "rfft", "irfft"]


def points_of(how: Spectrum, n: int) -> int:
    """Complex numbers that a transform of size n goes through: half as many as an even number of real ones."""
    return n // 2 if how in ("rfft", "irfft") and n % 2 == 0 else n


@step
class Transform(Step):
    """Discrete Fourier transforms of `n` numbers, without a factor, along the second of three axes of a dense view.

    "rfft" gives the first n // 2 + 1 elements of the spectrum of real numbers, and "irfft" takes them.
    """

    how: Attribute[Spectrum]
    result: Defines[Array]
    view: Reads[View]
    n: Attribute[int]


@step
class Factorise(Step):
    """Factors of matrices along the last two axes, and what they are for; the axes before are equal batches.

    "solve": x with a @ x = b. "lu": factors of a for several such systems, `lu_elements` real numbers. "lu_solved": the
    x that factors give for b; with `transposed`, that of the transposed matrix. "triangular_solve": the same by a
    `triangle` of a. "cholesky": the lower factor.
    "pivots": the diagonal of U in LU, the first element times the sign of the exchanges; zeros for a singular matrix.
    "orthonormal": Q of QR. "eigh" of symmetric matrices and "svd": the vectors (left above right ones) and below them
    the row of values; or that row alone, where the result has no more rows.
    `done` is false, and the result means nothing, where a matrix has no answer or more than `largest` columns.
    """

    how: Attribute[
        Literal["solve", "lu", "lu_solved", "triangular_solve", "cholesky", "pivots", "orthonormal", "eigh", "svd"]
    ]
    result: Defines[Array]
    a: Reads[View]
    b: Reads[View | None]
    done: Defines[Register]
    # None: matrices of any size.
    largest: Attribute[int | None]
    node: Attribute[Node]
    triangle: Attribute[Triangle | None] = None
    transposed: Attribute[bool] = False


# Columns to which the rows of factors are filled up: a multiple of the lanes of each vector.
LU_COLUMNS = 16


def lu_elements(n: int, dtype: np.dtype) -> int:
    """Real numbers that hold the factors of an n x n matrix: its planes, and the numbers of its rows."""
    planes = 3 if dtype.kind == "c" else 1
    return planes * n * (-(-n // LU_COLUMNS) * LU_COLUMNS) + 2 * n


@step
class Outside(Step):
    """An op that the reference engine's kernel computes; sizes that only it knows come back as registers."""

    node: Attribute[Node]
    operands: Reads[tuple[tuple[Register, ...] | View | Stack, ...]]
    results: Defines[tuple[tuple[Register, ...] | Array | Stack, ...]]
    # Registers of sizes of the results: (result, axis) each.
    sizes: Defines[tuple[tuple[Register, int, int], ...]] = ()

    @property
    def consumed(self) -> tuple[int, ...]:
        """The stack operands that it may change in place: they become the first results."""
        return (0,) if self.node.op.updates and isinstance(self.operands[0], Stack) else ()


@step
class Push(Step):
    """A row on top of a stack; on one of elements a run of them, in one piece."""

    stack: Updates[Stack]
    row: Reads[View | Numbers]
    result: Defines[Stack]
    node: Attribute[Node]


@step
class Pop(Step):
    """The last row of a stack, read in place: the row lies there until the stack is popped again.

    Off a stack of elements the run that was pushed last, of as many elements as the row has.
    """

    stack: Updates[Stack]
    result: Defines[Stack]
    row: Defines[Array | Numbers]
    node: Attribute[Node]
    text = "{result}; {row} = pop {stack}  # an emptied block asks for the one below"


@step
class ReadRow(Step):
    """The row at an index, copied."""

    stack: Reads[Stack]
    index: Reads[Register]
    row: Defines[Array | Numbers]
    site: Attribute[int]
    text = "{row} = row {index} of {stack}"


@step
class WriteRow(Step):
    """A stack with another row at an index; "add" adds to the row; `grow` appends at the length.

    "clear" leaves a slot that was never written: the row that it is given are zeros.
    """

    stack: Updates[Stack]
    index: Reads[Register]
    row: Reads[View | Numbers]
    result: Defines[Stack]
    how: Attribute[Literal["store", "add", "clear"]]
    grow: Attribute[bool]
    once: Attribute[bool]
    site: Attribute[int]


@step
class Length(Step):
    """Number of rows of a stack, or of elements, where it holds those."""

    stack: Reads[Stack]
    result: Defines[Register]
    text = "{result} = length of {stack}"


@step
class NewStack(Step):
    """A stack of `size` rows that were never written."""

    result: Defines[Stack]
    size: Reads[Register | None]
    node: Attribute[Node]


@step
class ToStack(Step):
    """A stack of the rows of an array, the elements of which lie side by side; they are copied."""

    rows: Reads[View]
    result: Defines[Stack]
    node: Attribute[Node]
    text = "{result} = stack of the rows of {rows}"


@step
class FromStack(Step):
    """All rows of a stack, or all elements, the first first, as one array: read in place if the stack is dead
    afterwards, else copied."""

    stack: Reads[Stack]
    result: Defines[Array]
    node: Attribute[Node]
    text = "{result} = all rows of {stack}"


@step
class CopyStack(Step):
    """Another stack of the same rows: the old one is needed after an update of the new one."""

    stack: Reads[Stack]
    result: Defines[Stack]
    text = "{result} = copy of {stack}"


@part
class Carry:
    """One carried value: its start, its value inside an iteration, the next one, and the last."""

    init: Updates[Value]
    inside: Binds[Value]
    next: Yields[Value]
    result: Defines[Value]


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


@step
class Loop(Step):
    """Runs `body` as long as `test` holds after `condition`."""

    carries: Parts[tuple[Carry, ...]]
    condition: Runs[Block]
    test: Yields[Register]
    body: Runs[Block]
    # How many iterations have run; inside, the number of this one.
    counter: Binds[Register]
    maximum: Attribute[int | None]
    node: Attribute[Node]
    number: Attribute[int]
    # Moves of the carries' initial values to their places, before the first iteration.
    entry: Runs[Block] = Block(())


@step
class Branch(Step):
    """Runs block number `selector` (clamped); its `outputs` become the results."""

    selector: Reads[Register]
    blocks: Runs[tuple[Block, ...]]
    outputs: Yields[tuple[tuple[Value, ...], ...]]
    results: Defines[tuple[Value, ...]]
    node: Attribute[Node]


@record
class Ahead:
    """Prefetch distance in rows (positive above a row, negative below it), and the least and most bytes of a row for
    which prefetching pays."""

    rows: int
    least: int
    most: int


@record
class FlatRows:
    """Short rows taken end to end: number of rows taken together, elements of each row, and lanes of a vector."""

    rows: int
    columns: int
    width: int

    @property
    def vectors(self) -> int:
        return self.rows * self.columns // self.width


@record
class RowsAcross:
    """Reduced rows side by side: rows of a vector, number of vectors taken together, and a flag: operands are read by
    columns."""

    width: int
    together: int
    by_columns: bool


@record
class ShortRows:
    """Short rows that are reduced together: how many, and lanes of a vector (1 for scalar code)."""

    rows: int
    width: int
    # Of how many vectors a row has less.
    vectors: int
    # True if a part of a vector leads each row, before its whole vectors, and the sums of several rows become vectors.
    is_led: bool


@record(eq=False)
class Vectors:
    """Vector form of a kernel's nest, for vector registers of `nbytes` bytes.

    `style`: each point has text of its own ("points"), the expression is cut into functions ("sections"), or neither.
    A whole vector has `lanes` elements, and along the innermost axis `width`, `unroll` vectors in a turn. With `masks`,
    elements left over are a masked vector where only the run knows their number. `registers` are the reductions that
    stay in registers, by the depth of the nest from which on; `in_memory` those that add to memory. `rows` are forms of
    the last two axes, tried one after the other.
    """

    nbytes: int
    style: Literal["points", "sections", "loops"]
    lanes: int
    width: int
    unroll: int
    masks: bool
    registers: dict[int, int]
    in_memory: frozenset[int]
    rows: tuple[FlatRows | RowsAcross | ShortRows, ...] = ()


@record(eq=False)
class Tiles:
    """Kernels that run tile by tile: `points` of each for the first tile, then of each for the next one.

    They are consecutive kernels of a block, or all kernels of a loop, whose iterations all run for a tile before the
    next tile begins. Each kernel of a block lags behind the tile by a sum of sizes, so that it reads what it must.
    """

    kernels: tuple[Kernel, ...]
    lags: tuple[Sizes, ...]
    points: int


@record
class Share:
    """Parts of a kernel that threads share: each has `unit` positions along some axes of its space, which count as one.

    With `has_results` the kernel reduces along these axes: each part has results of its own, which are combined in
    their order. A cumulative operation is cut along one of its axes; parts along its positions find their totals first,
    and begin with the total of the parts before them. Transforms are cut along rows and columns.

    `at_run_time`: the kernel's work is known when it runs. Each part has a multiple of `unit` positions then, and there
    are at most `parts`.
    """

    axes: tuple[int, ...]
    unit: int
    parts: int
    has_results: bool = False
    at_run_time: bool = False


@record(eq=False)
class Piece:
    """A function of a long plan: consecutive steps of a block, and what it keeps near, as `Plan.near` and
    `Plan.local` say for a plan that is one function."""

    steps: tuple[Step, ...]
    near: tuple[int, ...] = ()
    local: tuple[int, ...] = ()


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
    # Memory that each step is the last to use.
    releases: dict[Step, Release] = field(default_factory=dict)
    # Innermost loops that inline elementary functions of scalars, and the prefetch of steps on rows.
    inlined: frozenset[Loop] = frozenset()
    # Kernels that are called as functions, one for all that differ only in arrays and numbers.
    functions: frozenset[Kernel] = frozenset()
    ahead: dict[Step, Ahead] = field(default_factory=dict)
    # Vector forms of kernels, for vector registers of `vector_bytes` bytes; none for 0.
    vector_bytes: int = 0
    vectors: dict[Kernel, Vectors] = field(default_factory=dict)
    # Kernels and loops that run tile by tile: by the loop, or by the first kernel.
    tiles: dict[Step, Tiles] = field(default_factory=dict)
    # Kernels, cumulative operations and transforms that threads share.
    shares: dict[Kernel | Cumulate | Transform, Share] = field(default_factory=dict)
    # Handles of stacks the words of whose blocks lie in variables, and buffers on the machine's stack.
    near: tuple[int, ...] = ()
    local: tuple[int, ...] = ()
    # Functions of a plan that is too long for one, by their first steps.
    pieces: dict[Step, Piece] = field(default_factory=dict)
