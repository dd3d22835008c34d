"""Traits that each op declares agree with its type rule and with the reference engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from op_cases import MAKERS, OpCase, cases_of

from ctrlgrad.engines.reference import Run, run_graph
from ctrlgrad.errors import CtrlgradError
from ctrlgrad.ir import OPS, StackType, TensorType, Trait
from ctrlgrad.ir.control import REGION_OPS

# Types are made of what names a dtype and of numbers of any kind, and hold NumPy's dtypes and Python's integers.


@pytest.mark.parametrize("dtype", ["float32", np.float32, "f4", np.dtype("float32")])
@pytest.mark.parametrize("shape", [(2, None, 1), [2, None, 1], (np.int64(2), None, True)], ids=str)
def test_a_type_is_made_of_what_names_one(dtype: Any, shape: Any) -> None:
    made = TensorType(dtype, shape)
    assert made == TensorType(np.dtype(np.float32), (2, None, 1)) and str(made) == "f32[2,?,1]"
    assert isinstance(made.dtype, np.dtype) and type(made.shape) is tuple
    assert [type(d) for d in made.shape] == [int, type(None), int]


@pytest.mark.parametrize("op", sorted(set(MAKERS) - set(REGION_OPS)))
def test_an_op_declares_that_it_takes_or_gives_a_stack(op: str) -> None:
    for case in cases_of(op):
        types = [v.type for node in case.graph().nodes for v in (*node.operands, *node.results) if node.op.name == op]
        assert any(isinstance(t, StackType) for t in types) == (Trait.STACK in OPS[op].traits)


@pytest.mark.parametrize("op", sorted(name for name, op in OPS.items() if Trait.SHAPE_OF_FIRST in op.traits))
def test_an_op_that_declares_the_shape_of_its_first_operand_has_it(op: str) -> None:
    assert op in MAKERS
    for case in cases_of(op):
        graph = case.graph()
        result, first = graph.outputs[0].tensor, graph.inputs[0].tensor
        assert result.accepts(TensorType(result.dtype, first.shape)), case


def without_elements(case: OpCase) -> OpCase:
    """The case with no element in its arrays, of sizes that the graph does not know."""
    operands = tuple(np.zeros([0] * np.ndim(x), np.asarray(x).dtype) if np.ndim(x) else x for x in case.operands)
    unknown = {i: (None,) * np.ndim(x) for i, x in enumerate(operands) if np.ndim(x)}
    return replace(case, operands=operands, unknown=unknown)


def run(case: OpCase) -> list[Any]:
    return list(run_graph(case.graph(), list(case.operands), Run()))


@pytest.mark.parametrize("op", sorted(name for name in MAKERS if Trait.TOTAL in OPS[name].traits))
def test_a_total_op_does_not_fail_where_there_are_no_elements(op: str) -> None:
    for case in map(without_elements, cases_of(op)):
        if case.is_accepted:
            run(case)


@pytest.mark.parametrize("op", ["max", "min", "argmax", "argmin"])
def test_an_extreme_fails_only_where_the_graph_does_not_know_the_size(op: str) -> None:
    assert Trait.TOTAL_IF_STATIC in OPS[op].traits
    case = OpCase(op, (np.zeros(0),), {"axes": (0,), "keepdims": False}, unknown={0: (None,)})
    with pytest.raises((CtrlgradError, ValueError)):
        run(case)
    assert not replace(case, unknown={}).is_accepted
