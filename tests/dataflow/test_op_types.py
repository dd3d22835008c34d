"""Every op on every dtype that it takes, in loops: the dataflow engine against the reference engine."""

from __future__ import annotations

import pytest
from op_cases import DTYPES, FEW_DTYPES, MAKERS, cases_of
from op_cases.looped import FORMS, assert_agree, looped

from ctrlgrad.engines.reference import run_graph
from ctrlgrad.execution import run_on


@pytest.mark.parametrize("op", sorted(MAKERS))
def test_op_agrees_with_the_reference_engine(op: str) -> None:
    for form in FORMS:
        cases = cases_of(op, DTYPES if form == "operands apart" else FEW_DTYPES)
        loop = looped(cases, form)
        found = run_on("dataflow", loop.graph, loop.fresh())
        assert_agree(found, run_graph(loop.graph, loop.fresh()), ", ".join(map(str, cases[:3])))
