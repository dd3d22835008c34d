"""Entry points for products: a product is done at once where it is small, else cut into parts for all threads.

    cg_gemm_TYPE(C, row stride, A, row stride, column stride, B, row stride, column stride,
                 rows, columns, depth, accumulate, scratch)
    cg_gemm_packed_TYPE(the same, B being what cg_pack_b_TYPE made of it; its strides say nothing)
    cg_gemv_TYPE(the same, of one row or one column)

The longer side of C is cut, so that a part is a product of its own, with the scratch of the thread that does it. It is
cut between tiles, so that the result does not depend on the number of threads.
"""

from __future__ import annotations

from ctrlgrad.engines.native.products.function import Function, parameters
from ctrlgrad.engines.native.products.real import Real
from ctrlgrad.engines.native.products.times import LONGEST
from ctrlgrad.engines.native.products.whole import GEMM, given
from ctrlgrad.threads import WORK_OF_A_PART, WORK_TO_SHARE

PARTS_PER_THREAD = 4
LONG_PART = 512
"""So long at least is a part of a product whose other side is half as long or longer, while there are enough parts."""

# Fields of a part's context: the arguments of the product, then how C is cut.
_FIELDS = [name for _, name in GEMM] + ["by_rows", "unit", "last"]


def shared(routine: str, alone: str, real: Real) -> list[str]:
    """The routine of this name, where one thread calls `alone`."""
    packed = routine.startswith("cg_gemm_packed")
    return [_part(routine, alone, real, packed), _call(routine, alone, real, packed)]


def _call(routine: str, whole: str, real: Real, packed: bool) -> str:
    f = Function(routine, GEMM)
    # Multiplications, or the bytes that they are done with: of a matrix and a vector these are more.
    elements = f.add(f.add(f.mul("%m", "%k"), f.mul("%k", "%n")), f.mul("%m", "%n"))
    work = f.larger(f.mul(f.mul("%m", "%n"), "%k"), f.mul(elements, real.bytes))
    alone, share = f.new_label("alone"), f.new_label("share")
    f.branch_if(f.test("slt", work, WORK_TO_SHARE), alone, share)
    f.label(share)
    threads = f.op("call i64 @cg_pool_threads()")
    parts = f.smaller(f.div(work, WORK_OF_A_PART), f.mul(threads, PARTS_PER_THREAD))
    by_rows = f.test("sgt", "%m", "%n")
    length, other = f.select(by_rows, "i64", "%m", "%n"), f.select(by_rows, "i64", "%n", "%m")
    # Each part packs the other operand again, where that is large.
    widest = f.larger(f.div(length, LONG_PART), threads)
    parts = f.select(f.test("sge", other, LONG_PART // 2), "i64", f.smaller(parts, widest), parts)
    tile = f.select(by_rows, "i64", real.rows, real.columns)
    if not packed:
        vector = f.test("eq", f.smaller("%m", "%n"), 1)
        tile = f.select(vector, "i64", LONGEST * real.lanes, tile)
    # A side shorter than the number of parts is cut into parts of one tile.
    unit = f.larger(f.div(length, parts), 1)
    unit = f.mul(f.div(f.add(unit, f.sub(tile, 1)), tile), tile)
    # The last part takes the remainder, at least a tile: so tiles do not depend on the thread that computes them.
    panels = f.larger(f.div(f.sub(f.add(length, unit), tile), unit), 1)
    several = f.both(f.test("sgt", threads, 1), f.test("sgt", panels, 1))
    cut = f.new_label("cut")
    f.branch_if(several, cut, alone)
    f.label(cut)
    context = f.alloca(f"[{len(_FIELDS)} x i64]")
    values = {name: f.op(f"ptrtoint ptr %{name} to i64") if kind == "ptr" else f"%{name}" for kind, name in GEMM}
    values |= {"by_rows": f.op(f"zext i1 {by_rows} to i64"), "unit": unit, "last": f.sub(panels, 1)}
    for k, name in enumerate(_FIELDS):
        f.store("i64", values[name], f.at(context, k, "i64"), 8)
    f.line(f"call void @cg_parallel(ptr @part_{routine}, ptr {context}, i64 {panels}, i64 {work})")
    f.leave()
    f.label(alone)
    f.line(f"call void @{whole}({given(GEMM)})")
    f.leave()
    return f.text()


def _part(routine: str, whole: str, real: Real, packed: bool) -> str:
    """One part of C: some rows, or some columns."""
    f = Function(f"part_{routine}", parameters("context* part worker"), prefix="internal")
    found = {name: f.load("i64", f.at("%context", k, "i64"), 8) for k, name in enumerate(_FIELDS)}
    for kind, name in GEMM:
        if kind == "ptr":
            found[name] = f.op(f"inttoptr i64 {found[name]} to ptr")
    start = f.mul("%part", found["unit"])
    by_rows = f.test("ne", found["by_rows"], 0)
    row, column = f.select(by_rows, "i64", start, 0), f.select(by_rows, "i64", 0, start)
    side = f.select(by_rows, "i64", found["m"], found["n"])
    last = f.test("eq", "%part", found["last"])
    length = f.select(last, "i64", f.sub(side, start), found["unit"])
    m, n = f.select(by_rows, "i64", length, found["m"]), f.select(by_rows, "i64", found["n"], length)
    # A packed panel's columns lie together: the distance of two of them, over the panel, is the depth.
    next_column = found["k"] if packed else found["cb"]
    a = real.at(f, found["a"], f.mul(row, found["ra"]))
    b = real.at(f, found["b"], f.mul(column, next_column))
    c = real.at(f, found["c"], f.add(f.mul(row, found["rc"]), column))
    own = f.op("call ptr @cg_pool_scratch(i64 %worker)")
    scratch = f.select(f.test("eq", "%worker", 0), "ptr", found["scratch"], own)
    found |= {"a": a, "b": b, "c": c, "m": m, "n": n, "scratch": scratch}
    f.line(f"call void @{whole}({given(GEMM, **found)})")
    f.leave()
    return f.text()
