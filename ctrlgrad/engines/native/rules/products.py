"""Matrix products in generated code: calls of BLAS, plain loops for integers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ctrlgrad.engines.native.expressions import literal, type_name
from ctrlgrad.engines.native.frames import broadcast
from ctrlgrad.engines.native.layout import ONE, ZERO, Ref, Scalar, Size, Splat, plus, product, times
from ctrlgrad.engines.native.program import Entry
from ctrlgrad.engines.native.regions import RegionWriter
from ctrlgrad.engines.native.rules.table import rule
from ctrlgrad.ir import Node


@rule("matmul")
def _matmul(e: RegionWriter, node: Node) -> None:
    a, b = (e.ref(v) for v in node.operands)
    a, b = (x if _is_matrix(x) else e.copied(x) for x in map(_as_matrix, (a, b)))
    dtype, value, adds = node.result.tensor.dtype, node.result, False
    adder = e.adder(node)
    if adder is not None:
        placed, value, adds = e.start_sum(*adder), adder[0].result, True
    else:
        placed = e.place(node.result)
    target = _as_matrix(placed)
    if not _is_matrix(target):
        own = e.temporary(target.shape, dtype)
        if adds:
            e.copy(placed, own)
        placed = target = own
    batch = target.shape[:-2]
    sides = [broadcast(Ref(x.base, x.offset, x.shape, x.strides, x.dtype), (*batch, *x.shape[-2:])) for x in (a, b)]
    with e.nest(batch, [_leading(x) for x in (*sides, target)]) as (index, _):
        places = [index(k) for k in range(3)]
        _product(e, a, b, target, places, adds)
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    e.notes.append(
        f"matrix product [{m}, {k}] @ [{k}, {n}] of {dtype.name}" + (f" for each of {product(batch)}" if batch else "")
    )
    e.frame.items[value] = placed


def _leading(x: Ref) -> Ref:
    return Ref(x.base, x.offset, x.shape[:-2], x.strides[:-2], x.dtype)


def _as_matrix(x: Ref) -> Ref:
    """With strides that fit along axes of size 1, where any would do."""
    (height, width), (down, across) = x.shape[-2:], x.strides[-2:]
    if width == ONE:
        across = ONE
        down = ONE if height == ONE else down
    elif height == ONE:
        down = width if across == ONE else ONE
    return Ref(x.base, x.offset, x.shape, (*x.strides[:-2], down, across), x.dtype)


def _is_matrix(x: Ref) -> bool:
    """Whether the last two axes are a matrix as BLAS knows it, in rows or in columns."""
    rows, columns = x.strides[-2:]
    return (columns == ONE and _is_leading(rows, x.shape[-1])) or (rows == ONE and _is_leading(columns, x.shape[-2]))


def _is_leading(stride: Size, width: Size) -> bool:
    """Whether a stride is no less than a width, for every size that the names may stand for."""
    if stride.factor <= 0:
        return False
    rest = list(stride.names)
    for name in width.names:
        if name not in rest:
            return False
        rest.remove(name)
    return stride.factor >= width.factor


def _product(e: RegionWriter, a: Ref, b: Ref, c: Ref, places: Sequence[str], adds: bool) -> None:
    """One product of matrices, added to what C holds if it `adds`. Row-major C = A B is column-major C^T = B^T A^T."""
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    if c.dtype.kind not in "fc":
        _plain_product(e, a, b, c, places)
        return
    one, zero = literal(c.dtype.type(1)), literal(c.dtype.type(0))
    if ZERO in (m, n) or (adds and k == ZERO):
        return
    if k == ZERO:  # BLAS would leave the result as it is
        part = Ref(c.base, places[2], c.shape[-2:], c.strides[-2:], c.dtype)
        e.copy(Splat(Scalar(zero, c.dtype), part.shape), part)
        return
    if ONE in (m, n):
        _matrix_vector(e, a, b, c, places, adds)
        return
    given = []
    for ref, place in zip((b, a), (places[1], places[0]), strict=True):
        in_rows, leading = _rows_or_columns(ref)
        given.append((ord("N") if in_rows else ord("T"), f"shifted({ref.base}, {place})", leading))
    (tb, pb, ldb), (ta, pa, lda) = given
    e.line(
        f"gemm({_routine(e, 'gemm', c.dtype)}, {tb}, {ta}, {n}, {m}, {k}, {one}, {pb}, {ldb}, {pa}, {lda}, "
        f"{one if adds else zero}, "
        f"shifted({c.base}, {places[2]}), {c.strides[-2]})"
    )


def _rows_or_columns(ref: Ref) -> tuple[bool, Size]:
    """Whether a matrix lies in rows, and how far those (or its columns) are apart."""
    rows, columns = ref.strides[-2:]
    in_rows = columns == ONE and _is_leading(rows, ref.shape[-1])
    return in_rows, rows if in_rows else columns


def _routine(e: RegionWriter, name: str, dtype: np.dtype) -> str:
    """A BLAS routine for a dtype, under its name."""
    name = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}[dtype.name] + name
    if name not in e.routines:
        e.header.append(f"{name} = {e.entry(Entry('routine', name=name))}")
        e.routines[name] = name
    return name


def _matrix_vector(e: RegionWriter, a: Ref, b: Ref, c: Ref, places: Sequence[str], adds: bool) -> None:
    """A product with a vector on one side. A matrix in rows is its transpose in columns."""
    if c.shape[-1] == ONE:
        matrix, vector, (place, vector_place), turned = a, b, places[:2], True
        step, step_c = vector.strides[-2], c.strides[-2]
    else:
        matrix, vector, (vector_place, place), turned = b, a, places[:2], False
        step, step_c = vector.strides[-1], c.strides[-1]
    in_rows, leading = _rows_or_columns(matrix)
    height, width = matrix.shape[-2:]
    m, n = (width, height) if in_rows else (height, width)
    # y = A x needs a transpose of the columns where A lies in rows, y = x B where B does not.
    flag = ord("T") if in_rows == turned else ord("N")
    one, zero = literal(c.dtype.type(1)), literal(c.dtype.type(0))
    given = f"shifted({matrix.base}, {place}), {leading}, shifted({vector.base}, {vector_place}), {_step(step)}"
    result = f"shifted({c.base}, {places[2]}), {_step(step_c)}"
    e.line(f"gemv({_routine(e, 'gemv', c.dtype)}, {flag}, {m}, {n}, {one}, {given}, {one if adds else zero}, {result})")


def _step(stride: Size) -> Size:
    """The distance of a vector's elements; any will do where there is but one."""
    return ONE if stride.factor == 0 else stride


def _plain_product(e: RegionWriter, a: Ref, b: Ref, c: Ref, places: Sequence[str]) -> None:
    i, j, k, total = e.fresh("i"), e.fresh("i"), e.fresh("i"), e.fresh("v")
    with e.block(f"for {i} in range({a.shape[-2]}):"), e.block(f"for {j} in range({b.shape[-1]}):"):
        e.line(f"{total} = {literal(c.dtype.type(0))}")
        with e.block(f"for {k} in range({a.shape[-1]}):"):
            left = e.load(a, plus(plus(places[0], times(i, a.strides[-2])), times(k, a.strides[-1])))
            right = e.load(b, plus(plus(places[1], times(k, b.strides[-2])), times(j, b.strides[-1])))
            e.line(f"{total} = {type_name(c.dtype)}({total} + {left} * {right})")
        e.put(c, plus(plus(places[2], times(i, c.strides[-2])), times(j, c.strides[-1])), total)
