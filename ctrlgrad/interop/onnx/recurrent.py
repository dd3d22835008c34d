"""Recurrent networks: `RNN`, `GRU` and `LSTM`, one `scan` for each direction.

A direction's weights are W[gates * hidden, inputs], R[gates * hidden, hidden] and, where there are biases,
B[2 * gates * hidden]: those of W before those of R. Rows whose sequence has ended keep their state, and their outputs
are zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.frontend.loops import scan
from ctrlgrad.interop.onnx.arranging import reversed_rows
from ctrlgrad.interop.onnx.operators import Node, entry, recorded

Activation = Callable[[Any], Any]

# Activations of two parameters, and their defaults.
_ACTIVATIONS: dict[str, tuple[Callable[[Any, Any, Any], Any], float, float]] = {
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "elu": (lambda x, a, b: cnp.where(x >= 0, x, a * cnp.expm1(cnp.minimum(x, x * 0))), 1.0, 0.0),
    "hardsigmoid": (lambda x, a, b: cnp.clip(a * x + b, 0, 1), 0.2, 0.5),
    "leakyrelu": (lambda x, a, b: cnp.where(x >= 0, x, a * x), 0.01, 0.0),
    "relu": (lambda x, a, b: cnp.relu(x), 0.0, 0.0),
    "scaledtanh": (lambda x, a, b: a * cnp.tanh(b * x), 1.0, 1.0),
    "sigmoid": (lambda x, a, b: cnp.sigmoid(x), 0.0, 0.0),
    "softplus": (lambda x, a, b: cnp.logaddexp(x, x * 0), 0.0, 0.0),
    "softsign": (lambda x, a, b: x / (1 + cnp.abs(x)), 0.0, 0.0),
    "tanh": (lambda x, a, b: cnp.tanh(x), 0.0, 0.0),
    "thresholdedrelu": (lambda x, a, b: cnp.where(x > a, x, x * 0), 1.0, 0.0),
}


@dataclass(frozen=True)
class Cell:
    """The weights of one direction, and what is done to them."""

    w: Any
    r: Any
    w_bias: Any
    r_bias: Any
    peepholes: Any
    activations: Sequence[Activation]
    clip: float | None
    coupled: bool
    reset_after: bool

    @property
    def hidden(self) -> int:
        return int(self.r.shape[-1])

    def clipped(self, x: Any) -> Any:
        return x if self.clip is None else cnp.clip(x, -self.clip, self.clip)

    def gates(self, x: Any, count: int) -> list[Any]:
        """The parts of x[..., count * hidden]."""
        return list(cnp.split(x, count, -1))

    def matrix(self, i: int) -> Any:
        """The part of R for one gate, ready to be multiplied from the right."""
        return cnp.transpose(self.r[i * self.hidden : (i + 1) * self.hidden])


# A step maps (cell, W x + its bias, state) to the new state, whose first part is the output.
Step = Callable[[Cell, Any, Sequence[Any]], list[Any]]


def _rnn(cell: Cell, given: Any, state: Sequence[Any]) -> list[Any]:
    (h,) = state
    (f,) = cell.activations
    return [f(cell.clipped(given + cnp.matmul(h, cell.r.T) + cell.r_bias))]


def _gru(cell: Cell, given: Any, state: Sequence[Any]) -> list[Any]:
    (h,) = state
    f, g = cell.activations
    update, reset, new = cell.gates(given, 3)
    update_bias, reset_bias, new_bias = cell.gates(cell.r_bias, 3)
    z = f(cell.clipped(update + cnp.matmul(h, cell.matrix(0)) + update_bias))
    r = f(cell.clipped(reset + cnp.matmul(h, cell.matrix(1)) + reset_bias))
    if cell.reset_after:
        candidate = g(cell.clipped(new + r * (cnp.matmul(h, cell.matrix(2)) + new_bias)))
    else:
        candidate = g(cell.clipped(new + cnp.matmul(r * h, cell.matrix(2)) + new_bias))
    return [(1 - z) * candidate + z * h]


def _lstm(cell: Cell, given: Any, state: Sequence[Any]) -> list[Any]:
    h, c = state
    f, g, out = cell.activations
    enter, leave, forget, new = cell.gates(given + cnp.matmul(h, cell.r.T) + cell.r_bias, 4)
    see_enter, see_leave, see_forget = cell.gates(cell.peepholes, 3)
    i = f(cell.clipped(enter + see_enter * c))
    kept = 1 - i if cell.coupled else f(cell.clipped(forget + see_forget * c))
    c = kept * c + i * g(cell.clipped(new))
    o = f(cell.clipped(leave + see_leave * c))
    return [o * out(c), c]


@dataclass(frozen=True)
class Kind:
    """A recurrent operator: its step, the gates of its weights, the parts of its state, its activations."""

    step: Step
    gates: int
    states: int
    activations: tuple[str, ...]


_KINDS = {
    "RNN": Kind(_rnn, 1, 1, ("Tanh",)),
    "GRU": Kind(_gru, 3, 1, ("Sigmoid", "Tanh")),
    "LSTM": Kind(_lstm, 4, 2, ("Sigmoid", "Tanh", "Tanh")),
}


def _with_parameters(fn: Callable[[Any, Any, Any], Any], a: float, b: float) -> Activation:
    return lambda x: fn(x, a, b)


def _activations(node: Node, kind: Kind, directions: int) -> list[list[Activation]]:
    """The activations of each direction. Parameters are given in order, to those that take any."""
    names = node.get("activations") or list(kind.activations) * directions
    alphas, betas = list(node.get("activation_alpha") or ()), list(node.get("activation_beta") or ())
    found: list[Activation] = []
    for name in names:
        if name.lower() not in _ACTIVATIONS:
            raise node.unsupported(f"the activation {name!r} is not known")
        fn, alpha, beta = _ACTIVATIONS[name.lower()]
        a = alphas.pop(0) if alphas and name.lower() in _TAKES_ALPHA else alpha
        b = betas.pop(0) if betas and name.lower() in _TAKES_BETA else beta
        found.append(_with_parameters(fn, a, b))
    each = len(kind.activations)
    return [found[d * each : (d + 1) * each] for d in range(directions)]


_TAKES_ALPHA = frozenset(["affine", "elu", "hardsigmoid", "leakyrelu", "scaledtanh", "thresholdedrelu"])
_TAKES_BETA = frozenset(["affine", "hardsigmoid", "scaledtanh"])


@entry("RNN", "GRU", "LSTM")
def _recurrent(
    node: Node,
    x: Any,
    w: Any,
    r: Any,
    bias: Any = None,
    lengths: Any = None,
    h: Any = None,
    c: Any = None,
    peepholes: Any = None,
) -> Any:
    kind = _KINDS[node.name]
    if node.get("layout", 0):
        x = cnp.swapaxes(x, 0, 1)
        h, c = (s if s is None else cnp.swapaxes(s, 0, 1) for s in (h, c))
    directions, hidden = w.shape[0], r.shape[-1]
    time, rows = x.shape[0], x.shape[1]
    direction = node.get("direction", "forward")
    activations = _activations(node, kind, directions)
    nothing: Any = lambda n: np.zeros(n, x.dtype)
    outputs, last = [], []
    for d in range(directions):
        both = nothing(2 * kind.gates * hidden) if bias is None else bias[d]
        cell = Cell(
            w[d],
            recorded(r[d]),
            both[: kind.gates * hidden],
            both[kind.gates * hidden :],
            nothing(3 * hidden) if peepholes is None else peepholes[d],
            activations[d],
            node.get("clip"),
            bool(node.get("input_forget", 0)),
            bool(node.get("linear_before_reset", 0)),
        )
        backwards = direction == "reverse" or d == 1
        initial = [nothing((rows, hidden)) if s is None else s[d] for s in (h, c)[: kind.states]]
        given = _reversed(x, lengths) if backwards else x
        state, found = _run(kind.step, cell, given, initial, lengths)
        outputs.append(_reversed(found, lengths) if backwards else found)
        last.append(state)
    y = cnp.stack(outputs, 1) if time else nothing((0, directions, rows, hidden))
    states = [cnp.stack([state[k] for state in last]) for k in range(kind.states)]
    if node.get("layout", 0):
        y, states = cnp.transpose(y, (2, 0, 1, 3)), [cnp.swapaxes(s, 0, 1) for s in states]
    return y, *states


def _reversed(x: Any, lengths: Any) -> Any:
    return cnp.flip(x, 0) if lengths is None else reversed_rows(x, lengths)


def _run(step: Step, cell: Cell, x: Any, initial: list[Any], lengths: Any) -> tuple[list[Any], Any]:
    """The last state, and the outputs x[time, rows, hidden]."""
    # All products with the inputs at once.
    given = cnp.matmul(x, cnp.swapaxes(cell.w, -1, -2)) + cell.w_bias

    def one(state: list[Any], at: Any) -> tuple[list[Any], Any]:
        row, t = at
        new = step(cell, row, state)
        if lengths is None:
            return new, new[0]
        lives = cnp.expand_dims(t < lengths, -1)
        kept = [cnp.where(lives, a, b) for a, b in zip(new, state, strict=True)]
        return kept, cnp.where(lives, new[0], np.zeros((), new[0].dtype))

    state, found = scan(one, [recorded(s) for s in initial], (given, np.arange(x.shape[0])))
    return state, found
