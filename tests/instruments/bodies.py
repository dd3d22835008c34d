"""Loops whose bodies have what prepared launches do beside elementwise kernels. They take an array `[3, 3, 3]`."""

from __future__ import annotations

from typing import Any

import ctrlgrad as cg
import ctrlgrad.numpy as cnp


def reduced(x: Any) -> Any:
    def step(i: Any, x: Any) -> Any:
        high, low = cnp.max(x, axis=1, keepdims=True), cnp.min(x, axis=(0, 2))
        return x * 0.5 + high - low[None, :, None] + cnp.prod(x, axis=2, keepdims=True) + cnp.mean(x)

    return cg.fori_loop(0, 3, step, x)


def joined(x: Any) -> Any:
    """Parts of unequal sizes, one of them empty, along two axes."""

    def step(i: Any, x: Any) -> Any:
        turned = cnp.concatenate([x[:, 1:], x[:, :1] * 2.0, x[:, :0]], axis=1)
        return cnp.concatenate([turned[2:], turned[:2] + 1.0], axis=0)

    return cg.fori_loop(0, 3, step, x)


def multiplied(x: Any) -> Any:
    """Products of vectors and matrices, batched, broadcast, and of views that lie otherwise."""

    def step(i: Any, x: Any) -> Any:
        rows = x @ x[0, 0] + x[0, 1] @ x
        batched = x @ x.swapaxes(1, 2) + x[:1] @ x[:, ::-1]
        wide = cnp.broadcast_to(x[None], (2, *x.shape)) @ x
        return cnp.tanh(x + rows[..., None] + batched + wide[1] + x @ x[1] + (x[0, 0] @ x[1, 1]))

    return cg.fori_loop(0, 2, step, x)


def chosen(x: Any) -> Any:
    """Reads by indices that the body computes, in several integers, that stand together and apart."""

    def step(i: Any, x: Any) -> Any:
        rows = cnp.argmax(x, axis=2)
        low = (cnp.sum(x, axis=(0, 2)) < 0.5).astype("int32")
        apart = x[rows, :, low] + x[rows[1, 0]][:, low]
        return x[low, :, ::-1] * 0.5 + apart + cnp.take_along_axis(x, rows[:, None] - 3, axis=1) + x[i, rows]

    return cg.fori_loop(0, 3, step, x)


def updated(x: Any) -> Any:
    """Updates by indices that the body computes, which repeat, beside the loop's counter too."""

    def step(i: Any, c: Any) -> Any:
        x, total = c
        rows = cnp.argmax(x, axis=2)
        low = (cnp.sum(x, axis=(0, 2)) < 0.5).astype("int32")
        x = cnp.at(x)[low].add(x[::-1] * 0.25)
        x = cnp.at(x)[i, :, low - 1].set(cnp.tanh(x[:, i]))
        total = cnp.at(total)[rows - 3, low].add(x[0] * i)
        total = cnp.at(total)[rows[0, 1]].set(total[i] + x[1, 2])
        return x * 0.5 + total, total

    return cg.fori_loop(0, 3, step, (x, x[0] * 0.1))


__all__ = ["chosen", "joined", "multiplied", "reduced", "updated"]
