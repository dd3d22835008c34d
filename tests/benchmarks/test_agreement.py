"""The tolerance within which results count as equal."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.agreement import difference, load, require_agreement
from benchmarks.process import Failure

EXPECTED = {"a": np.array([1.0, -4.0]), "b": np.array(2.0)}


def test_a_difference_is_relative_to_the_largest_entry() -> None:
    assert difference({"a": np.array([1.2, -4.0]), "b": np.array(2.0)}, EXPECTED) == (pytest.approx(0.05), "a")


def test_equal_zeros_are_equal_and_others_are_not() -> None:
    assert difference({"a": np.zeros(2)}, {"a": np.zeros(2)})[0] == 0.0
    assert difference({"a": np.full(2, 1e-30)}, {"a": np.zeros(2)})[0] == np.inf


@pytest.mark.parametrize(
    "results",
    [
        {"a": EXPECTED["a"]},
        {**EXPECTED, "c": np.array(0.0)},
        {**EXPECTED, "b": np.array([2.0])},
        {**EXPECTED, "b": np.array(np.nan)},
    ],
    ids=["missing", "too many", "another shape", "a NaN"],
)
def test_incomparable_results_differ_by_infinity(results: dict[str, np.ndarray]) -> None:
    assert difference(results, EXPECTED)[0] == np.inf
    with pytest.raises(Failure, match="differs from jax's by inf"):
        require_agreement(results, EXPECTED, "jax", 1e-4)


def test_results_that_are_not_finite_on_both_sides_do_not_agree() -> None:
    same = {"a": np.array([np.inf, 1.0])}
    assert difference(same, same)[0] == np.inf


def test_a_file_with_pickled_objects_is_refused(tmp_path) -> None:
    path = tmp_path / "results.npz"
    np.savez(path, a=np.array([object()], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        load(path)
