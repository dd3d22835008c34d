"""Every op in loops of machine code agrees with the reference engine, on every dtype that it takes."""

from __future__ import annotations

import pytest
from instruments.natively import run_natively
from instruments.tables import some
from op_cases import DTYPES, FEW_DTYPES, MAKERS, cases_of
from op_cases.looped import assert_each_agrees_in_one_form

# Dtypes with a storage and arithmetic of their own. Of the other dtypes' cases one in `OTHERS_EVERY` runs.
MANY = (*FEW_DTYPES, "float16")
OTHERS_EVERY = 4
# Number of an op's cases in a short run.
MOST = 8


@pytest.mark.parametrize("op", sorted(MAKERS))
def test_op(op: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTRLGRAD_QUICK_CODE", "1")
    others = cases_of(op, tuple(d for d in DTYPES if d not in MANY))
    cases = some([*cases_of(op, MANY), *others[::OTHERS_EVERY]], MOST, request.config)
    assert_each_agrees_in_one_form(run_natively, cases)
