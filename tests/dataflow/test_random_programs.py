"""The dataflow engine agrees with the reference engine on random programs and their gradients.

CTRLGRAD_DATAFLOW_RANDOM_PROGRAMS says how many (20). Every other part has devices `cuda:N`, on the stand-in, too.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from instruments.dataflow_runs import run, settings_at_random
from instruments.stand_in import StandIn
from random_programs.campaign import Batch, run_batch
from random_programs.engines import Settings, judge
from random_programs.expected import UnsuitableError
from random_programs.generate import generate

from ctrlgrad.engines.cuda.devices import registered
from ctrlgrad.ir import Graph

# How long copies take: as long as the thread does, and longer than anything else.
COPIES = ({"latency": 0.0}, {"latency": 1.0})
RANDOM_PROGRAMS = int(os.environ.get("CTRLGRAD_DATAFLOW_RANDOM_PROGRAMS", "20"))
PER_PART = 10


@pytest.mark.parametrize("part", range(-(-RANDOM_PROGRAMS // PER_PART)))
def test_random_programs(part: int) -> None:
    draw = random.Random(part)
    cuda = 2 * (part % 2)
    libraries = {f"cuda:{n}": StandIn(seed=part, **COPIES[n]) for n in range(cuda)}

    def by_dataflow(settings: Settings, graph: Graph, arguments: Sequence[Any], _: random.Random) -> list[Any]:
        return run(graph, arguments, **settings_at_random(draw, cuda))[0]

    examined = 0
    with registered({name: lambda library=library: library for name, library in libraries.items()}):
        for number in range(part * PER_PART, (part + 1) * PER_PART):
            with suppress(UnsuitableError):
                judge(generate(number), Settings(orders=2), chosen=by_dataflow)
                examined += 1
    for library in libraries.values():
        library.copier().close()
    assert examined >= PER_PART // 2


@pytest.mark.parametrize("part", range(-(-RANDOM_PROGRAMS // (2 * PER_PART))))
def test_random_programs_within_budgets(part: int) -> None:
    settings = Settings("dataflow", budget=True)
    outcome = run_batch(Batch(1, part * 4, 4, settings))
    assert not outcome.failures, outcome.failures[0]
    assert outcome.compared["budgets"] > 0
