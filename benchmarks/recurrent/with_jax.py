"""The recurrent programs in JAX: `jax.grad` of a `lax.scan`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.program import Program
from benchmarks.recurrent.inputs import lengths, pack, read, sequence, weights


def lstm_concat(p: Any, x: Any, state: Any) -> Any:
    h, c = state
    i, f, g, o = jnp.split(jnp.concatenate([x, h], axis=1) @ p["w"] + p["b"], 4, axis=1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def lstm_separate(p: Any, x: Any, state: Any) -> Any:
    h, c = state
    i, f, g, o = jnp.split(x @ p["wx"] + h @ p["wh"] + p["b"], 4, axis=1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def gru_concat(p: Any, x: Any, state: Any) -> Any:
    (h,) = state
    gates = 2 * h.shape[1]
    r, z = jnp.split(jax.nn.sigmoid(jnp.concatenate([x, h], axis=1) @ p["w"] + p["b"][:gates]), 2, axis=1)
    n = jnp.tanh(x @ p["wxn"] + p["b"][gates:] + r * (h @ p["whn"] + p["bn"]))
    return ((1.0 - z) * n + z * h,)


def gru_separate(p: Any, x: Any, state: Any) -> Any:
    (h,) = state
    xr, xz, xn = jnp.split(x @ p["wx"] + p["b"], 3, axis=1)
    hr, hz, hn = jnp.split(h @ p["wh"], 3, axis=1)
    r, z = jax.nn.sigmoid(xr + hr), jax.nn.sigmoid(xz + hz)
    n = jnp.tanh(xn + r * (hn + p["bn"]))
    return ((1.0 - z) * n + z * h,)


CELLS: dict[tuple[str, str], Callable[..., Any]] = {
    ("lstm", "concat"): lstm_concat,
    ("lstm", "separate"): lstm_separate,
    ("gru", "concat"): gru_concat,
    ("gru", "separate"): gru_separate,
}


def _start(cell: str, batch: int, hidden: int) -> Any:
    return (jnp.zeros((batch, hidden)),) * (2 if cell == "lstm" else 1)


def scan_loss(cell: str, form: str, hidden: int, checkpoint: bool) -> Callable[..., Any]:
    """The loss by a `scan` that collects the hidden states."""
    step = CELLS[cell, form]

    def loss(params: Any, xs: Any) -> Any:
        def body(state: Any, x: Any) -> Any:
            state = step(params, x, state)
            return state, state[0]

        body_fun = jax.checkpoint(body) if checkpoint else body
        _, hs = lax.scan(body_fun, _start(cell, xs.shape[1], hidden), xs)
        return jnp.mean(hs**2)

    return loss


def scan(cell: str, form: str, size: Sequence[int], checkpoint: bool = False) -> Program:
    """A training step by a `scan`; with `checkpoint`, `jax.checkpoint` is around its body."""
    params = jax.tree.map(jnp.asarray, pack(cell, form, weights(cell, size)))
    loss = scan_loss(cell, form, size[3], checkpoint)
    step = jax.jit(jax.value_and_grad(loss))
    xs = jnp.asarray(sequence(size))

    return Program(
        step=lambda: jax.block_until_ready(step(params, xs)),
        read=lambda result: read(cell, form, size[2], result),
        kept_bytes=lambda: _residual_bytes(loss, params, xs) / size[0],
    )


def scan_in_pieces(size: Sequence[int], segment: int, policy: str) -> Program:
    """A training step of an LSTM whose `scan` goes over pieces of `segment` steps with `jax.checkpoint` around each.

    `policy`: a name in `jax.checkpoint_policies`.
    """
    params = jax.tree.map(jnp.asarray, pack("lstm", "concat", weights("lstm", size)))
    xs = jnp.asarray(sequence(size))
    pieces = xs.reshape(-1, segment, *xs.shape[1:])

    def body(params: Any, carry: Any, piece: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            state, total = carry
            state = lstm_concat(params, x, state)
            return (state, total + jnp.sum(state[0] ** 2)), None

        return lax.scan(step, carry, piece)[0]

    kept = jax.checkpoint(body, policy=getattr(jax.checkpoint_policies, policy))

    def loss(params: Any, pieces: Any) -> Any:
        start = (_start("lstm", xs.shape[1], size[3]), jnp.zeros(()))
        (_, total), _ = lax.scan(lambda carry, piece: (kept(params, carry, piece), None), start, pieces)
        return total / (size[0] * size[1] * size[3])

    step = jax.jit(jax.value_and_grad(loss))
    return Program(
        step=lambda: jax.block_until_ready(step(params, pieces)),
        read=lambda result: read("lstm", "concat", size[2], result),
    )


def _residual_bytes(loss: Callable[..., Any], params: Any, xs: Any) -> int:
    """The bytes of all residuals of the forward pass, each counted once, without what the program was given."""

    def residuals(params: Any, xs: Any) -> Any:
        return jax.tree.leaves(jax.vjp(lambda p: loss(p, xs), params)[1])

    jaxpr = jax.make_jaxpr(residuals)(params, xs).jaxpr
    given = set(jaxpr.invars)
    kept = {v for v in jaxpr.outvars if isinstance(v, jax.extend.core.Var) and v not in given}
    return sum(v.aval.size * v.aval.dtype.itemsize for v in kept)


def many_lengths(size: Sequence[int], count: int, shortest: int, longest: int) -> Program:
    """Training steps of an LSTM on batches of different lengths: each length is a shape of its own."""
    _, batch, inputs, hidden = size
    params = jax.tree.map(jnp.asarray, pack("lstm", "concat", weights("lstm", size)))
    sizes = [(n, batch, inputs, hidden) for n in lengths(count, shortest, longest)]
    batches = [jnp.asarray(sequence(s, seed)) for seed, s in enumerate(sizes)]
    step = jax.jit(jax.value_and_grad(scan_loss("lstm", "concat", hidden, False)))
    return Program(
        step=lambda: jax.block_until_ready([step(params, xs) for xs in batches]),
        read=lambda results: _read_lengths(inputs, results),
    )


def padded_lengths(size: Sequence[int], count: int, shortest: int, longest: int) -> Program:
    """The same padded to the longest length and masked: one shape, compiled once."""
    _, batch, inputs, hidden = size
    params = jax.tree.map(jnp.asarray, pack("lstm", "concat", weights("lstm", size)))
    batches = []
    for seed, n in enumerate(lengths(count, shortest, longest)):
        xs = sequence((n, batch, inputs, hidden), seed)
        batches.append((jnp.asarray(np.pad(xs, ((0, longest - n), (0, 0), (0, 0)))), n))

    def loss(params: Any, xs: Any, n: Any) -> Any:
        def body(state: Any, x: Any) -> Any:
            state = lstm_concat(params, x, state)
            return state, state[0]

        _, hs = lax.scan(body, _start("lstm", batch, hidden), xs)
        alive = (jnp.arange(longest) < n)[:, None, None]
        return jnp.sum(jnp.where(alive, hs**2, 0.0)) / (n * batch * hidden)

    step = jax.jit(jax.value_and_grad(loss))
    return Program(
        step=lambda: jax.block_until_ready([step(params, xs, n) for xs, n in batches]),
        read=lambda results: _read_lengths(inputs, results),
    )


def _read_lengths(inputs: int, results: Any) -> dict[str, np.ndarray]:
    losses = {"losses": np.array([loss for loss, _ in results])}
    return read("lstm", "concat", inputs, results[-1]) | losses
