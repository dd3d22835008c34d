"""A derivative rule for every op, or a word that it has none; and every rule right, in both modes and to second order.

Each case of `rule_cases` is judged by finite differences in float64 and by JAX. A differentiable op must be
differentiated by one of them: it stands in a case's graph, or in the graph of its first derivative, which the second
order differentiates.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rule_cases import CASES, DIFFERENCES, JAX, Case

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.gradients.table import ELEMENTWISE, FORWARD, LINEAR, NOT_DIFFERENTIABLE, REFUSED, REVERSE
from ctrlgrad.ir import OPS, Trait, walk
from ctrlgrad.verify import jax_translation
from ctrlgrad.verify.jax_translation import TENSOR_OPS


@pytest.fixture(autouse=True, scope="module")
def _little_compilation() -> Iterator[None]:
    """Most of the time would go into optimising programs that run once."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


# Ops whose derivatives are transforms of their regions.
CONTROL = {"while", "cond", "call"}
# Identities that transforms and debugging put in; their own tests look at what they are for. So do those of ops that
# mean something in a function that is being mapped alone.
ELSEWHERE = {"barrier", "watch"} | {name for name, op in OPS.items() if Trait.MAPPED in op.traits}
# That of `adjugate_along` is met in derivatives alone, which are not translated.
NOT_IN_JAX = {"adjugate_along"}


def test_every_op_has_rules_or_says_that_it_has_none() -> None:
    both = {name for name in REVERSE if name in ELEMENTWISE or name in FORWARD or name in LINEAR}
    assert both == set(REVERSE), "a reverse rule without a forward rule"
    assert set(ELEMENTWISE) | set(FORWARD) | set(LINEAR) == both, "a forward rule without a reverse rule"
    assert not both & NOT_DIFFERENTIABLE
    assert both | NOT_DIFFERENTIABLE | set(REFUSED) | CONTROL == set(OPS)


def _loss(case: Case) -> Any:
    """A scalar in which every number of the results counts differently."""

    def loss(*args: Any) -> Any:
        results = case.fn(*args)
        results = results if isinstance(results, tuple) else (results,)
        return sum(cnp.sum(cnp.sin(r * (0.7 + k))) for k, r in enumerate(results))

    return loss


def _all_grads(case: Case) -> Any:
    return cg.grad(_loss(case), argnums=tuple(range(len(case.args))))


def test_every_rule_is_used_by_a_case() -> None:
    used: set[str] = set()
    for case in CASES.values():
        function = Case(_all_grads(case), case.args, unknown=case.unknown).function()
        used |= {node.op.name for node in walk(function.graph(*case.args))}
    assert set(REVERSE) - used - ELSEWHERE == set()


@pytest.mark.parametrize("name", CASES)
def test_rule(name: str) -> None:
    case = CASES[name]
    # Sizes are always known to JAX, so a case with unknown ones is for differences alone. What JAX alone judges has
    # ties: both modes choose among one-sided derivatives there, reverse mode as JAX does.
    judges = DIFFERENCES if case.unknown else case.against
    modes = ("rev",) if judges == JAX else ("rev", "fwd")
    cg.check_grads(case.function(), case.args, order=2, modes=modes, against=judges)


@pytest.mark.parametrize("name", CASES)
def test_single_precision(name: str) -> None:
    """In float32 the first and second derivatives are float32, and those of float64 up to its precision."""
    case = CASES[name]
    if name in ("cast", "complex cast"):
        pytest.skip("names float64 itself")
    second = Case(_along(case), case.args, unknown=case.unknown)
    exact = second.function()(*case.args)
    single = second.function(np.float32)(*(x.astype(np.float32) for x in case.args))
    for e, s in zip(exact, single, strict=True):
        assert s.dtype == np.float32
        np.testing.assert_allclose(s, e, rtol=2e-2, atol=2e-2 * max(1.0, np.abs(e).max(initial=0.0)))


def _along(case: Case) -> Any:
    """The first derivative, and the second along ones."""
    numbers = tuple(range(len(case.args)))

    def summed(*args: Any) -> Any:
        gradient = _all_grads(case)(*args)
        return sum(cnp.sum(g) for g in gradient), gradient

    def along(*args: Any) -> Any:
        slope, gradient = cg.grad(summed, argnums=numbers, has_aux=True)(*args)
        return (*gradient, *slope)

    return along


# Complex arguments: the convention is JAX's.

