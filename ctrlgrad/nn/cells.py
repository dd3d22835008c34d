"""Recurrent cells: pure functions `(params, state, x) -> state`, with a function that makes their parameters.

`x` is `[batch, inputs]`; a state is a tuple of arrays `[batch, hidden]` whose first entry is the cell's output.
Parameters are dicts of arrays: `wx` `[inputs, gates * hidden]`, `wh` `[hidden, gates * hidden]`, and `b`
`[gates * hidden]`, the gates side by side so that one product computes all of them (a GRU's candidate has `wn`
`[hidden, hidden]` of its own). The functions work on NumPy arrays and on traced tensors alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.nn.init import orthogonal, uniform_fan_in

Params = dict[str, Any]
State = tuple[Any, ...]


def _init(rng: np.random.Generator, inputs: int, hidden: int, gates: int, dtype: Any) -> Params:
    return {
        "wx": uniform_fan_in(rng, inputs, gates * hidden, dtype),
        "wh": orthogonal(rng, hidden, gates * hidden, dtype),
        "b": np.zeros(gates * hidden, dtype),
    }


def rnn_init(rng: np.random.Generator, inputs: int, hidden: int, dtype: Any = np.float32) -> Params:
    """Parameters of `rnn_cell`."""
    return _init(rng, inputs, hidden, 1, dtype)


def rnn_cell(params: Params, state: State, x: Any) -> State:
    """One step of a simple recurrent network: `h' = tanh(x wx + h wh + b)`; the state is `(h,)`.

    Source: Elman 1990, "Finding structure in time".

    >>> rng = np.random.default_rng(0)
    >>> (h,) = rnn_cell(rnn_init(rng, 3, 4), (np.zeros((2, 4), np.float32),), np.ones((2, 3), np.float32))
    >>> h.shape, h.dtype
    ((2, 4), dtype('float32'))
    """
    (h,) = state
    return (cnp.tanh(x @ params["wx"] + h @ params["wh"] + params["b"]),)


def lstm_init(rng: np.random.Generator, inputs: int, hidden: int, dtype: Any = np.float32) -> Params:
    """Parameters of `lstm_cell`; the forget gates start open (bias 1), so that memory lasts from the first step on.

    Source of the bias: Jozefowicz, Zaremba and Sutskever 2015, "An empirical exploration of recurrent network
    architectures".
    """
    params = _init(rng, inputs, hidden, 4, dtype)
    params["b"][hidden : 2 * hidden] = 1
    return params


def lstm_cell(params: Params, state: State, x: Any) -> State:
    """One step of a long short-term memory; the state is `(h, c)`, the gates are input, forget, output, candidate.

        i, f, o = sigmoid(...)    g = tanh(...)    c' = f c + i g    h' = o tanh(c')

    Source: Hochreiter and Schmidhuber 1997, "Long short-term memory"; the forget gate is of Gers, Schmidhuber and
    Cummins 2000, "Learning to forget: continual prediction with LSTM".

    >>> rng = np.random.default_rng(0)
    >>> zero = np.zeros((2, 4), np.float32)
    >>> h, c = lstm_cell(lstm_init(rng, 3, 4), (zero, zero), np.ones((2, 3), np.float32))
    >>> h.shape, c.shape, h.dtype
    ((2, 4), (2, 4), dtype('float32'))
    """
    h, c = state
    hidden = params["wh"].shape[0]
    z = x @ params["wx"] + h @ params["wh"] + params["b"]
    gates = cnp.sigmoid(z[:, : 3 * hidden])
    i, f, o = gates[:, :hidden], gates[:, hidden : 2 * hidden], gates[:, 2 * hidden :]
    c = f * c + i * cnp.tanh(z[:, 3 * hidden :])
    return o * cnp.tanh(c), c


def gru_init(rng: np.random.Generator, inputs: int, hidden: int, dtype: Any = np.float32) -> Params:
    """Parameters of `gru_cell`."""
    params = _init(rng, inputs, hidden, 3, dtype)
    # The candidate's part of `wh` is a matrix of its own: a slice would be cut, and its gradient padded, every step.
    params["wh"], params["wn"] = (np.ascontiguousarray(w) for w in np.split(params["wh"], [2 * hidden], axis=1))
    return params


def gru_cell(params: Params, state: State, x: Any) -> State:
    """One step of a gated recurrent unit; the state is `(h,)`, the gates are reset, update, candidate.

        r, z = sigmoid(...)    n = tanh(x wx + (r h) wn + b)    h' = z h + (1 - z) n

    Source: Cho et al. 2014, "Learning phrase representations using RNN encoder-decoder for statistical machine
    translation", equations 5 to 8.

    >>> rng = np.random.default_rng(0)
    >>> (h,) = gru_cell(gru_init(rng, 3, 4), (np.zeros((2, 4), np.float32),), np.ones((2, 3), np.float32))
    >>> h.shape, h.dtype
    ((2, 4), dtype('float32'))
    """
    (h,) = state
    hidden = params["wh"].shape[0]
    from_x = x @ params["wx"] + params["b"]
    gates = cnp.sigmoid(from_x[:, : 2 * hidden] + h @ params["wh"])
    r, z = gates[:, :hidden], gates[:, hidden:]
    n = cnp.tanh(from_x[:, 2 * hidden :] + (r * h) @ params["wn"])
    return (n + z * (h - n),)


@dataclass(frozen=True, slots=True)
class Cell:
    """What a program needs to use a cell whose kind it does not know."""

    init: Callable[..., Params]
    step: Callable[[Params, State, Any], State]
    states: int

    def start(self, batch: int, hidden: int, dtype: Any = np.float32) -> State:
        """The state before the first step: zeros."""
        return tuple(np.zeros((batch, hidden), dtype) for _ in range(self.states))


CELLS = {
    "lstm": Cell(lstm_init, lstm_cell, 2),
    "gru": Cell(gru_init, gru_cell, 1),
    "rnn": Cell(rnn_init, rnn_cell, 1),
}
