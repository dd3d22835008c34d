"""Small systems, Cholesky factors and determinants in machine code, including matrices without a solution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.native.engine import plan_of, shapes_of
from ctrlgrad.engines.native.outside import Call, Outside
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.lowering import linalg
from ctrlgrad.plan.model import Factorise

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
    """Log of the ops that reference kernels compute."""
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
    """The log-likelihood of a Kalman filter, up to a constant."""

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


def test_the_reference_engine_decides_singularity(calls: list[str]) -> None:
    """The reference engine decides whether a matrix is singular: a pivot of 0 can come from the order of operations
    alone, so LAPACK is called."""
    expected, got = both(lambda a: L.solve(a, np.eye(3)), np.ones((3, 3)))
    assert expected == got and calls == ["solve"]


def test_matrices_that_turn_out_to_be_large_go_to_lapack(calls: list[str]) -> None:
    n = linalg.LARGEST + 1
    a = np.random.default_rng(2).normal(size=(n, n))
    signature = (cg.TensorSpec((None, None)),)
    for fn in (lambda a: L.solve(a, a[:, :2]), lambda a: L.cholesky(a @ a.T), L.det, cg.grad(lambda a: L.det(a))):
        assert_same(both(fn, a, signature=signature), 1e-6)
    assert calls == ["det", "adjugate"]
    assert_same(both(L.det, a), 1e-6)
    assert calls[2:] == ["det"]


@pytest.mark.parametrize("columns", [(), (1,), (70,)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_linear_systems_and_their_gradients_call_no_kernel(
    dtype: str, columns: tuple[int, ...], calls: list[str]
) -> None:
    n = 2 * linalg.LARGEST + 1
    rng = np.random.default_rng(8)
    a, b = rng.normal(size=(n, n)).astype(dtype), rng.normal(size=(n, *columns)).astype(dtype)
    a += 2 * n**0.5 * np.eye(n, dtype=dtype)

    def loss(np_: Any) -> Any:
        return lambda a, b: np_.sum(np_.sin(np_.linalg.solve(a, b) * 5))

    found = cg.function(cg.grad(loss(cnp), argnums=(0, 1)), engine="native")(a, b)
    assert not calls
    with jax.enable_x64(True):
        expected = jax.grad(loss(jax.numpy), argnums=(0, 1))(a.astype("d"), b.astype("d"))
    for x, y in zip(found, map(np.asarray, expected), strict=True):
        assert x.dtype == dtype
        np.testing.assert_allclose(x, y, rtol=0, atol=np.abs(y).max() * n * np.finfo(dtype).eps)


def systems(library: Any, np_: Any) -> dict[str, Any]:
    """Losses of a matrix and right-hand sides `[n, 2]`: each solves systems with the matrix or its transpose."""

    def descended(a: Any, b: Any) -> Any:
        fori_loop = library.fori_loop if library is cg else jax.lax.fori_loop
        return fori_loop(0, 3, lambda i, x: np_.sin(np_.linalg.solve(a, x)) + b, b)

    return {
        "one": lambda a, b: np_.linalg.solve(a, b),
        "both": lambda a, b: np_.linalg.solve(a, np_.sin(np_.linalg.solve(a.T, b))),
        "loop": descended,
        "many": lambda a, b: library.vmap(lambda scale: np_.linalg.solve(a, scale * b))(np_.arange(1.0, 4.0)),
    }


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("n", [linalg.FEW_ROWS - 1, linalg.FEW_ROWS, linalg.FEW_ROWS + 1])
@pytest.mark.parametrize("name", ["one", "both", "loop", "many"])
def test_systems_of_a_matrix_and_its_transpose_share_factors(name: str, n: int, dtype: str, calls: list[str]) -> None:
    rng = np.random.default_rng(9)
    a, b, turn = rng.normal(size=(n, n)) + 3 * n**0.5 * np.eye(n), rng.normal(size=(n, 2)), np.ones((), dtype)
    turn = turn + 0.5j if dtype == "complex128" else turn

    def loss(library: Any, np_: Any) -> Any:
        fn = systems(library, np_)[name]
        return lambda a, b: np_.sum(abs(fn(a * turn, b * turn)) ** 2)

    gradient = cg.function(cg.grad(loss(cg, cnp), argnums=(0, 1)), engine="native")
    found = gradient(a, b)
    assert not calls
    graph = gradient.graph(a, b)
    plan = plan_of(graph, shapes_of(graph, [a, b]))
    how = Counter(step.how for step in walk(plan.body) if isinstance(step, Factorise))
    if name in ("loop", "many") or n > linalg.FEW_ROWS or dtype == "complex128":
        assert how["lu"] == 1 and how["lu_solved"] > 1 and not how["solve"]
    else:
        assert not how["lu"]
    with jax.enable_x64(True):
        expected = jax.grad(loss(jax, jax.numpy), argnums=(0, 1))(a, b)
    for x, y in zip(found, map(np.asarray, expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-12 * abs(y).max())
    along, value = rng.normal(size=(n, n)), cg.function(loss(cg, cnp), engine="native")
    up, down = (value(a + s * 1e-5 * along, b) for s in (1, -1))
    np.testing.assert_allclose(np.sum(found[0] * along) * 2e-5, up - down, rtol=1e-5)


@pytest.mark.parametrize("n", [3, linalg.FEW_ROWS + 1])
def test_a_singular_matrix_is_no_error_of_a_loop_that_takes_no_iteration(n: int) -> None:
    def descended(a: Any, b: Any, count: Any) -> Any:
        return cg.fori_loop(0, count, lambda i, x: L.solve(a, x), b)

    singular, b = np.ones((n, n)), np.ones((n, 1))
    assert_same(both(descended, singular, b, 0))
    expected, got = both(descended, singular, b, 2)
    assert expected == got and "Singular matrix" in got


def likelihood(np_: Any, linalg: Any) -> Any:
    """The log marginal likelihood of a Gaussian process, up to a constant."""

    def loss(scales: Any, x: Any, y: Any) -> Any:
        distance = (x[:, None] - x[None, :]) / np_.exp(scales[0])
        kernel = np_.exp(scales[1] - 0.5 * distance**2) + np_.exp(scales[2]) * np.eye(len(y))
        factor = linalg.cho_factor(kernel, lower=True)
        white = linalg.solve_triangular(factor[0], y, lower=True)
        return 0.25 * (white @ white + y @ linalg.cho_solve(factor, y)) + np_.sum(np_.log(np_.diagonal(factor[0])))

    return loss


@pytest.mark.parametrize("n", [20, 3 * linalg.LARGEST])
def test_a_gaussian_process_and_its_gradient_call_no_kernel(n: int, calls: list[str]) -> None:
    rng = np.random.default_rng(5)
    x, scales = rng.normal(size=n), np.array([0.3, 0.1, -1.0])
    y = np.sin(x) + 0.1 * rng.normal(size=n)
    ours = likelihood(cnp, cg.scipy.linalg)
    value, gradient = cg.function(cg.value_and_grad(ours), engine="native")(scales, x, y)
    assert not calls
    with jax.enable_x64(True):
        expected, theirs = jax.value_and_grad(likelihood(jax.numpy, jax.scipy.linalg))(scales, x, y)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(gradient, theirs, rtol=1e-9)
    for k, step in enumerate(1e-5 * np.eye(3)):
        up, down = (cg.function(ours, engine="native")(scales + s * step, x, y) for s in (1, -1))
        np.testing.assert_allclose(gradient[k] * 2e-5, up - down, rtol=1e-6)


@pytest.mark.parametrize("n", [3, 2 * linalg.LARGEST])
def test_triangular_systems_and_cholesky_factors_of_complex_matrices_call_no_kernel(n: int, calls: list[str]) -> None:
    rng = np.random.default_rng(6)
    a, b = (rng.normal(size=(2, n, k)) + 1j * rng.normal(size=(2, n, k)) for k in (n, 3))

    def solved(linalg: Any) -> Any:
        def fn(a: Any, b: Any) -> Any:
            factor = linalg.cholesky(a @ a.conj().mT + np.eye(n), lower=True)
            x = linalg.solve_triangular(factor, b, lower=True, trans=2)
            return abs(linalg.solve_triangular(a / n, x, unit_diagonal=True)).sum()

        return fn

    for signature in (None, (cg.TensorSpec((None,) * 3, a.dtype), cg.TensorSpec((None,) * 3, a.dtype))):
        found = cg.function(cg.grad(solved(cg.scipy.linalg), argnums=(0, 1)), engine="native", signature=signature)
        gradients = found(a, b)
        assert not calls
        with jax.enable_x64(True):
            expected = jax.grad(solved(jax.scipy.linalg), argnums=(0, 1))(*map(jax.numpy.asarray, (a, b)))
        for x, y in zip(gradients, map(np.asarray, expected), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-7, atol=1e-9 * abs(y).max())


def test_elements_beside_a_triangle_are_not_read_and_have_no_derivative(calls: list[str]) -> None:
    n = linalg.LARGEST + 6
    a = np.where(np.tri(n) > 0, np.tri(n) / n + np.eye(n), np.nan)

    def total(a: Any) -> Any:
        return cnp.sum(cg.scipy.linalg.solve_triangular(a, np.ones(n), lower=True) ** 2)

    found = cg.function(cg.grad(total), engine="native")(a)
    assert not calls and np.isfinite(found).all() and not np.triu(found, 1).any()
    np.testing.assert_allclose(found, cg.function(cg.grad(total), engine="reference")(a), rtol=1e-10, atol=1e-12)


def test_a_singular_triangle_is_as_in_the_reference_engine() -> None:
    a = np.eye(linalg.LARGEST * 2)
    a[70, 70] = 0
    solve = cg.scipy.linalg.solve_triangular
    expected, got = both(lambda a: solve(a, np.ones(len(a))), a)
    assert expected == got and "Singular matrix" in got
    assert_same(both(lambda a: solve(a, np.ones(len(a)), unit_diagonal=True), a))


def test_matrices_that_are_not_square_are_refused_as_by_the_reference_engine() -> None:
    signature = (cg.TensorSpec((None, None)),)
    expected, got = both(L.det, np.ones((2, 3)), signature=signature)
    assert got == expected and isinstance(got, str)


@pytest.mark.parametrize("engine", ["reference", "native"])
@pytest.mark.parametrize("fn", [L.pinv, cg.grad(lambda a: cnp.sum(L.det(a)))], ids=["pinv", "gradient of det"])
def test_singular_vectors_of_an_infinite_matrix_are_nan(fn: Any, engine: str) -> None:
    assert np.isnan(cg.function(fn, engine=engine)(np.diag([np.inf, 1.0, 2.0]))).all()