POINT = np.array([0.3 - 0.7j, -1.2 + 0.4j, 0.9 + 1.1j])
MATRIX = np.random.default_rng(3).normal(size=(3, 3)) + 1j * np.random.default_rng(4).normal(size=(3, 3))
OF_COMPLEX = {
    "holomorphic": lambda xp, z: xp.sum(xp.real(xp.sin(z) * xp.exp(1j * z) / z)),
    "not holomorphic": lambda xp, z: xp.sum(xp.abs(z) ** 3) + xp.sum(xp.imag(z * xp.conj(z)[::-1] ** 2)),
    "angle": lambda xp, z: xp.sum(xp.angle(z) * xp.real(z)),
    "matrices": lambda xp, z: xp.abs(xp.linalg.det(MATRIX * z)) + xp.sum(xp.abs(xp.linalg.solve(MATRIX, z) ** 2)),
    "eigenvalues": lambda xp, z: xp.sum(xp.linalg.eigvalsh(xp.outer(z, xp.conj(z)) + MATRIX @ MATRIX.conj().T) ** 2),
    "spectrum": lambda xp, z: xp.sum(xp.abs(xp.fft.fft(z) ** 2)),
}


@pytest.mark.parametrize("name", OF_COMPLEX)
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_gradient_of_complex_arguments_is_that_of_jax(name: str, dtype: str) -> None:
    fn, z = OF_COMPLEX[name], POINT.astype(dtype)
    tolerance = {"rtol": 2e-3, "atol": 2e-3} if dtype == "complex64" else {"rtol": 1e-10, "atol": 1e-12}
    with jax.enable_x64(True):
        tangent = z[::-1] * (1 + 2j)
        judged = jax.jit(lambda z, t: (jax.grad(lambda x: fn(jnp, x))(z), jax.jvp(lambda x: fn(jnp, x), (z,), (t,))[1]))
        expected, slope = map(np.asarray, judged(z, tangent.astype(dtype)))
    found = cg.grad(lambda x: fn(cnp, x))(z)
    np.testing.assert_allclose(found, expected, **tolerance)
    assert (found.dtype == np.dtype(dtype)) or name in ("matrices", "eigenvalues")
    np.testing.assert_allclose(
        cg.jvp(lambda x: fn(cnp, x), (z,), (tangent.astype(dtype),))[1], slope, rtol=tolerance["rtol"]
    )


@pytest.mark.parametrize("name", OF_COMPLEX)
def test_second_derivatives_of_complex_arguments_are_those_of_jax(name: str) -> None:
    """Reverse over reverse and forward over reverse, along a complex direction."""
    fn, direction = OF_COMPLEX[name], POINT[::-1] * (1 + 2j)
    with jax.enable_x64(True):
        gradient = jax.grad(lambda x: fn(jnp, x))
        again = jax.grad(lambda z: jnp.sum(jnp.real(gradient(z) * direction)))
        pushed = lambda z: jax.jvp(gradient, (z,), (direction,))[1]
        expected, slope = map(np.asarray, jax.jit(lambda z: (again(z), pushed(z)))(POINT))
    ours = cg.grad(lambda x: fn(cnp, x))
    found = cg.grad(lambda z: cnp.sum(cnp.real(ours(z) * direction)))(POINT)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(cg.jvp(ours, (POINT,), (direction,))[1], slope, rtol=1e-9, atol=1e-10)


def test_the_sign_of_a_matrix_product_is_not_conjugated() -> None:
    """The gradient of Re(w z) is w, not its conjugate."""
    w = 2 - 3j
    assert cg.grad(lambda z: cnp.real(w * z))(1 + 1j) == w


def test_powers_at_exponent_zero_have_a_mixed_second_derivative() -> None:
    """x^y is 1 at y = 0 whatever x is, and its derivative by x, y x^(y-1), still grows with y: by 1 / x."""
    power = lambda x, y: x**y
    for over in (cg.grad(cg.grad(power, 0), 1), cg.grad(cg.grad(power, 1), 0)):
        np.testing.assert_allclose([over(x, 0.0) for x in (0.7, 1.0, 2.0)], [1 / 0.7, 1.0, 0.5], rtol=1e-14)
    polynomial = lambda x: np.sum(np.array([5.0, 3.0, 2.0, 1.0]) * x ** np.array([0.0, 1.0, 2.0, 3.0]))
    slope = cg.grad(polynomial)
    assert [float(f(0.0)) for f in (slope, cg.grad(slope), cg.grad(cg.grad(slope)))] == [3.0, 4.0, 6.0]


def test_logaddexp_of_an_infinite_operand_has_the_derivative_of_that_operand() -> None:
    """The log of a sigmoid at -inf, where a masked logit stands."""
    log_sigmoid = lambda x: -cnp.logaddexp(0.0, -x)
    assert [float(cg.grad(log_sigmoid)(x)) for x in (-np.inf, -800.0, 800.0, np.inf)] == [1.0, 1.0, 0.0, 0.0]
    assert [float(cg.grad(cg.grad(log_sigmoid))(x)) for x in (-np.inf, np.inf)] == [0.0, 0.0]


