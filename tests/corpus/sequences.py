"""Models over sequences of different length, and functions traced with unknown dimensions."""

from __future__ import annotations

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from corpus.program import count, normal, program, scalar


@program(normal(71, 4, 3, 2), normal(72, 3, 3, scale=0.5), normal(73, 2, 3), np.array([2, 4, 3]))
def masked_rnn(xs, w, u, lengths):
    """A batch of sequences [time, batch, features]; each state stays as it is once its sequence has ended."""

    def more(carry):
        t, _ = carry
        return t < np.max(lengths)

    def step(carry):
        t, h = carry
        new = np.tanh(h @ w + xs[t] @ u)
        return t + 1, np.where((t < lengths)[:, None], new, h)

    _, h = cg.while_loop(more, step, (0, cnp.zeros((3, 3))))
    return np.sum(h * h, axis=1)


@masked_rnn.twin
def _(xs, w, u, lengths):
    ends = []
    for b, length in enumerate(lengths):
        h = np.zeros(3)
        for t in range(length):
            h = np.tanh(h @ w + xs[t, b] @ u)
        ends.append(np.sum(h * h))
    return np.array(ends)


def _sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


@program(
    {"w": normal(74, 2, 12, scale=0.5), "u": normal(75, 3, 12, scale=0.5), "b": normal(76, 12)},
    normal(77, 4, 2, 2),
    count(3),
)
def lstm(parameters, xs, steps):
    def step(carry):
        t, h, c = carry
        z = xs[t] @ parameters["w"] + h @ parameters["u"] + parameters["b"]
        i, f, g, o = cnp.split(z, 4, axis=-1)
        c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
        return t + 1, _sigmoid(o) * np.tanh(c), c

    zero = cnp.zeros((2, 3))
    _, h, c = cg.while_loop(lambda carry: carry[0] < steps, step, (0, zero, zero))
    return np.sum(h) + np.sum(c * c)


@lstm.twin
def _(parameters, xs, steps):
    h = c = np.zeros((2, 3))
    for t in range(steps):
        z = xs[t] @ parameters["w"] + h @ parameters["u"] + parameters["b"]
        i, f, g, o = np.split(z, 4, axis=-1)
        c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
        h = _sigmoid(o) * np.tanh(c)
    return np.sum(h) + np.sum(c * c)


@program(normal(78, 4, 3), normal(79, 3, 3), count(4))
def attention_over_a_growing_memory(xs, w, n):
    """Step t attends to the t + 1 rows written so far; the rest of the memory is masked out."""

    def step(carry):
        t, h, memory = carry
        memory = memory.at[t].set(np.tanh(xs[t] + h))
        scores = memory @ (w @ xs[t])
        scores = np.where(np.arange(4) <= t, scores, -1e30)
        weights = np.exp(scores - cnp.logsumexp(scores))
        return t + 1, weights @ memory, memory

    _, h, _ = cg.while_loop(lambda c: c[0] < n, step, (0, cnp.zeros(3), cnp.zeros((4, 3))))
    return h


@attention_over_a_growing_memory.twin
def _(xs, w, n):
    h, memory = np.zeros(3), []
    for t in range(n):
        memory.append(np.tanh(xs[t] + h))
        scores = np.array([row @ (w @ xs[t]) for row in memory])
        weights = np.exp(scores) / np.sum(np.exp(scores))
        h = sum(a * row for a, row in zip(weights, memory, strict=True))
    return h


@program(normal(80, 3, 3), normal(81, 5, 3), count(4))
def hidden_markov_likelihood(transition, emission, n):
    """The forward algorithm in log space."""
    log_a = transition - cnp.logsumexp(transition, axis=1, keepdims=True)

    def step(carry):
        t, alpha = carry
        return t + 1, cnp.logsumexp(alpha[:, None] + log_a, axis=0) + emission[t]

    _, alpha = cg.while_loop(lambda c: c[0] < n, step, (1, emission[0]))
    return cnp.logsumexp(alpha)


