"""Products of integers and of complex numbers, by simple loops; integers wrap.

cg_gemm_TYPE(the arguments of the float products; strides count numbers, and `scratch` is not used)
"""

from __future__ import annotations

from ctrlgrad.engines.native.products.function import Function
from ctrlgrad.engines.native.products.whole import GEMM

INTEGERS = {"i8": 1, "i16": 2, "i32": 4, "i64": 8}
COMPLEX = {"c64": "float", "c128": "double"}


def plain() -> list[str]:
    return [_integers(kind) for kind in INTEGERS] + [_complex(name, part) for name, part in COMPLEX.items()]


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


def _complex(name: str, part: str) -> str:
    f = Function(f"cg_gemm_{name}", GEMM)
    pair, size, fma = f"[2 x {part}]", 4 if part == "float" else 8, f"llvm.fmuladd.f{32 if part == 'float' else 64}"

    def read(pointer: str, index: str) -> tuple[str, str]:
        address = f.at(pointer, index, pair)
        return f.load(part, address, size), f.load(part, f.at(address, 1, part), size)

    def add_product(total: str, a: str, b: str) -> str:
        return f.op(f"call {part} @{fma}({part} {a}, {part} {b}, {part} {total})")

    with f.loop(0, "%m") as i, f.loop(0, "%n") as j:
        real, imaginary = f.variable(part, "0.0"), f.variable(part, "0.0")
        with f.when(f.test("ne", "%accumulate", 0)):
            old = read("%c", f.add(f.mul(i, "%rc"), j))
            f.set(real, old[0])
            f.set(imaginary, old[1])
        with f.loop(0, "%k") as p:
            a = read("%a", f.add(f.mul(i, "%ra"), f.mul(p, "%ca")))
            b = read("%b", f.add(f.mul(p, "%rb"), f.mul(j, "%cb")))
            less = f.op(f"fneg {part} {a[1]}")
            f.set(real, add_product(add_product(f.get(real), a[0], b[0]), less, b[1]))
            f.set(imaginary, add_product(add_product(f.get(imaginary), a[0], b[1]), a[1], b[0]))
        address = f.at("%c", f.add(f.mul(i, "%rc"), j), pair)
        f.store(part, f.get(real), address, size)
        f.store(part, f.get(imaginary), f.at(address, 1, part), size)
    f.leave()
    return f.text()
