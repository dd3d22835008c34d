"""Activations, special functions and the names of `jax.lax` give what JAX's give, and have its derivatives."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import lax, nn
from ctrlgrad.scipy import linalg, special

X = np.array([-3.3, -1.7, -0.6, 0.1, 0.5, 0.9, 1.3, 2.5, 7.2, 0.0])
P = np.array([0.2, 0.6, 1.1, 1.9, 3.3])
M = np.array([[4.0, 1.0, 0.3], [1.0, 3.0, -0.2], [0.3, -0.2, 2.0]])


@pytest.fixture(autouse=True)
def _in_double_precision_by_reference():
    with jax.enable_x64(True), cg.options(engine="reference"):
        yield


def same(found: Any, expected: Any, rtol: float = 1e-11, atol: float = 1e-12) -> None:
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    for a, b in zip(found, expected, strict=True):
        assert np.shape(a) == np.shape(b)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


ONE_ARGUMENT = """celu elu gelu glu hard_sigmoid hard_silu hard_swish hard_tanh identity leaky_relu log_sigmoid
log_softmax logmeanexp logsumexp mish relu relu6 selu sigmoid silu soft_sign softmax softplus sparse_plus sparse_sigmoid
squareplus standardize swish tanh"""


@pytest.mark.parametrize("name", ONE_ARGUMENT.split())
def test_an_activation_and_its_derivative(name):
    ours, theirs = getattr(nn, name), getattr(jax.nn, name)
    # The last element lies at a kink.
    weights = np.cos(np.arange(5.0))
    total = lambda xp, f: lambda x: xp.sum((f(x) * weights[:1]).ravel())
    values, slopes = jax.jit(lambda x: (theirs(x), jax.grad(total(jnp, theirs))(x[:8])))(X)
    same(ours(X), values)
    same(cg.grad(total(cnp, ours))(X[:8]), slopes)


SUMS_OF_EXPONENTIALS = {
    "softmax where": lambda nn, x, w: nn.softmax(x, where=w > 0),
    "log_softmax where": lambda nn, x, w: nn.log_softmax(x, where=w > 0)[:, 0],
    "logmeanexp where": lambda nn, x, w: nn.logmeanexp(x, axis=1, where=w > 0),
    "logsumexp where": lambda nn, x, w: nn.logsumexp(x, 0, where=w > 0, keepdims=True),
    "logsumexp of weights": lambda nn, x, w: nn.logsumexp(x, 1, abs(w), True),
    "logsumexp of a number": lambda nn, x, w: nn.logsumexp(x, b=0.5),
    "logsumexp of a broadcast weight": lambda nn, x, w: nn.logsumexp(x[0], b=w * w + 1.0, axis=1),
    "logsumexp and its sign": lambda nn, x, w: nn.logsumexp(x, axis=1, b=w, return_sign=True)[0],
    "logsumexp without weights": lambda nn, x, w: nn.logsumexp(x, axis=1, return_sign=True)[0],
}


@pytest.mark.parametrize("case", SUMS_OF_EXPONENTIALS)
def test_sums_of_exponentials_with_weights_and_where(case):
    call = SUMS_OF_EXPONENTIALS[case]
    # A weight of zero beside an entry that would overflow.
    x, w = X[:9].reshape(3, 3).copy(), np.array([[1.0, -2.0, 0.5], [0.7, 0.0, 1.0], [1.5, 1.0, -0.2]])
    x[1, 1] = 1000.0
    found, slopes = cg.vjp(lambda x, w: call(nn, x, w), x, w)
    cotangent = np.cos(np.arange(found.size)).reshape(found.shape)

    @jax.jit
    def judge(x, w):
        result, slopes_of_jax = jax.vjp(lambda x, w: call(jax.nn, x, w), x, w)
        return result, slopes_of_jax(cotangent)

    same((found, slopes(cotangent)), judge(x, w))


def test_the_logarithm_of_a_negative_sum_is_nan_beside_its_sign():
    x, w = X[:2], np.array([1.0, -1.0])
    assert np.isnan(nn.logsumexp(x, b=w))
    same(nn.logsumexp(x, b=w, return_sign=True), jax.nn.logsumexp(x, b=w, return_sign=True))


def test_a_softmax_where_nothing_counts_is_zero_and_has_no_slope():
    nothing = np.zeros(3, bool)
    same(nn.softmax(X[:3], where=nothing), np.zeros(3))
    same(nn.log_softmax(X[:3], where=nothing), np.full(3, -np.inf))
    same(cg.grad(lambda x: nn.softmax(x, where=nothing).sum())(X[:3]), np.zeros(3))


def test_gelu_by_the_error_function():
    same(nn.gelu(X, approximate=False), jax.nn.gelu(X, approximate=False))


def test_special_functions_in_machine_code():
    f = lambda x: cnp.sum(nn.gelu(x, approximate=False) * special.gammaln(cnp.abs(x) + 0.1))
    with cg.options(engine="native"):
        found = cg.value_and_grad(f)(X[:8])
    same(found, cg.value_and_grad(f)(X[:8]))


def test_log1mexp_and_one_hot():
    same(nn.log1mexp(P), jax.nn.log1mexp(P))
    same(nn.one_hot(np.array([0, 2, 5, -1]), 4), jax.nn.one_hot(np.array([0, 2, 5, -1]), 4))
    same(nn.one_hot(np.array([[0, 2]]), 3, axis=0), jax.nn.one_hot(np.array([[0, 2]]), 3, axis=0))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [1, 2])
def test_attention(causal, heads):
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(2, 4, 2, 3)), rng.normal(size=(2, 5, heads, 3)), rng.normal(size=(2, 5, heads, 3))
    mask = rng.random((2, 1, 4, 5)) < 0.8
    mask[..., 0] = True
    call = lambda lib: lambda q: lib.dot_product_attention(q, k, v, mask=mask, is_causal=causal)
    # JAX's softmax is in single precision.
    same(call(nn)(q), jax.jit(call(jax.nn))(q), atol=1e-6)
    weigh = lambda xp, f: lambda q: xp.sum(f(q) ** 2)
    same(cg.grad(weigh(cnp, call(nn)))(q), jax.jit(jax.grad(weigh(jnp, call(jax.nn))))(q), atol=1e-5)


@pytest.mark.parametrize("name", ["erf", "erfc", "ndtr", "expit", "gammaln", "digamma", "gamma"])
def test_a_special_function_and_its_derivatives(name):
    x = X[:-1]
    ours, theirs = getattr(special, name), getattr(jax.scipy.special, name)
    first, second = (lambda lib, f: lib.grad(lambda x: f(x).sum())), (lambda lib, f: lib.grad(lambda x: lib.grad(f)(x)))
    value, slope, curvature = jax.jit(lambda x, y: (theirs(x), first(jax, theirs)(x), second(jax, theirs)(y)))(x, 1.3)
    same(ours(x), value)
    same(first(cg, ours)(x), slope)
    same(second(cg, ours)(1.3), curvature, rtol=1e-9)


@pytest.mark.parametrize("name", ["xlogy", "xlog1py", "rel_entr", "kl_div", "poch"])
def test_a_special_function_of_two_arguments(name):
    ours, theirs = getattr(special, name), getattr(jax.scipy.special, name)
    same(ours(P + 1, P[::-1]), jax.jit(theirs)(P + 1, P[::-1]), rtol=1e-9)
    slope = jax.jit(jax.grad(lambda y: theirs(P + 1, y).sum()))
    same(cg.grad(lambda y: ours(P + 1, y).sum())(P), slope(P), rtol=1e-9)


def test_special_functions_at_their_edges():
    same(special.xlogy(0.0, 0.0), 0.0)
    assert cg.grad(lambda x: special.xlogy(0.0, x))(0.0) == 0.0
    same(special.entr(np.array([-1.0, 0.0, 2.0])), jax.scipy.special.entr(np.array([-1.0, 0.0, 2.0])))
    same(special.gammaln(np.array([0.0, -1.0, np.inf])), np.array([np.inf, np.inf, np.inf]))
    same(special.gammasgn(X[:-1]), jax.scipy.special.gammasgn(X[:-1]))
    same(special.comb(5, np.array([0, 2, 6])), np.array([1.0, 10.0, 0.0]))
    same(special.boxcox(P, 0.0), np.log(P))


def test_gamma_functions_against_the_standard_library():
    x = np.array([0.01, 0.4, 1.0, 1.5, 2.0, 3.7, 25.0, 170.0, 1e5, 1e12])
    same(special.gammaln(x), np.array([math.lgamma(v) for v in x]))
    same(
        special.betaln(P, P[::-1]),
        np.array([math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b) for a, b in zip(P, P[::-1], strict=True)]),
    )
    same(special.zeta(np.array([2.0, 4.0])), np.array([np.pi**2 / 6, np.pi**4 / 90]))
    same(special.polygamma(1, 0.5), np.pi**2 / 2)


def test_error_functions_against_the_standard_library():
    x = np.linspace(-6, 27, 800)
    same(special.erf(x), np.array([math.erf(v) for v in x]), rtol=1e-14)
    np.testing.assert_allclose(special.erfc(x), [math.erfc(v) for v in x], rtol=1e-13)


V = M[0] + 1

MATRICES = {
    "cholesky": (M,),
    "expm": (M,),
    "toeplitz": (V,),
    "hankel": (V,),
    "circulant": (V,),
    "companion": (V,),
    "fiedler": (V,),
    "block_diag": (M, V, M[:2]),
    "inv": (M,),
    "det": (M,),
    "leslie": (V, V[1:]),
    "convolution_matrix": (V, 4),
}


@pytest.mark.parametrize("name", MATRICES)
def test_matrices_and_their_derivatives(name):
    args = MATRICES[name]
    ours, theirs = getattr(linalg, name), getattr(jax.scipy.linalg, name)
    same(ours(*args), jax.jit(lambda x: theirs(x, *args[1:]))(args[0]))
    # JAX takes the symmetric part before it decomposes.
    given = (lambda x: (x + x.T) / 2) if name == "cholesky" else lambda x: x
    weigh = lambda xp, f: lambda x: xp.sum(xp.sin(xp.asarray(f(given(x), *args[1:]))))
    same(cg.grad(weigh(cnp, ours))(args[0]), jax.jit(jax.grad(weigh(jnp, theirs)))(args[0]), rtol=1e-9)


@pytest.mark.parametrize("name", ["hadamard", "helmert", "hilbert", "pascal", "dft"])
def test_matrices_of_a_size(name):
    # Some of JAX's are in single precision.
    same(getattr(linalg, name)(4), getattr(jax.scipy.linalg, name)(4), rtol=1e-5, atol=1e-6)


def test_solving_by_factors():
    same(linalg.cho_solve(linalg.cho_factor(M), V), np.linalg.solve(M, V))
    for settings in ({}, {"lower": True}, {"trans": 1}, {"lower": True, "unit_diagonal": True}):
        same(linalg.solve_triangular(M, V, **settings), jax.scipy.linalg.solve_triangular(M, V, **settings))


T3 = np.arange(24.0).reshape(2, 3, 4)
LAX = {
    "dynamic_slice": lambda lax, x: lax.dynamic_slice(x, (0, 2, -3), (2, 2, 2)),
    "dynamic_slice_in_dim": lambda lax, x: lax.dynamic_slice_in_dim(x, 5, 2, axis=1),
    "dynamic_index_in_dim": lambda lax, x: lax.dynamic_index_in_dim(x, -1, 2, keepdims=False),
    "dynamic_update_slice": lambda lax, x: lax.dynamic_update_slice(x, -x[:1, :2, :2], (1, 2, 1)),
    "dynamic_update_slice_in_dim": lambda lax, x: lax.dynamic_update_slice_in_dim(x, -x[:, :1], 2, 1),
    "dynamic_update_index_in_dim": lambda lax, x: lax.dynamic_update_index_in_dim(x, -x[:, 0], 1, 1),
    "slice": lambda lax, x: lax.slice(x, (0, 1, 0), (2, 3, 4), (1, 1, 2)),
    "slice_in_dim": lambda lax, x: lax.slice_in_dim(x, 1, 3, axis=-1),
    "index_in_dim": lambda lax, x: lax.index_in_dim(x, 1, 1),
    "pad": lambda lax, x: lax.pad(x, 0.5, [(1, 0, 0), (-1, 2, 1), (0, -1, 0)]),
    "reshape": lambda lax, x: lax.reshape(x, (4, 6), (2, 0, 1)),
    "collapse": lambda lax, x: lax.collapse(x, 1),
    "broadcast": lambda lax, x: lax.broadcast(x, (2,)),
    "broadcast_in_dim": lambda lax, x: lax.broadcast_in_dim(x[0], (3, 2, 4), (0, 2)),
    "split": lambda lax, x: lax.split(x, (1, 2), axis=1),
    "concatenate": lambda lax, x: lax.concatenate([x, x], 1),
    "cummax": lambda lax, x: lax.cummax(jnp_like(lax).sin(x), 2, reverse=True),
    "cummin": lambda lax, x: lax.cummin(jnp_like(lax).sin(x), 1),
    "cumsum": lambda lax, x: lax.cumsum(x, 1, reverse=True),
    "cumprod": lambda lax, x: lax.cumprod(x, 0),
    "cumlogsumexp": lambda lax, x: lax.cumlogsumexp(x, 2),
    "top_k": lambda lax, x: lax.top_k(jnp_like(lax).sin(x), 2),
    "sort_key_val": lambda lax, x: lax.sort_key_val(jnp_like(lax).sin(x), x, 1),
    "sort": lambda lax, x: lax.sort((jnp_like(lax).floor(x / 5), -x), 2, num_keys=2),
    "dot_general": lambda lax, x: lax.dot_general(x, x[:, :2], (((2,), (2,)), ((0,), (0,)))),
    "clamp": lambda lax, x: lax.clamp(2.5, x, 7.5),
    "select_n": lambda lax, x: lax.select_n(x > 5, x, -x),
    "round": lambda lax, x: (lax.round(x / 2), lax.round(np.array([np.inf, -np.inf, -0.4, 2.5, -2.5, 1e300]))),
    "rsqrt": lambda lax, x: lax.rsqrt(x + 1),
    "reduce": lambda lax, x: [getattr(lax, f"reduce_{n}")(x, (0, 2)) for n in ("sum", "max", "min", "prod")],
    "iota": lambda lax, x: (lax.iota(np.float64, 3), lax.broadcasted_iota(np.int32, (2, 3), 1)),
    "div": lambda lax, x: (lax.div(x, 2.0), lax.div(np.array([-7, 7]), np.array([2, -2])), lax.rem(x, x + 2)),
}


def jnp_like(module):
    return jnp if module is jax.lax else cnp


@pytest.mark.parametrize("name", LAX)
def test_a_name_of_lax(name):
    call = LAX[name]
    expected = jax.jit(lambda x: call(jax.lax, x))(T3)
    same(call(lax, T3), expected)
    same(cg.function(lambda x: call(lax, x), engine="reference")(T3), expected)


@pytest.mark.parametrize("name", [n for n in LAX if n.startswith("dynamic")])
def test_slices_from_traced_starts_have_derivatives_and_rows(name):
    starts = {"dynamic_slice": lambda lax, x, i: lax.dynamic_slice(x, (0, i, i), (2, 2, 2))}
    starts["dynamic_update_slice"] = lambda lax, x, i: lax.dynamic_update_slice(x, -x[:1, :2, :2], (i, i, 1))
    call = starts.get(name, lambda lax, x, i: LAX[name](lax, x) * i)
    f = lambda lax, xp: lambda x, i: xp.sum(call(lax, x, i) ** 2)
    ours, theirs = cg.function(cg.grad(f(lax, cnp))), jax.jit(jax.grad(f(jax.lax, jnp)))
    for i in (0, 1, 7):
        same(ours(T3, i), theirs(T3, i))
    rows = np.array([0, 1, 2])
    same(cg.vmap(lambda i: f(lax, cnp)(T3, i))(rows), jax.jit(jax.vmap(lambda i: f(jax.lax, jnp)(T3, i)))(rows))


DRAWS = {
    "exponential": lambda r, k: r.exponential(k, (50,)),
    "laplace": lambda r, k: r.laplace(k, (50,)),
    "cauchy": lambda r, k: r.cauchy(k, (50,)),
    "rademacher": lambda r, k: r.rademacher(k, (50,)),
    "pareto": lambda r, k: r.pareto(k, 2.0, (50,)),
    "weibull_min": lambda r, k: r.weibull_min(k, 2.0, 1.5, (50,)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_are_those_of_jax(name):
    same(DRAWS[name](cg.random, cg.random.key(7)), jax.jit(lambda: DRAWS[name](jax.random, jax.random.key(7)))())


def test_a_key_of_jax_is_a_key():
    same(cg.random.uniform(jax.random.key(3), (4,)), jax.random.uniform(jax.random.key(3), (4,)))
    same(cg.random.split(jax.random.key(3)), cg.random.split(cg.random.PRNGKey(3)))


def test_draws_without_replacement_differ_and_weights_count():
    key = cg.random.key(0)
    assert sorted(cg.random.permutation(key, 9).tolist()) == list(range(9))
    assert sorted(cg.random.choice(key, 5, (5,), replace=False, p=P).tolist()) == list(range(5))
    drawn = cg.random.choice(key, np.array([10, 20, 30]), (4000,), p=np.array([0.5, 0.0, 0.5]))
    assert set(drawn.tolist()) == {10, 30} and abs((drawn == 10).mean() - 0.5) < 0.05


def test_updates_by_the_names_of_jax():
    x, at = np.arange(1.0, 6.0), np.array([1, 3])
    for name in ("subtract", "divide", "power", "mul"):
        same(getattr(cnp.at(x)[at], name)(2.0), getattr(jnp.asarray(x).at[at], name)(2.0))
    same(cnp.at(x)[at].apply(np.sin), jnp.asarray(x).at[at].apply(jnp.sin))
    same(cnp.at(x)[1:3].get(), x[1:3])
    same(cg.function(lambda x: x.at[1].divide(4.0))(x), jnp.asarray(x).at[1].divide(4.0))
