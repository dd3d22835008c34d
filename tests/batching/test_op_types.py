"""Every op under `vmap`, against its own kernel row by row."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from op_cases import FEW_DTYPES, MAKERS, OpCase, cases_of

import ctrlgrad as cg
from ctrlgrad.engines.reference import run_graph
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.frontend.apply import apply_all
from ctrlgrad.ir import StackType

# Where some operand is mapped their results have different shapes from row to row, or are not known to be equal.
REFUSED = {"nonzero", "getitem", "setitem", "additem", "pure_callback"}


def _rows(case: OpCase, mapped: Sequence[bool]) -> list[tuple[Any, ...]]:
    """The operands of two rows: those of the case, and the same in reversed order where they are mapped."""
    turned = lambda x: np.reshape(np.ravel(x)[::-1], np.shape(x))
    second = [turned(x) if m else x for x, m in zip(case.operands, mapped, strict=True)]
    if case.op == "searchsorted":  # the row that is searched is a sorted one
        second[0] = case.operands[0]
    return [case.operands, tuple(second)]


def _compare(case: OpCase, mapped: Sequence[bool]) -> None:
    rows = _rows(case, mapped)
    expected = [run_graph(case.graph(), [np.asarray(x) for x in row]) for row in rows]
    columns = zip(*rows, strict=True)
    given = [np.stack(column) if m else column[0] for column, m in zip(columns, mapped, strict=True)]
    op = lambda *operands: apply_all(case.op, operands, case.attrs)
    found = cg.function(cg.vmap(op, in_axes=tuple(0 if m else None for m in mapped)), engine="reference")(*given)
    for i, result in enumerate(found):
        wanted = np.stack([row[i] for row in expected])
        assert result.dtype == wanted.dtype, str(case)
        np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-6, err_msg=f"{case}, mapped: {mapped}")


def _has_stacks(case: OpCase) -> bool:
    return any(isinstance(t, StackType) for t in (*case.types, *(v.type for v in case.graph().outputs)))


@pytest.mark.parametrize("op", sorted(MAKERS))
def test_rows_are_what_the_op_gives_for_each(op: str) -> None:
    """Each operand mapped or not, in every way."""
    is_refused = False
    for case in cases_of(op, ("float32",)) or cases_of(op, FEW_DTYPES):
        if case.regions or _has_stacks(case):
            continue
        for mapped in itertools.product((False, True), repeat=len(case.operands)):
            if not any(mapped):
                continue
            try:
                _compare(case, mapped)
            except TypeMismatchError:
                is_refused = True
    assert is_refused == (op in REFUSED)
