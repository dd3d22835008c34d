"""Loops that are long enough for graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.ir import Graph
from instruments.driver import Driver


def rnn(steps: int) -> tuple[Graph, list[Any]]:
    """The gradients of a recurrent network: products, rows that are pushed and popped, an array that is added to."""

    def loss(w: Any, u: Any, x: Any) -> Any:
        step = lambda t, h: cnp.tanh(x[t] @ w + h @ u) * (1.0 + t * 0.1)
        return cnp.sum(cg.fori_loop(0, x.shape[0], step, x[0, :, :3]) ** 2)

    rng = np.random.default_rng(steps)
    arguments = [rng.normal(size=(4, 3)) * 0.3, rng.normal(size=(3, 3)) * 0.3, rng.normal(size=(steps, 2, 4))]
    return cg.function(cg.value_and_grad(loss, argnums=(0, 1, 2))).graph(*arguments), arguments


def shrinking(x: Any) -> Any:
    """As many iterations as the first element says; its gradient pops what each has pushed."""

    def body(carry: Any) -> Any:
        x, y, count = carry
        return x - 1.0, np.sin(y * 1.1) + y, count + 1

    return cg.while_loop(lambda carry: carry[0][0] > 0.5, body, (x, x * 0.01, 0))


def loss(x: Any) -> Any:
    _, y, count = shrinking(x)
    return np.sum(y * y) + count


def without_graphs(monkeypatch: pytest.MonkeyPatch, reason: str = "not asked for") -> None:
    monkeypatch.setattr(Driver, "graphs", lambda self: reason)


__all__ = ["loss", "rnn", "shrinking", "without_graphs"]
