"""Elementwise ops, reductions, and matrix products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ctrlgrad.dtypes import computed_dtype
from ctrlgrad.ir import Node, attributes
from ctrlgrad.plan.elementwise import elementwise_expression, failure
from ctrlgrad.plan.expression import BOOL, ExpressionBuilder, Number, select
from ctrlgrad.plan.lowering.broadcasting import joined_shape, reach, spread
from ctrlgrad.plan.lowering.moving import joined
from ctrlgrad.plan.lowering.state import INDEX, Splat, State, Tensor, expression_of, parts_of
from ctrlgrad.plan.model import Array, Block, Branch, Check, Compute, Guard, How, Kernel, View, Write
from ctrlgrad.plan.reductions import HOW
from ctrlgrad.plan.sizes import ONE, ZERO, Size, Sizes, row_major

# Of int64 by 2 to some power: bits, whatever the sign.
_BY_POWERS_OF_TWO: dict[str, Callable[[Number, int], Number]] = {
    "floor_divide": lambda x, power: x >> power,
    "remainder": lambda x, power: x & ((1 << power) - 1),
}


# Of a number and a constant that is neither NaN nor -0: no test of NaNs and of two zeros is needed.
_BESIDE_A_CONSTANT: dict[str, Callable[[Number, Number], Number]] = {
    "maximum": lambda x, constant: select(x <= constant, constant, x),
    "minimum": lambda x, constant: select(x > constant, constant, x),
}


def _power_of_two(state: State, divisor: Tensor) -> int | None:
    """Exponent k of a divisor that is the constant 2**k (int64) everywhere; None of all other divisors."""
    if not isinstance(divisor, Splat) or divisor.dtype != INDEX:
        return None
    size = state.size_of(divisor.numbers[0])
    is_power = size.is_known and size.factor > 0 and size.factor & (size.factor - 1) == 0
    return size.factor.bit_length() - 1 if is_power else None


def elementwise(state: State, node: Node) -> None:
    """One expression at every position; on numbers, or on arrays of which all elements are one number, just once."""
    result = node.result.tensor
    tensors = [state.tensor(v) for v in node.operands]
    shape = joined_shape(state, [t.shape for t in tensors], result.shape)
    dtypes = [v.tensor.dtype for v in node.operands]

    power = _power_of_two(state, tensors[-1])
    constants = [k for k, t in enumerate(tensors) if isinstance(t, Splat) and t.numbers[0] in state.ordered]

    def make(builder: ExpressionBuilder, *leaves: tuple[Number, ...]) -> Sequence[Number]:
        operands = [leaf if len(leaf) == 2 else leaf[0] for leaf in leaves]
        if power is not None and node.op.name in _BY_POWERS_OF_TWO:
            return [_BY_POWERS_OF_TWO[node.op.name](leaves[0][0], power)]
        if constants and node.op.name in _BESIDE_A_CONSTANT:
            return [_BESIDE_A_CONSTANT[node.op.name](leaves[1 - constants[0]][0], leaves[constants[0]][0])]
        found = elementwise_expression(node.op.name, dtypes, result.dtype, builder, operands)
        fails = failure(node.op.name, operands)
        numbers = found if isinstance(found, tuple) else (found,)
        return numbers if fails is None else (*numbers, ~fails)

    if all(isinstance(t, Splat) for t in tensors):
        expression, _, numbers = expression_of(tensors, make)
        registers = state.registers(result.dtype)
        holds = tuple(state.register(BOOL) for _ in expression.outputs[len(registers) :])
        state.emit(Compute(expression, numbers, (*registers, *holds)))
        for register in holds:
            state.emit(Guard(register, "value", state.site()))
        state.items[node.result] = Splat(registers, shape, result.dtype) if result.rank else registers
        if result.rank == 0:
            _note_size(state, node)
        return
    expression, operands, numbers = expression_of([spread(state, t, shape) for t in tensors], make)
    array = state.array(result.dtype, shape)
    write = Write(array.view, expression_outputs(result.dtype))
    # Outputs after the element's parts are conditions that must hold everywhere.
    behind = range(len(write.outputs), len(expression.outputs))
    checks = tuple(Check(k, state.site(), k, ZERO, "value") for k in behind)
    state.emit(Kernel(shape, operands, numbers, expression, (write,), checks, nodes=(node,)))
    state.items[node.result] = array.view


def expression_outputs(dtype: np.dtype) -> tuple[int, ...]:
    """Outputs of an expression that are the parts of an element."""
    return tuple(range(len(parts_of(dtype))))


def _note_size(state: State, node: Node) -> None:
    """Remember integers that are products of sizes, or a size put together from its cuts.

    Shapes that are computed from them are then known to be equal.
    """
    if node.result.tensor.dtype != INDEX:
        return
    name = node.op.name
    registers = [state.numbers(v) for v in node.operands]
    (result,) = state.numbers(node.result)
    sizes = [state.size_of(r[0]) for r in registers if r[0].dtype == INDEX]
    if len(sizes) != len(registers):
        return
    if name == "multiply":
        state.sizes[result.name] = sizes[0] * sizes[1]
    elif all(s.is_known for s in sizes) and name in ("add", "subtract"):
        a, b = (s.factor for s in sizes)
        state.sizes[result.name] = Size(a + b if name == "add" else a - b)
    elif name == "add" and ZERO in sizes:
        state.sizes[result.name] = sizes[sizes.index(ZERO) - 1]
    elif name == "add" and (whole := joined(state, *sizes)) is not None:
        state.sizes[result.name] = whole
    elif name == "cast":
        state.sizes[result.name] = sizes[0]


def reduction(state: State, node: Node) -> None:
    """`sum` and its kin over some axes."""
    tensor = state.tensor(node.operands[0])
    over = attributes.Axes.of(node).axes
    if not over:
        state.items[node.result] = state.items[node.operands[0]]
        return
    how = HOW[node.op.name]
    if how in ("max", "min") and node.op.name in ("max", "min"):
        needs_elements(state, [tensor.shape[axis] for axis in over])
    kept = tuple(ONE if axis in over else size for axis, size in enumerate(tensor.shape))
    shape = (
        kept
        if attributes.Reduction.of(node).keepdims
        else tuple(s for axis, s in enumerate(tensor.shape) if axis not in over)
    )
    reduce(state, node, tensor, kept, shape, how)


def needs_elements(state: State, sizes: Sequence[Size]) -> None:
    """Some of the axes have these sizes: none may be 0."""
    for size in sizes:
        if size.is_known and size.factor > 0:
            continue
        register = state.size_register(size)
        holds = state.compute([register], BOOL, lambda n: n > 0)
        state.emit(Guard(holds, "size", state.site(), register, size))


def reduce(state: State, node: Node, tensor: Tensor, kept: Sizes, shape: Sizes, how: How) -> None:
    """As `reduced`, as a node's result."""
    array = reduced(state, node, tensor, kept, shape, how)
    state.items[node.result] = array.view if shape else state.load(array.view)


