"""Plans as text that follows the graph's text: `tests/golden/plan/NAME.txt`.

`pytest tests/plan --update-golden` writes them anew. The texts hold for any machine; the part that depends on it is
`plans.PANELS`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plan.plans import graph_of, placed, unplaced
from plan.small_programs import SMALL, wide
from programs import BY_NAME

import ctrlgrad as cg
from ctrlgrad.engines import optimised_graph
from ctrlgrad.ir import Graph
from ctrlgrad.plan import outlining
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.model import Kernel, Loop, Plan, Product, Push
from ctrlgrad.plan.printer import format_plan

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "plan"

Example = tuple[Graph, list[Any]]


def corpus(name: str, order: int) -> Example:
    program = BY_NAME[name]
    return optimised_graph(program.graph(order)), program.leaves


def small(name: str) -> Example:
    program = SMALL[name]
    graph = graph_of(program.fn, *program.arguments, order=program.order, signature=program.signature)
    return graph, list(program.arguments)


def vmapped_loop() -> Example:
    """A vmapped loop in which every lane has its own trip count."""

    def halvings(x: Any) -> Any:
        return cg.while_loop(lambda c: c[0] > 1.0, lambda c: (c[0] * 0.5, c[1] + 1.0), (x, 0.0))[1]

    x = np.array([1.0, 5.0, 40.0])
    return graph_of(cg.vmap(halvings), x), [x]


def packed_product() -> Example:
    x = np.ones((2, 32))
    w = wide[:, :32].copy()
    return graph_of(lambda x, w, n: cg.fori_loop(0, n, lambda t, c: np.tanh(c @ w), x), x, w, 3), [x, w, 3]


def layers() -> Example:
    x, w = np.ones((3, 20)), np.ones((20, 20))
    return graph_of(lambda x, w: np.tanh(np.tanh(x @ w) @ w), x, w), [x, w]


EXAMPLES: dict[str, Callable[[], Example]] = {
    "gradient_of_a_scalar_loop": lambda: corpus("newton_iteration", 1),
    "gradient_of_an_lstm": lambda: corpus("lstm", 1),
    "branch_in_a_loop": lambda: corpus("branch_in_a_loop", 0),
    "scan_with_outputs": lambda: corpus("scan_over_pytrees", 0),
    "loop_under_vmap": vmapped_loop,
    "product_packed_before_a_loop": packed_product,
    "layers_that_repeat_a_kernel": layers,
    "columns_before_a_loop": lambda: small("nearest_point"),
    "rows_of_an_unknown_size": lambda: corpus("unknown_size", 1),
    "rows_of_sizes_that_differ": lambda: small("gradient_of_a_loop_over_parts"),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_golden_text(name: str, update_golden: bool) -> None:
    same(name, format_plan(placed(*EXAMPLES[name]())), update_golden)


def test_text_of_a_long_plan(monkeypatch: pytest.MonkeyPatch, update_golden: bool) -> None:
    """A long plan says which steps each of its functions has, and what the function keeps near."""
    monkeypatch.setattr(outlining, "WHOLE", 0)
    monkeypatch.setattr(outlining, "PIECE", 150)
    same("functions_of_a_long_plan", format_plan(placed(*small("gradient_of_a_loop"))), update_golden)


def same(name: str, text: str, update_golden: bool) -> None:
    path = GOLDEN / f"{name}.txt"
    if update_golden:
        path.write_text(text + "\n", encoding="utf-8")
    assert text + "\n" == path.read_text(encoding="utf-8")


FUSED = {
    "fusion_of_a_loop_body": lambda: corpus("recurrence_over_two_steps", 1),
    "fusion_around_a_transpose": lambda: small("transpose_of_a_dead_value"),
    "fusion_of_several_results": lambda: small("branch_over_what_the_other_reads"),
}


@pytest.mark.parametrize("name", FUSED)
def test_text_before_and_after_fusion(name: str, update_golden: bool) -> None:
    example = FUSED[name]()
    before, after = unplaced(*example, without=("fuse",)), unplaced(*example)
    assert kernels(before) > kernels(after)
    same(name, f"Before fusion.\n\n{format_plan(before)}\n\nAfter it.\n\n{format_plan(after)}", update_golden)


def kernels(plan: Plan) -> int:
    return sum(isinstance(step, Kernel) for step in walk(plan.body))


def test_every_step_is_in_the_text() -> None:
    """Every step is printed: loops by their numbers, pushes by the pushed value, products by their operands, packed
    or not."""
    for name in EXAMPLES:
        plan = placed(*EXAMPLES[name]())
        text = format_plan(plan)
        for step in walk(plan.body):
            if isinstance(step, Loop):
                assert f"loop {step.number}, iteration {step.counter}" in text
            elif isinstance(step, Push):
                assert f" = push {step.stack}, " in text
            elif isinstance(step, Product):
                assert f"packed as {step.packed}" in text or step.packed is None
                assert " @ " in text
        for buffer in plan.buffers:
            held = {array.name for array, place in plan.places.items() if str(place) == f"buffer {buffer.number}"}
            (line,) = [line for line in text.splitlines() if line.startswith(f"  buffer {buffer}: ")]
            assert held <= set(line.rsplit(": ")[-1].split(", ")), line
