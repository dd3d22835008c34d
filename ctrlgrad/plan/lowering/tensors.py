"""What stands for an array while a graph is lowered: a view, or one number for all of its elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ctrlgrad.plan.expression import Expression, ExpressionBuilder, Number
from ctrlgrad.plan.lowering.stack_facts import RaggedStack
from ctrlgrad.plan.model import Numbers, Operand, Register, Stack, View
from ctrlgrad.plan.sizes import ONE, Size, Sizes
from ctrlgrad.records import record

PARTS: dict[np.dtype, np.dtype] = {
    np.dtype(np.complex64): np.dtype(np.float32),
    np.dtype(np.complex128): np.dtype(np.float64),
}


def parts_of(dtype: np.dtype) -> tuple[np.dtype, ...]:
    """The dtypes of the registers that hold one element."""
    return (PARTS[dtype], PARTS[dtype]) if dtype in PARTS else (dtype,)


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
