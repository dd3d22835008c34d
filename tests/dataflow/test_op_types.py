"""Every op on every dtype that it takes, in loops: the dataflow engine against the reference engine."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from instruments.tables import some
from op_cases import MAKERS, OpCase, cases_of
from op_cases.looped import FORMS, assert_agree, looped

from ctrlgrad.engines.reference import run_graph
from ctrlgrad.execution import run_on

# Cases of an op in a short run.
MOST = 24


def assert_loop_agrees(cases: Sequence[OpCase], form: str) -> None:
    loop = looped(cases, form)
    found = run_on("dataflow", loop.graph, loop.fresh())
    assert_agree(found, run_graph(loop.graph, loop.fresh()), ", ".join(map(str, cases[:3])))


@pytest.mark.parametrize("op", sorted(MAKERS))
def test_op_agrees_with_the_reference_engine(op: str, request: pytest.FixtureRequest) -> None:
    """Every case in one of the forms."""
    cases = some(cases_of(op), MOST, request.config)
    for number, form in enumerate(FORMS):
        if mine := cases[number :: len(FORMS)]:
            assert_loop_agrees(mine, form)


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", sorted(MAKERS))
def test_op_in_every_form(op: str, form: str) -> None:
    assert_loop_agrees(cases_of(op), form)
