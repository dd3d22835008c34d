"""Every op on every dtype that it takes, in loops: the dataflow engine against the reference engine."""

from __future__ import annotations

from functools import partial

import pytest
from instruments.tables import some
from op_cases import MAKERS, cases_of
from op_cases.looped import FORMS, assert_each_agrees_in_one_form, assert_loop_agrees

from ctrlgrad.execution import run_on

# Cases of an op in a short run; each engine has others.
MOST, FIRST = 6, 1

by_dataflow = partial(run_on, "dataflow")


@pytest.mark.parametrize("op", sorted(MAKERS))
def test_op_agrees_with_the_reference_engine(op: str, request: pytest.FixtureRequest) -> None:
    assert_each_agrees_in_one_form(by_dataflow, some(cases_of(op), MOST, request.config, FIRST))


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", sorted(MAKERS))
def test_op_in_every_form(op: str, form: str) -> None:
    assert_loop_agrees(by_dataflow, cases_of(op), form)
