"""Every program of the corpus in Python's own control flow, against the same with ctrlgrad's constructs.

The values, and the gradients of first and second order of a scalar in which every result counts.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from corpus.python_forms import FORMS
from instruments.tables import some
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


@pytest.mark.parametrize("program", PROGRAMS, ids=repr)
def test_program(program: Program, request: pytest.FixtureRequest) -> None:
    plain = FORMS.get(program.name, program.numpy_fn)
    assert plain is not None
    written = dataclasses.replace(program, fn=cg.function(plain, autograph=True))
    arguments = program.leaves
    _same(written.function()(*program.args), run_graph(program.graph(), arguments), 1e-10)
    if program.argnums:
        # By one engine: what machine code makes of the corpus is judged in tests/native.
        for order, rtol in some(((1, 1e-9), (2, 1e-8)), 1, request.config, PROGRAMS.index(program)):
            _same(run_graph(written.graph(order), arguments), run_graph(program.graph(order), arguments), rtol)
