"""The recurrent programs in TensorFlow: `tf.while_loop` under a gradient tape, in one `tf.function`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.program import Program
from benchmarks.recurrent.inputs import lengths, pack, read, sequence, weights


def lstm_concat(p: Any, x: Any, state: Any) -> Any:
    h, c = state
    i, f, g, o = tf.split(tf.concat([x, h], 1) @ p["w"] + p["b"], 4, 1)
    c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
    return tf.sigmoid(o) * tf.tanh(c), c


def lstm_separate(p: Any, x: Any, state: Any) -> Any:
    h, c = state
    i, f, g, o = tf.split(x @ p["wx"] + h @ p["wh"] + p["b"], 4, 1)
    c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
    return tf.sigmoid(o) * tf.tanh(c), c


def gru_concat(p: Any, x: Any, state: Any) -> Any:
    (h,) = state
    gates = 2 * h.shape[1]
    r, z = tf.split(tf.sigmoid(tf.concat([x, h], 1) @ p["w"] + p["b"][:gates]), 2, 1)
    n = tf.tanh(x @ p["wxn"] + p["b"][gates:] + r * (h @ p["whn"] + p["bn"]))
    return ((1.0 - z) * n + z * h,)


def gru_separate(p: Any, x: Any, state: Any) -> Any:
    (h,) = state
    xr, xz, xn = tf.split(x @ p["wx"] + p["b"], 3, 1)
    hr, hz, hn = tf.split(h @ p["wh"], 3, 1)
    r, z = tf.sigmoid(xr + hr), tf.sigmoid(xz + hz)
    n = tf.tanh(xn + r * (hn + p["bn"]))
    return ((1.0 - z) * n + z * h,)


CELLS: dict[tuple[str, str], Callable[..., Any]] = {
    ("lstm", "concat"): lstm_concat,
    ("lstm", "separate"): lstm_separate,
    ("gru", "concat"): gru_concat,
    ("gru", "separate"): gru_separate,
}


def _training_step(cell: str, form: str, size: Sequence[int], steps: int | None) -> Callable[..., Any]:
    _, batch, inputs, hidden = size
    advance = CELLS[cell, form]

    @tf.function(input_signature=None if steps else [_like(cell, form, size), tf.TensorSpec((None, batch, inputs))])
    def step(params: Any, xs: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(params)
            count = tf.shape(xs)[0]

            def body(t: Any, state: Any, total: Any) -> Any:
                state = advance(params, xs[t], state)
                return t + 1, state, total + tf.reduce_sum(state[0] ** 2)

            state = (tf.zeros((batch, hidden)),) * (2 if cell == "lstm" else 1)
            total = tf.while_loop(lambda t, *_: t < count, body, (0, state, 0.0))[2]
            loss = total / tf.cast(count * batch * hidden, tf.float32)
        return loss, tape.gradient(loss, params)

    return step  # type: ignore[no-any-return]


def _like(cell: str, form: str, size: Sequence[int]) -> dict[str, Any]:
    return {name: tf.TensorSpec(p.shape) for name, p in pack(cell, form, weights(cell, size)).items()}


def loop(cell: str, form: str, size: Sequence[int]) -> Program:
    """A training step by a `tf.while_loop`."""
    params = {name: tf.constant(p) for name, p in pack(cell, form, weights(cell, size)).items()}
    xs = tf.constant(sequence(size))
    step = _training_step(cell, form, size, size[0])

    def run() -> Any:
        loss, gradients = step(params, xs)
        return loss.numpy(), gradients

    return Program(step=run, read=lambda result: read(cell, form, size[2], _dense(result)))


def many_lengths(size: Sequence[int], count: int, shortest: int, longest: int) -> Program:
    """Training steps of an LSTM on batches of different lengths: the length is declared unknown."""
    _, batch, inputs, hidden = size
    params = {name: tf.constant(p) for name, p in pack("lstm", "concat", weights("lstm", size)).items()}
    sizes = [(n, batch, inputs, hidden) for n in lengths(count, shortest, longest)]
    batches = [tf.constant(sequence(s, seed)) for seed, s in enumerate(sizes)]
    step = _training_step("lstm", "concat", size, None)

    def run() -> Any:
        return [(loss.numpy(), gradients) for loss, gradients in (step(params, xs) for xs in batches)]

    def read_all(results: Any) -> dict[str, np.ndarray]:
        losses = {"losses": np.array([loss for loss, _ in results])}
        return read("lstm", "concat", inputs, _dense(results[-1])) | losses

    return Program(step=run, read=read_all)


def _dense(result: Any) -> Any:
    loss, gradients = result
    return loss, {name: g.numpy() for name, g in gradients.items()}
