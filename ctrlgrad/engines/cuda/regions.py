"""A region as a plan, whose fusion says which of its nodes are one kernel.

Nodes become steps over arrays (values on the device) and registers (scalars on the host). An elementwise node is a
kernel over its shape. So is a reduction, over the shape of what it reduces: what is computed of each element for it
alone is never written. So is a push: it makes a stack of an old one by writing one row more, straight into its slot;
and so is a concatenation of values of one shape, which are written part by part. All else is a step of which the plan
knows what it reads and what it may overwrite: kernels that read this go before it, for else it would be copied.

Sizes that are not known have names, by their axes; values of one declared shape are taken for equally large, and a run
in which they are not has the kernel's nodes one by one. A product of matrices that is only added to something is added
by BLAS, in place where nothing else holds the sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ctrlgrad.dtypes import computed_dtype
from ctrlgrad.engines.cuda.kernel import is_fusible, kernel_constant
from ctrlgrad.engines.cuda.placement import DEVICE, HOST, Place
from ctrlgrad.engines.cuda.reductions import BLOCK, SHARED, is_reduced, reduced_axes
from ctrlgrad.ir import Graph, Node, StackType, TensorType, Use, Value, attributes
from ctrlgrad.ir.control import is_loop
from ctrlgrad.ir.types import Shape
from ctrlgrad.plan.accumulation import accumulate
from ctrlgrad.plan.elementwise import elementwise_expression
from ctrlgrad.plan.expression import ExpressionBuilder, Number
from ctrlgrad.plan.fusion import Limits, fuse
from ctrlgrad.plan.lowering.state import Splat, Tensor, broadcast, expression_of, parts_of
from ctrlgrad.plan.model import Array, Block, Kernel, Outside, Plan, Product, Register, Step, View, Write
from ctrlgrad.plan.reductions import HOW
from ctrlgrad.plan.sizes import ZERO, Size, Sizes, row_major

# Bounds that keep a kernel's arguments in its parameter space (4 KiB before CUDA 12.1, 32 KiB since), and the states of
# what it reduces in the memory that a block's threads share: of each result two numbers of 8 bytes at most.
LIMITS = Limits(reads=24, writes=24, nodes=96, reductions=SHARED // (2 * 8 * BLOCK))


def node_of(step: Step) -> Node:
    """The node that an error of a step names."""
    if isinstance(step, Kernel):
        return step.nodes[-1]
    assert isinstance(step, Outside | Product) and step.node is not None
    return step.node


def updated_by(node: Node) -> tuple[Value, ...]:
    """The operands that a node may overwrite: a loop overwrites only what it carries."""
    if is_loop(node):
        return tuple(attributes.Loop.of(node).split(node.operands)[1])
    return node.operands if node.regions else node.operands[:1] if node.op.updates else ()


class RegionPlan:
    """The fused plan of a region, and the values that its arrays and registers stand for. Constants are left out.

    Attributes:
        steps: the steps in the order of execution.
        makers: the nodes that push, concatenate or reduce, by the array that a kernel makes for them.
    """

    def __init__(self, graph: Graph, places: Mapping[Value, Place]) -> None:
        self.places = places
        self.constants = {node.result: node for node in graph.nodes if node.op.name == "constant"}
        self._arrays: dict[Value, Array] = {}
        self._registers: dict[Value, Register] = {}
        self._values: dict[str, Value] = {}
        self.makers: dict[Array, Node] = {}
        steps = tuple(self.step(node) for node in graph.nodes if node.op.name != "constant")
        results = tuple(self.array(v) for v in graph.outputs if self.is_array(v))
        plan = accumulate(Plan(graph.name, (), (), Block(steps), results, (), (), {}))
        self.steps = fuse(plan, LIMITS, self._updated).body.steps

    # Values of the steps.

    def value(self, its: Array | Register) -> Value:
        """The value that an array or a register stands for."""
        return self._values[its.name]

    def inputs(self, kernel: Kernel) -> tuple[Value, ...]:
        """Values that a kernel computes with, operands before numbers."""
        arrays = [self.value(operand.view.array) for operand in kernel.operands]
        return (*arrays, *map(self.value, kernel.numbers))

    def operands(self, step: Step) -> tuple[Value, ...]:
        """Values that a step needs; of a product that is added, what it is added to comes first."""
        if isinstance(step, Kernel):
            stacks = [self.value(write.base) for write in step.writes if write.base is not None]
            return tuple(dict.fromkeys((*self.inputs(step), *stacks)))
        if isinstance(step, Product) and step.base is not None:
            return tuple(map(self.value, (step.base, step.a.array, step.b.array)))
        return node_of(step).operands

    def updates(self, step: Step) -> tuple[Value, ...]:
        """The operands that a step other than a kernel may overwrite."""
        if isinstance(step, Product):
            return () if step.base is None else (self.value(step.base),)
        return updated_by(node_of(step))

    def _updated(self, step: Step) -> list[Array]:
        return [self.array(v) for v in self.updates(step) if self.is_array(v)]

    def written_once(self, kernel: Kernel) -> tuple[Kernel, dict[Write, Value]]:
        """The kernel, in which a value that is pushed or concatenated is written there alone; and these values by the
        writes."""
        joined: dict[tuple[int, ...], Write] = {}
        for write in kernel.writes:
            if write.view.array in self.makers and write.how == "store":
                joined.setdefault(write.outputs, write)
        found: dict[Write, Value] = {}
        writes = []
        for write in kernel.writes:
            place = joined.get(write.outputs)
            if place is None or place in found or write.view.array in self.makers:
                writes.append(write)
            else:
                found[place] = self.value(write.view.array)
        return replace(kernel, writes=tuple(writes)), found

    # Nodes as steps.

    def is_array(self, value: Value) -> bool:
        """Return true unless the value is a number on the host. A complex number is passed as an array."""
        is_scalar = isinstance(value.type, TensorType) and value.type.rank == 0 and value.type.dtype.kind != "c"
        return self.places[value] is not HOST or not is_scalar

    def array(self, value: Value) -> Array:
        """A value as an array; of a stack, its last row."""
        if value not in self._arrays:
            its = value.type.element if isinstance(value.type, StackType) else value.tensor
            self._arrays[value] = Array(self.named(value), its.dtype, _sizes(its.shape))
        return self._arrays[value]

    def register(self, value: Value) -> Register:
        if value not in self._registers:
            self._registers[value] = Register(self.named(value), value.tensor.dtype)
        return self._registers[value]

    def named(self, value: Value) -> str:
        name = f"v{len(self._values)}"
        self._values[name] = value
        return name

    def tensor(self, value: Value, space: Sizes) -> Tensor:
        if self.is_array(value):
            return broadcast(self.array(value).view, space)
        return Splat((self.register(value),), space, value.tensor.dtype)

    def literal(self, value: Value) -> tuple[np.generic, ...] | None:
        """A constant's parts, if it stands in the text."""
        if value not in self.constants or value.tensor.rank:
            return None
        return kernel_constant(attributes.Constant.of(self.constants[value]).value)

    def step(self, node: Node) -> Step:
        places = [self.places[v] for v in node.results]
        if places == [DEVICE] and is_fusible(node):
            return self.elementwise(node)
        if places == [DEVICE] and _is_reduction(node):
            return self.reduction(node)
        if node.op.has_use(Use.PUSH) and places == [DEVICE]:
            return self.push(node)
        if self.is_written_in_parts(node):
            return self.concat(node)
        if places == [DEVICE] and _is_product(node):
            a, b = (self.array(v).view for v in node.operands)
            return Product(self.array(node.result), a, b, node=node)
        operands = tuple(self.array(v).view if self.is_array(v) else (self.register(v),) for v in node.operands)
        results = tuple(self.array(v) if self.is_array(v) else (self.register(v),) for v in node.results)
        return Outside(node, operands, results)

    def is_written_in_parts(self, node: Node) -> bool:
        if node.op.name != "concat" or len(node.operands) > LIMITS.writes:
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

    def reduction(self, node: Node) -> Kernel:
        """Floats of 16 bits are added up in float32, as NumPy does, and rounded at the end."""
        (operand, *_), array = node.operands, self.array(node.result)
        self.makers[array] = node
        space = _sizes(operand.tensor.shape)
        axes = reduced_axes(node)
        kept = row_major([size for axis, size in enumerate(space) if axis not in axes])
        steps = iter(kept)
        strides = tuple(ZERO if axis in axes else next(steps) for axis in range(len(space)))
        expression, operands, numbers = expression_of(
            [self.tensor(operand, space)], lambda builder, leaf: [x.convert(computed_dtype(x.dtype)) for x in leaf]
        )
        write = Write(View(array, (), space, strides), tuple(range(len(expression.outputs))), HOW[node.op.name])
        return Kernel(space, operands, numbers, expression, (write,), nodes=(node,))

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


def _is_reduction(node: Node) -> bool:
    """Return true if a kernel can compute this reduction: of a non-empty array, over known axes."""
    if node.op.name not in HOW:
        return False
    operand = node.operands[0].tensor
    if 0 in operand.shape or (node.op.name == "sum_to" and not (operand.is_static and node.result.tensor.is_static)):
        return False
    return bool(reduced_axes(node)) and is_reduced(HOW[node.op.name], operand.dtype)


def _is_product(node: Node) -> bool:
    """Return true if BLAS can accumulate this product: matrices of known sizes, in the dtype that it accumulates in."""
    values = (*node.operands, node.result)
    if node.op.name != "matmul" or not all(v.tensor.rank == 2 and v.tensor.is_static for v in values):
        return False
    dtype = node.result.tensor.dtype
    return dtype.kind in "fc" and computed_dtype(dtype) == dtype and all(v.tensor.dtype == dtype for v in node.operands)


def _sizes(shape: Shape) -> Sizes:
    return tuple(Size(1, (f"n{axis}",)) if d is None else Size(d) for axis, d in enumerate(shape))
