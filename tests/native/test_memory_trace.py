"""Generated code gives every read the value that it wants: the corpus, its derivatives and random programs.

Nothing is compiled: an abstract machine replays what the code does to memory. CTRLGRAD_TRACED_RANDOM_PROGRAMS says for
how many random programs (60).
"""

from __future__ import annotations

import os

import numpy as np
import pytest

pytest.importorskip("numba")

from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from native.memory_judge import judge, loops_of
from native.test_agreement import NATIVE_LOOPS, PER_PART, random_graphs
from programs import PROGRAMS, Program
from random_programs.checks import describe
from random_programs.program import Program as RandomProgram
from random_programs.running import TooLongError, plain_run
from random_programs.strategy import programs

from ctrlgrad import tree
from ctrlgrad.engines.native.memory_check import MemoryTraceError

RANDOM_PROGRAMS = int(os.environ.get("CTRLGRAD_TRACED_RANDOM_PROGRAMS", "60"))


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("program", PROGRAMS, ids=repr)
def test_corpus(program: Program, order: int) -> None:
    judged = judge(loops_of(program.graph(order), [np.asarray(x) for x in tree.leaves(program.args)]))
    assert judged >= NATIVE_LOOPS[program.name][order]


@pytest.mark.parametrize("part", range(-(-RANDOM_PROGRAMS // PER_PART)))
def test_random_programs(part: int) -> None:
    judged = []

    def run(program: RandomProgram) -> None:
        try:
            plain_run(program)
        except TooLongError:
            assume(False)
        arguments = [a.value for a in program.arguments]
        for order, graph in enumerate(random_graphs(program)):
            try:
                judged.append(judge(loops_of(graph, arguments)))
            except MemoryTraceError as error:
                raise AssertionError(f"order {order}: {error}\n\n{describe(program)}") from error

    many = settings(
        max_examples=PER_PART,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    seed(part)(many(given(programs())(run)))()
    assert sum(judged) > PER_PART
