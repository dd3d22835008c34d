"""Functions of `ctrlgrad.numpy` outside a trace return NumPy arrays with an `.at` that takes traced indices."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import ExecutionError
from ctrlgrad.frontend import apply
from ctrlgrad.ir.caching import Recent

X = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])

UPDATES: dict[str, Callable[[Any], Any]] = {
    "set": lambda x: x.at[0].set(9.0),
    "set a column": lambda x: x.at[:, 1].set(9.0),
    "add twice": lambda x: x.at[np.array([0, 0])].add(1.0),
    "subtract": lambda x: x.at[1, 2].subtract(1.0),
    "multiply": lambda x: x.at[1].multiply(2.0),
    "mul": lambda x: x.at[1].mul(2.0),
    "divide": lambda x: x.at[1].divide(2.0),
    "power": lambda x: x.at[..., 0].power(2.0),
    "min": lambda x: x.at[0].min(1.5),
    "max": lambda x: x.at[0].max(1.5),
    "get": lambda x: x.at[1].get(),
    "apply": lambda x: x.at[1].apply(lambda v: v * v),
}


@pytest.mark.parametrize("name", UPDATES)
def test_at_is_that_of_jax_on_concrete_and_traced_arrays(name: str) -> None:
    update = UPDATES[name]
    with jax.enable_x64(True):
        expected = np.asarray(update(jnp.asarray(X)))
    given = X.copy()
    for found in (update(cnp.asarray(given)), update(cnp.asarray(given) * 1.0), cg.function(update)(given)):
        np.testing.assert_allclose(found, expected, rtol=1e-15)
    np.testing.assert_array_equal(given, X)


TABLES: dict[str, Callable[[], Any]] = {
    "asarray": lambda: cnp.asarray(np.arange(4.0)),
    "array": lambda: cnp.array([0.0, 1.0, 2.0, 3.0]),
    "arange": lambda: cnp.arange(4.0),
    "linspace": lambda: cnp.linspace(0.0, 3.0, 4),
    "zeros and at": lambda: cnp.zeros(4).at[:].set(np.arange(4.0)),
    "an op": lambda: cnp.sqrt(cnp.arange(4.0) ** 2),
    "NumPy's function": lambda: np.abs(-cnp.arange(4.0)),
    "an operator": lambda: 2.0 * cnp.arange(4.0) / 2.0,
    "a slice": lambda: cnp.arange(6.0)[:4],
    "a reshape": lambda: cnp.arange(4.0).reshape(2, 2).ravel(),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_from_outside_is_indexed_by_a_traced_number(name: str) -> None:
    table = TABLES[name]()
    assert isinstance(table, np.ndarray)
    walk = lambda x: cg.fori_loop(0, 4, lambda t, total: total * x + table[t], 0.0)
    assert float(cg.function(walk)(2.0)) == 11.0
    cg.check_grads(walk, (2.0,))


@pytest.mark.parametrize(
    "key",
    [
        lambda t: t,
        lambda t: (t, 0),
        lambda t: (slice(None), t),
        lambda t: (..., t),
        lambda t: slice(t, None),
        lambda t: [t, 0],
        lambda t: cnp.stack([t, t, 0]),
        lambda t: cnp.asarray(X)[:, 0] > t,
    ],
)
def test_keys_with_a_traced_part_are_those_of_numpy(key: Callable[[Any], Any]) -> None:
    found = cg.function(lambda t: cnp.asarray(X)[key(t)])(1)
    np.testing.assert_array_equal(found, X[key(1)])


CONSTRUCTS: dict[str, Callable[[Any], Any]] = {
    "while_loop": lambda x: cg.while_loop(lambda s: s[0, 0] < 9.0, lambda s: 2.0 * s, x),
    "fori_loop": lambda x: cg.fori_loop(0, 2, lambda i, s: s * i, x),
    "cond": lambda x: cg.cond(True, lambda: x, lambda: 2.0 * x),
    "switch": lambda x: cg.switch(1, [lambda x: x, lambda x: 2.0 * x], x),
    "case": lambda x: cg.case([(False, lambda: x)], lambda: 2.0 * x),
    "scan": lambda x: cg.scan(lambda c, row: (c + row, c), x[0], x)[1],
    "map": lambda x: cg.map(lambda row: 2.0 * row, x),
    "foldr": lambda x: cg.foldr(lambda c, row: c + row, x, x),
    "associative_scan": lambda x: cg.associative_scan(np.add, x),
    "jvp": lambda x: cg.jvp(lambda x: x, (x,), (x,))[1],
    "checkpoint": lambda x: cg.checkpoint(lambda x: x)(x),
}


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_results_of_eager_constructs_are_writable_arrays(name: str) -> None:
    x = X.copy()
    found = CONSTRUCTS[name](x)
    rows = cg.fori_loop(0, 2, lambda t, total: total + found[t], np.zeros(3))
    np.testing.assert_array_equal(rows, found[0] + found[1])
    assert found.at[0].set(7.0)[0].tolist() == [7.0, 7.0, 7.0]
    found += 1.0
    np.testing.assert_array_equal(x, X)


def test_it_is_numpys_array_in_all_else() -> None:
    x = cnp.asarray(X)
    assert np.shares_memory(x, X) and cnp.asarray(x) is not None
    assert repr(x) == repr(X) and str(x) == str(X) and repr(x[0]) == repr(X[0])
    assert type(x[0, 0]) is type(X[0, 0]) and type(x.sum()) is type(X.sum())
    assert type(np.add.reduce(x, axis=None)) is np.float64
    assert hash(x[0, 0]) == hash(X[0, 0])
    assert type(pickle.loads(pickle.dumps(x))) is np.ndarray
    np.testing.assert_array_equal(copy.deepcopy(x), X)
    np.testing.assert_array_equal(jax.jit(lambda v: v * 2)(x), X * 2)
    y = np.array(x)
    y[0] = 7.0
    y += 1.0
    assert type(y) is np.ndarray and y[0].tolist() == [8.0, 8.0, 8.0]


def test_calls_find_their_code_by_either_array() -> None:
    f = cg.function(lambda x: x * 2.0)
    for given in (X, cnp.asarray(X), cnp.asarray(X), X):
        found = f(given)
        assert type(found) is np.ndarray
        np.testing.assert_array_equal(found, X * 2.0)
    assert f.traces == 1 and len(f._known) <= 1


def test_keys_of_jax_are_keys() -> None:
    for make in (jax.random.key, jax.random.PRNGKey):
        found = cg.random.uniform(make(3), (4,))
        np.testing.assert_array_equal(found, cg.random.uniform(cg.random.key(3), (4,)))
        first, second = cg.random.split(make(3))
        np.testing.assert_array_equal([first, second], cg.random.split(cg.random.key(3)))


def test_a_line_makes_the_graph_of_an_op_once_and_its_errors_name_that_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def computed(x: Any) -> Any:
        return cnp.linalg.solve(cnp.sin(x), np.ones(2))

    # Graphs of earlier tests may fill the cache.
    monkeypatch.setattr(apply, "_SINGLE", Recent(apply._SINGLE.most))
    with cg.options(check_nans=True):
        computed(np.eye(2))
        made = len(apply._SINGLE)
        for scale in (2.0, 3.0):
            found = computed(scale * np.eye(2))
            np.testing.assert_allclose(np.sin(scale * np.eye(2)) @ found, np.ones(2), rtol=1e-12)
        assert 0 < made == len(apply._SINGLE)
    with pytest.raises(ExecutionError, match="Singular") as error:
        computed(np.zeros((2, 2)))
    assert error.value.source is not None
    assert error.value.source.line == computed.__code__.co_firstlineno + 1


def test_equal_attributes_of_other_types_are_other_graphs() -> None:
    x = np.arange(6.0).reshape(2, 3)
    for keepdims in (False, True):
        assert cnp.sum(x, axis=1, keepdims=keepdims).shape == np.sum(x, axis=1, keepdims=keepdims).shape
    for dtype in ("float32", "float64"):
        assert cnp.astype(x, dtype).dtype == dtype


def test_functions_of_arrays_make_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference engine's kernels compute them at once, unless an option or a budget has to see the op."""
    made: list[str] = []
    graph_of = apply._graph_of
    monkeypatch.setattr(apply, "_graph_of", lambda op, *rest: (made.append(op), graph_of(op, *rest))[1])
    x = np.array([1.0, 4.0])
    np.testing.assert_array_equal(cnp.sqrt(x), [1.0, 2.0])
    assert made == []
    with cg.options(check_nans=True), pytest.raises(cg.errors.NonFiniteError):
        cnp.sqrt(-x)
    with cg.memory.budget():
        cnp.sqrt(x)
    assert made == ["sqrt", "sqrt"]
    made.clear()
    with cg.options(check_nans=True), pytest.raises(cg.errors.NonFiniteError):
        cnp.sum(np.array([np.inf, -np.inf]))
    with cg.memory.budget():
        cnp.matmul(X, x[:1].repeat(3))
    assert made == ["sum", "expand_dims", "matmul", "squeeze"]
    with pytest.raises(cg.errors.ShapeError, match="add"):
        cnp.add(x, np.ones(3))


