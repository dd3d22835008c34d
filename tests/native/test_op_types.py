"""Every op on every dtype that it takes, in loops: in machine code, against the reference engine."""

from __future__ import annotations

import pytest
from instruments.natively import run_natively
from instruments.tables import some
from op_cases import DTYPES, FEW_DTYPES, MAKERS, cases_of
from op_cases.looped import assert_each_agrees_in_one_form

# Of other dtypes than these, which are stored and computed in ways of their own, one case in so many.
MANY = (*FEW_DTYPES, "float16")
OTHERS_EVERY = 4
# Cases of an op in a short run.
MOST = 8


@pytest.mark.parametrize("op", sorted(MAKERS))
def test_op(op: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTRLGRAD_QUICK_CODE", "1")
    others = cases_of(op, tuple(d for d in DTYPES if d not in MANY))
    cases = some([*cases_of(op, MANY), *others[::OTHERS_EVERY]], MOST, request.config)
    assert_each_agrees_in_one_form(run_natively, cases)
