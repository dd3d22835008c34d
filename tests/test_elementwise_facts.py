"""The facts of elementwise ops: one entry for each, complete."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from ctrlgrad.engines.reference.table import PURE
from ctrlgrad.gradients.table import FORWARD, LINEAR
from ctrlgrad.ir import OPS, Trait
from ctrlgrad.ops.elementwise import FACTS, FORMULAS
from ctrlgrad.plan.elementary.table import MAX_ULP

# Its dtype says what it is.
APART = {"cast"}


def test_every_elementwise_op_has_facts() -> None:
    assert set(FACTS) | APART == {name for name, op in OPS.items() if Trait.ELEMENTWISE in op.traits}
    assert set(FACTS) <= set(PURE)


@pytest.mark.parametrize("name", sorted(FACTS))
def test_an_op_has_a_partial_derivative_for_each_operand(name: str) -> None:
    partials, arity = FACTS[name].partials, OPS[name].arity
    assert arity is not None
    if partials is None:
        assert name in FORWARD or name in LINEAR
    elif partials:
        assert len(partials) == arity
        assert {len(inspect.signature(p).parameters) for p in partials if p is not None} == {2 + arity}


def test_a_function_that_numpy_lacks_has_one_formula_and_a_stated_error() -> None:
    assert set(FORMULAS) <= {name for name in FACTS if not hasattr(np, name)} & set(MAX_ULP)
