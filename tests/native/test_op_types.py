"""Every op on every dtype that it takes, in loops: in checked mode and compiled, against the reference engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("numba")

from op_cases import DTYPES, FEW_DTYPES, MAKERS, OpCase, cases_of
from op_cases.looped import FORMS, assert_agree, looped

from ctrlgrad.engines import run_on
from ctrlgrad.engines.native.checked import checked
from ctrlgrad.engines.reference import run_graph
from ctrlgrad.ir import OPS, Trait
from ctrlgrad.ops.indexing import DYNAMIC

# Loops over these are interpreted: what they yield has a size that depends on data, or they work on whole stacks.
NOT_NATIVE = {
    *("nonzero", "forget_sizes", "call", "callback"),
    *("stack_new", "stack_from_tensor", "stack_split", "stack_sum", "stack_rows", "stack_concat"),
}


def is_native(case: OpCase) -> bool:
    """Whether a loop over the case is compiled: it is not with half precision, nor with slices bounded by data."""
    graph = case.graph()
    if case.op in NOT_NATIVE or any("f16" in str(v.type) for v in (*graph.inputs, *graph.outputs)):
        return False
    bounds = [b for item in case.attrs.get("key", ()) if isinstance(item, slice) for b in (item.start, item.stop)]
    return DYNAMIC not in bounds and (case.op != "stack_to_tensor" or case.attrs["size"] is not None)


def native_cases(op: str, dtypes: Sequence[str]) -> list[OpCase]:
    return [case for case in cases_of(op, tuple(dtypes)) if is_native(case)]


def assert_loop_agrees(cases: Sequence[OpCase], form: str, plans: Any) -> None:
    loop = looped(cases, form)
    found = run_on("native", loop.graph, loop.fresh())
    assert plans.native and not plans.reasons, set(plans.reasons)
    assert_agree(found, run_graph(loop.graph, loop.fresh()), ", ".join(map(str, cases[:3])))


def test_the_ops_without_a_native_form_are_known(plans: Any) -> None:
    """So that none is left out for nothing."""
    for op in sorted(NOT_NATIVE):
        loop = looped(cases_of(op, ("float64",)), "operands apart")
        run_on("native", loop.graph, loop.fresh())
        assert not plans.native, op


@pytest.mark.parametrize("op", sorted(set(MAKERS) - NOT_NATIVE))
def test_op_in_checked_mode(op: str, plans: Any) -> None:
    for form in FORMS:
        cases = native_cases(op, DTYPES if form == "operands apart" else FEW_DTYPES)
        with checked():
            assert_loop_agrees(cases, form, plans)


@pytest.mark.parametrize(
    ("dtype", "form"), [("int8", "operands together"), ("float32", "operands replaced before")], ids=str
)
def test_ops_compiled(dtype: str, form: str, plans: Any) -> None:
    """One case of each op but the elementwise ones, which `test_ops` compiles for themselves: all in one loop."""
    names = [op for op in sorted(set(MAKERS) - NOT_NATIVE) if Trait.ELEMENTWISE not in OPS[op].traits]
    each = [native_cases(op, (dtype,)) for op in names]
    assert_loop_agrees([cases[len(cases) // 2] for cases in each if cases], form, plans)
