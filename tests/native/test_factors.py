"""Small systems, Cholesky factors and determinants in machine code, also of matrices that have no answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.native.outside import Call, Outside
from ctrlgrad.plan.lowering import factors

L = cnp.linalg
OPS: dict[str, Callable[[Any, Any], Any]] = {
    "solve": L.solve,
    "inv": lambda a, b: L.inv(a),
    "cholesky": lambda a, b: L.cholesky(a @ a.mT + np.eye(3, dtype=a.dtype)),
    "det": lambda a, b: L.det(a),
    "slogdet": lambda a, b: L.slogdet(a),
    "gradient of det": lambda a, b: cg.grad(lambda a: cnp.sum(cnp.sin(L.det(a))))(a),
}
UNKNOWN = (cg.TensorSpec((None, None, None)), cg.TensorSpec((None, None)))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The ops that reference kernels are called for."""
    found: list[str] = []
    right = Outside.computed

    def computed(self: Outside, call: Call, *rest: Any) -> Any:
        found.append(call.node.op.name)
        return right(self, call, *rest)

    monkeypatch.setattr(Outside, "computed", computed)
    yield found


def both(fn: Any, *arguments: Any, signature: Any = None) -> list[Any]:
    """The results, or the error, of both engines."""
    found: list[Any] = []
    for engine in ("reference", "native"):
        try:
            found.append(cg.function(fn, engine=engine, signature=signature)(*arguments))
        except (cg.errors.ExecutionError, cg.errors.ShapeError) as error:
            found.append(str(error))
    return found


def assert_same(found: list[Any], rtol: float = 1e-12) -> None:
    expected, got = found
    assert type(got) is type(expected)
    for x, y in zip(cg.tree.leaves(expected), cg.tree.leaves(got), strict=True):
        if isinstance(x, str):
            assert x == y
        else:
            assert np.asarray(x).dtype == np.asarray(y).dtype
            np.testing.assert_allclose(y, x, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("signature", [None, UNKNOWN])
@pytest.mark.parametrize("op", OPS)
def test_agrees_without_a_call_of_python(op: str, signature: Any, calls: list[str]) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 3, 3)), rng.normal(size=(3, 2))
    assert_same(both(OPS[op], a, b, signature=signature))
    if signature is None:
        assert_same(both(OPS[op], a.astype("f4"), b.astype("f4")), 1e-5)
    assert not calls


def kalman(np_: Any, fori_loop: Any) -> Any:
    """The log-likelihood of a Kalman filter, but for constants."""

    def filtered(f: Any, h: Any, ys: Any) -> Any:
        def body(t: Any, state: Any) -> Any:
            x, p, total = state
            x, p = f @ x, f @ p @ f.T + 0.1 * np.eye(4)
            s, r = h @ p @ h.T + 0.2 * np.eye(4), ys[t] - h @ x
            gain = np_.linalg.solve(s, h @ p).T
            lower = np_.linalg.cholesky(s)
            total = total + r @ np_.linalg.solve(s, r) + np_.linalg.slogdet(s)[1] + lower[2, 1]
            return x + gain @ r, p - gain @ h @ p, total

        return fori_loop(0, 5, body, (np_.zeros(4), np_.eye(4), 0.0))[2]

    return filtered


def test_a_kalman_filter_and_its_gradient(calls: list[str]) -> None:
    rng = np.random.default_rng(1)
    f, h = np.eye(4) + 0.1 * rng.normal(size=(4, 4)), np.eye(4) + 0.1 * rng.normal(size=(4, 4))
    arguments = (f, h, rng.normal(size=(5, 4)))
    ours = kalman(cnp, cg.fori_loop)
    value, gradients = cg.function(cg.value_and_grad(ours, argnums=(0, 1)), engine="native")(*arguments)
    assert not calls
    with jax.enable_x64(True):
        other = jax.value_and_grad(kalman(jax.numpy, jax.lax.fori_loop), argnums=(0, 1))
        expected, theirs = other(*map(jax.numpy.asarray, arguments))
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    for found, wanted in zip(gradients, theirs, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-8, atol=1e-8)
    step = 1e-6 * rng.normal(size=(4, 4))
    up, down = (cg.function(ours, engine="native")(f + k * step, *arguments[1:]) for k in (1, -1))
    np.testing.assert_allclose((gradients[0] * step).sum() * 2, up - down, rtol=1e-6)

    def twice(*given: Any) -> Any:
        return sum(cnp.sum(g**2) for g in cg.grad(ours, argnums=(0, 1))(*given))

    assert_same(both(cg.grad(twice), *arguments), 1e-8)


WITHOUT_ANSWER = {
    "singular": np.ones((3, 3)),
    "zeros": np.zeros((3, 3)),
    "negative": -np.eye(3),
    "NaN": np.full((3, 3), np.nan),
    "NaN below": np.array([[1.0, 0, 0], [np.nan, 2, 0], [0, 1, 3]]),
    "infinite": np.diag([np.inf, 1.0, 2.0]),
    "nothing": np.zeros((0, 0)),
}


