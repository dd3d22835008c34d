"""Products of integers, by simple loops; they wrap.

cg_gemm_TYPE(the arguments of the float products; strides count numbers, and `scratch` is not used)
"""

from __future__ import annotations

from ctrlgrad.engines.native.products.function import Function
from ctrlgrad.engines.native.products.whole import GEMM

INTEGERS = {"i8": 1, "i16": 2, "i32": 4, "i64": 8}


def plain() -> list[str]:
    return [_integers(kind) for kind in INTEGERS]


def _integers(kind: str) -> str:
    size = INTEGERS[kind]
    f = Function(f"cg_gemm_{kind}", GEMM)
    with f.loop(0, "%m") as i, f.loop(0, "%n") as j:
        total = f.variable(kind, 0)
        with f.when(f.test("ne", "%accumulate", 0)):
            f.set(total, f.load(kind, f.at("%c", f.add(f.mul(i, "%rc"), j), kind), size))
        with f.loop(0, "%k") as p:
            a = f.load(kind, f.at("%a", f.add(f.mul(i, "%ra"), f.mul(p, "%ca")), kind), size)
            b = f.load(kind, f.at("%b", f.add(f.mul(p, "%rb"), f.mul(j, "%cb")), kind), size)
            f.set(total, f.op(f"add {kind} {f.get(total)}, {f.op(f'mul {kind} {a}, {b}')}"))
        f.store(kind, f.get(total), f.at("%c", f.add(f.mul(i, "%rc"), j), kind), size)
    f.leave()
    return f.text()
