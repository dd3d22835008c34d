"""Common parts of all product routines: their arguments, and products of depth 0."""

from __future__ import annotations

from ctrlgrad.engines.native.products.function import Function, Number, parameters
from ctrlgrad.engines.native.products.real import Real

GEMM = parameters("c* rc a* ra ca b* rb cb m n k accumulate scratch*")


def given(parameters: list[tuple[str, str]], **changed: Number) -> str:
    """The arguments of a call that passes on one's own parameters, but for some."""
    return ", ".join(f"{kind} {changed.get(name, f'%{name}')}" for kind, name in parameters)


def without_depth(f: Function, real: Real, more: str) -> None:
    """A sum of nothing is 0."""
    with f.leaving_when(f.test("eq", "%k", 0)):
        with f.leaving_when(more):
            f.leave()
        with f.loop(0, "%m") as i, f.loop(0, "%n") as j:
            real.put(f, "0.0", real.at(f, "%c", f.add(f.mul(i, "%rc"), j)))
        f.leave()
