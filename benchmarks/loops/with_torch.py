"""The loops in PyTorch: Python's `while` and `if` under autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.loops import LIMIT, TOLERANCE
from benchmarks.loops.inputs import Arguments, branch_inputs, map_inputs, nested_inputs, read
from benchmarks.program import Program


def mapped(n: int, width: int | None = None) -> Program:
    def loss(s: Any, a: Any, b: Any) -> Any:
        i, total = 0, torch.zeros_like(s)
        while i < n and (s if width is None else s[0]) < LIMIT:
            s = a * torch.sin(s) + b
            total = total + s
            i += 1
        return total.sum() / n

    return _program(loss, map_inputs(width))


def branching(n: int) -> Program:
    def loss(v: Any, a: Any, r: Any) -> Any:
        i, total = 0, torch.zeros_like(v)
        while i < n and v < LIMIT:
            v = v + 0.1 * (a - v) if v < 1.0 else r * torch.tanh(v)
            total = total + v
            i += 1
        return total / n

    return _program(loss, branch_inputs())


def nested(n: int) -> Program:
    def residual(z: Any, y: Any, a: Any) -> Any:
        return z - y - 0.1 * (a * torch.cos(z) - z**3)

    def loss(y: Any, a: Any) -> Any:
        i, total = 0, torch.zeros_like(y)
        while i < n and y < LIMIT:
            z = y
            while (r := residual(z, y, a)).abs() > TOLERANCE:
                z = z - r / (1.0 + 0.1 * (a * torch.sin(z) + 3.0 * z**2))
            y = z
            total = total + y
            i += 1
        return total / n

    return _program(loss, nested_inputs())


def _program(loss: Callable[..., Any], arguments: Arguments) -> Program:
    given = [torch.from_numpy(x).requires_grad_() for x in arguments]

    def step() -> Any:
        for x in given:
            x.grad = None
        value = loss(*given)
        value.backward()
        return value.detach(), [x.grad for x in given]

    return Program(step=step, read=read)
