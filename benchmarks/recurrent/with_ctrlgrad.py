"""The recurrent programs in ctrlgrad: a plain `while_loop`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from benchmarks.kept import bytes_per_iteration
from benchmarks.program import Program
from benchmarks.recurrent.inputs import GATES, PRODUCTS, by_chance, lengths, pack, read, sequence, weights


def lstm_concat(p: Any, x: Any, state: Any) -> Any:
    h, c = state
    i, f, g, o = cnp.split(cnp.concat([x, h], axis=1) @ p["w"] + p["b"], 4, axis=1)
    c = cnp.sigmoid(f) * c + cnp.sigmoid(i) * cnp.tanh(g)
    return cnp.sigmoid(o) * cnp.tanh(c), c


def lstm_separate(p: Any, x: Any, state: Any) -> Any:
    h, c = state
    i, f, g, o = cnp.split(x @ p["wx"] + h @ p["wh"] + p["b"], 4, axis=1)
    c = cnp.sigmoid(f) * c + cnp.sigmoid(i) * cnp.tanh(g)
    return cnp.sigmoid(o) * cnp.tanh(c), c


def gru_concat(p: Any, x: Any, state: Any) -> Any:
    (h,) = state
    gates = 2 * h.shape[1]
    r, z = cnp.split(cnp.sigmoid(cnp.concat([x, h], axis=1) @ p["w"] + p["b"][:gates]), 2, axis=1)
    n = cnp.tanh(x @ p["wxn"] + p["b"][gates:] + r * (h @ p["whn"] + p["bn"]))
    return ((1.0 - z) * n + z * h,)


def gru_separate(p: Any, x: Any, state: Any) -> Any:
    (h,) = state
    xr, xz, xn = cnp.split(x @ p["wx"] + p["b"], 3, axis=1)
    hr, hz, hn = cnp.split(h @ p["wh"], 3, axis=1)
    r, z = cnp.sigmoid(xr + hr), cnp.sigmoid(xz + hz)
    n = cnp.tanh(xn + r * (hn + p["bn"]))
    return ((1.0 - z) * n + z * h,)


CELLS: dict[tuple[str, str], Callable[..., Any]] = {
    ("lstm", "concat"): lstm_concat,
    ("lstm", "separate"): lstm_separate,
    ("gru", "concat"): gru_concat,
    ("gru", "separate"): gru_separate,
}


def loop_loss(cell: str, form: str, hidden: int, checkpoint: bool) -> Callable[..., Any]:
    """The loss as a loop over time."""
    step = CELLS[cell, form]

    def loss(params: Any, xs: Any) -> Any:
        def body(carry: Any) -> Any:
            t, state, total = carry
            state = step(params, xs[t], state)
            return t + 1, state, total + cnp.sum(state[0] * state[0])

        batch = xs.shape[1]
        state = (np.zeros((batch, hidden), np.float32),) * (2 if cell == "lstm" else 1)
        body_fun = cg.checkpoint(body) if checkpoint else body
        total = cg.while_loop(lambda carry: carry[0] < xs.shape[0], body_fun, (0, state, np.float32(0)))[2]
        return total / cnp.asarray(xs.shape[0] * batch * hidden, dtype=np.float32)

    return loss


def unrolled_loss(cell: str, form: str, hidden: int) -> Callable[..., Any]:
    """The same with the loop unrolled by hand: one graph as long as the sequence."""
    step = CELLS[cell, form]

    def loss(params: Any, xs: Any) -> Any:
        state = (np.zeros((xs.shape[1], hidden), np.float32),) * (2 if cell == "lstm" else 1)
        total = np.float32(0)
        for t in range(xs.shape[0]):
            state = step(params, xs[t], state)
            total = total + cnp.sum(state[0] * state[0])
        return total / np.float32(xs.shape[0] * xs.shape[1] * hidden)

    return loss


def loop(cell: str, form: str, size: Sequence[int], engine: str = "auto", checkpoint: bool = False) -> Program:
    """A training step by a `while_loop`; with `checkpoint`, its body is computed again in the backward pass."""
    loss = loop_loss(cell, form, size[3], checkpoint)
    return _program(loss, cell, form, size, engine)


def within_budget(cell: str, form: str, size: Sequence[int], budget: int | None, engine: str = "auto") -> Program:
    """A training step by a `while_loop` whose saved values have so many bytes of memory; the rest goes to disk."""
    unlimited = loop(cell, form, size, engine)
    if budget is None:
        return unlimited

    def step() -> Any:
        with cg.memory.budget(device=budget):
            return unlimited.step()

    return replace(unlimited, step=step)


def unrolled(cell: str, form: str, size: Sequence[int], engine: str = "auto") -> Program:
    """A training step without a loop."""
    return _program(unrolled_loss(cell, form, size[3]), cell, form, size, engine)


def _program(loss: Callable[..., Any], cell: str, form: str, size: Sequence[int], engine: str) -> Program:
    params, xs = pack(cell, form, weights(cell, size)), sequence(size)
    step = cg.function(cg.value_and_grad(loss), engine=engine)
    return Program(
        step=lambda: step(params, xs),
        read=lambda result: read(cell, form, size[2], result),
        kept_bytes=lambda: bytes_per_iteration(step, engine, params, xs, iterations=size[0]),
    )


def many_lengths(size: Sequence[int], count: int, shortest: int, longest: int, engine: str = "auto") -> Program:
    """Training steps of an LSTM on batches of different lengths: the length is declared unknown."""
    _, batch, inputs, hidden = size
    params = pack("lstm", "concat", weights("lstm", size))
    batches = [sequence((n, batch, inputs, hidden), seed) for seed, n in enumerate(lengths(count, shortest, longest))]
    like = {name: cg.TensorSpec(p.shape, p.dtype) for name, p in params.items()}
    signature = (like, cg.TensorSpec((None, batch, inputs), np.float32))
    step = cg.function(
        cg.value_and_grad(loop_loss("lstm", "concat", hidden, False)), engine=engine, signature=signature
    )
    return Program(
        step=lambda: [step(params, xs) for xs in batches],
        read=lambda results: (
            read("lstm", "concat", inputs, results[-1]) | {"losses": np.array([loss for loss, _ in results])}
        ),
    )


def products(cell: str, size: Sequence[int], engine: str = "auto") -> Program:
    """The products of a training step and nothing else, as `with_numpy.products`; steps wait for the ones before."""
    steps, batch, inputs, hidden = size
    gates = GATES[cell] * hidden
    shared, xs = weights(cell, size), sequence(size)
    hs, dz = (by_chance((steps, batch, n), n) for n in (hidden, gates))

    def compute(wx: Any, wh: Any, xs: Any, hs: Any, dz: Any) -> Any:
        def forward(t: Any, zh: Any) -> Any:
            # A part of the last product, times 0: else all rows would be one product.
            return (hs[t] + np.float32(0) * zh[:, :hidden]) @ wh

        def backward(t: Any, dh: Any) -> Any:
            return (dz[t] + np.float32(0) * dh[:, :1]) @ wh.T

        flat, zeros = cnp.reshape(dz, (-1, gates)), lambda n: np.zeros((batch, n), np.float32)
        z = cnp.reshape(xs, (-1, inputs)) @ wx
        zh, dh = (cg.fori_loop(0, steps, f, zeros(n)) for f, n in ((forward, gates), (backward, hidden)))
        return z, zh, dh, cnp.reshape(xs, (-1, inputs)).T @ flat, cnp.reshape(hs, (-1, hidden)).T @ flat

    step = cg.function(compute, engine=engine)

    def found(result: Any) -> dict[str, np.ndarray]:
        z, *others = map(np.asarray, result)
        return dict(zip(PRODUCTS, (z[-batch:], *others), strict=True))

    return Program(step=lambda: step(shared["wx"], shared["wh"], xs, hs, dz), read=found)
