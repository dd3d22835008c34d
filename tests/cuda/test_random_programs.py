"""Random programs, to second order, with their arguments in every place.

CTRLGRAD_CUDA_RANDOM_PROGRAMS says how many (8).
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from instruments.stand_in_runs import on_stand_in
from random_programs.engines import Settings, judge
from random_programs.expected import UnsuitableError
from random_programs.generate import generate

from ctrlgrad.engines.cuda.prepared import runner
from ctrlgrad.ir import Graph

RANDOM_PROGRAMS = int(os.environ.get("CTRLGRAD_CUDA_RANDOM_PROGRAMS", "8"))


@pytest.mark.parametrize("kinds", ["", "f", "biuf"])
def test_random_programs(kinds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kinds:
        # Their loops are short, and graphs nonetheless.
        monkeypatch.setattr(runner, "LEAST_IN_GRAPH", 2)
    reads = examined = 0

    def there(settings: Settings, graph: Graph, arguments: Sequence[Any], _: random.Random) -> list[Any]:
        nonlocal reads
        ran = on_stand_in(graph, arguments, kinds)
        reads += ran.counts.predicate_reads
        return ran.results

    for number in range(20, 20 + RANDOM_PROGRAMS):
        with suppress(UnsuitableError):
            judge(generate(number), Settings(orders=3), chosen=there)
            examined += 1
    assert examined >= RANDOM_PROGRAMS // 2
    assert reads > 0


def test_random_programs_under_budgets() -> None:
    """Less and less of the stand-in's memory, until it is not enough."""
    compared: Counter[str] = Counter()
    for number in range(100, 100 + RANDOM_PROGRAMS):
        with suppress(UnsuitableError):
            compared += judge(generate(number), Settings("cuda", budget=True), number)
    assert compared["budgets"] >= RANDOM_PROGRAMS // 4 and compared["order 1"] > 0
