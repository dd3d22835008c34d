"""A root finder in plain Python, differentiated as it stands.

Newton's method that falls back to bisection: a `for` with `break`, branches, and an early `return`, all deciding on
numbers that are known only when the program runs. `autograph=True` turns them into `cond` and `while_loop`. The
derivatives of the root by the parameter are compared with the implicit function theorem.

    python examples/python_control_flow.py
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import ctrlgrad as cg


def equation(x: Any, a: Any) -> Any:
    """Zero at the root: x e^x = a, so the root is Lambert's function."""
    return x * np.exp(x) - a


def root(a: Any) -> Any:
    """The root between 0 and 1 + a."""
    low, high = 0.0, 1.0 + a
    if equation(low, a) > 0 or equation(high, a) < 0:
        return np.nan * a
    x = 0.5 * (low + high)
    for _ in range(200):
        slope = np.exp(x) * (1.0 + x)
        newton = x - equation(x, a) / slope
        following = newton if low < newton < high else 0.5 * (low + high)
        if equation(following, a) > 0:
            high = following
        else:
            low = following
        if abs(following - x) < 1e-13:
            return following - equation(following, a) / slope
        x = following
    return x


def main() -> int:
    solve = cg.function(root, autograph=True)
    first, second = cg.function(cg.grad(solve)), cg.function(cg.grad(cg.grad(solve)))
    errors = []
    print(f"{'a':>6} {'root':>18} {'d root / da':>18} {'second':>18}")
    for a in (0.2, 1.0, 3.0, 40.0):
        w, dw, ddw = float(solve(a)), float(first(a)), float(second(a))
        print(f"{a:6.1f} {w:18.14f} {dw:18.14f} {ddw:18.14f}")
        exact = 1.0 / (np.exp(w) * (1.0 + w))
        exact_second = -np.exp(-2 * w) * (w + 2.0) / (1.0 + w) ** 3
        errors += [abs(w - float(root(a))), abs(dw / exact - 1.0), abs(ddw / exact_second - 1.0)]
    worst = np.max(errors)
    print(f"largest difference from plain Python and the implicit function theorem: {worst:.1e}")
    if not worst < 1e-9:
        print("the derivatives disagree", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
