"""Rules of NumPy that hold for traced tensors as for arrays: default dtypes, mixed integers, scalar masks, counts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import ShapeError


def run(fn: Callable[..., Any], *args: Any) -> Any:
    return cg.function(fn, engine="reference")(*args)


CREATED: dict[str, Callable[[Any, Any], Any]] = {
    "zeros": lambda xp, n: xp.zeros(n, dtype=None),
    "ones": lambda xp, n: xp.ones((n, 2), dtype=None),
    "empty": lambda xp, n: xp.empty(n, dtype=None) * 0,
    "full": lambda xp, n: xp.full(n, 7, dtype=None),
    "full of floats": lambda xp, n: xp.full(n, 7.5, dtype=None),
    "zeros_like": lambda xp, n: xp.zeros_like(np.ones(3, np.int8), dtype=None),
    "ones_like": lambda xp, n: xp.ones_like(np.ones(3, np.int8), dtype=None),
    "full_like": lambda xp, n: xp.full_like(np.ones(3, np.int8), 7, dtype=None),
    "arange": lambda xp, n: xp.arange(n, dtype=None),
    "eye": lambda xp, n: xp.eye(n, dtype=None),
    "linspace": lambda xp, n: xp.linspace(0, n, 3, dtype=None),
}


@pytest.mark.parametrize("name", CREATED)
def test_no_dtype_is_the_default_dtype(name: str) -> None:
    create = CREATED[name]
    expected = create(np, 3)
    for found in (create(cnp, 3), run(lambda n: create(cnp, n), 3)):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
SIGNED = np.array([-(2**63), -1, 0, 1, 2**53 + 1, 2**63 - 1], np.int64)
UNSIGNED = np.array([0, 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)


@pytest.mark.parametrize("name", COMPARISONS)
def test_int64_compares_with_uint64_exactly(name: str) -> None:
    ours, theirs = getattr(cnp, name), getattr(np, name)
    for a, b in ((SIGNED[:, None], UNSIGNED), (UNSIGNED[:, None], SIGNED)):
        expected = [[theirs(x, y) for y in b] for x in a[:, 0]]
        np.testing.assert_array_equal(ours(a, b), expected)
        np.testing.assert_array_equal(run(ours, a, b), expected)
        np.testing.assert_array_equal(run(lambda x, b=b: theirs(x, b), a), expected)


@pytest.mark.parametrize("name", COMPARISONS)
def test_python_integers_keep_their_value_in_comparisons(name: str) -> None:
    ours, theirs = getattr(cnp, name), getattr(np, name)
    numbers = (5, 10**10, 2**63 - 1, 2**63, 2**64 - 1, -(10**10), -(2**63))
    for dtype, number in itertools.product(("int8", "int64", "uint8", "uint64"), numbers):
        x = np.array([0, 1, 100], dtype)
        np.testing.assert_array_equal(run(lambda x, n=number: ours(x, n), x), theirs(x, number))
        np.testing.assert_array_equal(run(lambda x, n=number: ours(n, x), x), theirs(number, x))


def test_a_large_python_integer_beside_int64_is_one_comparison() -> None:
    graph = cg.function(lambda k: k < 10**10).graph(np.int64(3))
    assert [node.op.name for node in graph.nodes] == ["constant", "less"]


SCALAR_MASKS: dict[str, Callable[[Any, Any], Any]] = {
    "alone": lambda x, m: x[m],
    "before a slice": lambda x, m: x[m, 1:] if np.ndim(x) else x[m],
    "after an axis": lambda x, m: x[:, m] if np.ndim(x) else x[m],
    "with a new axis": lambda x, m: x[None, m],
    "two of them": lambda x, m: x[m, m],
    "with positions": lambda x, m: x[m, [1]] if np.ndim(x) else x[m],
    "with ...": lambda x, m: x[..., m],
}


@pytest.mark.parametrize("name", SCALAR_MASKS)
@pytest.mark.parametrize("truth", [True, False])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_a_scalar_boolean_is_a_mask_of_one_element(name: str, truth: bool, shape: tuple[int, ...]) -> None:
    choose = SCALAR_MASKS[name]
    x = np.arange(6.0)[: np.prod(shape, dtype=int)].reshape(shape) + 1
    expected = choose(x, np.bool_(truth))
    np.testing.assert_array_equal(run(choose, x, np.bool_(truth)), expected)
    np.testing.assert_array_equal(run(lambda x: choose(x, truth), x), expected)


UPDATES: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "set": (lambda x: x.at[x > 0].set(7.0), 7.0, -3.0),
    "add": (lambda x: x.at[x > 0].add(7.0), 10.0, -3.0),
    "multiply": (lambda x: x.at[x > 0].multiply(2.0), 6.0, -3.0),
    "min": (lambda x: x.at[x > 0].min(1.0), 1.0, -3.0),
    "max": (lambda x: x.at[x > 0].max(5.0), 5.0, -3.0),
    "read": (lambda x: cnp.sum(x[x > 0]), 3.0, 0.0),
}


@pytest.mark.parametrize("name", UPDATES)
def test_a_scalar_chooses_itself(name: str) -> None:
    fn, if_positive, if_negative = UPDATES[name]
    assert (run(fn, 3.0), run(fn, -3.0)) == (if_positive, if_negative)
    assert np.shape(run(fn, 3.0)) == ()
    slope = cg.grad(fn)
    step = 1e-6
    for at in (3.0, -3.0):
        difference = (run(fn, at + step) - run(fn, at - step)) / (2 * step)
        np.testing.assert_allclose(slope(at), difference, atol=1e-8)


def test_an_update_by_a_scalar_boolean_beside_other_indices() -> None:
    x = np.arange(3.0)
    np.testing.assert_array_equal(run(lambda x: x.at[x[1] > 0, 1:].set(5.0), x), [0.0, 5.0, 5.0])
    np.testing.assert_array_equal(run(lambda x: x.at[x[1] < 0, 1:].set(5.0), x), x)


def test_one_count_repeats_every_element() -> None:
    x, counts = np.arange(6.0).reshape(3, 2), np.array([2])
    for axis in (None, 0, 1):
        expected = np.repeat(x, counts, axis=axis)
        np.testing.assert_array_equal(run(lambda x, n, a=axis: cnp.repeat(x, n, axis=a), x, counts), expected)
        np.testing.assert_array_equal(run(lambda x, a=axis: cnp.repeat(x, counts, axis=a), x), expected)
    slope = cg.grad(lambda x: cnp.sum(cnp.repeat(x, cnp.asarray(counts), axis=0) ** 2))
    np.testing.assert_allclose(slope(x), 4 * x)


def test_counts_whose_number_is_known_at_run_time() -> None:
    specs = (cg.TensorSpec((None,)), cg.TensorSpec((None,), "int64"))
    repeat = cg.function(cnp.repeat, signature=specs, engine="reference")
    x = np.arange(3.0)
    for counts in ([2], [2, 0, 1]):
        np.testing.assert_array_equal(repeat(x, np.array(counts)), np.repeat(x, counts))
    with pytest.raises(ShapeError):
        repeat(x, np.array([2, 1]))


MATRICES = np.random.default_rng(3).normal(size=(2, 3, 2))
BOUNDS = (np.array([0.1, 0.9]), np.array([0.9]), np.float64(0.9), 0.5)


@pytest.mark.parametrize("rtol", BOUNDS, ids=repr)
def test_bounds_of_singular_values_for_each_matrix(rtol: Any) -> None:
    expected = np.linalg.pinv(MATRICES, rtol=rtol)
    ranks = np.linalg.matrix_rank(MATRICES, rtol=rtol)
    for found in (cnp.linalg.pinv(MATRICES, rtol=rtol), run(lambda m, r: cnp.linalg.pinv(m, rtol=r), MATRICES, rtol)):
        np.testing.assert_allclose(found, expected, atol=1e-14)
    np.testing.assert_array_equal(run(lambda m, r: cnp.linalg.matrix_rank(m, rtol=r), MATRICES, rtol), ranks)


@pytest.mark.parametrize("mapped", [(0, 0), (0, None), (None, 0)])
def test_bounds_of_singular_values_under_vmap(mapped: tuple[int | None, int | None]) -> None:
    matrices = MATRICES if mapped[0] == 0 else MATRICES[0]
    bounds = BOUNDS[0] if mapped[1] == 0 else 0.9
    found = cg.vmap(lambda m, r: cnp.linalg.pinv(m, rtol=r), in_axes=mapped)(matrices, bounds)
    whole = np.broadcast_to(matrices, (2, 3, 2))
    np.testing.assert_allclose(found, np.linalg.pinv(whole, rtol=bounds), atol=1e-14)


def test_gradient_with_a_bound_for_each_matrix() -> None:
    bounds = np.array([0.01, 0.02])
    cg.check_grads(lambda m: cnp.linalg.pinv(m, rtol=bounds), (MATRICES,), order=2)
    # The bound itself has no derivative.
    slope = cg.grad(lambda r: cnp.sum(cnp.linalg.pinv(MATRICES, rtol=r)))(bounds)
    np.testing.assert_array_equal(slope, np.zeros(2))


def test_bounds_that_are_not_one_for_each_matrix() -> None:
    with pytest.raises(ShapeError, match="one bound for each") as caught:
        cnp.linalg.pinv(MATRICES, rtol=np.array([0.1, 0.2, 0.3]))
    assert caught.value.source.file == __file__
