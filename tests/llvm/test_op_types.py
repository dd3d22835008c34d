"""Every op on every dtype that it takes, in loops: in machine code, against the reference engine."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from natively import run_natively
from op_cases import DTYPES, FEW_DTYPES, MAKERS, OpCase, cases_of
from op_cases.looped import FORMS, assert_agree, looped

from ctrlgrad.engines.reference import run_graph


def assert_loop_agrees(cases: Sequence[OpCase], form: str) -> None:
    loop = looped(cases, form)
    found = run_natively(loop.graph, loop.fresh())
    assert_agree(found, run_graph(loop.graph, loop.fresh()), ", ".join(map(str, cases[:3])))


@pytest.mark.parametrize("op", sorted(MAKERS))
def test_op(op: str) -> None:
    for form in FORMS:
        assert_loop_agrees(cases_of(op, DTYPES if form == "operands apart" else FEW_DTYPES), form)
