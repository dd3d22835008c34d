"""A matrix by a vector, as a product with one column (or one row) is.

    cg_by_vectors_TYPE(the arguments of a product)

is a product with one column, or row by row, by one thread. A module that knows of a product that it has one row or one
column needs no more than this and the kernels of `times`, and waits for no tiles to be compiled. What no kernel is for,
other strides, and an x or results with gaps, is scalar.
"""

from __future__ import annotations

from ctrlgrad.engines.native.products import times
from ctrlgrad.engines.native.products.function import Function
from ctrlgrad.engines.native.products.real import Real
from ctrlgrad.engines.native.products.whole import GEMM, without_depth
from ctrlgrad.engines.native.sum_blocks import InRegister, in_blocks


def times_name(real: Real) -> str:
    return f"times_{real.name}"


def by_vectors_name(real: Real) -> str:
    return f"cg_by_vectors_{real.name}"


def by_vectors(real: Real) -> str:
    """C = A B, or C += A B, where B is one column, or for each row of A."""
    f = Function(by_vectors_name(real), GEMM)
    more = f.test("ne", "%accumulate", 0)
    without_depth(f, real, more)
    call = f"call void @{times_name(real)}"
    with f.leaving_when(f.test("eq", "%n", 1)):
        f.line(f"{call}(ptr %c, i64 %rc, ptr %a, i64 %ra, i64 %ca, ptr %b, i64 %rb, i64 %m, i64 %k, i1 {more})")
        f.leave()
    with f.loop(0, "%m") as i:
        a, c = real.at(f, "%a", f.mul(i, "%ra")), real.at(f, "%c", f.mul(i, "%rc"))
        f.line(f"{call}(ptr {c}, i64 1, ptr %b, i64 %cb, i64 %rb, ptr {a}, i64 %ca, i64 %n, i64 %k, i1 {more})")
    f.leave()
    return f.text()


def vectors(real: Real) -> list[str]:
    return [times.table(real), by_strides(real), by_vectors(real)]


def by_strides(real: Real) -> str:
    f = Function(times_name(real), times.PARAMETERS, prefix="internal")
    dense = f.test("eq", "%sx", 1)
    with f.leaving_when(f.both(f.test("eq", "%cm", 1), dense)):
        times.call(f, real, times.rows_name(real))
        f.leave()
    with f.leaving_when(f.both(f.test("eq", "%rm", 1), f.test("eq", "%so", 1))):
        times.call(f, real, times.columns_name(real))
        f.leave()
    with f.loop(0, "%rows") as i:
        total = f.variable(real.scalar, "0.0")
        row = real.at(f, "%m", f.mul(i, "%rm"))
        for first, last in in_blocks(f, [InRegister(f, total.slot, real.dtype, 1)], "0", "%k"):
            with f.loop(first, last) as p:
                a = real.element(f, real.at(f, row, f.mul(p, "%cm")))
                b = real.element(f, real.at(f, "%x", f.mul(p, "%sx")))
                f.set(total, real.multiply_add(f, a, b, f.get(total)))
        times.put(f, real, f.get(total), real.at(f, "%out", f.mul(i, "%so")))
    f.leave()
    return f.text()
