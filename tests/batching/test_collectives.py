"""Collectives over named axes: values and derivatives of both modes and of higher order are those of JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import lax
from ctrlgrad.errors import CtrlgradError, ShapeError, TypeMismatchError, UserInputError

X = np.arange(6.0).reshape(3, 2) / 3 + 0.2
COLUMN = np.array([0.3, 1.1, 0.7])
CLOSE = {"rtol": 1e-10, "atol": 1e-12}


@pytest.fixture(autouse=True)
def _double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


# Of (lax, numpy, one row).
Row = Callable[[Any, Any, Any], Any]
ROWS: dict[str, Row] = {
    "psum": lambda L, n, x: L.psum(x * x, "i") * x,
    "psum of a pytree": lambda L, n, x: L.psum({"a": x, "b": (x[0] * x,)}, "i")["b"][0] * x,
    "psum of what is shared": lambda L, n, x: L.psum(n.ones(2), "i") * x,
    "psum of a number": lambda L, n, x: L.psum(2.0, "i") * x,
    "pmean": lambda L, n, x: L.pmean(n.sin(x), "i") * x,
    "axis_index": lambda L, n, x: (L.axis_index("i") + 1) * x * L.axis_size("i"),
    "all_gather": lambda L, n, x: L.all_gather(x, "i") * x,
    "all_gather behind": lambda L, n, x: L.all_gather(x, "i", axis=1) * x[:, None],
    "all_gather from the end": lambda L, n, x: L.all_gather(x, "i", axis=-1) * x[:, None],
    "all_gather tiled": lambda L, n, x: n.sin(L.all_gather(x, "i", tiled=True)).sum() * x,
    "all_gather of what is shared": lambda L, n, x: L.all_gather(n.arange(2.0), "i") * x,
    "psum_scatter": lambda L, n, x: (
        L.psum_scatter(x[:, None] * L.all_gather(x, "i")[:, 0], "i", scatter_dimension=1) * x
    ),
    "psum_scatter tiled": lambda L, n, x: L.psum_scatter(n.concatenate([x, x * x, x * x[0]]), "i", tiled=True) * x,
    "all_to_all": lambda L, n, x: L.all_to_all(x * L.all_gather(x, "i"), "i", 0, 0) * x,
    "all_to_all tiled": lambda L, n, x: (
        L.all_to_all(n.concatenate([x, x * x, n.sin(x)])[None], "i", 1, 0, tiled=True) * x
    ),
    "ppermute": lambda L, n, x: L.ppermute(x * x, "i", [(0, 1), (1, 2), (2, 0)]) * x,
    "pshuffle": lambda L, n, x: L.pshuffle(x * x, "i", [2, 0, 1]) * x,
    "pswapaxes": lambda L, n, x: L.pswapaxes(x * L.all_gather(x, "i"), "i", 0) * x,
}


@pytest.mark.parametrize("name", ROWS)
def test_values_and_derivatives_are_those_of_jax(name: str) -> None:
    """Derivatives of the mapped function, and of the row inside of it; each once more in the other mode."""
    row = ROWS[name]
    loss = lambda L, n: lambda x: n.sum(n.sin(row(L, n, x)))
    mapped = cg.vmap(lambda x: row(lax, cnp, x), axis_name="i")
    theirs = jax.vmap(lambda x: row(jax.lax, jnp, x), axis_name="i")
    around = lambda f, n: lambda x: n.sum(n.sin(f(x)))
    of_rows = cg.vmap(cg.grad(loss(lax, cnp)), axis_name="i")
    found = mapped(X), cg.grad(around(mapped, cnp))(X), *cg.jvp(of_rows, (X,), (np.cos(X),)), of_rows(X)

    @jax.jit
    def judge(x: Any) -> Any:
        of_rows = jax.vmap(jax.grad(loss(jax.lax, jnp)), axis_name="i")
        slopes, moved = jax.jvp(of_rows, (x,), (np.cos(X),))
        return theirs(x), jax.grad(around(theirs, jnp))(x), slopes, moved, slopes

    for a, b in zip(found, judge(X), strict=True):
        np.testing.assert_allclose(a, b, **CLOSE)


@pytest.mark.parametrize("name", ["psum", "all_gather", "psum_scatter", "all_to_all", "ppermute"])
def test_derivatives_are_those_of_finite_differences(name: str) -> None:
    cg.check_grads(cg.vmap(lambda x: ROWS[name](lax, cnp, x), axis_name="i"), (X,), order=2)


def test_extremes_are_those_of_jax_and_have_a_derivative() -> None:
    for ours, theirs in ((lax.pmax, jax.lax.pmax), (lax.pmin, jax.lax.pmin)):
        found = cg.vmap(lambda x, f=ours: f(x, "i"), axis_name="i")(X)
        np.testing.assert_array_equal(found, jax.vmap(lambda x, f=theirs: f(x, "i"), axis_name="i")(X))
    top = cg.vmap(lambda x: lax.pmax(x, "i") * x, axis_name="i")
    cg.check_grads(top, (X,), order=2)
    flags = np.array([True, False])
    assert cg.vmap(lambda b: lax.pmax(b, "i"), axis_name="i", out_axes=None)(flags)
    assert not cg.vmap(lambda b: lax.pmin(b, "i"), axis_name="i", out_axes=None)(flags)


def test_collective_results_need_no_output_axis() -> None:
    found = cg.vmap(lambda x: (lax.psum(x, "i"), lax.all_gather(x, "i")), axis_name="i", out_axes=None)(X)
    np.testing.assert_allclose(found[0], X.sum(0), **CLOSE)
    np.testing.assert_array_equal(found[1], X)


def test_an_exchange_of_what_all_rows_share_is_one_of_copies() -> None:
    """JAX gives this one a shape too many."""
    theirs = jax.vmap(lambda x: jax.lax.all_to_all(jnp.arange(3.0) + 0 * x[0], "i", 0, 0) * x[0], axis_name="i")
    ours = cg.vmap(lambda x: lax.all_to_all(np.arange(3.0), "i", 0, 0) * x[0], axis_name="i")
    np.testing.assert_allclose(ours(X), theirs(X), **CLOSE)


def test_a_python_number_is_summed_at_once() -> None:
    seen: list[Any] = []
    cg.vmap(lambda x: seen.append((lax.psum(1, "i"), lax.axis_size("i"))) or x, axis_name="i")(X)
    assert seen == [(3, 3)] and all(type(n) is int for pair in seen for n in pair)


def _two_axes(L: Any, n: Any, a: Any, b: Any) -> Any:
    both = L.psum(a * b, "j") * L.pmean(n.sin(a + b), "i") + L.psum(a * b * b, ("i", "j")) * a
    return both + L.axis_index("i") * a * b + L.axis_index(("i", "j")) * b * b


def _nested(mapped: Callable[..., Any], row: Callable[..., Any]) -> Callable[..., Any]:
    return mapped(mapped(row, in_axes=(None, 0), axis_name="j"), in_axes=(0, None), axis_name="i")


def test_names_of_two_axes() -> None:
    b = np.arange(4.0) / 4 + 0.1
    ours = lambda row: _nested(cg.vmap, row)(COLUMN, b)
    theirs = lambda row: _nested(jax.vmap, row)(COLUMN, b)
    mine, its = (lambda a, b: _two_axes(lax, cnp, a, b)), (lambda a, b: _two_axes(jax.lax, jnp, a, b))
    values, second = jax.jit(lambda: (theirs(its), theirs(jax.grad(jax.grad(its)))))()
    np.testing.assert_allclose(ours(mine), values, **CLOSE)
    np.testing.assert_allclose(ours(cg.grad(cg.grad(mine))), second, **CLOSE)
    gathered = ours(lambda a, b: lax.all_gather(a * b, ("i", "j")))
    np.testing.assert_allclose(gathered, np.broadcast_to(np.outer(COLUMN, b).ravel(), (3, 4, 12)), **CLOSE)


def test_the_inner_axis_of_one_name_counts() -> None:
    row = lambda L: lambda a: L.psum(a, "i") + L.axis_index("i")
    both = lambda L, mapped: mapped(lambda x: row(L)(x[0]) * mapped(row(L), axis_name="i")(x), axis_name="i")(X)
    np.testing.assert_allclose(both(lax, cg.vmap), both(jax.lax, jax.vmap), **CLOSE)


def test_an_axis_without_a_name_is_passed_through() -> None:
    def of(L: Any, mapped: Any) -> Any:
        row = lambda x: mapped(lambda e: L.psum(e * e, "i") + L.all_gather(e, "i") * L.axis_index("i"))(x)
        return mapped(row, axis_name="i")(X)

    np.testing.assert_allclose(of(lax, cg.vmap), of(jax.lax, jax.vmap), **CLOSE)


def _scanned(L: Any, n: Any) -> Callable[[Any], Any]:
    def row(a: Any) -> Any:
        def body(v: Any, _: Any) -> Any:
            v = v * 0.5 + L.pmean(n.sin(v * L.axis_index("i")), "i")
            v = L.cond(L.psum(v, "i") > 2.0, lambda v: v * L.psum(v, "i"), lambda v: v + 1.0, v)
            return v, v * v

        return n.sum(L.scan(body, a, None, length=4)[1])

    return row


@pytest.mark.parametrize("times", [0, 1, 2])
def test_in_the_bodies_of_loops_and_branches(times: int) -> None:
    mine, its = _scanned(lax, cnp), _scanned(jax.lax, jnp)
    for _ in range(times):
        mine, its = cg.grad(mine), jax.grad(its)
    np.testing.assert_allclose(cg.vmap(mine, axis_name="i")(COLUMN), jax.vmap(its, axis_name="i")(COLUMN), rtol=1e-9)


def _until_the_sum_is_large(L: Any, n: Any) -> Callable[[Any], Any]:
    step = lambda c: (c[0] + 1, c[1] * 1.3 + 0.1 * L.pmean(n.sin(c[1]), "i"))
    return lambda a: L.while_loop(lambda c: L.psum(c[1], "i") < 6.0, step, (0, a))[1]


def test_a_loop_whose_condition_the_rows_share() -> None:
    ours = cg.vmap(_until_the_sum_is_large(lax, cnp), axis_name="i")
    np.testing.assert_allclose(
        ours(COLUMN), jax.vmap(_until_the_sum_is_large(jax.lax, jnp), axis_name="i")(COLUMN), **CLOSE
    )
    cg.check_grads(ours, (COLUMN,), order=2)
    inside = cg.vmap(cg.grad(_until_the_sum_is_large(lax, cnp)), axis_name="i")
    # Each row's loss counts in every row: what a row gets is the gradient of the sum over all rows.
    np.testing.assert_allclose(inside(COLUMN), cg.grad(lambda x: cnp.sum(ours(x)))(COLUMN), **CLOSE)


def test_beside_loops_of_different_length_that_are_mapped_twice() -> None:
    """Their stacks make one axis of both; a collective goes over one of the two."""

    def row(x: Any, w: Any) -> Any:
        walk = lambda v: cg.while_loop(lambda c: c[0] < 4.0, lambda c: (c[0] * 1.5 + 0.3, c[1] * w), (v, v))[1]
        centred = lax.psum(x * w, "j") + lax.all_gather(x, "j")[0] - lax.axis_index("j") * x
        return cg.grad(walk)(x) * centred + lax.pmean(x, "i") + lax.axis_index("i")

    xs = np.array([[0.2, 0.9, 2.0], [3.0, 0.1, 0.4]])
    found = cg.vmap(cg.vmap(row, (0, None), axis_name="j"), (0, None), axis_name="i")(xs, 0.9)
    by_hand = np.empty_like(xs)
    for i in range(2):
        for j in range(3):
            x, steps = xs[i, j], 0
            while x < 4.0:
                x, steps = x * 1.5 + 0.3, steps + 1
            centred = (xs[i] * 0.9).sum() + xs[i, 0] - j * xs[i, j]
            by_hand[i, j] = 0.9**steps * centred + xs[:, j].mean() + i
    np.testing.assert_allclose(found, by_hand, **CLOSE)


def test_in_functions_with_rules_and_in_what_is_computed_again() -> None:
    @cg.custom_vjp
    def scaled(x: Any) -> Any:
        return x * lax.psum(x, "i")

    scaled.defvjp(lambda x: (scaled(x), lax.psum(x, "i")), lambda total, ct: (ct * total + lax.psum(ct * total, "i"),))
    again = cg.checkpoint(lambda x: cnp.sin(lax.psum(x * x, "i")) * x)
    for f in (scaled, again):
        jaxs = {
            scaled: lambda x: (lambda s: x * s)(jax.lax.psum(x, "i")),
            again: lambda x: jnp.sin(jax.lax.psum(x * x, "i")) * x,
        }[f]
        np.testing.assert_allclose(cg.vmap(f, axis_name="i")(COLUMN), jax.vmap(jaxs, axis_name="i")(COLUMN), **CLOSE)
    its = jax.vmap(jax.grad(lambda x: jnp.sin(jax.lax.psum(x * x, "i")) * x), axis_name="i")
    np.testing.assert_allclose(cg.vmap(cg.grad(again), axis_name="i")(COLUMN), its(COLUMN), **CLOSE)


def test_the_number_of_rows_may_be_unknown() -> None:
    row = lambda x: lax.pmean(x * x, "i") * x + lax.axis_index("i") * lax.axis_size("i") + lax.all_gather(x, "i").sum()
    mapped = cg.function(cg.vmap(row, axis_name="i"), signature=[cg.TensorSpec((None,))])
    for count in (1, 3, 5):
        x = np.linspace(0.1, 1.0, count)
        expected = (x * x).mean() * x + np.arange(count) * count + x.sum()
        np.testing.assert_allclose(mapped(x), expected, **CLOSE)
    assert mapped.traces == 1


@pytest.mark.parametrize("shape", ["while", "cond"])
def test_rows_that_have_left_cannot_take_part(shape: str) -> None:
    loop = lambda x: cg.while_loop(lambda c: c < 9.0, lambda c: c + lax.psum(c, "i"), x)
    branch = lambda x: cg.cond(x > 0.5, lambda: lax.psum(x, "i"), lambda: x)
    with pytest.raises(TypeMismatchError, match="not all rows of axis 'i' take part") as caught:
        cg.vmap({"while": loop, "cond": branch}[shape], axis_name="i")(COLUMN)
    assert caught.value.source is not None and caught.value.source.file == __file__
    assert "pmax" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("row", "error", "message"),
    [
        (lambda x: lax.psum(x, "k"), UserInputError, "psum: no mapped axis is called 'k' here"),
        (lambda x: x * lax.axis_index("k"), UserInputError, "axis_index: no mapped axis"),
        (lambda x: lax.ppermute(x, "i", [(0, 1), (0, 2)]), UserInputError, "perm is no permutation of rows"),
        (lambda x: lax.ppermute(x, "i", [(0, 9)]), UserInputError, "perm is no permutation of rows"),
        (lambda x: lax.pshuffle(x, "i", [0, 0, 1]), UserInputError, "perm is no permutation"),
        (lambda x: lax.all_to_all(x, "i", 0, 0), ShapeError, "not as many elements as there are rows"),
        (lambda x: lax.all_gather(x, "i", axis=4), ShapeError, "all_gather: axis 4 is out of range"),
        (lambda x: lax.psum_scatter(x, "i", tiled=True), ShapeError, "cannot be parted among the rows"),
        (lambda x: lax.psum(x, "i", axis_index_groups=[[0], [1, 2]]), UserInputError, "axis_index_groups"),
        (lambda x: lax.psum("x", "i"), CtrlgradError, "psum: operand 0 is not an array"),
    ],
)
def test_mistakes_are_named(row: Callable[[Any], Any], error: type[CtrlgradError], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        cg.vmap(row, axis_name="i")(X)
    assert caught.value.source is not None and caught.value.source.file == __file__
    assert caught.value.expected is not None


def test_outside_of_a_mapped_function_there_are_no_names() -> None:
    with pytest.raises(UserInputError, match="no mapped axis is called 'i' here") as caught:
        lax.psum(X, "i")
    assert "axis_name='i'" in str(caught.value.hint)
    cg.vmap(lambda x: lax.psum(x, "i"), axis_name="i")(X)
    with pytest.raises(UserInputError, match="no mapped axis"):
        cg.function(lambda x: lax.psum(x, "i"))(X)