def reduced(state: State, node: Node, tensor: Tensor, kept: Sizes, shape: Sizes, how: How) -> Array:
    """Reduce a tensor to `kept`, in which reduced axes are 1, and give the result another shape of as many elements.

    Floats of 16 bits are added up in float32, as NumPy does, and rounded at the end.
    """
    dtype = computed_dtype(tensor.dtype)
    array = state.array(dtype, shape)
    lead = len(tensor.shape) - len(kept)
    strides = (ZERO,) * lead + tuple(
        ZERO if size == ONE else stride for size, stride in zip(kept, row_major(kept), strict=True)
    )
    target = View(array, (), tensor.shape, strides)
    widened = dtype != tensor.dtype
    expression, operands, numbers = expression_of(
        [tensor], lambda builder, leaf: (leaf[0].convert(dtype),) if widened else leaf
    )
    write = Write(target, expression_outputs(dtype), how)
    state.emit(Kernel(tensor.shape, operands, numbers, expression, (write,), nodes=(node,)))
    return state.in_memory(converted(state, array.view, tensor.dtype)).array if widened else array


def common_size(state: State, node: Node) -> None:
    """The number that all of a vector are, 0 where there are none. Where they differ, the kernel says what is wrong."""
    sizes = state.tensor(node.operands[0])
    least, most = (state.load(reduced(state, node, sizes, (ONE,), (), how).view)[0] for how in ("min", "max"))
    count = state.size_register(sizes.shape[0])
    holds = state.compute([least, most, count], BOOL, lambda a, b, n: a.equals(b) | n.equals(0))
    state.guard(holds, "size", least, state.size_of(most))
    found = state.compute([most, count], INDEX, lambda size, n: select(n.equals(0), n, size))
    state.items[node.result] = (found,)


def sum_to(state: State, node: Node) -> None:
    """The sum over the axes in which a shape was broadcast."""
    tensor = state.tensor(node.operands[0])
    dims = iter(node.operands[1:])
    shape = tuple(
        state.size_of(state.index(next(dims))) if d is None else Size(d) for d in attributes.Shape.of(node).shape
    )
    lead = len(tensor.shape) - len(shape)
    for axis, target in enumerate(shape, lead):
        if target not in (ONE, tensor.shape[axis]):
            tensor = _summed_if_one(state, node, tensor, axis, target)
    if tensor.shape == shape:
        state.items[node.result] = tensor if shape else state.numbers(node.operands[0])
        return
    reduce(state, node, tensor, shape, shape, "sum")


def _summed_if_one(state: State, node: Node, tensor: Tensor, axis: int, target: Size) -> Tensor:
    """A tensor whose size along an axis becomes another one: it is that already, or all is added up to one."""
    reach(state, target, tensor.shape[axis])
    if target.is_known or state.assumes("equal"):
        return _resized(tensor, axis, target)
    kept = (*tensor.shape[:axis], ONE, *tensor.shape[axis + 1 :])
    result = state.array(tensor.dtype, _resized(tensor, axis, target).shape)
    is_one = state.compute([state.size_register(target)], BOOL, lambda n: n.equals(1))
    with state.block() as as_it_is:
        same = state.dense(_resized(tensor, axis, target))
    with state.block() as added:
        total = reduced(state, node, tensor, kept, result.shape, "sum")
    blocks = tuple(Block(tuple(scope.steps)) for scope in (as_it_is, added))
    state.emit(Branch(is_one, blocks, ((same,), (total,)), (result,), node))
    return result.view


def _resized(tensor: Tensor, axis: int, size: Size) -> Tensor:
    """A tensor whose size along an axis is known to be another one too."""
    return replace(tensor, shape=(*tensor.shape[:axis], size, *tensor.shape[axis + 1 :]))


def converted(state: State, tensor: Tensor, dtype: np.dtype) -> Tensor:
    """An array of real numbers in another dtype, by a kernel."""
    if tensor.dtype == dtype:
        return tensor
    array = state.array(dtype, tensor.shape)
    expression, operands, numbers = expression_of([tensor], lambda builder, leaf: (leaf[0].convert(dtype),))
    state.emit(Kernel(tensor.shape, operands, numbers, expression, (Write(array.view, (0,)),)))
    return array.view
