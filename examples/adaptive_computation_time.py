"""Adaptive computation time: a recurrent network that decides how long to think about each input.

Graves 2016, "Adaptive computation time for recurrent neural networks", section 2: after each step a unit says with
which probability to halt. The network steps until these add up to nearly 1, and its output is the mean of its states,
weighted by them. The number of steps, plus what was left for the last one, is added to the loss at a price. So the
loop's length depends on the input and on what is being learned, and `vmap` gives each example a length of its own.

The parity of three bits is learned at a low and at a high price. Every result is compared with a plain NumPy loop, the
gradient with central differences; both networks must solve the task, and the dear one in fewer steps.

    python examples/adaptive_computation_time.py
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp

HIDDEN = 12
ENOUGH = 0.99
LIMIT = 20

Params = dict[str, Any]


def think(params: Params, x: Any) -> tuple[Any, Any, Any]:
    """For one input: the logit, the ponder cost and the number of steps."""

    def unfinished(carry: Any) -> Any:
        _, _, halted, _, steps = carry
        return (halted < ENOUGH) & (steps < LIMIT)

    def step(carry: Any) -> Any:
        state, mean, halted, _, steps = carry
        state = cnp.tanh(x @ params["wx"] + state @ params["wh"] + params["b"])
        halt = cnp.sigmoid(state @ params["halt"] + params["halt_bias"])
        is_last = (halted + halt >= ENOUGH) | (steps + 1 == LIMIT)
        # The last step's weight is what is left of 1: the remainder.
        weight = cnp.where(is_last, 1.0 - halted, halt)
        return state, mean + weight * state, halted + weight, weight, steps + 1

    nothing = np.zeros(HIDDEN)
    _, mean, _, remainder, steps = cg.while_loop(unfinished, step, (nothing, nothing, 0.0, 0.0, 0))
    return mean @ params["out"], steps + remainder, steps


def think_in_numpy(params: Params, x: np.ndarray) -> tuple[float, float, int]:
    state, states, halts = np.zeros(HIDDEN), [], []
    while sum(halts) < ENOUGH and len(halts) < LIMIT:
        state = np.tanh(x @ params["wx"] + state @ params["wh"] + params["b"])
        states.append(state)
        halts.append(1 / (1 + np.exp(-(state @ params["halt"] + params["halt_bias"]))))
    remainder = 1 - sum(halts[:-1])
    mean = np.array([*halts[:-1], remainder]) @ np.array(states)
    return float(mean @ params["out"]), len(halts) + remainder, len(halts)


def loss(params: Params, xs: Any, targets: Any, price: Any) -> Any:
    """Logistic loss plus price times ponder cost, the mean over a batch. Targets are 1 and -1."""
    logits, cost, _ = cg.vmap(think, in_axes=(None, 0))(params, xs)
    return cnp.mean(cnp.logaddexp(0.0, -targets * logits) + price * cost)


def first_params(rng: np.random.Generator) -> Params:
    return {
        "wx": rng.standard_normal((3, HIDDEN)),
        "wh": rng.standard_normal((HIDDEN, HIDDEN)) / np.sqrt(HIDDEN),
        "b": rng.standard_normal(HIDDEN),
        "halt": 0.1 * rng.standard_normal(HIDDEN),
        "halt_bias": np.float64(-1.5),
        "out": rng.standard_normal(HIDDEN) / np.sqrt(HIDDEN),
    }


def train(params: Params, xs: Any, targets: Any, price: float, updates: int) -> Params:
    optimiser, gradient = cg.optim.adam(0.03), cg.function(cg.grad(loss))
    state = optimiser.init(params)
    for _ in range(updates):
        updates, state = optimiser.update(gradient(params, xs, targets, price), state, params)
        params = cg.optim.apply_updates(params, updates)
    return params


def errors(params: Params, xs: Any, targets: Any) -> list[float]:
    """Of the batch against NumPy, row by row, and of the gradient against central differences."""
    batch = cg.vmap(think, in_axes=(None, 0))(params, xs)
    alone = np.array([think_in_numpy(params, x) for x in xs]).T
    gradient = cg.grad(loss)(params, xs, targets, 0.05)
    direction = {name: np.cos(np.arange(p.size)).reshape(p.shape) for name, p in params.items()}
    moved = [loss({n: p + e * direction[n] for n, p in params.items()}, xs, targets, 0.05) for e in (1e-6, -1e-6)]
    along = sum(np.sum(gradient[name] * d) for name, d in direction.items())
    return [float(np.max(np.abs(np.array(batch) - alone))), float(abs(along - (moved[0] - moved[1]) / 2e-6))]


def main() -> int:
    xs = np.array([[x, y, z] for x in (-1.0, 1.0) for y in (-1.0, 1.0) for z in (-1.0, 1.0)])
    targets = xs.prod(axis=1)
    start = first_params(np.random.default_rng(0))
    found, right, steps = errors(start, xs, targets), [], []
    for price in (0.001, 0.1):
        params = train(start, xs, targets, price, 150)
        logits, _, counts = cg.vmap(think, in_axes=(None, 0))(params, xs)
        right.append(int(np.sum(logits * targets > 0)))
        steps.append(float(np.mean(counts)))
        found += errors(params, xs, targets)
        print(f"price {price:5}: {right[-1]} of 8 right, steps for each input {counts}")
    print(f"largest difference from NumPy {np.max(found[::2]):.1e}, from central differences {np.max(found[1::2]):.1e}")
    if not (np.max(found[::2]) < 1e-12 and np.max(found[1::2]) < 1e-7 and right == [8, 8] and steps[1] < steps[0]):
        print("the results differ, or training failed", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