def test_array_errors_name_the_operation_and_its_line() -> None:
    x = np.ones((2, 3))
    for wrong, told in (
        (lambda: cnp.matmul(x, x), "matmul"),
        (lambda: cnp.max(x[:0]), "max"),
        (lambda: cnp.concatenate([x, x[:, :2]], axis=0), "concat"),
        (lambda: cnp.linalg.cholesky(-np.eye(2)), "cholesky"),
        (lambda: cnp.sum(x, axis=2), "sum"),
    ):
        for _ in range(2):
            with pytest.raises(cg.errors.CtrlgradError, match=told) as error:
                wrong()
            if error.value.source is not None:
                assert error.value.source.line == wrong.__code__.co_firstlineno


def test_means_and_casts_of_arrays_may_be_indexed_and_updated_too() -> None:
    for found in (cnp.mean(X, axis=0), cnp.var(X, axis=0), cnp.einsum("ij->j", X), cnp.average(X, axis=0)):
        assert found.at[0].set(7.0)[0] == 7.0


def test_no_reduction_and_no_join_of_one_array_gives_the_callers_array() -> None:
    x, one = np.ones(3), np.ones((1, 3))
    for found in (
        cnp.prod(x, axis=()),
        cnp.prod(one, axis=0),
        cnp.prod(one, axis=0, keepdims=True),
        cnp.cumprod(one, axis=0),
        cnp.concatenate([x]),
        cnp.stack([x]),
        *cnp.meshgrid(x),
        *cnp.meshgrid(x, sparse=True),
    ):
        assert not np.may_share_memory(found, x) and not np.may_share_memory(found, one)
    y = cnp.asarray(x, dtype=np.float64, copy=False)
    assert np.shares_memory(x, y)