NEAR = np.outer([1.0, 2, 3], [1.0, 1, 2])
FAR_FROM_PRECISE = {
    "singular": NEAR,
    "nearly singular": NEAR + 1e-9 * np.random.default_rng(2).normal(size=(3, 3)),
    "determinant too small for a number": 1e-200 * np.array([[1.0, 2.0], [-3.0, 1.0]]),
    "one of several": np.stack([np.eye(3), NEAR]),
}


@pytest.mark.parametrize("name", FAR_FROM_PRECISE)
def test_an_adjugate_that_an_inverse_would_not_give_is_left_to_the_kernel(name: str, calls: list[str]) -> None:
    a = FAR_FROM_PRECISE[name]
    expected, found = both(cg.grad(lambda a: cnp.sum(L.det(a))), a)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert calls == ["adjugate"]


def test_the_gradient_of_a_determinant_in_a_loop_calls_no_kernel(calls: list[str]) -> None:
    def total(a: Any) -> Any:
        return cg.fori_loop(0, 4, lambda t, x: x + L.det(a + 0.1 * t * np.eye(3)) * cnp.sin(x), a[0, 0])

    a = np.random.default_rng(3).normal(size=(3, 3))
    found = cg.function(cg.grad(total), engine="native")(a)
    assert not calls
    np.testing.assert_allclose(found, cg.function(cg.grad(total), engine="reference")(a), rtol=1e-10)
    step = 1e-6 * np.random.default_rng(4).normal(size=(3, 3))
    up, down = (cg.function(total, engine="native")(a + k * step) for k in (1, -1))
    np.testing.assert_allclose((found * step).sum() * 2, up - down, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("name", WITHOUT_ANSWER)
@pytest.mark.parametrize("op", ["solve", "cholesky", "det", "slogdet", "gradient of det"])
def test_a_matrix_without_an_answer_is_as_in_the_reference_engine(op: str, name: str) -> None:
    a = WITHOUT_ANSWER[name]
    fn = {**OPS, "cholesky": lambda a, b: L.cholesky(a)}[op]
    assert_same(both(fn, a, np.ones((len(a), 2))))
    batch = np.stack([np.eye(len(a)), a])
    assert_same(both(fn, batch, np.ones((len(a), 2)), signature=UNKNOWN))


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda a: L.solve(a, np.eye(3)), "Singular matrix"),
        (lambda a: L.cholesky(a + a.T), "Matrix is not positive definite"),
    ],
)
def test_the_error_tells_the_iteration(fn: Any, message: str) -> None:
    def falling(a: Any) -> Any:
        return cg.fori_loop(0, 5, lambda i, x: x - np.diag([1.0, 0, 0]) + 0 * fn(x), a)

    expected, got = both(falling, np.diag([2.0, 1.0, 1.0]))
    assert got == expected
    assert message in got and "in iteration 2 of the" in got


def test_whether_a_matrix_is_singular_says_the_reference_engine(calls: list[str]) -> None:
    """A pivot of 0 may be one by the order of operations alone: LAPACK is asked."""
    expected, got = both(lambda a: L.solve(a, np.eye(3)), np.ones((3, 3)))
    assert expected == got and calls == ["solve"]


def test_matrices_that_turn_out_to_be_large_go_to_lapack(calls: list[str]) -> None:
    n = factors.LARGEST + 1
    a = np.random.default_rng(2).normal(size=(n, n))
    signature = (cg.TensorSpec((None, None)),)
    for fn in (lambda a: L.solve(a, a[:, :2]), lambda a: L.cholesky(a @ a.T), L.det):
        assert_same(both(fn, a, signature=signature), 1e-6)
    assert calls == ["solve", "cholesky", "det"]
    assert_same(both(lambda a: L.solve(a, a[:, :2]), a), 1e-6)
    assert calls[3:] == ["solve"]


def test_matrices_that_are_not_square_are_refused_as_by_the_reference_engine() -> None:
    signature = (cg.TensorSpec((None, None)),)
    expected, got = both(L.det, np.ones((2, 3)), signature=signature)
    assert got == expected and isinstance(got, str)


@pytest.mark.parametrize("engine", ["reference", "native"])
@pytest.mark.parametrize("fn", [L.pinv, cg.grad(lambda a: cnp.sum(L.det(a)))], ids=["pinv", "gradient of det"])
def test_singular_vectors_of_an_infinite_matrix_are_refused(fn: Any, engine: str) -> None:
    with pytest.raises(cg.errors.ExecutionError, match="SVD did not converge"):
        cg.function(fn, engine=engine)(np.diag([np.inf, 1.0, 2.0]))
