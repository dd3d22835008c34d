"""Lowering of products, factorisations and linear systems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from ctrlgrad.dtypes import computed_dtype, dtype_kind, finfo
from ctrlgrad.ir import Builder, Graph, Loop, Node, TensorType, attributes
from ctrlgrad.ir.attributes import Triangle
from ctrlgrad.ops.term import Term, constant, emit, swap_last, where
from ctrlgrad.plan.expression import BOOL, ExpressionBuilder, Number, fma
from ctrlgrad.plan.lowering.arithmetic import converted, expression_outputs
from ctrlgrad.plan.lowering.broadcasting import joined_shape, spread
from ctrlgrad.plan.lowering.outside import or_outside, outside
from ctrlgrad.plan.lowering.state import INDEX, Splat, State, Tensor, expression_of
from ctrlgrad.plan.model import Array, Factorise, Kernel, Operand, Product, Register, View, Write, lu_elements
from ctrlgrad.plan.sizes import ONE, ZERO, Size, Sizes, row_major

# Matrix products.
#
# Products of complex matrices are four products of real ones: the routines for real numbers pack, go by tiles and use
# all cores, and taking the parts apart and putting them together is little beside that.


# A product of at most so many terms for each of at most so many columns is a kernel: to call a routine takes longer,
# and kernels over the same space become one with it.
MOST_TERMS, MOST_COLUMNS = 4, 8
# A product of a matrix and a vector of at most so many elements a side, for each of a batch, is a kernel too.
MOST_OF_A_SIDE = 16
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
    in_order = attributes.Product.of(node).in_order
    sides = [size.factor if size.is_known else None for size in (*left.shape[-2:], columns)]
    if is_short and a.dtype.kind == "f":
        state.emit(_short_product(node, result, left, right, base))
    elif (
        all(side is not None and 0 < side <= MOST_OF_A_SIDE for side in sides)
        and 1 in (sides[0], sides[2])
        and any(size != ONE for size in batch)
        and a.dtype.kind == "f"
        and base is None
        and not in_order
    ):
        state.emit(_vector_product(node, result, left, right))
    else:
        state.emit(Product(result, left, right, base, in_order=in_order, node=node))
    return result


def _vector_product(node: Node, result: Array, a: View, b: View) -> Kernel:
    """Products of a batch of matrices and vectors, as sums along the terms."""
    matrix, vector, strides = (a, b, a.strides[-2:]) if b.shape[-1] == ONE else (b, a, (b.strides[-1], b.strides[-2]))
    along = b.strides[-2] if vector is b else a.strides[-1]
    lead = result.shape[:-2]
    size = result.shape[-2] * result.shape[-1]
    space = (*lead, size, a.shape[-1])
    builder = ExpressionBuilder()
    operands = (
        Operand(View(matrix.array, matrix.offset, space, (*matrix.strides[:-2], *strides))),
        Operand(View(vector.array, vector.offset, space, (*vector.strides[:-2], ZERO, along))),
    )
    x, y = (builder.emit("load", (), result.dtype, (place, 0)) for place in range(2))
    target = View(result, (), space, (*row_major((*lead, size)), ZERO))
    write = Write(target, (0,), "sum")
    return Kernel(space, operands, (), builder.finish(x * y), (write,), nodes=(node,))


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


# Linear systems, Cholesky factors, determinants and adjugates.
#
# Linear and triangular systems and Cholesky factors are of matrices of any size, real or complex; QR is of small ones,
# and determinants, eigenvalues and singular values are of small real ones. Where a matrix has no answer, or sizes that
# only run time knows turn out to be large, the reference kernel is called: it says what is wrong, or computes it.


Factors = Literal["solve", "lu", "lu_solved", "triangular_solve", "cholesky", "pivots", "orthonormal", "eigh", "svd"]
# Rows of a matrix up to which code in the loop is faster than a call of LAPACK from Python.
LARGEST = 64
# Columns up to which decompositions are computed there; of singular values, the smaller one of the two sizes. LAPACK
# finds the eigenvectors of larger matrices in another way, which gives them other signs.
MOST_COLUMNS_OF = {"orthonormal": 64, "eigh": 25, "svd": 16}


def _may_be_small(state: State, node: Node) -> bool:
    """Return true if the matrices of a node may be factorised inline in the loop; else emit a call of the reference
    kernel."""
    rows, columns = state.shape(node.operands[0])[-2:]
    sizes = [size.factor for size in (rows, columns) if size.is_known]
    found = dtype_kind(node.operands[0].tensor.dtype) == "f" and all(size <= LARGEST for size in sizes)
    if not found:
        outside(state, node)
    return found


# Rows of real matrices up to which the factors of one use are made beside the right sides.
FEW_ROWS = 64


def solve(state: State, node: Node) -> None:
    """Systems by factors. Those of one matrix, or of its transpose, share the factors."""
    a, b = (state.tensor(v) for v in node.operands)
    n = a.shape[-1]
    if not n.is_known or isinstance(a, Splat):
        _system(state, node, "solve", None)
        return
    batch = joined_shape(state, [a.shape[:-2], b.shape[:-2]], node.result.tensor.shape[:-2])
    is_shared = a.dtype.kind == "c" or n.factor > FEW_ROWS or a.shape[:-2] != batch
    if not is_shared and _known_factors(state, a) is None:
        _system(state, node, "solve", None)
        return
    state.guard_equal(a.shape[-2], n)
    state.guard_equal(b.shape[-2], n)
    factors, done, transposed = _factors_of(state, node, a)
    given = state.in_memory(spread(state, factors, (*batch, factors.shape[-1])))
    right = state.in_memory(spread(state, b, (*batch, n, b.shape[-1])))
    result = state.array(node.result.tensor.dtype, (*batch, n, b.shape[-1]))
    state.emit(Factorise("lu_solved", result, given, right, state.register(BOOL), None, node, transposed=transposed))
    state.items[node.result] = result.view
    or_outside(state, node, done, lambda: None, result.shape)


def share_factors(state: State, loop: Loop) -> None:
    """Factorise, in front of a loop, the matrices of which each iteration solves systems."""
    outer = {c.in_body: c.outer for c in loop.captures}
    for node in loop.body.nodes:
        a = state.items[outer[node.operands[0]]] if node.op.name == "solve" and node.operands[0] in outer else None
        if isinstance(a, View) and a.shape[-1].is_known:
            state.guard_equal(a.shape[-2], a.shape[-1])
            _factors_of(state, node, a)


def _known_factors(state: State, a: View) -> tuple[View, Register, bool] | None:
    """Factors that were made where a step can still read them, whether there are some, and whether they are those of
    the transposed matrices."""
    turned = replace(a, strides=(*a.strides[:-2], a.strides[-1], a.strides[-2]))
    for view, transposed in ((a, False), (turned, True)):
        if (found := state.factors.get(view)) is not None and any(found[0] is each for each in state.scopes):
            return *found[1:], transposed
    return None


def _factors_of(state: State, node: Node, a: View) -> tuple[View, Register, bool]:
    """As `_known_factors`; they are made where there are none."""
    found = _known_factors(state, a)
    if found is None:
        real = np.dtype(a.dtype.type(0).real.dtype)
        array = state.array(real, (*a.shape[:-2], Size(lu_elements(a.shape[-1].factor, a.dtype))))
        done = _emit(state, node, "lu", array, a, largest=None)
        state.factors[a] = state.scopes[-1], array.view, done
        found = array.view, done, False
    return found


def triangular_solve(state: State, node: Node) -> None:
    _system(state, node, "triangular_solve", Triangle.of(node))


def _system(state: State, node: Node, how: Factors, triangle: Triangle | None) -> None:
    a, b = (state.tensor(v) for v in node.operands)
    batch = joined_shape(state, [a.shape[:-2], b.shape[:-2]], node.result.tensor.shape[:-2])
    n = _side(state, a.shape)
    state.guard_equal(b.shape[-2], n)
    columns = b.shape[-1]
    left = state.in_memory(spread(state, a, (*batch, n, n)))
    right = state.in_memory(spread(state, b, (*batch, n, columns)))
    result = state.array(node.result.tensor.dtype, (*batch, n, columns))
    done = _emit(state, node, how, result, left, right, triangle, largest=None)
    state.items[node.result] = result.view
    or_outside(state, node, done, lambda: None, result.shape)


def cholesky(state: State, node: Node) -> None:
    a = state.in_memory(state.tensor(node.operands[0]))
    n = _side(state, a.shape)
    result = state.array(node.result.tensor.dtype, (*a.shape[:-2], n, n))
    done = _emit(state, node, "cholesky", result, a, largest=None)
    state.items[node.result] = result.view
    or_outside(state, node, done, lambda: None, result.shape)


def determinant(state: State, node: Node, visit: Callable[[Node], None]) -> None:
    """`det`, `logabsdet` and `det_sign`, from the pivots."""
    if not _may_be_small(state, node):
        return
    a = state.in_memory(state.tensor(node.operands[0]))
    n = _side(state, a.shape)
    pivots = state.array(a.dtype, (*a.shape[:-2], n))
    done = _emit(state, node, "pivots", pivots, a)
    graph = _of_pivots(node, a.dtype)

    def from_pivots() -> None:
        (state.items[node.result],) = state.run(graph, {graph.inputs[0]: pivots.view}, visit)

    if n.is_known:
        from_pivots()
    else:
        or_outside(state, node, done, from_pivots, pivots.shape[:-1])


# The norm of a matrix times its inverse's, by the bytes of a number, up to which adjugates are made of inverses: the
# error is so many times the rounding.
_CONDITION = {4: 1e2, 8: 1e4}


def adjugate(state: State, node: Node, visit: Callable[[Node], None]) -> None:
    """det(a) inv(a), where that keeps the digits: of a matrix that has an inverse and is far from having none."""
    if not _may_be_small(state, node):
        return
    a = state.in_memory(state.tensor(node.operands[0]))
    n = _side(state, a.shape)
    shape = (*a.shape[:-2], n, n)
    inverse = state.array(a.dtype, shape)
    done = _emit(state, node, "solve", inverse, a, _identity(state, a.dtype, shape))
    of_pivots, of_inverse = _of_pivots(node, a.dtype), _of_inverse(node, a.dtype)

    def from_inverse() -> None:
        pivots = state.array(a.dtype, shape[:-1])
        _emit(state, node, "pivots", pivots, a)
        (det,) = state.run(of_pivots, {of_pivots.inputs[0]: pivots.view}, visit)
        items = dict(zip(of_inverse.inputs, (a, inverse.view, det), strict=True))
        state.items[node.result], holds = state.run(of_inverse, items, visit)
        assert isinstance(holds, tuple)
        or_outside(state, node, holds[0], lambda: None, shape)

    or_outside(state, node, done, from_inverse, shape)


def _identity(state: State, dtype: np.dtype, shape: Sizes) -> View:
    """The identity for each matrix of a batch."""
    n = shape[-1]
    builder = ExpressionBuilder()
    row, column = (builder.emit("index", (), INDEX, axis) for axis in (0, 1))
    array = state.array(dtype, (n, n))
    expression = builder.finish(row.equals(column).convert(dtype))
    state.emit(Kernel((n, n), (), (), expression, (Write(array.view, (0,)),)))
    return View(array, (), shape, (*(ZERO for _ in shape[:-2]), n, ONE))


def _of_inverse(node: Node, dtype: np.dtype) -> Graph:
    """Of matrices, their inverses and determinants: the adjugates, and whether these are precise."""
    rank = node.operands[0].tensor.rank
    builder = Builder(name=node.op.name)
    builder.source = node.source
    a, inverse = (Term(builder, builder.input(TensorType(dtype, (None,) * rank))) for _ in range(2))
    det = Term(builder, builder.input(TensorType(dtype, (None,) * (rank - 2))))

    def over(op: str, x: Term, axes: tuple[int, ...]) -> Term:
        return emit(op, x, axes=axes, keepdims=False)

    last = (rank - 2, rank - 1)
    norms = [over("sum", emit("multiply", x, x), last) for x in (a, inverse)]
    condition = emit("multiply", *norms)
    size, number = emit("abs", det), finfo(dtype)
    limit, least, most = (
        constant(builder, np.asarray(x, dtype)) for x in (_CONDITION[dtype.itemsize] ** 2, number.tiny, number.max)
    )
    tests = (emit("less", condition, limit), emit("less_equal", least, size), emit("less_equal", size, most))
    holds = emit("logical_and", emit("logical_and", tests[0], tests[1]), tests[2])
    if rank > 2:
        holds = over("all", holds, tuple(range(rank - 2)))
    found = emit("multiply", emit("expand_dims", det, axes=last), inverse)
    return builder.finish([found.value, holds.value])


# QR, eigenvalues and eigenvectors, singular values and singular vectors of small matrices of known sizes.


def _is_decomposed(state: State, node: Node, how: Factors) -> bool:
    """Return true if the matrices of a node are decomposed in machine code; else call the reference kernel."""
    rows, columns = state.shape(node.operands[0])[-2:]
    few = columns.factor if how == "orthonormal" else min(rows.factor, columns.factor)
    kinds = "fc" if how == "orthonormal" else "f"
    found = dtype_kind(node.operands[0].tensor.dtype) in kinds and rows.is_known and columns.is_known
    if not found or few > MOST_COLUMNS_OF[how]:
        outside(state, node)
        return False
    return True


def orthonormal(state: State, node: Node) -> None:
    if _is_decomposed(state, node, "orthonormal"):
        a = state.in_memory(state.tensor(node.operands[0]))
        result = state.array(a.dtype, a.shape)
        _emit(state, node, "orthonormal", result, a, largest=None)
        state.items[node.result] = result.view


def spectrum(state: State, node: Node) -> None:
    """Values or vectors of matrices: one step finds both, where nodes of one graph want both of one matrix."""
    (value,), how = node.operands, _SPECTRA[node.op.name]
    if not _is_decomposed(state, node, how):
        return
    item, has_vectors = state.tensor(value), node.op.name in _OF_VECTORS
    scope, found = state.spectra.get((how, item), (None, None))
    is_seen = any(scope is each for each in state.scopes)
    if found is None or not is_seen or (has_vectors and found.shape[-2] == ONE):
        users = (n for n in state.graphs[-1].nodes if value in n.operands)
        found = _decomposed(state, node, how, any(n.op.name in _OF_VECTORS for n in users))
        state.spectra[how, item] = state.scopes[-1], found
    *batch, rows, columns = found.shape
    above = Size(rows.factor - 1)
    if has_vectors:
        state.items[node.result] = replace(found, shape=(*batch, above, columns))
        return
    offset = () if above == ZERO else (above * found.strides[-2],)
    state.items[node.result] = View(found.array, offset, (*batch, columns), (*found.strides[:-2], ONE))


_SPECTRA: dict[str, Factors] = {"eigenvalues": "eigh", "eigenvectors": "eigh"}
_SPECTRA |= {"singular_values": "svd", "singular_vectors": "svd"}

_OF_VECTORS = ("eigenvectors", "singular_vectors", "pinv")


def _decomposed(state: State, node: Node, how: Factors, has_vectors: bool) -> View:
    """The vectors of matrices and the row of their values, or that row alone."""
    a = state.in_memory(state.tensor(node.operands[0]))
    m, n = (size.factor for size in a.shape[-2:])
    above = (n if how == "eigh" else m + n) if has_vectors else 0
    result = state.array(a.dtype, (*a.shape[:-2], Size(above + 1), Size(min(m, n))))
    _emit(state, node, how, result, a, largest=None)
    return result.view


def pseudo_inverse(state: State, node: Node, visit: Callable[[Node], None]) -> None:
    """`pinv` of matrices whose singular values are found in machine code, from these and their vectors."""
    rows, columns = state.shape(node.operands[0])[-2:]
    if ZERO in (rows, columns):
        outside(state, node)
    elif _is_decomposed(state, node, "svd"):
        graph = _of_singular(node, rows.factor, columns.factor)
        items = dict(zip(graph.inputs, map(state.items.__getitem__, node.operands), strict=True))
        (state.items[node.result],) = state.run(graph, items, visit)


def _of_singular(node: Node, m: int, n: int) -> Graph:
    """v diag(1 / s) u^T, without the singular values that count as zero."""
    builder = Builder(name=node.op.name)
    builder.source = node.source
    a, bound = (Term(builder, builder.input(v.tensor)) for v in node.operands)
    every, vectors = [slice(None)] * (a.rank - 2), emit("singular_vectors", a)
    u, v = (emit("getitem", vectors, key=(*every, rows, slice(None))) for rows in (slice(0, m), slice(m, m + n)))
    s = emit("singular_values", a)
    largest = emit("getitem", s, key=(*every, slice(0, 1)))
    is_none = emit("less_equal", s, emit("multiply", emit("expand_dims", bound, axes=(bound.rank,)), largest))
    inverse = where(is_none, 0, 1 / where(is_none, 1, s))
    return builder.finish([((v * emit("expand_dims", inverse, axes=(inverse.rank - 1,))) @ swap_last(u)).value])


def _side(state: State, shape: Sizes) -> Size:
    rows, columns = shape[-2:]
    state.guard_equal(rows, columns)
    return rows if rows.is_known else columns


def _emit(
    state: State,
    node: Node,
    how: Factors,
    result: Array,
    a: View,
    b: View | None = None,
    triangle: Triangle | None = None,
    largest: int | None = LARGEST,
) -> Register:
    done = state.register(BOOL)
    state.emit(Factorise(how, result, a, b, done, largest, node, triangle))
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
