"""Recurrent cells: pure functions `(params, state, x) -> state`, with functions that make their parameters of a key.

`x` is `[inputs]` or `[batch, inputs]`; a state is a tuple of arrays `[hidden]` or `[batch, hidden]`, of which the first
is the cell's output. Parameters are dicts of arrays: `wx` `[inputs, gates * hidden]`, `wh` `[hidden, gates * hidden]`
and `b` `[gates * hidden]`, the gates side by side so that one product computes all of them (a GRU's candidate has `wn`
`[hidden, hidden]` of its own). Their dtype is the default float's where none is given. Without `wx` in the parameters,
`x` is the product `x wx` itself, `[..., gates * hidden]`: a program may compute those of a whole sequence at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad import random
from ctrlgrad.errors import ShapeError, TypeMismatchError
from ctrlgrad.nn import initializers
from ctrlgrad.options import default_float

Params = dict[str, Any]
State = tuple[Any, ...]


def check_key(operation: str, key: Any) -> None:
    """Refuse a generator of NumPy or a bare seed in the place of a key."""
    if isinstance(key, np.random.Generator | np.random.RandomState | int):
        raise TypeMismatchError(
            f"{operation}: the first argument is no key",
            expected="a key of ctrlgrad.random.key, uint32[2]",
            got=f"{key}" if isinstance(key, int) else type(key).__name__,
            hint="ctrlgrad.random.key(seed) makes one, and ctrlgrad.random.split(key) several of it",
        )


def fan_in(key: Any, shape: tuple[int, int], dtype: Any = None) -> Any:
    """A matrix `[inputs, outputs]`, uniform in plus or minus `1 / sqrt(inputs)`.

    >>> fan_in(random.key(0), (4, 3)).shape
    (4, 3)
    """
    bound = 1.0 / np.sqrt(max(1, shape[0]))
    return random.uniform(key, shape, default_float() if dtype is None else dtype, -bound, bound)


def _init(operation: str, key: Any, inputs: int, hidden: int, gates: int, dtype: Any) -> Params:
    """Weights of all gates; an orthogonal block for each gate keeps lengths in the first iterations.

    Source of the blocks: Saxe, McClelland and Ganguli 2014, "Exact solutions to the nonlinear dynamics of learning in
    deep linear neural networks".
    """
    check_key(operation, key)
    dtype = default_float() if dtype is None else np.dtype(dtype)
    first, *keys = random.split(key, gates + 1)
    blocks = [initializers.orthogonal()(k, (hidden, hidden), np.float64).astype(dtype) for k in keys]
    return {
        "wx": fan_in(first, (inputs, gates * hidden), np.float64).astype(dtype),
        "wh": cnp.concatenate(blocks, axis=1),
        "b": cnp.zeros(gates * hidden, dtype),
    }


def _checked(operation: str, params: Params, state: Any, x: Any, names: str) -> tuple[State, Any]:
    """The state and the input of a step as arrays; raises where one does not fit the parameters."""
    names_of = names.split(", ")
    form = f"({names}{',' * (len(names_of) == 1)})"
    if not isinstance(state, tuple | list) or len(state) != len(names_of):
        kind = f"a {type(state).__name__} of {len(state)}" if isinstance(state, tuple | list) else "a single array"
        raise TypeMismatchError(
            f"{operation}: the state is no tuple {form}",
            expected=f"the tuple {form}, as the step returns it",
            got=kind,
            hint=f"state = {form}; cell.start(batch, hidden) of nn.CELLS makes one of zeros",
        )
    x, state = cnp.asarray(x), tuple(cnp.asarray(s) for s in state)
    inputs, hidden = params["wx" if "wx" in params else "b"].shape[0], params["wh"].shape[0]
    states = [(f"the state {name}", array, hidden, "hidden") for name, array in zip(names_of, state, strict=True)]
    for what, array, size, axis in (("the input x", x, inputs, "inputs"), *states):
        if array.ndim not in (1, 2) or _differ(array.shape[-1], size):
            raise ShapeError(
                f"{operation}: {what} does not fit the parameters",
                expected=f"[{axis}] or [batch, {axis}] with {axis} = {size}",
                got=str(tuple(array.shape)),
                hint=f"the parameters are of {inputs} inputs and a state of {hidden}; in a loop the input is x[t]",
            )
        if array.ndim != x.ndim or (x.ndim == 2 and _differ(array.shape[0], x.shape[0])):
            raise ShapeError(
                f"{operation}: {what} and the input x have different batches",
                expected=f"{(*x.shape[:-1], hidden)}",
                got=str(tuple(array.shape)),
                hint="state and input are both of one sequence, or both of the same batch",
            )
    return state, x


def _product(params: Params, x: Any) -> Any:
    """The gates' part of the input, which may be given as such."""
    return x @ params["wx"] if "wx" in params else x


def _differ(a: Any, b: Any) -> bool:
    return isinstance(a, int) and isinstance(b, int) and a != b


def rnn_init(key: Any, inputs: int, hidden: int, dtype: Any = None) -> Params:
    """Parameters of `rnn_cell`: `wx` `[inputs, hidden]`, `wh` `[hidden, hidden]`, `b` `[hidden]`.

    >>> rnn_init(random.key(0), 3, 4)["wx"].shape
    (3, 4)
    """
    return _init("nn.rnn_init", key, inputs, hidden, 1, dtype)


