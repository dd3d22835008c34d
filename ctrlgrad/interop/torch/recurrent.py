"""Recurrent networks: `lstm`, `gru`, `rnn_tanh` and `rnn_relu`, one `scan` for each layer and direction.

Weights of a direction are w_ih[gates * hidden, inputs], w_hh[gates * hidden, hidden] and two biases. Nothing is made
for all steps at once, so that a budget bounds what a long sequence takes. A packed batch is data[numbers, inputs] with
the count of rows at each step, which falls; it is read as rows of one length that keep their state once their sequence
has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ctrlgrad.numpy as cnp
from ctrlgrad.frontend.apply import cast
from ctrlgrad.frontend.loops import scan
from ctrlgrad.interop.torch.operators import TABLE, dropped

# A step maps (W x + its bias, the product with the state, a bias, state) to the new state; None where there is none.
Step = Callable[[Any, Any, Any, Sequence[Any]], list[Any]]


def _added(*parts: Any) -> Any:
    """The sum of the parts that are not None."""
    total: Any = None
    for x in parts:
        total = x if total is None else total if x is None else total + x
    return total


def _lstm(given: Any, product: Any, bias: Any, state: Sequence[Any]) -> list[Any]:
    i, f, g, o = cnp.split(_added(given, product, bias), 4, -1)
    c = cnp.sigmoid(f) * state[1] + cnp.sigmoid(i) * cnp.tanh(g)
    return [cnp.sigmoid(o) * cnp.tanh(c), c]


def _gru(given: Any, product: Any, bias: Any, state: Sequence[Any]) -> list[Any]:
    product = product if bias is None else product + bias
    (r, z, n), (hr, hz, hn) = cnp.split(given, 3, -1), cnp.split(product, 3, -1)
    z = cnp.sigmoid(z + hz)
    n = cnp.tanh(n + cnp.sigmoid(r + hr) * hn)
    return [n + z * (state[0] - n)]


def _plain(activation: Callable[[Any], Any]) -> Step:
    return lambda given, product, bias, state: [activation(_added(given, product, bias))]


def _relu(x: Any) -> Any:
    return cnp.where(x <= 0, cnp.zeros_like(x), x)


def _direction(step: Step, x: Any, alive: Any, state: list[Any], weights: Sequence[Any], reverse: bool) -> Any:
    """The outputs for x[time, batch, inputs], and the last state. `alive[time, batch]` says which rows count."""
    w_ih, w_hh, *rest = weights
    biases = rest[:2] if len(rest) >= 2 else [None, None]
    projection = rest[-1] if len(rest) in (1, 3) else None
    is_gru = step is _gru
    # One product for the input and the state, where their parts are added; a GRU looks at them one by one.
    matrix = cnp.transpose(w_hh if is_gru else cnp.concatenate([w_ih, w_hh], 1))
    bias = biases[0] if is_gru or biases[0] is None else biases[0] + biases[1]

    def run(carry: Any, row: Any) -> Any:
        now, counts = row
        if is_gru:
            given = _added(cnp.matmul(now, cnp.transpose(w_ih)), bias)
            new = step(given, cnp.matmul(carry[0], matrix), biases[1], carry)
        else:
            new = step(cnp.matmul(cnp.concatenate([now, carry[0]], -1), matrix), None, bias, carry)
        if projection is not None:
            new[0] = cnp.matmul(new[0], cnp.transpose(projection))
        if counts is None:
            return new, new[0]
        kept = [cnp.where(counts[:, None], a, b) for a, b in zip(new, carry, strict=True)]
        return kept, cnp.where(counts[:, None], new[0], cnp.zeros_like(new[0]))

    last, outputs = scan(run, state, (x, alive), reverse=reverse)
    return outputs, last


def _layers(
    step: Step, states: int, x: Any, alive: Any, start: Sequence[Any], flat: Sequence[Any], settings: Sequence[Any]
) -> tuple[Any, ...]:
    """The outputs of all layers, and the last state of each, in the order of PyTorch."""
    _, layers, dropout, train, bidirectional = settings
    directions = 2 if bidirectional else 1
    count = len(flat) // (layers * directions)
    ends: list[list[Any]] = [[] for _ in range(states)]
    for layer in range(layers):
        found = []
        for side in range(directions):
            k = layer * directions + side
            state = [s[k] for s in start]
            outputs, last = _direction(step, x, alive, state, flat[k * count : (k + 1) * count], side == 1)
            found.append(outputs)
            for collected, s in zip(ends, last, strict=True):
                collected.append(s)
        x = found[0] if directions == 1 else cnp.concatenate(found, -1)
        if train and layer < layers - 1:
            x = dropped("dropout between layers", x, dropout)
    return (x, *(cnp.stack(collected) for collected in ends))


def _network(step: Step, states: int) -> Callable[..., Any]:
    def run(x: Any, second: Any, *more: Any) -> tuple[Any, ...]:
        if not isinstance(second, list | tuple) and second.ndim == 1:
            hx, flat, *settings = more
            start = list(hx) if states == 2 else [hx]
            steps, batch = second.shape[0], start[0].shape[1]
            counts = cast(second, second.dtype)
            alive = cnp.arange(batch) < counts[:, None]
            # Rows of step t stand behind all rows of the steps before it.
            places = (cnp.cumsum(counts) - counts)[:, None] + cnp.arange(batch)
            padded = cnp.take(x, cnp.where(alive, places, 0), axis=0)
            outputs, *ends = _layers(step, states, padded, alive, start, flat, settings)
            flat_outputs = cnp.reshape(outputs, (steps * batch, outputs.shape[-1]))
            order = _packed_places(counts, batch, steps, x.shape[0])
            return (cnp.take(flat_outputs, order, axis=0), *ends)
        hx, flat, *settings, batch_first = second, *more
        start = list(hx) if states == 2 else [hx]
        x = cnp.swapaxes(x, 0, 1) if batch_first else x
        outputs, *ends = _layers(step, states, x, None, start, flat, settings)
        return (cnp.swapaxes(outputs, 0, 1) if batch_first else outputs, *ends)

    return run


def _packed_places(counts: Any, batch: Any, steps: Any, numbers: Any) -> Any:
    """Positions of the rows of a packed batch in [steps * batch]."""
    ends = cnp.cumsum(counts)
    rows = cnp.arange(numbers)
    step = cnp.searchsorted(ends, rows, side="right")
    return step * batch + rows - cnp.take(ends - counts, step, axis=0)


def _cell(step: Step, states: int) -> Callable[..., Any]:
    def run(x: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
        state = list(hx) if states == 2 else [hx]
        given = cnp.matmul(x, cnp.transpose(w_ih))
        found = step(given if b_ih is None else given + b_ih, cnp.matmul(state[0], cnp.transpose(w_hh)), b_hh, state)
        return tuple(found) if states == 2 else found[0]

    return run


_KINDS = {"lstm": (_lstm, 2), "gru": (_gru, 1), "rnn_tanh": (_plain(cnp.tanh), 1), "rnn_relu": (_plain(_relu), 1)}
TABLE |= {name: _network(*kind) for name, kind in _KINDS.items()}
TABLE |= {f"{name}_cell": _cell(*kind) for name, kind in _KINDS.items()}


# Packing.


def _pack(x: Any, lengths: Any, batch_first: bool) -> tuple[Any, Any]:
    """The numbers of rows of falling lengths, step by step, and how many rows each step has."""
    x = cnp.swapaxes(x, 0, 1) if batch_first else x
    steps, batch = x.shape[:2]
    alive = cnp.arange(steps)[:, None] < lengths
    counts = cnp.sum(cast(alive, lengths.dtype), 1)
    rows = cnp.reshape(x, (steps * batch, *x.shape[2:]))
    order = _packed_places(counts, batch, steps, cnp.sum(lengths))
    return cnp.take(rows, order, axis=0), counts


def _unpack(data: Any, counts: Any, batch_first: bool, padding: Any, total: Any) -> tuple[Any, Any]:
    batch = counts[0]
    alive = cnp.arange(batch) < counts[:, None]
    places = (cnp.cumsum(counts) - counts)[:, None] + cnp.arange(batch)
    found = cnp.take(data, cnp.where(alive, places, 0), axis=0)
    mask = cnp.reshape(alive, (*alive.shape, *[1] * (data.ndim - 1)))
    found = cnp.where(mask, found, cast(cnp.asarray(padding), data.dtype))
    lengths = cnp.sum(cast(alive, counts.dtype), 0)
    return cnp.swapaxes(found, 0, 1) if batch_first else found, lengths


TABLE["_pack_padded_sequence"] = _pack
TABLE["_pad_packed_sequence"] = _unpack
