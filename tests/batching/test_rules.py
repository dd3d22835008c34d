"""A batching rule for every op, and each of them against a Python loop over the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from batching.rows import CLOSE, at_once, by_hand, check, checked, unknown_sizes

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.batching import BATCH
from ctrlgrad.frontend.apply import apply
from ctrlgrad.ir import OPS, Trait

RNG = np.random.default_rng(23)
X = RNG.uniform(0.2, 0.9, (3, 4, 5))
ROW = RNG.integers(0, 4, (3,))
ROWS = RNG.integers(-5, 5, (3, 2))
COLUMN = RNG.integers(0, 4, (3, 2, 1))


def test_every_op_has_a_rule() -> None:
    assert set(BATCH) == set(OPS)


def _float_unary() -> list[str]:
    names = [name for name, op in OPS.items() if Trait.ELEMENTWISE in op.traits and op.arity == 1]
    others = {
        "cast",
        "logical_not",
        "bitwise_invert",
        "bits_to_float",
        "bits_to_bfloat16",
        "conj",
        "real",
        "imag",
        "arccosh",
    }
    return [n for n in names if n not in others]


@pytest.mark.parametrize("name", _float_unary())
def test_unary(name: str) -> None:
    f = lambda x: apply(name, [x])
    np.testing.assert_allclose(checked(cg.vmap(f), X), by_hand(f, X), **CLOSE)


BINARY = """add subtract multiply divide power maximum minimum arctan2 logaddexp less equal floor_divide
remainder"""


@pytest.mark.parametrize("name", BINARY.split())
def test_binary_with_every_broadcasting(name: str) -> None:
    f = lambda a, b: apply(name, [a, b])
    shared: list[tuple[Any, ...]] = []
    for a in (X, X[:, 0], X[:, 0, 0], X[:, :1], X[:, :, :1]):
        for b in (X + 1, X[:, 0] + 1, X[:, 0, 0] + 1, X[:, :, :1] + 1):
            np.testing.assert_allclose(checked(cg.vmap(f), a, b), by_hand(f, a, b), **CLOSE)
        for b in (X[0] + 1, X[0, 0] + 1, X[0, :, :1] + 1, np.float64(0.7)):
            shared += [(f, a, b), (lambda u, v: f(v, u), a, b)]
    found = at_once(*((cg.vmap(order, in_axes=(0, None)), a, b) for order, a, b in shared))
    for rows, (order, a, b) in zip(found, shared, strict=True):
        np.testing.assert_allclose(rows, by_hand(order, a, b, axes=(0, None)), **CLOSE)


KEYS: dict[str, Callable[..., Any]] = {
    "static": lambda x, i, j, k: x[1, 2:],
    "new axis": lambda x, i, j, k: x[None, :, 1, None],
    "scalar": lambda x, i, j, k: x[i],
    "scalar behind": lambda x, i, j, k: x[:, i],
    "two scalars": lambda x, i, j, k: x[i, i],
    "scalar and int": lambda x, i, j, k: x[i, 2],
    "int and scalar": lambda x, i, j, k: x[2, i],
    "array": lambda x, i, j, k: x[:, j],
    "array in front": lambda x, i, j, k: x[j % 4],
    "array and scalar": lambda x, i, j, k: x[i, j],
    "arrays that broadcast": lambda x, i, j, k: x[k, j],
    "arrays apart": lambda x, i, j, k: x[j % 4, None, j],
    "array and int apart": lambda x, i, j, k: x[j % 4, None, 1],
    "scalar and int apart": lambda x, i, j, k: x[i, None, 1],
    "slice and array": lambda x, i, j, k: x[1:3, k],
    "shared array": lambda x, i, j, k: x[np.array([0, 2]), 1:],
    "shared arrays apart": lambda x, i, j, k: x[np.array([0, 2]), None, np.array([[1], [0]])],
    "shared and own": lambda x, i, j, k: x[np.array([3, 0]), j],
    "shared and own apart": lambda x, i, j, k: x[np.array([3, 0]), None, j],
}


def _of_rows(axes: tuple[int | None, ...], *arrays: Any) -> list[Any]:
    """The arguments for `in_axes`: where an array is not mapped, one of its rows."""
    return [a if axis == 0 else a[0] for a, axis in zip(arrays, axes, strict=True)]


@pytest.mark.parametrize("name", KEYS)
def test_reads(name: str) -> None:
    f = KEYS[name]
    traced = lambda x, i, j, k: f(cnp.asarray(x) + 0.0, *(apply("add", [v, np.int64(0)]) for v in (i, j, k)))
    every_axes = ((0, 0, 0, 0), (None, 0, 0, 0), (0, None, None, None), (0, 0, None, None), (0, None, 0, None))
    mapped = [(axes, _of_rows(axes, X, ROW, ROWS, COLUMN)) for axes in every_axes]
    found = at_once(*((cg.vmap(traced, in_axes=axes), *args) for axes, args in mapped))
    for rows, (axes, args) in zip(found, mapped, strict=True):
        np.testing.assert_allclose(rows, by_hand(traced, *args, axes=axes), **CLOSE, err_msg=str(axes))
    everything = (X, ROW, ROWS, COLUMN)
    np.testing.assert_allclose(unknown_sizes(cg.vmap(traced), *everything), by_hand(traced, *everything), **CLOSE)


@pytest.mark.parametrize("method", ["set", "add"])
@pytest.mark.parametrize("name", KEYS)
def test_updates(name: str, method: str) -> None:
    read = KEYS[name]

    class Recorder:
        """Finds out the key that the lambda indexes with."""

        def __getitem__(self, key: Any) -> Any:
            return key

    def f(x: Any, v: Any, i: Any, j: Any, k: Any) -> Any:
        i, j, k = (apply("add", [n, np.int64(0)]) for n in (i, j, k))
        key = read(Recorder(), i, j, k)
        part = cnp.asarray(x)[key]
        value = part * 0.5 + v
        return getattr(cnp.at(x)[key], method)(value), getattr(cnp.at(x)[key], method)(v)

    v = RNG.standard_normal(3)
    every_axes = ((0, 0, 0, 0, 0), (None, 0, 0, 0, 0), (None, 0, None, None, None), (0, None, 0, None, None))
    parts = [lambda *a, part=part: f(*a)[part] for part in (0, 1)]
    mapped = [(one, axes, _of_rows(axes, X, v, ROW, ROWS, COLUMN)) for axes in every_axes for one in parts]
    found = at_once(*((cg.vmap(one, in_axes=axes), *args) for one, axes, args in mapped))
    for rows, (one, axes, args) in zip(found, mapped, strict=True):
        np.testing.assert_allclose(rows, by_hand(one, *args, axes=axes), **CLOSE, err_msg=str(axes))


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "reshape": lambda x: x.reshape(2, -1),
    "reshape by a size": lambda x: x.reshape(x.shape[1], x.shape[0]),
    "transpose": lambda x: x.T,
    "expand": lambda x: cnp.expand_dims(x, (0, -1)),
    "squeeze": lambda x: cnp.squeeze(x[:, None], 1),
    "flip": lambda x: cnp.flip(x, -1),
    "concat": lambda x: cnp.concatenate([x, cnp.ones((4, 2)), x[:, :1]], axis=1),
    "broadcast": lambda x: cnp.broadcast_to(x[0], (3, 5)),
    "size": lambda x: x.sum() / x.size,
    "sums": lambda x: cnp.stack([x.sum(-1), x.mean(1), x.max(1), x.min(-1), x.std(1)]),
    "kept": lambda x: x - x.max(axis=(0, 1), keepdims=True),
    "places": lambda x: cnp.concatenate([x.argmax(0), x.argmin(-1)]),
    "logic": lambda x: cnp.stack([(x > 0.5).any(1), (x > 0.1).all(1)]),
    "cumulated": lambda x: cnp.cumsum(x, 0) + cnp.cumsum(x[::-1], 1),
    "products": lambda x: x.prod() + cnp.cumprod(x, 1),
    "matrix with matrix": lambda x: x @ x.T,
    "matrix with shared": lambda x: x @ np.arange(15.0).reshape(5, 3),
    "shared with matrix": lambda x: np.arange(8.0).reshape(2, 4) @ x,
    "vector": lambda x: x @ x[0],
    "stacked matrices": lambda x: x[None] @ np.ones((2, 5, 3)),
    "einsum": lambda x: cnp.einsum("ij,kj->ik", x, x * 2),
    "tensordot": lambda x: cnp.tensordot(x, np.ones((4, 5, 2)), 2),
    "softmax": lambda x: cnp.exp(x - cnp.logsumexp(x, axis=1, keepdims=True)),
    "where": lambda x: cnp.where(x > 0.5, x, x[0]),
    "outer": lambda x: cnp.outer(x[0], x[:, 0]),
    "cast": lambda x: (x * 10).astype("int32") // 3,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    f = FUNCTIONS[name]
    np.testing.assert_allclose(checked(cg.vmap(f), X), by_hand(f, X), **CLOSE)
    np.testing.assert_allclose(unknown_sizes(cg.vmap(f), X), by_hand(f, X), **CLOSE)
    twice = cg.vmap(cg.vmap(f))
    np.testing.assert_allclose(twice(np.stack([X, X * 0.5])), [by_hand(f, X), by_hand(f, X * 0.5)], **CLOSE)


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n not in ("places", "logic", "cast")])
def test_derivatives_of_functions(name: str) -> None:
    weigh = lambda y: (y * cnp.cos(cnp.arange(1.0, y.size + 1).reshape(y.shape))).sum()
    check(lambda x: weigh(FUNCTIONS[name](x)), X, order=1)


MATRIX_OPS = """cholesky det adjugate logabsdet det_sign orthonormal eigenvalues eigenvectors
general_eigenvalues general_eigenvectors singular_values singular_vectors"""
LINEAR_ALGEBRA: dict[str, Callable[[Any], Any]] = {
    "solve": lambda a: apply("solve", [a, a[:, :2]]),
    "solve with shared": lambda a: apply("solve", [np.eye(4) * 2 + 1, a]),
    "solve shared": lambda a: apply("solve", [a, np.ones((4, 1))]),
    **{name: lambda a, name=name: apply(name, [a]) for name in MATRIX_OPS.split()},
}


@pytest.mark.parametrize("name", LINEAR_ALGEBRA)
def test_linear_algebra(name: str) -> None:
    m = RNG.standard_normal((3, 4, 4))
    m = m @ m.transpose(0, 2, 1) + np.eye(4)
    f = LINEAR_ALGEBRA[name]
    np.testing.assert_allclose(cg.vmap(f)(m), by_hand(f, m), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("side", ["left", "right"])
def test_searching_rows_of_their_own(side: str) -> None:
    rows = np.sort(RNG.integers(0, 6, (3, 7)).astype(float))
    rows[0, -2:] = np.nan
    sought = RNG.integers(-1, 7, (3, 2, 4)).astype(float)
    sought[:, 0, 0] = np.nan
    f = lambda a, v: apply("searchsorted", [a, v], {"side": side})
    np.testing.assert_array_equal(cg.vmap(f)(rows, sought), by_hand(f, rows, sought))
    one = cg.vmap(f, in_axes=(0, None))(rows, sought[0])
    np.testing.assert_array_equal(one, by_hand(f, rows, sought[0], axes=(0, None)))
    shared = cg.vmap(f, in_axes=(None, 0))(rows[1], sought)
    np.testing.assert_array_equal(shared, by_hand(f, rows[1], sought, axes=(None, 0)))


@pytest.mark.parametrize("descending", [False, True])
def test_sorting(descending: bool) -> None:
    f = lambda x: apply("argsort", [x], {"axis": 0, "descending": descending})
    np.testing.assert_array_equal(cg.vmap(f)(X), by_hand(f, X))


@pytest.mark.parametrize("count", [1, 2])
def test_the_largest(count: int) -> None:
    f = lambda x: apply("top_k", [x], {"axis": 0, "count": count})
    np.testing.assert_array_equal(cg.vmap(f)(X), by_hand(f, X))


def test_positions_that_are_not_zero_are_refused() -> None:
    with pytest.raises(cg.CtrlgradError, match="vmap: each row has a number of its own"):
        cg.vmap(lambda x: apply("nonzero", [x]))(X)
