"""The CUDA engine agrees with the reference engine: the corpus to second order, and every op.

Scalars that come from the host are computed there; so each program also runs with its floats, and with all of its
arguments, on the device from the start. Then predicates, indices and bounds are there too.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from instruments.comparing import assert_same
from instruments.stand_in import StandIn
from instruments.stand_in_runs import on_reference, on_stand_in
from instruments.tables import in_turn
from programs import PROGRAMS, Program
from rule_cases import CASES

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda.engine import explain_on

# Arguments that are on the device from the start, by dtype kinds.
PLACES = {"on the host": "", "floats": "f", "on the device": "biuf"}

TOLERANCE = {"float64": 1e-11, "float32": 2e-5}

# Ops that go through the host; none of them is in the corpus.
THROUGH_HOST = {
    "adjugate",
    "adjugate_along",
    "cholesky",
    "det",
    "det_sign",
    "eigenvalues",
    "eigenvectors",
    "general_eigenvalues",
    "general_eigenvectors",
    "logabsdet",
    "orthonormal",
    "pinv",
    "singular_values",
    "singular_vectors",
    "solve",
    "triangular_solve",
}


@in_turn("program, way", PROGRAMS, [f"{place}, order {order}" for place in PLACES for order in (0, 1, 2)])
def test_corpus(program: Program, way: str) -> None:
    place, order = way.split(", order ")
    leaves = program.leaves
    before = [x.copy() for x in leaves]
    ran = on_stand_in(program.graph(int(order)), leaves, PLACES[place])
    assert_same(ran.results, program.expected(int(order)))
    assert not ran.counts.host_ops
    for x, old in zip(leaves, before, strict=True):
        np.testing.assert_array_equal(x, old)


def test_every_way_to_run_a_loop_is_met() -> None:
    found: Counter[str] = Counter()
    for number, program in enumerate(PROGRAMS):
        library, kinds = StandIn(), ("", "biuf")[number % 2]
        given = [library.upload(x) if x.dtype.kind in kinds else x for x in program.leaves]
        graph = optimised_graph(program.graph(1), is_for_gpu=True)
        found.update(loop.mode for loop in explain_on(library, graph, given).all_loops())
    assert min(found[mode] for mode in ("counted", "read")) >= 5


@in_turn("name, dtype", list(CASES), list(TOLERANCE), share=(0, 2))
def test_case(name: str, dtype: str) -> None:
    """The ops' test cases and their gradients, in double and in single."""
    case = CASES[name]

    def loss(*args: object) -> object:
        results = case.fn(*args)
        results = results if isinstance(results, tuple) else (results,)
        return sum(cnp.sum(cnp.sin(cnp.real(r) * (0.7 + k))) for k, r in enumerate(results))

    args = [x.astype(dtype) for x in case.args]
    specs = tuple(cg.TensorSpec((None,) * x.ndim, dtype) for x in args) if case.unknown else None
    function = cg.value_and_grad(loss, argnums=tuple(range(len(args))))
    graph = cg.function(function, signature=specs).graph(*args)
    expected = on_reference(graph, args)
    for kinds in ("", "f"):
        ran = on_stand_in(graph, args, kinds)
        assert_same(ran.results, expected, TOLERANCE[dtype])
        assert set(ran.counts.host_ops) <= THROUGH_HOST
