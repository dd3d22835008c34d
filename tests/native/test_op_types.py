"""Every op on every dtype that it takes, in loops: in machine code, against the reference engine."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from instruments.natively import run_natively
from instruments.tables import some
from op_cases import DTYPES, FEW_DTYPES, MAKERS, OpCase, cases_of
from op_cases.looped import FORMS, assert_agree, looped

from ctrlgrad.engines.reference import run_graph

# Of other dtypes than these, which are stored and computed in ways of their own, one case in so many.
MANY = (*FEW_DTYPES, "float16")
OTHERS_EVERY = 4
# Cases of an op in a short run.
MOST = 16


def assert_loop_agrees(cases: Sequence[OpCase], form: str) -> None:
    loop = looped(cases, form)
    found = run_natively(loop.graph, loop.fresh())
    assert_agree(found, run_graph(loop.graph, loop.fresh()), ", ".join(map(str, cases[:3])))


@pytest.mark.parametrize("op", sorted(MAKERS))
def test_op(op: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every case in one of the forms: those of one form are one loop, and so one module."""
    monkeypatch.setenv("CTRLGRAD_QUICK_CODE", "1")
    others = cases_of(op, tuple(d for d in DTYPES if d not in MANY))
    cases = some([*cases_of(op, MANY), *others[::OTHERS_EVERY]], MOST, request.config)
    for number, form in enumerate(FORMS):
        if mine := cases[number :: len(FORMS)]:
            assert_loop_agrees(mine, form)
