"""Every program in plain Python: as it is, traced, and its derivatives to second order."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from corpus.python_forms import FORMS
from instruments.tables import are_whole, programs_at_orders
from programs import BY_NAME, PROGRAMS, Program
from python_programs import CASES, Case

import ctrlgrad as cg
from ctrlgrad import tree
from ctrlgrad.engines.reference import run_graph

# `return_pair_from_loop` returns a row of known size on one path.
SIZED = [c for c in CASES if any(np.ndim(x) for x in c.args) and c.fn.__name__ != "return_pair_from_loop"]


def _numbers(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments as the plain function takes them: scalars as NumPy's own, so that promotion is the same."""
    return tuple(np.float64(x) if isinstance(x, float) else x for x in args)


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_traced_equals_plain(case: Case) -> None:
    expected, treedef = tree.flatten(case.fn(*_numbers(case.args)))
    got, got_treedef = tree.flatten(cg.function(case.fn, autograph=True)(*case.args))
    assert got_treedef == treedef
    for a, b in zip(got, expected, strict=True):
        assert np.shape(a) == np.shape(b)
        np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("case", SIZED, ids=repr)
def test_unknown_sizes(case: Case) -> None:
    """The same with every dimension unknown."""
    args = tuple(np.asarray(x) for x in case.args)
    signature = [cg.TensorSpec((None,) * x.ndim, x.dtype) for x in args]
    got = tree.leaves(cg.function(case.fn, autograph=True, signature=signature)(*args))
    for a, b in zip(got, tree.leaves(case.fn(*_numbers(case.args))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_derivatives(case: Case, request: pytest.FixtureRequest) -> None:
    """Of second order in a short run for every third: of a graph, wherever it is from, the corpus judges them."""
    fn = cg.function(case.fn, autograph=True)
    order = 2 if are_whole(request.config) or any(case is c for c in CASES[::3]) else 1
    cg.check_grads(fn, [np.asarray(x) for x in case.args], order=order, against=("finite_differences",))


# Every program of the corpus in Python's own control flow, against the same with ctrlgrad's constructs.
#
# The values, and the gradients of first and second order of a scalar in which every result counts.


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
def test_derivatives_of_the_corpus(program: Program, order: int) -> None:
    """By one engine: what machine code makes of the corpus is judged in tests/native."""
    found = run_graph(written(program).graph(order), program.leaves)
    _same(found, program.expected(order), {1: 1e-9, 2: 1e-8}[order])
