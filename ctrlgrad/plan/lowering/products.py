"""Matrix products.

Those of complex matrices are four products of real ones: the routines for real numbers pack, go by tiles and use all
cores, and taking the parts apart and putting them together is little beside that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ctrlgrad.dtypes import computed_dtype
from ctrlgrad.ir import Node
from ctrlgrad.plan.expression import ExpressionBuilder, Number, fma
from ctrlgrad.plan.lowering.arithmetic import converted, expression_outputs
from ctrlgrad.plan.lowering.broadcasting import joined_shape, spread
from ctrlgrad.plan.lowering.state import State
from ctrlgrad.plan.lowering.tensors import Tensor, expression_of
from ctrlgrad.plan.model import Array, Kernel, Operand, Product, View, Write
from ctrlgrad.plan.sizes import ZERO, Size

# A product of at most so many terms for each of at most so many columns is a kernel: to call a routine takes longer,
# and kernels over the same space become one with it.
MOST_TERMS, MOST_COLUMNS = 4, 8
# Of complex matrices, where four routines would be called.
MOST_TERMS_BY_PARTS = 6


def matmul(state: State, node: Node) -> None:
    a, b = (state.tensor(v) for v in node.operands)
    state.guard_equal(a.shape[-1], b.shape[-2])
    dtype = node.result.tensor.dtype
    if dtype.kind == "c":
        state.items[node.result] = _of_parts(state, node, a, b)
        return
    computed = computed_dtype(dtype)
    found = _product(state, node, converted(state, a, computed), converted(state, b, computed))
    state.items[node.result] = converted(state, found.view, dtype)


def _product(state: State, node: Node, a: Tensor, b: Tensor, base: Array | None = None) -> Array:
    """The product of real matrices, added to `base`; what is broadcast over the batch has stride 0 there."""
    batch = joined_shape(state, [a.shape[:-2], b.shape[:-2]], node.result.tensor.shape[:-2])
    terms, columns = a.shape[-1] if a.shape[-1].is_known else b.shape[-2], b.shape[-1]
    left = state.in_memory(spread(state, a, (*batch, a.shape[-2], terms)))
    right = state.in_memory(spread(state, b, (*batch, terms, columns)))
    result = state.array(a.dtype, (*batch, a.shape[-2], columns))
    most = MOST_TERMS_BY_PARTS if node.result.tensor.dtype.kind == "c" else MOST_TERMS
    is_short = terms.is_known and 0 < terms.factor <= most and columns.is_known and columns.factor <= MOST_COLUMNS
    if is_short and a.dtype.kind == "f":
        state.emit(_short_product(node, result, left, right, base))
    else:
        state.emit(Product(result, left, right, base, node=node))
    return result


def _of_parts(state: State, node: Node, a: Tensor, b: Tensor) -> View:
    """The second product of each part is added to the first."""
    a_real, a_imag, a_less = _parts(state, a, lambda builder, x: (x[0], x[1], -x[1]))
    b_real, b_imag = _parts(state, b, lambda builder, x: x)
    real = _product(state, node, a_less, b_imag, _product(state, node, a_real, b_real))
    imag = _product(state, node, a_imag, b_real, _product(state, node, a_real, b_imag))
    dtype = node.result.tensor.dtype
    result = state.array(dtype, real.shape)
    expression, operands, numbers = expression_of([real.view, imag.view], lambda builder, re, im: (re[0], im[0]))
    write = Write(result.view, expression_outputs(dtype))
    state.emit(Kernel(result.shape, operands, numbers, expression, (write,), nodes=(node,)))
    return result.view


def _parts(state: State, tensor: Tensor, make: Callable[..., Sequence[Number]]) -> list[View]:
    """Arrays of what is made of the two parts of each element."""
    expression, operands, numbers = expression_of([tensor], make)
    dtype = np.dtype(tensor.dtype.type(0).real.dtype)
    arrays = [state.array(dtype, tensor.shape) for _ in expression.outputs]
    writes = tuple(Write(array.view, (k,)) for k, array in enumerate(arrays))
    state.emit(Kernel(tensor.shape, operands, numbers, expression, writes))
    return [array.view for array in arrays]


def _short_product(node: Node, result: Array, a: View, b: View, base: Array | None) -> Kernel:
    """A product with its few terms written out, each rounded once with the sum before it, as the routines do."""
    builder = ExpressionBuilder()
    operands: list[Operand] = []
    total: Number | None = None
    if base is not None:
        operands.append(Operand(base.view))
        total = builder.emit("load", (), result.dtype, (0, 0))
    for term in range(a.shape[-1].factor):
        pair = []
        for view, along, strides in ((a, -1, (a.strides[-2], ZERO)), (b, -2, (ZERO, b.strides[-1]))):
            offset = (*view.offset, Size(term) * view.strides[along]) if term else view.offset
            operands.append(Operand(View(view.array, offset, result.shape, (*view.strides[:-2], *strides))))
            pair.append(builder.emit("load", (), result.dtype, (len(operands) - 1, 0)))
        total = pair[0] * pair[1] if total is None else fma(pair[0], pair[1], total)
    assert total is not None
    return Kernel(result.shape, tuple(operands), (), builder.finish(total), (Write(result.view, (0,)),), nodes=(node,))
