"""Moves of stacks between handles: none where each branch of a conditional returns the stack that it was given."""

from __future__ import annotations

from typing import Any

import numpy as np
from plan.plans import executed, placed

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.execution import run_on
from ctrlgrad.ir import Graph
from ctrlgrad.plan.model import Branch, Loop


def moves(block: Any) -> list[Any]:
    found = list(block.stack_moves)
    for step in block.steps:
        inner = (
            step.blocks if isinstance(step, Branch) else (step.condition, step.body) if isinstance(step, Loop) else ()
        )
        found += [move for b in inner for move in moves(b)]
    return found


def gradient() -> Graph:
    """The gradient of a loop in one branch of a conditional, inside two loops; its stacks pass through all of them."""

    def arm(y: Any) -> Any:
        return cg.while_loop(lambda z: z < 2.0, lambda z: cnp.sin(z) * z + 1.1, y)

    def inner(i: Any, y: Any) -> Any:
        return cg.cond(y < 1.5, lambda: arm(y), lambda: y * 0.3)

    def outer(c: Any) -> Any:
        return c[0] + 1, cg.fori_loop(0, 4, inner, c[1]) * cnp.cos(c[1])

    f = lambda x: cg.while_loop(lambda c: c[0] < 3, outer, (0, x))[1]
    return cg.function(cg.value_and_grad(f)).graph(np.float64(0.7))


def test_stacks_that_both_arms_leave_in_place_do_not_move_in_a_loop() -> None:
    graph, arguments = gradient(), [np.float64(0.7)]
    assert moves(placed(graph, arguments).body) == []
    np.testing.assert_allclose(executed(graph, arguments), run_on("reference", graph, arguments))
