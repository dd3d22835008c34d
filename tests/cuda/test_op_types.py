"""Every op on every dtype that it takes, in loops: the CUDA engine on its stand-in against the reference engine."""

from __future__ import annotations

import pytest
from instruments.stand_in_runs import on_stand_in
from op_cases import DTYPES, FEW_DTYPES, MAKERS, cases_of
from op_cases.looped import FORMS, assert_agree, looped

from ctrlgrad.engines.reference import run_graph


@pytest.mark.parametrize("op", sorted(MAKERS))
def test_op_agrees_with_the_reference_engine(op: str) -> None:
    for form in FORMS:
        cases = cases_of(op, DTYPES if form == "operands apart" else FEW_DTYPES)
        loop = looped(cases, form)
        found = on_stand_in(loop.graph, loop.fresh()).results
        assert_agree(found, run_graph(loop.graph, loop.fresh()), ", ".join(map(str, cases[:3])))
