"""The loops in TensorFlow: `tf.while_loop` under a gradient tape, in one `tf.function`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from benchmarks.loops import LIMIT, TOLERANCE
from benchmarks.loops.inputs import Arguments, branch_inputs, map_inputs, nested_inputs, read
from benchmarks.program import Program


def mapped(n: int, width: int | None = None) -> Program:
    def loss(n: Any, s: Any, a: Any, b: Any) -> Any:
        def unfinished(i: Any, s: Any, _: Any) -> Any:
            return (i < n) & ((s if width is None else s[0]) < LIMIT)

        def body(i: Any, s: Any, total: Any) -> Any:
            s = a * tf.sin(s) + b
            return i + 1, s, total + s

        total = tf.while_loop(unfinished, body, (0, s, tf.zeros_like(s)))[2]
        return tf.reduce_sum(total) / tf.cast(n, tf.float64)

    return _program(loss, map_inputs(width), n)


def branching(n: int) -> Program:
    def loss(n: Any, v: Any, a: Any, r: Any) -> Any:
        def body(i: Any, v: Any, total: Any) -> Any:
            v = tf.cond(v < 1.0, lambda: v + 0.1 * (a - v), lambda: r * tf.tanh(v))
            return i + 1, v, total + v

        total = tf.while_loop(lambda i, v, _: (i < n) & (v < LIMIT), body, (0, v, tf.zeros_like(v)))[2]
        return total / tf.cast(n, tf.float64)

    return _program(loss, branch_inputs(), n)


def nested(n: int) -> Program:
    def solve(y: Any, a: Any) -> Any:
        def residual(z: Any) -> Any:
            return z - y - 0.1 * (a * tf.cos(z) - z**3)

        def improve(z: Any) -> Any:
            return z - residual(z) / (1.0 + 0.1 * (a * tf.sin(z) + 3.0 * z**2))

        return tf.while_loop(lambda z: tf.abs(residual(z)) > TOLERANCE, improve, (y,))[0]

    def loss(n: Any, y: Any, a: Any) -> Any:
        def body(i: Any, y: Any, total: Any) -> Any:
            y = solve(y, a)
            return i + 1, y, total + y

        total = tf.while_loop(lambda i, y, _: (i < n) & (y < LIMIT), body, (0, y, tf.zeros_like(y)))[2]
        return total / tf.cast(n, tf.float64)

    return _program(loss, nested_inputs(), n)


def _program(loss: Callable[..., Any], arguments: Arguments, n: int) -> Program:
    @tf.function
    def step(n: Any, arguments: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            value = loss(n, *arguments)
        return value, tape.gradient(value, arguments)

    given = tuple(tf.constant(x) for x in arguments)
    count = tf.constant(n)

    def run() -> Any:
        value, gradients = step(count, given)
        return value.numpy(), [g.numpy() for g in gradients]

    return Program(step=run, read=read)
