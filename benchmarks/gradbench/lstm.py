"""The loss of a stack of LSTM layers with diagonal weights over a sequence, and its gradient: a loop in a loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from benchmarks.gradbench.evaluation import Evaluation, Module, compiled


def loss(main: Any, extra: Any, state: Any, sequence: Any) -> Any:
    """`main`: (2 layers, 4 b), weights and biases in turn; `extra`: (3, b); `state`: (2 layers, b), h and c in turn."""
    layers, b = state.shape[0] // 2, state.shape[1]

    def predict(hs: Any, cs: Any, x: Any) -> Any:
        def layer(k: Any, carry: Any) -> Any:
            hs, cs, x = carry
            w, bias = main[2 * k].reshape(4, b), main[2 * k + 1].reshape(4, b)
            h = hs[k]
            forget = cnp.sigmoid(x * w[0] + bias[0])
            ingate = cnp.sigmoid(h * w[1] + bias[1])
            outgate = cnp.sigmoid(x * w[2] + bias[2])
            change = cnp.tanh(h * w[3] + bias[3])
            c = cs[k] * forget + ingate * change
            h = outgate * cnp.tanh(c)
            return hs.at[k].set(h), cs.at[k].set(c), h

        hs, cs, x = cg.fori_loop(0, layers, layer, (hs, cs, x * extra[0]))
        return hs, cs, x * extra[1] + extra[2]

    def step(t: Any, carry: Any) -> Any:
        hs, cs, total = carry
        hs, cs, y = predict(hs, cs, sequence[t])
        # The 2 is ADBench's.
        log_probabilities = y - cnp.log(cnp.sum(cnp.exp(y)) + 2.0)
        return hs, cs, total + cnp.sum(sequence[t + 1] * log_probabilities)

    steps = sequence.shape[0] - 1
    total = cg.fori_loop(0, steps, step, (state[::2], state[1::2], 0.0))[2]
    return -total / (steps * b)


def gradient(main: Any, extra: Any, state: Any, sequence: Any) -> Any:
    by_main, by_extra = cg.grad(loss, argnums=(0, 1))(main, extra, state, sequence)
    return cnp.concat([by_main.reshape(-1), by_extra.reshape(-1)])


def prepare(given: Mapping[str, Any]) -> tuple[Any, ...]:
    names = ("main_params", "extra_params", "state", "sequence")
    return tuple(np.array(given[name], np.float64) for name in names)


def example() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {"main_params": (4, 12), "extra_params": (3, 3), "state": (4, 3), "sequence": (6, 3)}
    return {name: rng.random(shape).tolist() for name, shape in shapes.items()}


MODULE = Module(
    {
        "objective": Evaluation(compiled(loss, 2, 2, 2, 2), prepare, float),
        "jacobian": Evaluation(compiled(gradient, 2, 2, 2, 2), prepare),
    },
    example(),
)