@hidden_markov_likelihood.twin
def _(transition, emission, n):
    a = np.exp(transition)
    a = a / a.sum(axis=1, keepdims=True)
    alpha = np.exp(emission[0])
    for t in range(1, n):
        alpha = (alpha @ a) * np.exp(emission[t])
    return np.log(alpha.sum())


@program(normal(82, 2, 3), np.array([2, 0, 1, 2]), normal(83, 3, 2))
def embedding_and_einsum(w, tokens, table):
    def step(h, token):
        h = np.tanh(np.einsum("ij,j->i", w, np.concatenate([h, h[:1]])) + table[token])
        return h, cnp.logsumexp(h)

    h, losses = cg.scan(step, np.zeros(2), tokens)
    return np.sum(h) + np.mean(losses)


@embedding_and_einsum.twin
def _(w, tokens, table):
    h, losses = np.zeros(2), []
    for token in tokens:
        h = np.tanh(w @ np.array([h[0], h[1], h[0]]) + table[token])
        losses.append(np.log(np.sum(np.exp(h))))
    return np.sum(h) + np.mean(losses)


@program(
    normal(84, 3),
    scalar(0.7),
    signature=(cg.TensorSpec((None,), np.float64), cg.TensorSpec((), np.float64)),
)
def unknown_size(x, w):
    """Traced for vectors of any length; the length itself takes part."""

    def step(carry):
        i, y = carry
        return i + 1, np.sin(y * w) + np.mean(y) / x.shape[0]

    _, y = cg.while_loop(lambda c: c[0] < x.shape[0], step, (0, x))
    return np.sum(y * y)


@unknown_size.twin
def _(x, w):
    y = x
    for _ in range(len(x)):
        y = np.sin(y * w) + np.mean(y) / len(x)
    return np.sum(y * y)


@program(
    normal(85, 4, 2, 3),
    normal(86, 3, 3, scale=0.5),
    np.array([4, 2]),
    signature=(
        cg.TensorSpec((None, None, 3), np.float64),
        cg.TensorSpec((3, 3), np.float64),
        cg.TensorSpec((None,), np.int64),
    ),
)
def unknown_time_and_batch(xs, w, lengths):
    """A masked RNN for any number of steps and sequences; broadcasting over an unknown batch in the body."""

    def step(carry):
        t, h = carry
        new = np.tanh(h @ w + xs[t])
        alive = (t < lengths).astype(np.float64)[:, None]
        return t + 1, alive * new + (1.0 - alive) * h

    _, h = cg.while_loop(lambda c: c[0] < xs.shape[0], step, (0, cnp.zeros_like(xs[0])))
    return np.sum(h * h) / xs.shape[1]


@unknown_time_and_batch.twin
def _(xs, w, lengths):
    total = 0.0
    for b, length in enumerate(lengths):
        h = np.zeros(3)
        for t in range(length):
            h = np.tanh(h @ w + xs[t, b])
        total += np.sum(h * h)
    return total / len(lengths)


@program(
    normal(87, 3, 2),
    signature=(cg.TensorSpec((None, 2), np.float64),),
)
def rows_collected_from_an_unknown_size(xs):
    """`scan` over an unknown number of rows, and a branch inside it."""

    def step(h, x):
        h = cg.cond(np.sum(x) > 0.0, lambda h: np.sin(h) + x, lambda h: h * x, h)
        return h, h * h

    h, rows = cg.scan(step, cnp.ones(2), xs)
    return np.sum(rows) + np.sum(h)


@rows_collected_from_an_unknown_size.twin
def _(xs):
    h, total = np.ones(2), 0.0
    for x in xs:
        h = np.sin(h) + x if np.sum(x) > 0.0 else h * x
        total += np.sum(h * h)
    return total + np.sum(h)
