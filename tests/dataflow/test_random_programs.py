"""The dataflow engine agrees with the reference engine on random programs and their gradients.

CTRLGRAD_DATAFLOW_RANDOM_PROGRAMS says how many (60). Every other part has devices `cuda:N`, on the stand-in, too.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from agreement import assert_same, at_random, run, short_delays
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from random_programs.checks import MARGIN, describe
from random_programs.kinds import Float
from random_programs.program import Program
from random_programs.running import TooLongError, plain_run, signature, traced_function
from random_programs.strategy import programs
from stand_in import StandIn

import ctrlgrad as cg
from ctrlgrad.dataflow.cuda_devices import registered
from ctrlgrad.engines import run_on
from ctrlgrad.ir import Graph

# How long copies take: as long as the thread does, and longer than anything else.
COPIES = ({"latency": 0.0}, {"latency": 1.0})
RANDOM_PROGRAMS = int(os.environ.get("CTRLGRAD_DATAFLOW_RANDOM_PROGRAMS", "60"))
PER_PART = 20


def graphs(program: Program) -> Iterator[Graph]:
    """The program and its gradient."""
    function = traced_function(program)
    wrt = tuple(i for i, a in enumerate(program.arguments) if isinstance(a.variable.kind, Float))

    def loss(*arguments: Any) -> Any:
        results = zip(function(*arguments), program.result_kinds, strict=True)
        floats = [leaf for leaf, kind in results if isinstance(kind, Float)]
        return sum((1.0 + k / 8.0) * np.sum(np.sin(leaf)) for k, leaf in enumerate(floats))

    arguments = [a.value for a in program.arguments]
    for traced in (function, cg.grad(loss, argnums=wrt)):
        yield cg.function(traced, signature=signature(program)).graph(*arguments)


def way(draw: random.Random, cuda: int) -> dict[str, Any]:
    """Settings, drawn at random; with so many devices of CUDA."""
    return {
        "place": at_random(draw.randrange(1, 5 - cuda), draw.randrange(1000), cuda),
        "parallel_iterations": draw.choice((1, 2, 3, 5, 32)),
        "clusters": draw.choice((None, "none", "flowing", "whole")),
        "order": draw.choice((None, draw.randrange(1000))),
        "delay": draw.choice((None, None, short_delays)),
    }


def judge(program: Program, counts: Counter[str], draw: random.Random, cuda: int) -> None:
    try:
        decisions = plain_run(program)[1]
    except TooLongError:
        assume(False)
    assume(decisions.margin >= MARGIN)
    arguments = [a.value for a in program.arguments]
    for order, graph in enumerate(graphs(program)):
        expected = run_on("reference", graph, arguments)
        settings_now = way(draw, cuda)
        try:
            assert_same(run(graph, arguments, **settings_now)[0], expected, 1e-10)
        except Exception as error:
            raise AssertionError(f"order {order}, {settings_now}: {error}\n\n{describe(program)}") from error
    counts["programs"] += 1


@pytest.mark.parametrize("part", range(-(-RANDOM_PROGRAMS // PER_PART)))
def test_random_programs(part: int) -> None:
    counts: Counter[str] = Counter()
    draw = random.Random(part)
    every = settings(
        max_examples=10,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    cuda = 2 * (part % 2)
    libraries = {f"cuda:{n}": StandIn(seed=part, **COPIES[n]) for n in range(cuda)}
    with registered({name: lambda library=library: library for name, library in libraries.items()}):
        for number in range(PER_PART // 10):
            seed(part * 1000 + number)(every(given(programs())(lambda program: judge(program, counts, draw, cuda))))()
    for library in libraries.values():
        library.copier().close()
    assert counts["programs"] >= PER_PART // 2
