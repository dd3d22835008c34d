"""Implicit layers: the gradient through the iterations that solve an equation, and the one through the equation."""

from __future__ import annotations

from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.demos.catalogue import Finding


def iterated(w: Any, x: Any, tolerance: Any = 1e-13) -> Any:
    def go_on(carry: Any) -> Any:
        return cnp.abs(carry[0] - carry[1]).max() > tolerance

    return cg.while_loop(go_on, lambda carry: (cnp.tanh(w @ carry[0] + x), carry[0]), (cnp.tanh(x), x))[0]


# The same solution, with the gradient of the equation.


def dense(g: Any, y: Any) -> Any:
    """Solves g(v) = y, g linear."""
    return cnp.linalg.solve(cg.jacfwd(g)(y), y)


def solved(w: Any, x: Any, tolerance: Any = 1e-13) -> Any:
    def find(f: Any, z: Any) -> Any:
        return cg.while_loop(lambda z: cnp.abs(f(z)).max() > tolerance, lambda z: z + f(z), z)

    return cg.custom_root(lambda z: cnp.tanh(w @ z + x) - z, cnp.tanh(x), find, dense)


# Finding: the distance of each gradient from the true one, if the solver stops early.


def show() -> Finding:
    rng = np.random.default_rng(0)
    w, x = 0.2 * rng.standard_normal((4, 4)), rng.standard_normal(4)

    def gradient_of(layer: Any) -> Any:
        return cg.function(cg.grad(lambda w, tolerance: (layer(w, x, tolerance) ** 2).sum()))

    through, implicit = gradient_of(iterated), gradient_of(solved)
    best = implicit(w, 1e-15)
    tolerances = 10.0 ** -np.arange(1, 13)
    errors = {
        "through the iterations": [np.abs(through(w, tolerance) - best).max() for tolerance in tolerances],
        "through the equation": [np.abs(implicit(w, tolerance) - best).max() for tolerance in tolerances],
    }

    def draw(axes: Any) -> None:
        for (name, values), marker in zip(errors.items(), "os", strict=True):
            axes.loglog(tolerances, values, marker=marker, label=name)
        axes.invert_xaxis()
        axes.set(title="Error of the gradient", xlabel="tolerance of the solver", ylabel="largest error of an entry")
        axes.legend()

    return Finding(
        (
            "a layer z = tanh(w z + x), and the gradient of |z|^2 in w",
            *(f"{name}: off by {values[-1]:.1e} where the solver stops at 1e-12" for name, values in errors.items()),
        ),
        (draw,),
    )
