"""Checks of a program: its value, derivatives of both modes and of second order, and rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import ctrlgrad as cg
from ctrlgrad.verify.jax_judge import confirmed
from random_jaxprs.generate import SIZE, Program

TOLERANCE = {"rtol": 2e-7, "atol": 2e-8}


@dataclass(frozen=True)
class Wrong:
    """A number that is not the judge's."""

    what: str
    expected: Any
    got: Any

    def __str__(self) -> str:
        return f"{self.what}: expected {self.expected}, got {self.got}"


def judge(program: Program, engine: str = "reference", back: bool = False) -> list[Wrong]:
    """The fault in ctrlgrad's numbers for a program, on an engine; `back`: with those of `to_jax` too."""
    with jax.enable_x64(True), cg.options(engine=engine):
        return [*_complaints(program), *(_complaints_back(program) if back else ())]


def _complaints_back(program: Program) -> Any:
    ours = cg.from_jax(program)
    theirs, given = cg.to_jax(ours), (program.v, np.float64(program.s), np.int32(program.i))
    value, slopes = ours(*given), cg.grad(ours, (0, 1))(*given)
    if not np.isfinite(value):
        return

    def wrong(found: Any) -> list[Wrong]:
        complaints = [*_compare("value through to_jax", value, found[0])]
        for one, other in zip(slopes, found[1], strict=True):
            complaints += _compare("gradient through to_jax", one, other)
        return complaints

    found, _ = confirmed(lambda: jax.value_and_grad(theirs, (0, 1))(*given), lambda found: not wrong(found))
    yield from wrong(found)


def _by_jax(fn: Any, *args: Any) -> Any:
    """JAX op by op: each op is compiled once for all programs."""
    with jax.disable_jit():
        return float(fn(*args))


def _complaints(program: Program) -> Any:
    rng = np.random.default_rng(program.seed + 1)
    i, point, direction = np.int32(program.i), (program.v, np.float64(program.s)), (rng.normal(size=SIZE), rng.normal())
    ours = cg.from_jax(program)
    value = _by_jax(program, *point, i)
    if not np.isfinite(value):
        return
    yield from _compare("value", value, ours(*point, i))
    gradient = cg.grad(ours, (0, 1))
    found = gradient(*point, i)
    slope = sum(np.sum(d * g) for d, g in zip(direction, found, strict=True))
    if program.reverse_only:
        expected = _difference(lambda *p: _by_jax(program, *p, i), point, direction)
        if expected is not None:
            yield from _compare("gradient, by differences", expected, slope, rtol=2e-4, atol=1e-5)
        return
    along = lambda fn: lambda *p: jax.jvp(fn, p, direction)[1]
    slope_of = along(lambda *p: program(*p, i))
    expected = _by_jax(slope_of, *point)
    yield from _compare("gradient", expected, slope)
    yield from _compare("tangent", expected, cg.jvp(lambda *p: ours(*p, i), point, direction)[1])
    curvature = _by_jax(along(slope_of), *point)
    moved = cg.jvp(lambda *p: gradient(*p, i), point, direction)[1]
    found = sum(np.sum(d * g) for d, g in zip(direction, moved, strict=True))
    yield from _compare("second order", curvature, found, rtol=1e-5, atol=1e-6)
    rows = np.stack([program.v, program.v[::-1], 0.5 * program.v])
    found = cg.vmap(cg.grad(ours), (0, None, None))(rows, point[1], i)
    for row, got in zip(rows, found, strict=True):
        yield from _compare("gradient of a row", cg.grad(ours)(row, point[1], i), got)


def _compare(what: str, expected: Any, got: Any, **tolerance: float) -> Any:
    if not np.allclose(got, expected, equal_nan=True, **(tolerance or TOLERANCE)):
        yield Wrong(what, expected, got)


def _difference(fn: Any, point: Any, direction: Any) -> float | None:
    """A central difference; None where two steps disagree, next to a kink or a jump."""
    moved = lambda h: fn(*(x + h * d for x, d in zip(point, direction, strict=True)))
    one, other = ((moved(h) - moved(-h)) / (2 * h) for h in (1e-5, 2e-5))
    return one if np.isclose(one, other, rtol=1e-4, atol=1e-6) else None
