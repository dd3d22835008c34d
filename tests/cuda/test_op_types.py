"""Every op on every dtype that it takes, in loops: the CUDA engine on its stand-in against the reference engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from instruments.stand_in_runs import on_stand_in
from instruments.tables import some
from op_cases import MAKERS, cases_of
from op_cases.looped import FORMS, assert_each_agrees_in_one_form, assert_loop_agrees

from ctrlgrad.ir import Graph

# Cases of an op in a short run; each engine has its own.
MOST, FIRST = 6, 2


def by_cuda(graph: Graph, arguments: Sequence[Any]) -> Sequence[Any]:
    return on_stand_in(graph, arguments).results


OPS = sorted(MAKERS)


@pytest.mark.parametrize("op", OPS)
def test_op_agrees_with_the_reference_engine(op: str, request: pytest.FixtureRequest) -> None:
    assert_each_agrees_in_one_form(by_cuda, some(cases_of(op), MOST, request.config, FIRST))


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", OPS)
def test_op_in_every_form(op: str, form: str) -> None:
    assert_loop_agrees(by_cuda, cases_of(op), form)