def test_norms_at_zero_have_derivative_zero() -> None:
    for norm in (cnp.linalg.vector_norm, lambda x: cnp.linalg.vector_norm(x, ord=3), cnp.linalg.norm):
        np.testing.assert_array_equal(cg.grad(norm)(np.zeros(3)), np.zeros(3))


def test_every_op_has_a_form_in_jax() -> None:
    assert jax_translation is not None
    forms = set(TENSOR_OPS) | CONTROL | NOT_IN_JAX | {name for name in OPS if name.startswith("stack_")}
    mapped = {name for name, op in OPS.items() if Trait.MAPPED in op.traits}
    assert set(OPS) - forms - mapped - {"barrier", "watch", "callback", "pure_callback"} == set()


def _array(key: Any) -> Any:
    return tuple(np.asarray(k, int) if isinstance(k, list) else k for k in key)


_MANY = [int(n) for n in np.random.default_rng(2).integers(-40, 40, 33)]
# Shapes, keys of writes, and True where the key plainly names no place twice.
WRITES: dict[str, tuple[tuple[int, ...], tuple[Any, ...], bool]] = {
    "none": ((40,), ([],), True),
    "one": ((40,), ([3],), True),
    "twice": ((40,), ([3, 3, 1, -37],), False),
    "by its number from the end": ((40,), ([0, -40, 5],), False),
    "apart": ((40,), ([0, -30, 5],), True),
    "as many as are compared": ((40,), (_MANY[:32],), False),
    "more": ((40,), (_MANY,), False),
    "pairs": ((6, 7, 4), ([[0], [5], [0], [-6]], slice(None), [[0, 3, 0]]), False),
    "pairs apart": ((6, 7, 4), ([[0], [5], [1]], slice(None), [[0, 3]]), True),
    "beside a slice": ((6, 7, 4), (slice(None), [3, 3, 1]), False),
    "between": ((6, 7, 4), (slice(1, 4), [3, -4, 1], 2), False),
    "many beside a slice": ((6, 7, 4), (slice(None), np.array(_MANY) % 7), False),
    "a new axis": ((40,), (None, [3, 3]), False),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_at_index_arrays(name: str) -> None:
    """Values that a later write covers or replaces get no cotangent; the cost does not grow with the array."""
    shape, key, differ = WRITES[name]
    rng = np.random.default_rng(1)
    key = _array((*key, *[slice(None)] * (len(shape) - sum(k is not None for k in key))))
    x = rng.normal(size=shape)
    v = rng.normal(size=x[key].shape)
    weights = rng.normal(size=shape)

    def loss(x: Any, v: Any, *moved: Any) -> Any:
        given = iter(moved)
        place = tuple(next(given) if isinstance(k, np.ndarray) else k for k in key)
        return (cnp.sin(cnp.asarray(x).at[place].set(v)) * weights).sum()

    arrays = [k for k in key if isinstance(k, np.ndarray)]
    for traced in (False, True):
        # As constants, and as arguments, whose numbers no trace knows.
        f = loss if traced else lambda x, v: loss(x, v, *arrays)
        given = arrays if traced else []
        found = cg.function(cg.grad(f, (0, 1)))(x, v, *given)
        value = cg.function(f)
        for _ in range(3):
            s, t = 1e-6 * rng.normal(size=x.shape), 1e-6 * rng.normal(size=v.shape)
            change = value(x + s, v + t, *given) - value(x - s, v - t, *given)
            np.testing.assert_allclose(2 * ((found[0] * s).sum() + (found[1] * t).sum()), change, rtol=1e-5, atol=1e-12)
        if len(np.unique(np.arange(x.size).reshape(shape)[key])) == v.size:
            with jax.enable_x64(True):
                theirs = lambda x, v: (jnp.sin(x.at[key].set(v)) * weights).sum()
                by_jax = jax.grad(theirs, (0, 1))(jnp.asarray(x), v)
            for one, other in zip(found, by_jax, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-11)
        rows = cg.vmap(cg.grad(f, (0, 1)), in_axes=(0, None, *[None] * len(given)))(np.stack([x, 2 * x]), v, *given)
        np.testing.assert_allclose(rows[1][0], found[1], rtol=1e-12)
    graph = cg.function(cg.grad(lambda x, v: loss(x, v, *arrays), (0, 1))).graph(x, v)
    of_the_size = [n for n in walk(graph) if n.op.name in ("setitem", "broadcast_to") and "i64" in str(n.result.type)]
    assert all(n.result.tensor.shape != shape for n in of_the_size)
    assert any(n.op.name in ("argsort", "any") for n in walk(graph)) is not differ
