"""Linear systems, Cholesky factors and determinants of small real matrices.

Where a matrix has no answer, or sizes that only run time knows turn out to be large, the reference kernel is called: it
says what is wrong, or computes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ctrlgrad.ir import Builder, Graph, Node, TensorType
from ctrlgrad.plan.expression import BOOL
from ctrlgrad.plan.lowering.broadcasting import joined_shape, spread
from ctrlgrad.plan.lowering.outside import or_outside, outside
from ctrlgrad.plan.lowering.state import State
from ctrlgrad.plan.model import Array, Factorise, Register, View
from ctrlgrad.plan.sizes import Size, Sizes

# Rows of a matrix up to which code in the loop is faster than a call of LAPACK by way of Python.
LARGEST = 64


def _may_be_small(state: State, node: Node) -> bool:
    """Whether the matrices of a node may be factorised by code in the loop; else the reference kernel is called."""
    rows, columns = state.shape(node.operands[0])[-2:]
    sizes = [size.factor for size in (rows, columns) if size.is_known]
    found = node.operands[0].tensor.dtype.kind == "f" and all(size <= LARGEST for size in sizes)
    if not found:
        outside(state, node)
    return found


def solve(state: State, node: Node) -> None:
    if not _may_be_small(state, node):
        return
    a, b = (state.tensor(v) for v in node.operands)
    batch = joined_shape(state, [a.shape[:-2], b.shape[:-2]], node.result.tensor.shape[:-2])
    n = _side(state, a.shape)
    state.guard_equal(b.shape[-2], n)
    columns = b.shape[-1]
    left = state.in_memory(spread(state, a, (*batch, n, n)))
    right = state.in_memory(spread(state, b, (*batch, n, columns)))
    result = state.array(node.result.tensor.dtype, (*batch, n, columns))
    done = _emit(state, node, result, left, right)
    state.items[node.result] = result.view
    or_outside(state, node, done, lambda: None, result.shape)


def cholesky(state: State, node: Node) -> None:
    if not _may_be_small(state, node):
        return
    a = state.in_memory(state.tensor(node.operands[0]))
    n = _side(state, a.shape)
    result = state.array(node.result.tensor.dtype, (*a.shape[:-2], n, n))
    done = _emit(state, node, result, a, None)
    state.items[node.result] = result.view
    or_outside(state, node, done, lambda: None, result.shape)


def determinant(state: State, node: Node, visit: Callable[[Node], None]) -> None:
    """`det`, `logabsdet` and `det_sign`, from the pivots."""
    if not _may_be_small(state, node):
        return
    a = state.in_memory(state.tensor(node.operands[0]))
    n = _side(state, a.shape)
    pivots = state.array(a.dtype, (*a.shape[:-2], n))
    done = _emit(state, node, pivots, a, None)
    graph = _of_pivots(node, a.dtype)

    def from_pivots() -> None:
        (state.items[node.result],) = state.run(graph, {graph.inputs[0]: pivots.view}, visit)

    if n.is_known:
        from_pivots()
    else:
        or_outside(state, node, done, from_pivots, pivots.shape[:-1])


def _side(state: State, shape: Sizes) -> Size:
    rows, columns = shape[-2:]
    state.guard_equal(rows, columns)
    return rows if rows.is_known else columns


def _emit(state: State, node: Node, result: Array, a: View, b: View | None) -> Register:
    done = state.register(BOOL)
    how: Any = node.op.name if node.op.name in ("solve", "cholesky") else "pivots"
    state.emit(Factorise(how, result, a, b, done, LARGEST, node))
    return done


def _of_pivots(node: Node, dtype: np.dtype) -> Graph:
    """The op as a function of the pivots [..., n]: the sign, the sum of the logarithms, or of both the product."""
    rank = node.operands[0].tensor.rank - 1
    builder = Builder(name=node.op.name)
    builder.source = node.source
    pivots = builder.input(TensorType(dtype, (None,) * rank))
    attrs = {"axes": (rank - 1,), "keepdims": False}
    zero = builder.constant(np.zeros((), dtype))
    none, one, minus = (builder.constant(np.int64(k)) for k in (0, 1, -1))
    is_zero, is_negative = (builder.emit(op, (pivots, zero)) for op in ("equal", "less"))
    units = builder.emit("where", (is_zero, none, builder.emit("where", (is_negative, minus, one))))
    sign = builder.emit("cast", (builder.emit("prod", (units,), attrs),), {"dtype": dtype})
    size = builder.emit("sum", (builder.emit("log", (builder.emit("abs", (pivots,)),)),), attrs)
    if node.op.name == "det_sign":
        return builder.finish([sign])
    if node.op.name == "logabsdet":
        return builder.finish([size])
    return builder.finish([builder.emit("multiply", (sign, builder.emit("exp", (size,))))])


__all__ = ["LARGEST", "cholesky", "determinant", "solve"]
