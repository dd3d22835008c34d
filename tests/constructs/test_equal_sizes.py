"""Sizes that must be equal and are unknown when a function is traced: later calls refuse what the first one would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from instruments.stand_in import StandIn

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.cuda import cupy_library
from ctrlgrad.errors import CtrlgradError, ShapeError
from ctrlgrad.ir import count_ops

ENGINES = ("native", "reference", "dataflow", "cuda")
VECTOR = cg.TensorSpec((None,), "float64")
SIZES = [(3, 4), (4, 3), (3, 1), (1, 3), (0, 2)]


@pytest.fixture(autouse=True)
def _card(monkeypatch: pytest.MonkeyPatch) -> None:
    library = StandIn()
    monkeypatch.setattr(cupy_library, "cupy_library", lambda number=0: library)


@cg.custom_vjp
def _with_rule(x: Any, y: Any) -> Any:
    return cnp.sum(x * x) + cnp.sum(y)


_with_rule.defvjp(lambda x, y: (_with_rule(x, y), (x, y)), lambda saved, ct: (2 * ct * saved[1], ct + 0 * saved[0]))


Program = Callable[[Any, Any], Any]
# Functions of two vectors of one size, and the error for unequal ones.
REQUIRED: dict[str, tuple[Program, str]] = {
    "cotangent": (lambda x, y: cg.vjp(np.tanh, x)[1](y)[0], "vjp: a cotangent does not fit its output"),
    "cotangent of one of two outputs": (
        lambda x, y: cg.vjp(lambda x: (x[0], np.tanh(x)), x)[1]((1.0, y))[0],
        "vjp: a cotangent does not fit its output",
    ),
    "tangent": (lambda x, y: cg.jvp(np.tanh, (x,), (y,))[1], "jvp: the tangent of x does not fit its primal"),
    "linearize": (lambda x, y: cg.linearize(np.tanh, x)[1](y), "linearize: a cotangent does not fit its output"),
    "cotangents of a rule": (
        lambda x, y: cg.grad(_with_rule)(x, y),
        "the cotangent of argument 0 does not fit",
    ),
    "dot, left": (lambda x, y: cg.grad(lambda x: x @ y)(x), "matmul: the sizes to sum over differ"),
    "dot, right": (lambda x, y: cg.grad(lambda y: x @ y)(y), "matmul: the sizes to sum over differ"),
    "dot of what is computed": (
        lambda x, y: cg.grad(lambda x: np.tanh(x) @ y)(x),
        "matmul: the sizes to sum over differ",
    ),
    "product of matrices": (
        lambda x, y: cg.grad(lambda x: cnp.sum((x[None, :] * TABLE) @ y[:, None]))(x),
        "matmul: the sizes to sum over differ",
    ),
    "products of a batch": (
        lambda x, y: cg.grad(lambda y: cnp.sum((x * CUBE) @ y))(y),
        "matmul: the sizes to sum over differ",
    ),
    "vecdot": (cnp.vecdot, "vecdot: the sizes to sum over differ"),
    "tensordot": (
        lambda x, y: cnp.tensordot(x[:, None] * TABLE[:1], y[:, None] * TABLE[:1], ((0, 1), (0, 1))),
        "tensordot: the sizes to sum over differ",
    ),
    "product": (lambda x, y: x @ y, "matmul: the sizes to sum over differ"),
    "product and joined": (lambda x, y: cnp.concat([x[None] * 2, y[None]]), "concat: sizes differ"),
    "joined": (
        lambda x, y: cg.grad(lambda x: cnp.sum(cnp.concat([x[:, None], y[:, None]], axis=1)))(x),
        "concat: ",
    ),
    "joined, the other": (
        lambda x, y: cg.grad(lambda y: cnp.sum(2 * cnp.concat([x[:, None], y[:, None]], axis=1)))(y),
        "concat: ",
    ),
    "branches": (lambda x, y: cg.cond(True, lambda: 2 * x, lambda: y), "cond: the branches' results differ"),
    "the other branch": (lambda x, y: cg.cond(False, lambda: 2 * x, lambda: y), "cond: the branches' results differ"),
    "branches of what is told": (
        lambda x, y: cg.cond(True, lambda: cnp.zeros(x.shape), lambda: cnp.ones((y.shape[0],))),
        "cond: the branches' results differ",
    ),
    "switch": (lambda x, y: cg.switch(2, [lambda: x, lambda: y, lambda: x]), "switch: the branches' results differ"),
    "branches inside a loop": (
        lambda x, y: cg.fori_loop(0, 2, lambda i, c: c + cg.cond(i > 0, lambda: x, lambda: y)[0], 0.0),
        "cond: the branches' results differ",
    ),
    "gradient of branches": (
        lambda x, y: cg.grad(lambda x: cnp.sum(cg.cond(True, lambda: 2 * x, lambda: y)))(x),
        "cond: the branches' results differ",
    ),
    "length": (
        lambda x, y: cg.scan(lambda c, row: (c + row, c), 0.0, x, length=y.shape[0])[1],
        "scan: the leading dimensions differ",
    ),
    "rows": (lambda x, y: cg.vmap(lambda a, b: a - b)(x, y), "vmap: the mapped axes have different sizes"),
    "gradient of rows": (
        lambda x, y: cg.grad(lambda y: cnp.sum(cg.vmap(lambda a, b: a + b)(x, np.tanh(y))))(y),
        "vmap: the mapped axes have different sizes",
    ),
    "gradient of one of two rows": (
        lambda x, y: cg.grad(lambda y: cnp.sum(cg.vmap(lambda a, b: b)(x, np.tanh(y))))(y),
        "vmap: the mapped axes have different sizes",
    ),
    "rows of which some are needed": (lambda x, y: cg.map(lambda row: row[0], (x, y)), "map: the leading dimensions"),
    "rows whose gradient needs none": (
        lambda x, y: cg.grad(lambda x: cg.foldl(lambda c, row: c + row[0], (x, y), 0.0))(x),
        "foldl: the leading dimensions differ",
    ),
    "rows whose gradient needs none, the last": (
        lambda x, y: cg.grad(lambda y: cnp.sum(cg.scan(lambda c, row: (c, row[1]), 0.0, (x, y))[1]))(y),
        "scan: the leading dimensions differ",
    ),
    "rows of a map": (lambda x, y: cg.map(lambda row: row[0] - row[1], (x, y)), "map: the leading dimensions differ"),
}
TABLE = np.ones((2, 1))
CUBE = np.ones((2, 2, 1))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", REQUIRED)
def test_sizes_that_differ_are_refused_in_the_run(name: str, engine: str) -> None:
    fn, problem = REQUIRED[name]
    f = cg.function(fn, signature=[VECTOR, VECTOR], engine=engine)
    rng = np.random.default_rng(3)
    for sizes in SIZES:
        with pytest.raises(ShapeError) as caught:
            f(*(rng.normal(size=n) for n in sizes))
        assert problem in caught.value.problem
        assert "test_equal_sizes.py" in str(caught.value.source)
        assert caught.value.expected and caught.value.got and caught.value.hint
    for n in (3, 1):
        arguments = [rng.normal(size=n) for _ in range(2)]
        known = cg.function(fn, engine="reference")(*arguments)
        for a, b in zip(cg.tree.leaves(f(*arguments)), cg.tree.leaves(known), strict=True):
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("length", [2, 5])
@pytest.mark.parametrize("uses_rows", [True, False])
def test_a_length_given_in_the_run_is_that_of_the_rows(uses_rows: bool, length: int, engine: str) -> None:
    def sums(n: Any) -> Any:
        return cg.scan(lambda c, x: (c + (x if uses_rows else 1.0), c), 0.0, np.arange(3.0), length=n)

    f = cg.function(sums, signature=[cg.TensorSpec((), "int64")], engine=engine)
    assert f(np.int64(3))[1].shape == (3,)
    with pytest.raises(ShapeError, match="scan: the leading dimensions differ"):
        f(np.int64(length))


def test_data_dependent_sizes_may_differ_between_branches() -> None:
    f = cg.function(lambda x, n: cg.cond(n > 1, lambda: x[:n], lambda: x))
    assert f(np.ones(5), 3).shape == (3,)
    assert f(np.ones(5), 0).shape == (5,)
    append = cg.function(lambda x: cg.cond(x[0] > 0, lambda: cnp.concat([x, x]), lambda: x), signature=[VECTOR])
    assert append(np.ones(2)).shape == (4,)
    assert append(-np.ones(2)).shape == (2,)


@pytest.mark.parametrize(
    ("fn", "checks"),
    [
        (lambda x, y: cg.cond(y[0] > 0, lambda: 2 * x, lambda: x + 1), 0),
        (lambda x, y: cg.cond(y[0] > 0, lambda: cnp.zeros_like(x), lambda: x[:, None][:, 0]), 0),
        (lambda x, y: cg.grad(lambda x: (x * 2) @ np.sin(x))(x), 0),
        (lambda x, y: cg.vmap(lambda a, b: a + b)(x, x), 1),
        (lambda x, y: cg.cond(y[0] > 0, lambda: x, lambda: y), 2),
    ],
)
def test_sizes_that_are_known_to_be_equal_are_not_compared(fn: Program, checks: int) -> None:
    graph = cg.function(fn, signature=[VECTOR, VECTOR]).graph(np.ones(3), np.ones(3))
    assert count_ops(graph)["ensure_sizes"] == checks


SHOWN_AT_ONCE: dict[str, Program] = {
    "product": lambda x, y: x * y,
    "reshape to": lambda x, y: cnp.reshape(x, (3, 1)) + y[:1],
    "broadcast": lambda x, y: cnp.broadcast_to(x, (2, 3)),
    "matmul": lambda x, y: (x[None] @ y[:, None])[0, 0],
    "update by indices": lambda x, y: cnp.at(x)[np.array([0, 2, 1])].set(y),
    "added by indices": lambda x, y: cnp.at(x)[np.array([0, 2, 1])].add(y),
    "update": lambda x, y: cnp.at(x)[:].set(y),
    "added": lambda x, y: cnp.at(x)[:].add(y),
    "where": lambda x, y: np.where(x > 0, x, y),
    "in a loop": lambda x, y: cg.fori_loop(0, 2, lambda i, c: c + cnp.sum(x * y), 0.0),
    "solve": lambda x, y: cnp.linalg.solve(np.eye(3) * x, y),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", SHOWN_AT_ONCE)
def test_the_error_of_a_run_is_that_of_the_first_call(name: str, engine: str) -> None:
    """The same class, words and place, whatever sizes the function was called with before."""
    fn = SHOWN_AT_ONCE[name]
    x, y = np.ones(3), np.ones(5)
    if name.startswith("reshape") or name == "broadcast":
        x = np.ones(5)
    with pytest.raises(CtrlgradError) as first:
        cg.function(fn, engine=engine)(x, y)
    with pytest.raises(CtrlgradError) as later:
        cg.function(fn, signature=[VECTOR, VECTOR], engine=engine)(x, y)
    assert type(later.value) is type(first.value)
    assert later.value.source == first.value.source
    # The place in a loop is told too.
    assert str(later.value).startswith(str(first.value).split("  expected")[0])
    assert (later.value.expected, later.value.got) == (first.value.expected, first.value.got)
