"""A region as a plan, whose fusion says which of its nodes are one kernel.

Nodes become steps over arrays (values on the device) and registers (scalars on the host). An elementwise node is a
kernel over its shape. So is a push: it makes a stack of an old one by writing one row more, straight into its slot; and
so is a concatenation of values of one shape, which are written part by part. All else is a step that the plan knows
nothing of, but what it reads and what it may overwrite: kernels that read this go before it, for else it would be copied.

Sizes that are not known have names, by their axes; values of one declared shape are taken for equally large, and a run
in which they are not has the kernel's nodes one by one. A product of matrices that is only added to something is added
by BLAS (`sums`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ctrlgrad.engines.cuda.expressions import has_kernel_type, is_fusible, kernel_constant
from ctrlgrad.engines.cuda.placement import DEVICE, HOST, Place
from ctrlgrad.engines.cuda.sums import ProductSum, product_sums
from ctrlgrad.ir import Graph, Node, StackType, TensorType, Use, Value, attributes
from ctrlgrad.ir.types import Shape
from ctrlgrad.plan.elementwise import elementwise_expression
from ctrlgrad.plan.expression import ExpressionBuilder, Number
from ctrlgrad.plan.fusion import Limits, fuse
from ctrlgrad.plan.lowering.tensors import Splat, Tensor, broadcast, expression_of, parts_of
from ctrlgrad.plan.model import Array, Block, Kernel, Numbers, Outside, Plan, Product, Register, Step, View, Write
from ctrlgrad.plan.sizes import Size, Sizes, row_major

# Bounds that keep a kernel's arguments in its parameter space (4 KiB before CUDA 12.1, 32 KiB since).
LIMITS = Limits(reads=24, writes=24, nodes=96)


@dataclass(frozen=True)
class Target:
    """Where a kernel writes a value: an array of its own, a slot of a stack, or a part of a concatenation.

    `also` are values that are the same numbers, and are read where these are written.
    """

    result: Value
    dtype: np.dtype
    push: Node | None = None
    concat: Node | None = None
    part: int = 0
    also: tuple[Value, ...] = ()


@dataclass(frozen=True, eq=False)
class RegionKernel:
    """A kernel of a region's plan and the values that it is about: what it reads, as operands and as numbers, and where
    it writes, in the order of the plan's writes. A number of a complex scalar is a part of it, 0 or 1."""

    plan: Kernel
    operands: tuple[Value, ...]
    numbers: tuple[tuple[Value, int], ...]
    targets: tuple[Target, ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.plan.nodes

    @property
    def shape(self) -> Shape:
        """The declared shape; None for a size that is not known."""
        return tuple(size.factor if size.is_known else None for size in self.plan.space)

    @property
    def reads(self) -> tuple[Value, ...]:
        """All values that it needs, stacks that it pushes on among them."""
        stacks = [target.push.operands[0] for target in self.targets if target.push is not None]
        return tuple(dict.fromkeys((*self.operands, *(v for v, _ in self.numbers), *stacks)))

    @property
    def results(self) -> tuple[Value, ...]:
        return tuple(dict.fromkeys(v for target in self.targets for v in (target.result, *target.also)))


Item = Node | RegionKernel | ProductSum


def schedule(graph: Graph, places: Mapping[Value, Place]) -> list[Item]:
    """A region's nodes in the order of execution, those that are one kernel as such. Constants are left out."""
    lowering = _Lowering(places, constants_of(graph))
    sums = product_sums(graph, places)
    added = {found.product for found in sums.values()}
    nodes = [node for node in graph.nodes if node.op.name != "constant" and node not in added]
    steps = [lowering.product(sums[node]) if node in sums else lowering.step(node) for node in nodes]
    results = tuple(lowering.array(v) for v in graph.outputs if lowering.is_array(v))
    plan = Plan(graph.name, (), (), Block(tuple(steps)), results, (), (), {})
    return [lowering.item(step, sums) for step in fuse(plan, LIMITS, lowering.updated).body.steps]


def alone(node: Node, places: Mapping[Value, Place], constants: Mapping[Value, Node]) -> RegionKernel:
    """The kernel of one node."""
    lowering = _Lowering(places, constants)
    step = lowering.step(node)
    assert isinstance(step, Kernel)
    return lowering.kernel_item(step)


def constants_of(graph: Graph) -> dict[Value, Node]:
    """The constants of a region, by value."""
    return {node.result: node for node in graph.nodes if node.op.name == "constant"}


def updated_by(node: Node) -> tuple[Value, ...]:
    """The operands that a node may overwrite."""
    return node.operands if node.regions else node.operands[:1] if node.op.updates else ()


class _Lowering:
    """From nodes to steps, and from the steps of the fused plan to what is run."""

    def __init__(self, places: Mapping[Value, Place], constants: Mapping[Value, Node]) -> None:
        self.places, self.constants = places, constants
        self.arrays: dict[Value, Array] = {}
        self.registers: dict[Value, Numbers] = {}
        # The value, and its part, that an array or a register stands for.
        self.values: dict[str, tuple[Value, int]] = {}
        self.makers: dict[Array, Node] = {}

    # Values.

    def is_array(self, value: Value) -> bool:
        return self.places[value] is not HOST or isinstance(value.type, StackType) or value.tensor.rank > 0

    def array(self, value: Value) -> Array:
        """A value as an array; of a stack, its last row."""
        if value not in self.arrays:
            its = value.type.element if isinstance(value.type, StackType) else value.tensor
            array = Array(f"v{len(self.values)}", its.dtype, _sizes(its.shape))
            self.arrays[value] = array
            self.values[array.name] = value, 0
        return self.arrays[value]

    def numbers(self, value: Value) -> Numbers:
        """A scalar on the host as registers."""
        if value not in self.registers:
            registers = []
            for part, dtype in enumerate(parts_of(value.tensor.dtype)):
                registers.append(Register(f"v{len(self.values)}", dtype))
                self.values[registers[-1].name] = value, part
            self.registers[value] = tuple(registers)
        return self.registers[value]

    def tensor(self, value: Value, space: Sizes) -> Tensor:
        if self.is_array(value):
            return broadcast(self.array(value).view, space)
        return Splat(self.numbers(value), space, value.tensor.dtype)

    def literal(self, value: Value) -> tuple[np.generic, ...] | None:
        """A constant's parts, if it stands in the text."""
        if value not in self.constants or value.tensor.rank:
            return None
        return kernel_constant(attributes.Constant.of(self.constants[value]).value)

    # Steps.

    def step(self, node: Node) -> Step:
        places = [self.places[v] for v in node.results]
        if places == [DEVICE] and is_fusible(node):
            return self.elementwise(node)
        if self.is_slot_write(node):
            return self.push(node)
        if self.is_written_in_parts(node):
            return self.concat(node)
        operands = tuple(self.array(v).view if self.is_array(v) else self.numbers(v) for v in node.operands)
        results = tuple(self.array(v) if self.is_array(v) else self.numbers(v) for v in node.results)
        return Outside(node, operands, results)

    def is_slot_write(self, node: Node) -> bool:
        return (
            node.op.has_use(Use.PUSH)
            and self.places[node.result] is DEVICE
            and self.places[node.operands[0]] is DEVICE
            and has_kernel_type(node.operands[1])
        )

    def is_written_in_parts(self, node: Node) -> bool:
        if node.op.name != "concat" or len(node.operands) > LIMITS.writes or not has_kernel_type(node.result):
            return False
        shapes = {v.tensor.shape for v in node.operands}
        return len(shapes) == 1 and None not in next(iter(shapes))

    def elementwise(self, node: Node) -> Kernel:
        dtype, array = node.result.tensor.dtype, self.array(node.result)
        literals = [self.literal(v) for v in node.operands]
        tensors = [
            self.tensor(v, array.shape) for v, known in zip(node.operands, literals, strict=True) if known is None
        ]

        def make(builder: ExpressionBuilder, *leaves: tuple[Number, ...]) -> tuple[Number, ...]:
            rest = iter(leaves)
            operands = []
            for known in literals:
                parts = next(rest) if known is None else tuple(builder.constant(x, x.dtype) for x in known)
                operands.append(parts if len(parts) == 2 else parts[0])
            found = elementwise_expression(
                node.op.name, [v.tensor.dtype for v in node.operands], dtype, builder, operands
            )
            return found if isinstance(found, tuple) else (found,)

        expression, operands, numbers = expression_of(tensors, make)
        write = Write(array.view, tuple(range(len(parts_of(dtype)))))
        return Kernel(array.shape, operands, numbers, expression, (write,), nodes=(node,))

    def push(self, node: Node) -> Kernel:
        stack, row = node.operands
        array = self.array(node.result)
        space = _sizes(row.tensor.shape)
        write = Write(
            View(array, (), space, row_major(space)), tuple(range(len(parts_of(array.dtype)))), base=self.array(stack)
        )
        return self.copying(node, [row], [write])

    def concat(self, node: Node) -> Kernel:
        whole, axis = self.array(node.result), attributes.Axis.of(node).axis
        part, strides = _sizes(node.operands[0].tensor.shape), row_major(whole.shape)
        width = len(parts_of(whole.dtype))
        writes = []
        for number in range(len(node.operands)):
            offset = (Size(number) * part[axis] * strides[axis],)
            outputs = tuple(range(number * width, (number + 1) * width))
            writes.append(Write(View(whole, offset, part, strides), outputs))
        return self.copying(node, node.operands, writes)

    def copying(self, node: Node, values: tuple[Value, ...] | list[Value], writes: list[Write]) -> Kernel:
        """A kernel that writes values as they are."""
        self.makers[writes[0].view.array] = node
        space = writes[0].view.shape
        expression, operands, numbers = expression_of(
            [self.tensor(v, space) for v in values], lambda builder, *leaves: [part for leaf in leaves for part in leaf]
        )
        return Kernel(space, operands, numbers, expression, tuple(writes), nodes=(node,))

    def product(self, added: ProductSum) -> Product:
        a, b = (self.array(v).view for v in added.product.operands)
        return Product(self.array(added.node.result), a, b, self.array(added.other), node=added.node)

    def updated(self, step: Step) -> list[Array]:
        """What a step that is no kernel may overwrite."""
        if isinstance(step, Product):
            return [] if step.base is None else [step.base]
        assert isinstance(step, Outside)
        return [self.array(v) for v in updated_by(step.node) if self.is_array(v)]

    # What is run.

    def item(self, step: Step, sums: Mapping[Node, ProductSum]) -> Item:
        if isinstance(step, Kernel):
            return self.kernel_item(step)
        assert isinstance(step, Outside | Product) and step.node is not None
        return sums[step.node] if isinstance(step, Product) else step.node

    def kernel_item(self, kernel: Kernel) -> RegionKernel:
        # What is pushed, or is a part of something, is read there too.
        elsewhere: dict[tuple[int, ...], list[Value]] = {}
        shared = {write.outputs for write in kernel.writes if write.view.array in self.makers}
        kept: list[tuple[Write, Node | None]] = []
        for write in kernel.writes:
            array = write.view.array
            if array not in self.makers and write.outputs in shared:
                elsewhere.setdefault(write.outputs, []).append(self.values[array.name][0])
            else:
                kept.append((write, self.makers.get(array)))
        parts: dict[Array, int] = {}
        targets = []
        for write, maker in kept:
            array = write.view.array
            result, also = self.values[array.name][0], tuple(elsewhere.pop(write.outputs, ()))
            if maker is None:
                targets.append(Target(result, array.dtype))
            elif maker.op.has_use(Use.PUSH):
                targets.append(Target(result, array.dtype, push=maker, also=also))
            else:
                part = parts[array] = parts.get(array, -1) + 1
                targets.append(Target(result, array.dtype, concat=maker, part=part, also=also))
        return RegionKernel(
            Kernel(
                kernel.space,
                kernel.operands,
                kernel.numbers,
                kernel.expression,
                tuple(write for write, _ in kept),
                nodes=kernel.nodes,
            ),
            tuple(self.values[operand.view.array.name][0] for operand in kernel.operands),
            tuple(self.values[register.name] for register in kernel.numbers),
            tuple(targets),
        )


def _sizes(shape: Shape) -> Sizes:
    return tuple(Size(1, (f"n{axis}",)) if d is None else Size(d) for axis, d in enumerate(shape))


__all__ = ["LIMITS", "Item", "RegionKernel", "Target", "alone", "constants_of", "schedule", "updated_by"]
