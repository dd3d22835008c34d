"""State of the lowering of a graph: the item that stands for each value, sizes, scopes, and the steps so far.

A graph value of rank 0 is registers; an array is a `View` or, where all elements are one number, a `Splat`; a stack is
a `Stack`. Nothing is computed for a view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, fields, replace
from typing import Any, Literal

import numpy as np

from ctrlgrad.dtypes import REAL_OF, dtype_kind
from ctrlgrad.ir import Graph, Node, Value
from ctrlgrad.plan.expression import BOOL, Expression, ExpressionBuilder, Number, select
from ctrlgrad.plan.lowering.stack_facts import Origins, RaggedStack, StackFacts, parts_of_stack
from ctrlgrad.plan.model import (
    Array,
    Assumption,
    Compute,
    Guard,
    GuardStatus,
    Kernel,
    Load,
    Numbers,
    Operand,
    Register,
    Site,
    Stack,
    Step,
    View,
    Write,
)
from ctrlgrad.plan.sizes import ONE, ZERO, Size, Sizes
from ctrlgrad.records import record

# Sizes that slices by fixed numbers leave of sizes that only a run knows.
#
# `x[1:]` and `y[:-1]` are of one size where x and y are, and a kernel over both needs to know; so does what joins
# `x[:1]` and `x[1:]` again. A size is cut in two at a number: the least of both, and the rest.


CutPart = Literal["least", "rest"]


@record
class Cut:
    """Part of a size that is cut in two at a number: as much as there is up to there, or what is beyond."""

    part: CutPart
    size: Size
    at: int

    def of(self, n: Number) -> Number:
        if self.part == "least":
            return select(n < self.at, n, self.at)
        return select(n < self.at, n - n, n - self.at)

    @property
    def known(self) -> Size | None:
        """The size, where nothing has to be computed for it."""
        n = self.size.factor
        if self.size.is_known:
            return Size(min(n, self.at) if self.part == "least" else max(n - self.at, 0))
        if self.at == 0:
            return Size(0) if self.part == "least" else self.size
        return None

    def joins(self, other: Cut) -> bool:
        """Return true if both are the two parts of one size."""
        return (self.size, self.at) == (other.size, other.at) and self.part != other.part


# Items that stand for an array while a graph is lowered: a view, or one number for all of its elements.


def parts_of(dtype: np.dtype) -> tuple[np.dtype, ...]:
    """The dtypes of the registers that hold one element."""
    return (REAL_OF[dtype],) * 2 if dtype in REAL_OF else (dtype,)


@record
class Splat:
    """An array all of whose elements are one number."""

    numbers: Numbers
    shape: Sizes
    dtype: np.dtype


Tensor = View | Splat
Item = Numbers | View | Splat | Stack | RaggedStack


def broadcast(tensor: Tensor, shape: Sizes) -> Tensor:
    """A tensor over a larger shape."""
    if tensor.shape == shape:
        return tensor
    if isinstance(tensor, Splat):
        return Splat(tensor.numbers, shape, tensor.dtype)
    lead = len(shape) - len(tensor.shape)
    strides = [Size(0)] * lead
    for size, stride, target in zip(tensor.shape, tensor.strides, shape[lead:], strict=True):
        strides.append(Size(0) if size == ONE and target != ONE else stride)
    return View(tensor.array, tensor.offset, shape, tuple(strides))


def expression_of(
    tensors: Sequence[Tensor], make: Callable[..., Sequence[Number]]
) -> tuple[Expression, tuple[Operand, ...], Numbers]:
    """An expression on the elements of tensors of one shape; `make` takes the builder and a tuple of parts for each."""
    builder = ExpressionBuilder()
    operands: list[Operand] = []
    numbers: list[Register] = []
    leaves: list[tuple[Number, ...]] = []
    for tensor in tensors:
        parts = parts_of(tensor.dtype)
        if isinstance(tensor, Splat):
            leaf = []
            for register in tensor.numbers:
                if register not in numbers:
                    numbers.append(register)
                leaf.append(builder.emit("scalar", (), register.dtype, numbers.index(register)))
        else:
            operand = Operand(tensor)
            if operand not in operands:
                operands.append(operand)
            place = operands.index(operand)
            leaf = [builder.emit("load", (), dtype, (place, part)) for part, dtype in enumerate(parts)]
        leaves.append(tuple(leaf))
    outputs = make(builder, *leaves)
    return builder.finish(*outputs), tuple(operands), tuple(numbers)


INDEX = np.dtype(np.int64)


@record(frozen=False)
class Scope:
    """A block that is being filled, the registers defined in it, and pairs of sizes that were checked to broadcast."""

    steps: list[Step] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    reached: set[tuple[Size, Size]] = field(default_factory=set)


class State:
    """The lowering of one graph."""

    def __init__(self, origins: Origins, dropped: frozenset[Assumption] = frozenset()) -> None:
        # Facts about stacks known from the start, and facts found now, which make another lowering necessary.
        self.origins, self.learned = origins, Origins()
        # Assumptions that a run has refuted.
        self.dropped = dropped
        self.items: dict[Value, Item] = {}
        self.scopes: list[Scope] = [Scope()]
        self.sizes: dict[str, Size] = {}
        self.sites: list[Site] = []
        self.loops = 0
        self.constants: list[tuple[Array, np.ndarray]] = []
        self.facts: dict[Stack, StackFacts] = {}
        self.node: Node | None = None
        self._count = 0
        self._constants: dict[int, Array] = {}
        self._registers: list[dict[Size, Register]] = [{}]
        # Sizes of the whole plan that slices cut, and which cut a size is (see `cuts`).
        self.cuts: dict[Cut, Size] = {}
        self.cut_of: dict[Size, Cut] = {}
        # `joins`: sizes that are broadcast results, each with the sizes broadcast to it. `moves`: 0 where a size is 1,
        # else 1 (see `broadcasting`).
        self.joins: dict[Size, frozenset[Size]] = {}
        self.moves: dict[Size, Size] = {}
        # The graphs that are being lowered, the innermost last.
        self.graphs: list[Graph] = []
        # Constants of float dtypes that are neither NaN nor -0.
        self.ordered: set[Register] = set()
        # Vectors and values of matrices, which several nodes want: where they were found, and the view of both.
        self.spectra: dict[tuple[str, Tensor], tuple[Scope, View]] = {}
        # Factors of matrices, and whether there are some: where they were made.
        self.factors: dict[View, tuple[Scope, View, Register]] = {}

    # Names and steps.

    def fresh(self, prefix: str) -> str:
        self._count += 1
        name = f"{prefix}{self._count}"
        # The sizes of arguments have names of their own.
        return self.fresh(prefix) if name in self.scopes[0].names else name

    def register(self, dtype: Any, prefix: str = "r") -> Register:
        register = Register(self.fresh(prefix), np.dtype(dtype))
        self.scopes[-1].names.add(register.name)
        return register

    def registers(self, dtype: np.dtype) -> Numbers:
        """For one element of an array of a dtype."""
        return tuple(self.register(part) for part in parts_of(dtype))

    def array(self, dtype: np.dtype, shape: Sizes) -> Array:
        return Array(self.fresh("a"), np.dtype(dtype), tuple(shape))

    def stack(self, like: StackFacts) -> Stack:
        """Another version of a stack."""
        stack = Stack(self.fresh("s"), like.dtype, like.holds)
        self.facts[stack] = like
        return stack

    def version(self, item: Stack | RaggedStack) -> Stack | RaggedStack:
        """Another version of what stands for a stack."""
        if isinstance(item, Stack):
            return self.stack(self.facts[item])
        elements, *sizes = (self.stack(self.facts[part]) for part in (item.elements, *item.sizes))
        return RaggedStack(elements, tuple(sizes))

    def facts_of(self, item: Stack | RaggedStack) -> StackFacts:
        return self.facts[item.elements if isinstance(item, RaggedStack) else item]

    def put(self, stack: Stack, size: Size | None) -> None:
        """A row goes onto a stack: a size of the whole plan, or something else."""
        facts = self.facts[stack]
        if not facts.put(size):
            self.learned |= Origins(varied=frozenset({facts.origin}))

    def rows_differ(self, facts: StackFacts, axes: Iterable[int]) -> None:
        """The rows of a stack turn out to differ along some axes."""
        origin = facts.origin
        if isinstance(origin, Node) and origin.op.name == "stack_new" and (not origin.operands or facts.is_taken_empty):
            self.learned |= Origins({origin: frozenset(axes)})
        else:
            self.learned |= Origins(listed=frozenset({origin}))

    def needs_list(self, item: Stack | RaggedStack) -> None:
        """Require that a stack is kept as a list by reference kernels."""
        self.learned |= Origins(listed=frozenset({self.facts_of(item).origin}))

    def known_facts(self, node: Node) -> list[tuple[StackFacts, StackFacts]]:
        """Facts of the stacks that a node takes, the only older ones that its regions can change, beside copies."""
        items = [self.items[v] for v in node.operands]
        stacks = [part for item in items if isinstance(item, Stack | RaggedStack) for part in parts_of_stack(item)]
        distinct = {id(facts): facts for facts in map(self.facts.__getitem__, stacks)}
        return [(facts, replace(facts)) for facts in distinct.values()]

    def restore(self, known: Sequence[tuple[StackFacts, StackFacts]]) -> None:
        for facts, before in known:
            for f in fields(facts):
                setattr(facts, f.name, getattr(before, f.name))

    def emit(self, step: Step) -> None:
        self.scopes[-1].steps.append(step)

    @contextmanager
    def block(self) -> Iterator[Scope]:
        """Steps go into a block of their own."""
        scope = Scope()
        self.scopes.append(scope)
        self._registers.append({})
        try:
            yield scope
        finally:
            self.scopes.pop()
            self._registers.pop()

    def scope_of(self, size: Size) -> int:
        """The innermost scope that a size needs."""
        return max((self._scope_of_name(name) for name in size.names), default=0)

    def _scope_of_name(self, name: str) -> int:
        for depth in range(len(self.scopes) - 1, -1, -1):
            if name in self.scopes[depth].names:
                return depth
        return len(self.scopes)

    def site(self, axis: int = 0) -> int:
        assert self.node is not None
        self.sites.append(Site(self.node, axis))
        return len(self.sites) - 1

    # Numbers.

    def compute(self, operands: Sequence[Register], dtype: Any, make: Callable[..., Number]) -> Register:
        """A register computed from registers."""
        builder = ExpressionBuilder()
        leaves = [builder.emit("scalar", (), r.dtype, i) for i, r in enumerate(operands)]
        result = make(*leaves) if operands else make(builder)
        register = self.register(dtype)
        self.emit(Compute(builder.finish(result), tuple(operands), (register,)))
        return register

    def number(self, value: Any, dtype: Any = INDEX) -> Register:
        """A constant in a register."""
        register = self.compute((), dtype, lambda builder: builder.constant(value, dtype))
        if np.dtype(dtype) == INDEX:
            self.sizes[register.name] = Size(int(value))
        return register

    def size_of(self, register: Register) -> Size:
        """A register as a size; what it is computed from, where that is a product of sizes."""
        return self.sizes.get(register.name, Size(1, (register.name,)))

    def size_register(self, size: Size) -> Register:
        """A register that holds a size."""
        for known in self._registers:
            if size in known:
                return known[size]
        if size.factor == 1 and len(size.names) == 1:
            return Register(size.names[0], INDEX)
        if not size.names:
            register = self.number(size.factor)
        else:
            operands = [Register(name, INDEX) for name in size.names]

            def multiplied(*numbers: Number) -> Number:
                total = numbers[0]
                for n in numbers[1:]:
                    total = total * n
                return total * size.factor if size.factor != 1 else total

            register = self.compute(operands, INDEX, multiplied)
        self.sizes[register.name] = size
        self._registers[-1][size] = register
        return register

    @contextmanager
    def at_the_top(self) -> Iterator[None]:
        """Steps go before the outermost loop or branch that is being lowered: all blocks may use what they compute."""
        scopes, registers = self.scopes, self._registers
        self.scopes, self._registers = scopes[:1], registers[:1]
        try:
            yield
        finally:
            self.scopes, self._registers = scopes, registers

    @contextmanager
    def before(self, sizes: Sequence[Size]) -> Iterator[None]:
        """Steps go where as many blocks as possible may use what they compute from some sizes."""
        if any(map(self.scope_of, sizes)):
            yield
            return
        with self.at_the_top():
            yield

    # Guards.

    def assumes(self, assumption: Assumption) -> bool:
        return assumption not in self.dropped

    def guard(self, holds: Register, status: GuardStatus, found: Register | None = None, bound: Size = ZERO) -> None:
        self.emit(Guard(holds, status, self.site(), found, bound))

    def guard_equal(self, a: Size, b: Size, status: GuardStatus = "size") -> None:
        """Two sizes have to be equal here: else the op is not defined, or an assumption was wrong."""
        if a == b:
            return
        found = self.size_register(a)
        holds = self.compute([found, self.size_register(b)], BOOL, lambda x, y: x.equals(y))
        self.guard(holds, status, found, b)

    # Items.

    def item(self, value: Value) -> Item:
        return self.items[value]

    def numbers(self, value: Value) -> Numbers:
        """The registers of a value of rank 0."""
        item = self.items[value]
        assert isinstance(item, tuple)
        return item

    def scalar(self, value: Value) -> Register:
        """The register of a real value of rank 0."""
        (register,) = self.numbers(value)
        return register

    def index(self, value: Value) -> Register:
        """A scalar integer as int64."""
        register = self.scalar(value)
        if register.dtype == INDEX:
            return register
        return self.compute([register], INDEX, lambda x: x.convert(INDEX))

    def tensor(self, value: Value) -> Tensor:
        """A value as an array, of rank 0 too."""
        item = self.items[value]
        if isinstance(item, tuple):
            return Splat(item, (), value.tensor.dtype)
        assert isinstance(item, View | Splat)
        return item

    def view(self, value: Value) -> View:
        """A value in memory."""
        return self.in_memory(self.tensor(value))

    def in_memory(self, tensor: Tensor) -> View:
        return tensor if isinstance(tensor, View) else self.copied(tensor).view

    def dense(self, tensor: Tensor) -> Array:
        """A value as an array of its own shape and nothing else."""
        if isinstance(tensor, View) and tensor.is_whole and tensor.array.shape == tensor.shape:
            return tensor.array
        return self.copied(tensor)

    def dense_view(self, tensor: Tensor) -> View:
        """A value whose elements lie side by side."""
        return tensor if isinstance(tensor, View) and tensor.is_dense else self.copied(tensor).view

    def copied(self, tensor: Tensor) -> Array:
        array = self.array(tensor.dtype, tensor.shape)
        self.write(array.view, tensor)
        return array

    def write(self, target: View, tensor: Tensor, base: Array | None = None, how: Any = "store") -> None:
        """A kernel that writes a tensor, broadcast, to a view of a new array."""
        builder = ExpressionBuilder()
        operands: list[Operand] = []
        numbers: Numbers = ()
        outputs: list[Number] = []
        tensor = broadcast(tensor, target.shape)
        for part, dtype in enumerate(parts_of(tensor.dtype)):
            if isinstance(tensor, Splat):
                numbers = tensor.numbers
                outputs.append(builder.emit("scalar", (), dtype, part))
            else:
                operands = [Operand(tensor)]
                outputs.append(builder.emit("load", (), dtype, (0, part)))
        written = Write(target, tuple(range(len(outputs))), how, base)
        self.emit(Kernel(target.shape, tuple(operands), numbers, builder.finish(*outputs), (written,)))

    def load(self, view: View) -> Numbers:
        """The one element of a view."""
        registers = self.registers(view.dtype)
        self.emit(Load(view, registers))
        return registers

    def constant(self, value: np.ndarray) -> Item:
        if value.ndim == 0:
            parts = (value.real, value.imag) if dtype_kind(value.dtype) == "c" else (value,)
            numbers = tuple(self.number(part, dtype) for part, dtype in zip(parts, parts_of(value.dtype), strict=True))
            if dtype_kind(value.dtype) == "f" and str(float(value)) not in ("nan", "-0.0"):
                self.ordered.add(numbers[0])
            return numbers
        first = value.reshape(-1)[:1]
        if value.size and (value.reshape(-1).view(np.uint8).reshape(value.size, -1) == first.view(np.uint8)).all():
            element = self.constant(first[0])
            assert isinstance(element, tuple)
            return Splat(element, tuple(Size(d) for d in value.shape), value.dtype)
        known = self._constants.get(id(value))
        if known is None:
            known = self._constants[id(value)] = self.array(value.dtype, tuple(Size(d) for d in value.shape))
            self.constants.append((known, value))
        return known.view

    # Regions.

    def run(self, graph: Graph, items: Mapping[Value, Item], visit: Callable[[Node], None]) -> list[Item]:
        """Lower the nodes of a region; what stands for its outputs."""
        self.items.update(items)
        around = self.node
        self.graphs.append(graph)
        for node in graph.nodes:
            self.node = node
            visit(node)
        self.graphs.pop()
        self.node = around
        return [self.items[v] for v in graph.outputs]

    def shape(self, value: Value) -> Sizes:
        """The sizes of an array."""
        return self.tensor(value).shape
