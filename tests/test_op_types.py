"""The reference engine is held to the types that ops declare: every op, on every dtype that its rule takes."""

from __future__ import annotations

import copy

import pytest
from op_cases import MAKERS, cases_of

from ctrlgrad.engines.reference import Run, run_graph
from ctrlgrad.errors import ExecutionError
from ctrlgrad.ir import OPS, Trait


def test_every_op_has_cases() -> None:
    assert set(MAKERS) == {name for name, op in OPS.items() if Trait.MAPPED not in op.traits}
    assert [op for op in MAKERS if not cases_of(op)] == []


@pytest.mark.parametrize("op", sorted(MAKERS))
def test_results_are_of_the_declared_types(op: str) -> None:
    wrong = []
    for case in cases_of(op):
        try:
            run_graph(case.graph(), copy.deepcopy(list(case.operands)), Run(check_types=True))
        except ExecutionError as error:
            wrong.append(f"{case}: {error.args[0]}")
    assert not wrong, "\n".join(wrong)
