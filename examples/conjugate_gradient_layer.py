"""A linear solver as a layer: conjugate gradients that stop when the residual is small.

The layer solves `A x = b` for a chain of resistors whose conductances are to be learned, by the method of Hestenes
and Stiefel (1952, "Methods of conjugate gradients for solving linear systems"). It never forms A, and how many
iterations it takes depends on A, b and the tolerance. Its gradient is had in two ways: through the loop, iteration by
iteration, and by the implicit function theorem, as a `custom_vjp` whose backward pass is another solve. Both are
compared with a direct solution, and then the layer learns conductances from measured potentials.

    python examples/conjugate_gradient_layer.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp

NODES = 20


def apply(conductances: Any, x: Any) -> Any:
    """`A x` for a chain of resistors whose nodes leak a little: A is symmetric and positive definite."""
    current = conductances * (x[1:] - x[:-1])
    none = np.zeros(1)
    return 0.1 * x + cnp.concat([none, current]) - cnp.concat([current, none])


def conjugate_gradients(conductances: Any, b: Any, tolerance: float) -> tuple[Any, Any]:
    """`x` with `|A x - b| <= tolerance |b|`, and the number of iterations."""
    limit = (tolerance * tolerance) * (b @ b)

    def improve(carry: Any) -> Any:
        x, residual, direction, size, iterations = carry
        image = apply(conductances, direction)
        step = size / (direction @ image)
        residual = residual - step * image
        new_size = residual @ residual
        return x + step * direction, residual, residual + new_size / size * direction, new_size, iterations + 1

    start = (cnp.zeros_like(b), b, b, b @ b, 0)
    x, _, _, _, iterations = cg.while_loop(lambda carry: carry[3] > limit, improve, start)
    return x, iterations


def through_the_loop(conductances: Any, b: Any) -> Any:
    return conjugate_gradients(conductances, b, 1e-12)[0]


@cg.custom_vjp
def implicit(conductances: Any, b: Any) -> Any:
    return conjugate_gradients(conductances, b, 1e-12)[0]


def implicit_forward(conductances: Any, b: Any) -> Any:
    x = implicit(conductances, b)
    return x, (conductances, x)


def implicit_backward(residuals: Any, cotangent: Any) -> Any:
    """With `A y = cotangent` (A is its own transpose), b receives y, and A receives `-y x^T`."""
    conductances, x = residuals
    y = implicit(conductances, cotangent)
    _, pullback = cg.vjp(lambda c: apply(c, x), conductances)
    return pullback(-y)[0], y


implicit.defvjp(implicit_forward, implicit_backward)


def directly(conductances: np.ndarray, b: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The gradient of `weights @ x` by dense algebra."""
    matrix = np.stack([apply(conductances, row) for row in np.eye(NODES)], axis=1)
    x, y = np.linalg.solve(matrix, b), np.linalg.solve(matrix, weights)
    return -np.diff(x) * np.diff(y), y


def learn(solve: Callable[..., Any], true: np.ndarray, sources: np.ndarray, updates: int) -> float:
    """Conductances from the potentials that they give; the largest relative error left."""
    measured = cg.vmap(solve, in_axes=(None, 0))(true, sources)

    def loss(logs: Any) -> Any:
        return cnp.mean((cg.vmap(solve, in_axes=(None, 0))(cnp.exp(logs), sources) - measured) ** 2)

    optimiser, logs = cg.optim.adam(0.15), np.zeros(NODES - 1)
    state, gradient = optimiser.init(logs), cg.function(cg.grad(loss))
    for _ in range(updates):
        updates, state = optimiser.update(gradient(logs), state, logs)
        logs = cg.optim.apply_updates(logs, updates)
    return float(np.max(np.abs(np.exp(logs) / true - 1)))


def main() -> int:
    rng = np.random.default_rng(0)
    conductances, b, weights = rng.uniform(0.5, 2.0, NODES - 1), rng.standard_normal(NODES), rng.standard_normal(NODES)
    counts = [int(conjugate_gradients(conductances, b, tolerance)[1]) for tolerance in (1e-1, 1e-4, 1e-12)]
    print(f"iterations to a relative residual of 1e-1, 1e-4, 1e-12: {counts}")
    exact = directly(conductances, b, weights)
    errors = []
    for name, solve in (("through the loop", through_the_loop), ("implicitly", implicit)):
        gradient = cg.grad(lambda c, b, solve=solve: weights @ solve(c, b), argnums=(0, 1))(conductances, b)
        found = [np.max(np.abs(g - e)) / np.max(np.abs(e)) for g, e in zip(gradient, exact, strict=True)]
        print(f"{name:16}: relative error of the gradient in A {found[0]:.1e}, in b {found[1]:.1e}")
        errors += found
    left = learn(implicit, conductances, rng.standard_normal((8, NODES)), 60)
    print(f"conductances learned from potentials: largest relative error {left:.1e}")
    if not (np.max(errors) < 1e-7 and left < 0.05):
        print("a gradient is wrong", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
