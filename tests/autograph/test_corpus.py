"""Every program of the corpus in Python's own control flow, against the same with ctrlgrad's constructs.

The values, and the gradients of first and second order of a scalar in which every result counts.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from corpus.python_forms import FORMS
from instruments.tables import programs_at_orders
from programs import BY_NAME, PROGRAMS, Program

import ctrlgrad as cg
from ctrlgrad import tree
from ctrlgrad.engines.reference import run_graph


def test_forms_are_of_the_corpus() -> None:
    assert set(FORMS) <= set(BY_NAME)


def _same(got: Any, expected: Any, rtol: float) -> None:
    got, expected = tree.leaves(got), tree.leaves(expected)
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        scale = float(np.max(np.abs(b), initial=1.0))
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * scale)


def written(program: Program) -> Program:
    """A program of the corpus as its twin in plain Python, traced by AutoGraph."""
    plain = FORMS.get(program.name, program.numpy_fn)
    assert plain is not None
    return dataclasses.replace(program, fn=cg.function(plain, autograph=True))


@pytest.mark.parametrize("program", PROGRAMS, ids=repr)
def test_program(program: Program) -> None:
    _same(written(program).function()(*program.args), program.expected(), 1e-10)


@programs_at_orders(1, 2, share=(0, 3))
def test_derivatives(program: Program, order: int) -> None:
    """By one engine: what machine code makes of the corpus is judged in tests/native."""
    found = run_graph(written(program).graph(order), program.leaves)
    _same(found, program.expected(order), {1: 1e-9, 2: 1e-8}[order])
