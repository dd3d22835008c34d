"""QR, eigenvalues and singular values of small matrices in machine code, against NumPy, JAX and finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from native.matrices import FLOATS, dense
from native.test_factors import assert_same, both, calls  # noqa: F401  (a fixture)
from plan.plans import graph_of, placed

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.native.products.library import Products
from ctrlgrad.ops.linalg import signed
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.lowering.linalg import MOST_COLUMNS_OF
from ctrlgrad.plan.model import Factorise

L = cnp.linalg
# Around one, two and four vectors of any width.
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 25)
SCALES = {"float32": (1.0, 1e30, 1e-30, 1e-42), "float64": (1.0, 1e300, 1e-300, 1e-318)}
TOLERANCE = {"float32": 2e-5, "float64": 1e-12, "complex64": 2e-5, "complex128": 1e-12}
SCALES |= {"complex64": SCALES["float32"], "complex128": SCALES["float64"]}
COMPLEX = ["complex64", "complex128"]
WIDE = dict.fromkeys(FLOATS, "d") | dict.fromkeys(COMPLEX, "D")


def layouts(a: np.ndarray) -> tuple[np.ndarray, ...]:
    return a, np.asfortranarray(a), np.repeat(np.repeat(a, 2, 0), 2, 1)[::2, ::2]


def symmetric(a: np.ndarray) -> np.ndarray:
    return np.asarray((a + a.T) / 2)


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX])
def test_orthonormal_factors_have_the_signs_of_lapack(dtype: str, native: Products) -> None:
    rng = np.random.default_rng(0)
    for n in SIZES:
        for m in {n, n + 1, 2 * n, 33 + n}:
            a = dense(rng, m, n, dtype)
            for each in layouts(a):
                q = native.orthonormal(each)
                np.testing.assert_allclose(q, np.linalg.qr(a.astype(WIDE[dtype]))[0], atol=n * TOLERANCE[dtype] * 10)
            for scale in SCALES[dtype][1:3]:
                np.testing.assert_allclose(native.orthonormal(a * np.asarray(scale, dtype)), q, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("n", [MOST_COLUMNS_OF["orthonormal"] + k for k in (-1, 0, 1)] + [1, 5])
def test_complex_qr_and_its_gradient_call_no_kernel(n: int, calls: list[str]) -> None:  # noqa: F811
    rng = np.random.default_rng(3)
    x, weights = rng.normal(size=(2, n + 3, n)), dense(rng, n, n + 3, "complex128")

    def loss(np_: Any) -> Any:
        def fn(x: Any) -> Any:
            q, r = np_.linalg.qr(x[0] + 1j * x[1])
            return np_.sum(abs(weights @ q + np_.sum(abs(r))) ** 2) / n

        return fn

    found = cg.function(cg.grad(loss(cnp)), engine="native")(x)
    assert set(calls) == ({"orthonormal"} if n > MOST_COLUMNS_OF["orthonormal"] else set())
    with jax.enable_x64(True):
        expected = np.asarray(jax.grad(loss(jax.numpy))(x))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * np.abs(expected).max())
    along, value = rng.normal(size=x.shape), cg.function(loss(cnp), engine="native")
    up, down = (value(x + s * 1e-6 * along) for s in (1, -1))
    np.testing.assert_allclose(np.sum(found * along) * 2e-6, up - down, rtol=1e-5)


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX])
def test_columns_of_any_scale_have_an_orthonormal_factor(dtype: str, native: Products) -> None:
    """Columns of any scale give an orthonormal factor, also where the square of an element overflows or underflows."""
    a = dense(np.random.default_rng(1), 6, 4, dtype) * np.asarray([1, *SCALES[dtype][1:]], dtype)
    q, least = native.orthonormal(a), np.finfo(dtype).eps
    np.testing.assert_allclose(q.conj().T @ q, np.eye(4), atol=10 * least)
    for j in range(3):
        column = a[:, j].astype(WIDE[dtype]) / np.abs(a[:, j]).max()
        rest = column - q[:, : j + 1].astype(WIDE[dtype]) @ (q[:, : j + 1].conj().T.astype(WIDE[dtype]) @ column)
        assert np.abs(rest).max() < 20 * least


@pytest.mark.parametrize("dtype", FLOATS)
def test_eigenvalues_and_vectors_have_the_signs_of_lapack(dtype: str, native: Products) -> None:
    rng = np.random.default_rng(2)
    for n in SIZES:
        for a in layouts(symmetric(dense(rng, n, n, dtype))):
            values, vectors = np.linalg.eigh(a.astype("d"))
            gap = np.diff(values).min() if n > 1 else 1.0
            found, scale = native.spectrum("eigh", a), n * TOLERANCE[dtype] * np.abs(values).max()
            np.testing.assert_allclose(found[-1], values, atol=scale)
            np.testing.assert_allclose(found[:-1], vectors, atol=scale / gap)
            np.testing.assert_allclose(native.spectrum("eigh", a, False), found[-1:], atol=scale)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["eigh", "svd"])
def test_values_follow_the_scale_of_the_matrix(name: str, dtype: str, native: Products) -> None:
    a = symmetric(dense(np.random.default_rng(3), 4, 4, dtype))
    expected = native.spectrum(name, a)
    for scale in SCALES[dtype][1:]:
        found = native.spectrum(name, a * np.asarray(scale, dtype))
        rtol = TOLERANCE[dtype] if scale > np.finfo(dtype).tiny else 1e-2
        np.testing.assert_allclose(found[-1], expected[-1].astype("d") * scale, rtol=rtol)
        np.testing.assert_allclose(found[:-1], expected[:-1], atol=10 * rtol)


@pytest.mark.parametrize("dtype", FLOATS)
def test_singular_values_and_vectors_are_those_of_numpy_in_the_signs_of_the_op(dtype: str, native: Products) -> None:
    rng = np.random.default_rng(4)
    for n in SIZES[:-1]:
        for m in {n, n + 1, 3 * n}:
            for a in (dense(rng, m, n, dtype), dense(rng, n, m, dtype)):
                u, s, vh = np.linalg.svd(a.astype("d"), full_matrices=False)
                u, v = signed(u, vh.T)
                gap = np.diff(-s).min() if len(s) > 1 else 1.0
                scale = (m + n) * TOLERANCE[dtype] * s[0]
                for each in layouts(a):
                    found = native.spectrum("svd", each)
                    np.testing.assert_allclose(found[-1], s, atol=scale)
                    np.testing.assert_allclose(found[:-1], np.concatenate([u, v]), atol=scale / min(gap, s[-1]))
                    np.testing.assert_allclose(native.spectrum("svd", each, False), found[-1:], atol=scale)


def special(dtype: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    q = np.linalg.qr(rng.normal(size=(7, 7)))[0]
    tiny = np.sqrt(np.finfo(dtype).tiny)
    found = {
        "zeros": np.zeros((5, 5)),
        "identity": np.eye(6),
        "repeated": q @ np.diag([1, 1, 1, 2, 2, 3, 3.0]) @ q.T,
        "rank 2": q[:, :2] @ q[:, :2].T,
        "rank 1": np.outer([1.0, 2, 3], [1.0, 2, 3]),
        "one off the diagonal": np.eye(4) + np.eye(4, k=3) + np.eye(4, k=-3),
        "graded": np.diag([1, tiny, 1e-3 * tiny]),
        "exchange": np.eye(5)[::-1],
        "no columns": np.zeros((0, 0)),
        "number": -np.ones((1, 1)),
    }
    return {name: np.asarray(symmetric(a), dtype) for name, a in found.items()}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", special("float64"))
def test_vectors_are_orthonormal_where_values_are_equal_or_zero(name: str, dtype: str, native: Products) -> None:
    a = special(dtype)[name]
    n, atol = len(a), 3 * TOLERANCE[dtype]
    found = native.spectrum("eigh", a)
    np.testing.assert_allclose(found[-1], np.linalg.eigvalsh(a), atol=atol)
    np.testing.assert_allclose(found[:-1].T @ found[:-1], np.eye(n), atol=atol)
    np.testing.assert_allclose(found[:-1] * found[-1] @ found[:-1].T, a, atol=atol)
    found = native.spectrum("svd", a)
    u, v, s = found[:n], found[n:-1], found[-1]
    np.testing.assert_allclose(s, np.linalg.svdvals(a), atol=atol)
    for vectors in (u, v, native.orthonormal(a)):
        np.testing.assert_allclose(vectors.T @ vectors, np.eye(n), atol=atol)
    np.testing.assert_allclose(u * s @ v.T, a, atol=atol)
    assert all(np.array_equal(x, y) for x, y in zip(signed(u, v), (u, v), strict=True))


def tall(a: Any, n: int) -> Any:
    """A matrix of n columns that depends on a number."""
    grid = np.arange(1, n + 3.0)[:, None] * np.arange(1, n + 1.0)
    return cnp.sin(grid * a) + np.eye(n + 2, n) * 2


WEIGHTS = np.cos(np.arange(40.0)[:, None] * 3 + np.arange(40.0) ** 2)


def weighted(np_: Any, *results: Any) -> Any:
    return sum(np_.sum(WEIGHTS[tuple(slice(d) for d in (1, 1, *x.shape)[-2:])] * x) for x in results)


def eigen(np_: Any, a: Any) -> Any:
    values, vectors = np_.linalg.eigh(a.T @ a + np.diag(np.arange(float(a.shape[1]))))
    return weighted(np_, values, abs(vectors))


def singular(np_: Any, a: Any) -> Any:
    u, s, vh = np_.linalg.svd(a, full_matrices=False)
    return weighted(np_, s, (u * np.cos(np.arange(float(min(a.shape))))) @ vh)


OPS: dict[str, Callable[[Any, Any], Any]] = {
    "qr": lambda np_, a: weighted(np_, *np_.linalg.qr(a)),
    "eigh": eigen,
    "eigvalsh": lambda np_, a: weighted(np_, np_.linalg.eigvalsh(a.T @ a)),
    "svd": singular,
    "svd of wide": lambda np_, a: singular(np_, a.T),
    "svdvals": lambda np_, a: weighted(np_, np_.linalg.svd(a, compute_uv=False)),
    "pinv": lambda np_, a: weighted(np_, np_.linalg.pinv(a)),
    "lstsq": lambda np_, a: weighted(np_, np_.linalg.lstsq(a, np.arange(float(a.shape[0])))[0]),
}
ROUTINE_OF = {"qr": "orthonormal", "eigh": "eigh", "eigvalsh": "eigh"}


@pytest.mark.parametrize("n", [1, 3, 9])
@pytest.mark.parametrize("op", OPS)
def test_gradients_in_a_loop_with_a_branch_agree_with_jax(op: str, n: int, calls: list[str]) -> None:  # noqa: F811
    def loss(np_: Any, fori: Any, cond: Any) -> Any:
        def fn(a: Any) -> Any:
            def body(i: Any, state: Any) -> Any:
                x, total = state
                found = cond(i % 3 == 1, lambda x: OPS[op](np_, x) * 2, lambda x: OPS[op](np_, x), x)
                return x + 0.01 * np_.sin(found) * a, total + found

            return fori(0, 4, body, (a, 0.0))[1]

        return fn

    ours = loss(cnp, cg.fori_loop, cg.cond)
    a = np.random.default_rng(6).normal(size=(n + 2, n)) + 2 * np.eye(n + 2, n)
    value, gradient = cg.function(cg.value_and_grad(ours), engine="native")(a)
    assert not calls

    def fori(start: int, stop: int, body: Any, state: Any) -> Any:
        return jax.lax.scan(lambda state, i: (body(i, state), None), state, np.arange(start, stop))[0]

    with jax.enable_x64(True):
        expected, theirs = jax.value_and_grad(loss(jax.numpy, fori, jax.lax.cond))(jax.numpy.asarray(a))
    np.testing.assert_allclose(value, expected, rtol=1e-9)
    np.testing.assert_allclose(gradient, theirs, rtol=1e-6, atol=1e-7 * np.abs(theirs).max())
    step = 1e-6 * np.random.default_rng(7).normal(size=a.shape)
    up, down = (cg.function(ours, engine="native")(a + k * step) for k in (1, -1))
    np.testing.assert_allclose((gradient * step).sum() * 2, up - down, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("op", OPS)
def test_batches_and_second_derivatives_agree_with_the_reference_engine(op: str, calls: list[str]) -> None:  # noqa: F811
    a = np.random.default_rng(8).normal(size=(3, 5, 3)) + 2 * np.eye(5, 3)
    assert_same(both(cg.vmap(cg.value_and_grad(lambda a: OPS[op](cnp, a))), a), 1e-9)
    assert_same(both(lambda a: [L.qr(a), L.eigh(a.mT @ a), L.svd(a), L.pinv(a)], a.astype("f")), 1e-3)

    def twice(a: Any) -> Any:
        return cnp.sum(cg.grad(lambda a: OPS[op](cnp, a))(a) ** 2)

    assert_same(both(cg.grad(twice), a[0]), 1e-7)
    assert not calls


@pytest.mark.parametrize("op", [op for op in OPS if op != "lstsq"])
def test_a_gradient_decomposes_each_matrix_once(op: str) -> None:
    def loss(a: Any) -> Any:
        return cg.fori_loop(0, 3, lambda i, x: x + OPS[op](cnp, a + x), 0.0)

    a = np.ones((4, 3)) + np.eye(4, 3)
    plan = placed(graph_of(cg.grad(loss), a), [a])
    found = [step for step in walk(plan.body) if isinstance(step, Factorise) and step.how not in ("solve",)]
    assert [step.how for step in found if step.triangle is None] == [ROUTINE_OF.get(op, "svd")]


@pytest.mark.parametrize("how", MOST_COLUMNS_OF)
def test_more_columns_go_to_lapack(how: str, calls: list[str]) -> None:  # noqa: F811
    op = next(op for op in OPS if ROUTINE_OF.get(op, "svd") == how)
    fn = {"orthonormal": lambda a: L.qr(a), "eigh": lambda a: L.eigh(a.T @ a), "svd": lambda a: L.svd(a)}[how]
    for n in (MOST_COLUMNS_OF[how] - 1, MOST_COLUMNS_OF[how], MOST_COLUMNS_OF[how] + 1):
        calls.clear()
        a = np.random.default_rng(9).normal(size=(n + 2, n)) + 3 * np.eye(n + 2, n)
        assert_same(both(fn, a), 1e-7)
        assert_same(both(cg.grad(lambda a: OPS[op](cnp, a)), a), 1e-6)
        assert bool(calls) == (n > MOST_COLUMNS_OF[how])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("engine", ["reference", "native"])
def test_matrices_that_are_not_finite_have_nan(engine: str, bad: float) -> None:
    a = np.stack([np.eye(3) + 1, np.eye(3)])
    a[1, 2, 1] = bad
    assert np.isnan(cg.function(lambda a: L.qr(a).Q, engine=engine)(a)).any((-2, -1)).tolist() == [False, True]
    for fn in (L.eigh, L.eigvalsh, L.svd, L.svdvals, L.pinv):
        for x in cg.tree.leaves(cg.function(fn, engine=engine)(a)):
            assert np.isfinite(x[0]).all() and np.isnan(x[1]).all()


def test_complex_matrices_and_unknown_sizes_are_left_to_the_kernels(calls: list[str]) -> None:  # noqa: F811
    a = np.random.default_rng(10).normal(size=(4, 3))
    signature = (cg.TensorSpec((None, None)),)
    for fn in (lambda a: L.qr(a), lambda a: L.eigh(a.T @ a), lambda a: L.svd(a), lambda a: L.pinv(a)):
        assert_same(both(fn, a, signature=signature), 1e-9)
    assert_same(both(lambda a: L.eigh(a.T @ a).eigenvalues, a + 1j * a[::-1]), 1e-9)
    assert {"orthonormal", "eigenvalues", "eigenvectors", "singular_vectors", "pinv"} <= set(calls)