def rnn_cell(params: Params, state: State, x: Any) -> State:
    """One step of a simple recurrent network: `h' = tanh(x wx + h wh + b)`; the state is `(h,)`.

    Source: Elman 1990, "Finding structure in time".

    >>> (h,) = rnn_cell(rnn_init(random.key(0), 3, 4), (np.zeros((2, 4)),), np.ones((2, 3)))
    >>> h.shape, h.dtype
    ((2, 4), dtype('float64'))
    """
    (h,), x = _checked("nn.rnn_cell", params, state, x, "h")
    return (cnp.tanh(_product(params, x) + h @ params["wh"] + params["b"]),)


def lstm_init(key: Any, inputs: int, hidden: int, dtype: Any = None) -> Params:
    """Parameters of `lstm_cell`; the forget gates start open (bias 1), so that memory lasts from the first step on.

    Source of the bias: Jozefowicz, Zaremba and Sutskever 2015, "An empirical exploration of recurrent network
    architectures".

    >>> lstm_init(random.key(0), 3, 2)["b"]
    array([0., 0., 1., 1., 0., 0., 0., 0.])
    """
    params = _init("nn.lstm_init", key, inputs, hidden, 4, dtype)
    gate = cnp.arange(4 * hidden) // max(1, hidden)
    return {**params, "b": (gate == 1).astype(params["b"].dtype)}


def lstm_cell(params: Params, state: State, x: Any) -> State:
    """One step of a long short-term memory; the state is `(h, c)`, the gates are input, forget, output, candidate.

        i, f, o = sigmoid(...)    g = tanh(...)    c' = f c + i g    h' = o tanh(c')

    Source: Hochreiter and Schmidhuber 1997, "Long short-term memory"; the forget gate is of Gers, Schmidhuber and
    Cummins 2000, "Learning to forget: continual prediction with LSTM".

    >>> zero = np.zeros((2, 4))
    >>> h, c = lstm_cell(lstm_init(random.key(0), 3, 4), (zero, zero), np.ones((2, 3)))
    >>> h.shape, c.shape, h.dtype
    ((2, 4), (2, 4), dtype('float64'))
    """
    (h, c), x = _checked("nn.lstm_cell", params, state, x, "h, c")
    hidden = params["wh"].shape[0]
    z = _product(params, x) + h @ params["wh"] + params["b"]
    gates = cnp.sigmoid(z[..., : 3 * hidden])
    i, f, o = gates[..., :hidden], gates[..., hidden : 2 * hidden], gates[..., 2 * hidden :]
    c = f * c + i * cnp.tanh(z[..., 3 * hidden :])
    return o * cnp.tanh(c), c


def gru_init(key: Any, inputs: int, hidden: int, dtype: Any = None) -> Params:
    """Parameters of `gru_cell`.

    >>> sorted(gru_init(random.key(0), 3, 4))
    ['b', 'wh', 'wn', 'wx']
    """
    params = _init("nn.gru_init", key, inputs, hidden, 3, dtype)
    # The candidate's part of `wh` is a matrix of its own: a slice would be cut, and its gradient padded, every step.
    wh = params["wh"]
    return {**params, "wh": cnp.copy(wh[:, : 2 * hidden]), "wn": cnp.copy(wh[:, 2 * hidden :])}


def gru_cell(params: Params, state: State, x: Any) -> State:
    """One step of a gated recurrent unit; the state is `(h,)`, the gates are reset, update, candidate.

        r, z = sigmoid(...)    n = tanh(x wx + (r h) wn + b)    h' = z h + (1 - z) n

    PyTorch's `nn.GRU` multiplies r after the product, `r (h wn + b_hn)`: parameters that hold `bn` `[hidden]` ask for
    that form, with `bn` in the place of `b_hn`.

    Source: Cho et al. 2014, "Learning phrase representations using RNN encoder-decoder for statistical machine
    translation", equations 5 to 8.

    >>> (h,) = gru_cell(gru_init(random.key(0), 3, 4), (np.zeros((2, 4)),), np.ones((2, 3)))
    >>> h.shape, h.dtype
    ((2, 4), dtype('float64'))
    """
    (h,), x = _checked("nn.gru_cell", params, state, x, "h")
    hidden = params["wh"].shape[0]
    from_x = _product(params, x) + params["b"]
    gates = cnp.sigmoid(from_x[..., : 2 * hidden] + h @ params["wh"])
    r, z = gates[..., :hidden], gates[..., hidden:]
    from_h = r * (h @ params["wn"] + params["bn"]) if "bn" in params else (r * h) @ params["wn"]
    n = cnp.tanh(from_x[..., 2 * hidden :] + from_h)
    return (n + z * (h - n),)


@dataclass(frozen=True, slots=True)
class Cell:
    """Interface of a cell of any kind."""

    init: Callable[..., Params]
    step: Callable[[Params, State, Any], State]
    states: int

    def start(self, batch: int | None, hidden: int, dtype: Any = None) -> State:
        """The state before the first step: zeros `[batch, hidden]`, or `[hidden]` where `batch` is None."""
        shape = (hidden,) if batch is None else (batch, hidden)
        return tuple(cnp.zeros(shape, dtype) for _ in range(self.states))


CELLS = {
    "lstm": Cell(lstm_init, lstm_cell, 2),
    "gru": Cell(gru_init, gru_cell, 1),
    "rnn": Cell(rnn_init, rnn_cell, 1),
}
