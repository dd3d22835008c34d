"""Every op on a few dtypes, in loops: in machine code, against the reference engine."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from instruments.natively import run_natively
from op_cases import FEW_DTYPES, MAKERS, OpCase, cases_of
from op_cases.looped import FORMS, assert_agree, looped

from ctrlgrad.engines.reference import run_graph


def assert_loop_agrees(cases: Sequence[OpCase], form: str) -> None:
    loop = looped(cases, form)
    found = run_natively(loop.graph, loop.fresh())
    assert_agree(found, run_graph(loop.graph, loop.fresh()), ", ".join(map(str, cases[:3])))


@pytest.mark.parametrize("op", sorted(MAKERS))
def test_op(op: str) -> None:
    """Every case in one of the forms."""
    cases = cases_of(op, FEW_DTYPES)
    for number, form in enumerate(FORMS):
        if mine := cases[number :: len(FORMS)]:
            assert_loop_agrees(mine, form)
