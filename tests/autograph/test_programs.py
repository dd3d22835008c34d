"""Every program in plain Python: as it is, traced, and its derivatives to second order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from instruments.tables import are_whole
from python_programs import CASES, Case

import ctrlgrad as cg
from ctrlgrad import tree

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
