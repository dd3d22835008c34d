"""Random programs, to second order, with their arguments in every place.

CTRLGRAD_CUDA_RANDOM_PROGRAMS says how many (20); the seed is fixed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from random_programs.checks import MARGIN, describe
from random_programs.kinds import Float
from random_programs.program import Program
from random_programs.running import TooLongError, plain_run, signature, traced_function
from random_programs.strategy import programs
from running import assert_same, on_reference, on_stand_in

import ctrlgrad as cg
from ctrlgrad.ir import Graph

RANDOM_PROGRAMS = int(os.environ.get("CTRLGRAD_CUDA_RANDOM_PROGRAMS", "20"))


def graphs(program: Program) -> Iterator[Graph]:
    """The program, its gradient, and the gradient of a scalar of that."""
    function = traced_function(program)
    wrt = tuple(i for i, a in enumerate(program.arguments) if isinstance(a.variable.kind, Float))

    def loss(*arguments: Any) -> Any:
        results = zip(function(*arguments), program.result_kinds, strict=True)
        floats = [leaf for leaf, kind in results if isinstance(kind, Float)]
        return sum((1.0 + k / 8.0) * np.sum(np.sin(leaf)) for k, leaf in enumerate(floats))

    def slope(*arguments: Any) -> Any:
        return sum(np.sum(np.sin(g)) for g in cg.grad(loss, argnums=wrt)(*arguments))

    arguments = [a.value for a in program.arguments]
    for traced in (function, cg.grad(loss, argnums=wrt), cg.grad(slope, argnums=wrt)):
        yield cg.function(traced, signature=signature(program)).graph(*arguments)


def judge(program: Program, counts: Counter[str]) -> None:
    """What nearly decides otherwise is not judged."""
    try:
        decisions = plain_run(program)[1]
    except TooLongError:
        assume(False)
    assume(decisions.margin >= MARGIN)
    arguments = [a.value for a in program.arguments]
    for order, graph in enumerate(graphs(program)):
        expected = on_reference(graph, arguments)
        for kinds in ("", "f", "biuf"):
            try:
                ran = on_stand_in(graph, arguments, kinds)
                assert_same(ran.results, expected, 1e-10)
            except Exception as error:
                raise AssertionError(f"order {order}, {kinds!r} there: {error}\n\n{describe(program)}") from error
            counts["reads"] += ran.counts.predicate_reads
    counts["programs"] += 1


def test_random_programs() -> None:
    counts: Counter[str] = Counter()
    run = settings(
        max_examples=RANDOM_PROGRAMS,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    seed(5)(run(given(programs())(lambda program: judge(program, counts))))()
    assert counts["programs"] >= RANDOM_PROGRAMS // 2
    assert counts["reads"] > 0
