"""Shared by the dataflow tests: running a graph by settings, and comparing with the reference engine."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from ctrlgrad import dataflow
from ctrlgrad.dataflow import FlatGraph, FlatNode
from ctrlgrad.dataflow.engine import Outcome, run_prepared
from ctrlgrad.dataflow.settings import prepare
from ctrlgrad.ir import Graph


def at_random(devices: int, seed: int, cuda: int = 0) -> Callable[[FlatNode], str]:
    """A placement: each op on one of so many devices of the processor, and so many of CUDA."""
    draw = random.Random(seed)
    names = [f"cpu:{n}" for n in range(devices)] + [f"cuda:{n}" for n in range(cuda)]
    return lambda node: names[draw.randrange(len(names))]


def by_line(devices: int, seed: int) -> Callable[[FlatNode], str | None]:
    """A placement: the ops of a line of the program on one of so many devices, and their gradients with them."""

    def place(node: FlatNode) -> str | None:
        if node.source is None:
            return None
        return f"cpu:{random.Random(f'{node.source.short} {seed}').randrange(devices)}"

    return place


def short_delays(draw: random.Random) -> float:
    """Seconds that a message takes: mostly none."""
    return draw.choice((0.0, 0.0, 0.0, 2e-4, 1e-3))


def settings_at_random(draw: random.Random, cuda: int = 0) -> dict[str, Any]:
    """Settings of the engine, with so many devices of CUDA. On one device clusters are largest; on several there is
    traffic."""
    return {
        "loops": "lowered",
        "place": at_random(draw.choice((1, 1, 2, 3)), draw.randrange(1000), cuda),
        "parallel_iterations": draw.choice((1, 2, 3, 5, 32)),
        "clusters": draw.choice((None, None, "none", "flowing", "whole")),
        "order": draw.choice((None, draw.randrange(1000))),
        "delay": draw.choice((None, None, None, short_delays)),
    }


def run(graph: Graph | FlatGraph, arguments: Sequence[Any], **changes: Any) -> tuple[list[Any], Outcome]:
    """The outputs of a graph by the dataflow engine, and what was counted; nothing may be left behind."""
    outcome = Outcome()
    with dataflow.settings(**changes) as now:
        outputs = run_prepared(prepare(graph, now), arguments, now, outcome=outcome)
    for counts in outcome.counts.values():
        assert counts.frames_opened == counts.frames_released
    assert sum(c.sent for c in outcome.counts.values()) == sum(c.received for c in outcome.counts.values())
    return outputs, outcome
