"""Graphs as text that a reader can follow: `tests/golden/NAME.txt` holds the forward graph and the gradient's.

`pytest tests/test_golden.py --update-golden` writes them anew.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from programs import BY_NAME

import ctrlgrad as cg
from ctrlgrad.ir import Graph, Node, walk

GOLDEN = Path(__file__).resolve().parent / "golden"

SIX = (
    "newton_iteration",
    "branch_in_a_loop",
    "nested_data_dependent_counts",
    "invariant_matrix",
    "row_reads",
    "recurrence_over_two_steps",
)


def scalar_loss(name: str) -> Callable[..., Any]:
    """The program itself, summed where its result is no scalar; with its own parameter names."""
    fn = BY_NAME[name].fn

    @wraps(fn)
    def loss(*args: Any) -> Any:
        result = fn(*args)
        return result if result.ndim == 0 else result.sum()

    return loss


def graphs(name: str) -> tuple[Graph, Graph]:
    program = BY_NAME[name]
    fn = scalar_loss(name)
    forward = cg.function(fn, name=name).graph(*program.args)
    gradient = cg.function(cg.grad(fn, argnums=program.argnums), name=f"grad_{name}").graph(*program.args)
    return forward, gradient


@pytest.mark.parametrize("name", SIX)
def test_golden_text(name: str, update_golden: bool) -> None:
    forward, gradient = graphs(name)
    text = f"The program as traced.\n\n{forward}\n\nIts gradient.\n\n{gradient}\n"
    path = GOLDEN / f"{name}.txt"
    if update_golden:
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def loops(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op.name == "while"]


@pytest.mark.parametrize("name", SIX)
def test_a_gradient_is_a_forward_loop_with_pushes_and_a_reversed_one_with_pops(name: str) -> None:
    forward, gradient = graphs(name)
    assert len(loops(forward)) == 1
    first, second = loops(gradient)
    ops_of = [{node.op.name for node in walk(loop.regions[1])} for loop in (first, second)]
    assert "stack_push" in ops_of[0] and "stack_pop" not in ops_of[0]
    assert "stack_pop" in ops_of[1] and "stack_push" not in ops_of[1]
    before = {value for node in gradient.nodes[: gradient.nodes.index(second)] for value in node.results}
    assert any(value in first.results for value in second.operands if value in before)
