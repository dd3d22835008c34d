"""An index must be in range even where an adjacent slice is empty, as on the reference engine and in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from instruments.natively import run_natively
from instruments.plan_machine import RunEndedError
from plan.plans import executed, graph_of

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.reference import run_graph
from ctrlgrad.errors import IndexOutOfRangeError
from ctrlgrad.execution import run_on

EMPTY = np.zeros((2, 0))
INSIDE, OUTSIDE = np.array([0, -2, 1]), np.array([0, -2, 2])
SIGNATURES = {
    "known sizes": None,
    "unknown sizes": (cg.TensorSpec((None, None)), cg.TensorSpec((None,), "int64")),
    "an unknown size beside the indices": (cg.TensorSpec((2, None)), cg.TensorSpec((3,), "int64")),
}
PROGRAMS: dict[str, Any] = {
    "read": lambda x, i: x[i] * 2.0,
    "read and summed": lambda x, i: np.sum(np.sin(x[i]), axis=0),
    "replaced": lambda x, i: cnp.at(x)[i].set(1.0),
    "added to": lambda x, i: cnp.at(x)[i].add(1.0),
    "in a loop": lambda x, i: cg.fori_loop(0, 2, lambda t, y: y + np.sum(x[i], axis=0), x[0]),
    "differentiated": lambda x, i: cg.grad(lambda x: np.sum(np.sin(x[i])))(x),
}


@pytest.mark.parametrize("sizes", SIGNATURES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_index_out_of_range_ends_the_run(name: str, sizes: str) -> None:
    """An index out of range ends the run also beside an empty slice, as in a vmap of slices of an empty array."""
    graph = graph_of(PROGRAMS[name], EMPTY, INSIDE, signature=SIGNATURES[sizes])
    (expected,) = run_graph(graph, [EMPTY, INSIDE])
    for found in (run_natively(graph, [EMPTY, INSIDE]), executed(graph, [EMPTY, INSIDE])):
        assert np.shape(found[0]) == np.shape(expected)
    for engine in ("reference", "native"):
        with pytest.raises(IndexOutOfRangeError):
            run_on(engine, graph, [EMPTY, OUTSIDE])
    with pytest.raises(RunEndedError, match="index"):
        executed(graph, [EMPTY, OUTSIDE])


@pytest.mark.parametrize("sizes", SIGNATURES)
def test_indices_beside_elements_are_asked_once(sizes: str) -> None:
    """Indices beside elements are checked once: the check for empty slices then has no points."""
    x = np.arange(6.0).reshape(2, 3)
    graph = graph_of(PROGRAMS["read"], x, INSIDE, signature=SIGNATURES[sizes])
    for run in (run_natively, executed):
        np.testing.assert_array_equal(run(graph, [x, INSIDE])[0], x[INSIDE] * 2.0)
    with pytest.raises(RunEndedError, match="index"):
        executed(graph, [x, OUTSIDE])
