"""Short rows are computed end to end where vectors gain by it, with the bits of NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import threads
from ctrlgrad.plan.axes import axes_of, views_of
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.model import FlatRows, Kernel
from ctrlgrad.plan.vectors import vectors_of
from tests.plan.plans import plan_of

# Programs of x and y (rows, columns), r (one number a row), c (one number a column) and s (a number), for NumPy or
# ctrlgrad.
PROGRAMS: dict[str, Callable[..., Any]] = {
    "a number a row": lambda x, y, r, c, s: x * r + y,
    "a number a column": lambda x, y, r, c, s: x * c - y,
    "all": lambda x, y, r, c, s: (x + r) * (y - c) + s * c * r,
    "of numbers alone": lambda x, y, r, c, s: r * c,
    "compared": lambda x, y, r, c, s: x * r > c,
    "two results": lambda x, y, r, c, s: (x * r, x * c > y),
}


def arguments(rows: int, columns: int, dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng(rows * 100 + columns)
    shapes = ((rows, columns), (rows, columns), (rows, 1), (columns,), ())
    return [(8 * rng.normal(size=shape)).astype(dtype) for shape in shapes]


def forms(fn: Callable[..., Any], *args: Any, vector_bytes: int = 32) -> list[FlatRows | None]:
    """The `FlatRows` of each kernel with several axes, or None where its rows are not computed end to end."""
    found = []
    for step in walk(plan_of(fn, *args).body):
        if isinstance(step, Kernel) and len(axes_of(step, views_of(step))) > 1:
            rows = vectors_of(step, vector_bytes, False).rows
            found += [form for form in rows if isinstance(form, FlatRows)] or [None]
    return found


def same(found: Any, expected: Any) -> None:
    for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (found, expected)), strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_any_number_of_rows_has_the_values_of_numpy(name: str, dtype: str) -> None:
    for columns in (2, 3, 4, 7, 8, 12):
        specs = [(None, columns), (None, columns), (None, 1), (columns,), ()]
        signature = tuple(cg.TensorSpec(s, dtype) for s in specs)
        function = cg.function(PROGRAMS[name], signature=signature, engine="native")
        for rows in (0, 1, 3, 4, 8, 17, 29):
            given = arguments(rows, columns, dtype)
            same(function(*given), PROGRAMS[name](*given))


def test_rows_in_a_loop_are_written_over_in_place() -> None:
    x, _, r, c, _ = arguments(21, 3, "float64")

    def loop(x: Any, r: Any, c: Any) -> Any:
        return cg.fori_loop(0, 3, lambda _, x: x * r + c, x)

    expected = x
    for _ in range(3):
        expected = expected * r + c
    same(cg.function(loop, engine="native")(x, r, c), expected)
    assert forms(loop, x, r, c) == [FlatRows(4, 3, 4)]


def test_outer_axes_have_rows_and_columns_of_their_own() -> None:
    rng = np.random.default_rng(0)
    x, r, c = rng.normal(size=(5, 11, 3)), rng.normal(size=(11, 1)), rng.normal(size=(5, 1, 3))

    def program(x: Any, r: Any, c: Any) -> Any:
        return x * r + c

    same(cg.function(program, engine="native")(x, r, c), program(x, r, c))
    assert forms(program, x, r, c) == [FlatRows(4, 3, 4)]


def test_rows_that_threads_share_have_the_same_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "WORK_TO_SHARE", 100)
    monkeypatch.setattr(threads, "WORK_OF_A_PART", 50)
    given = arguments(71, 3, "float64")
    same(cg.function(PROGRAMS["all"], engine="native")(*given), PROGRAMS["all"](*given))


@pytest.mark.parametrize(
    ("columns", "dtype", "expected"),
    [
        (2, "float64", FlatRows(2, 2, 4)),
        (3, "float64", FlatRows(4, 3, 4)),
        (6, "float64", FlatRows(2, 6, 4)),
        (8, "float64", FlatRows(1, 8, 4)),
        (3, "float32", FlatRows(8, 3, 8)),
        (12, "float32", FlatRows(2, 12, 8)),
        (17, "float64", None),
    ],
)
def test_so_many_rows_are_taken_as_are_whole_vectors(columns: int, dtype: str, expected: FlatRows | None) -> None:
    assert forms(PROGRAMS["all"], *arguments(40, columns, dtype)) == [expected]


def test_other_rows_are_taken_one_after_the_other() -> None:
    x, y, r, _, _ = arguments(40, 3, "float64")
    whole = arguments(40, 8, "float64")
    assert forms(lambda x, r: x * r, whole[0], whole[2]) == [None]  # rows of whole vectors gain nothing
    assert forms(lambda x, r: cnp.sum(x * r), x, r) == [None]  # a reduction
    assert forms(lambda x, y, r: x.T.reshape(40, 3) * r + y[:, ::-1], x, y, r) == [None, None]  # read in other orders
    assert forms(lambda x, r: x * r, x[:7], r[:7]) == [None]  # fewer than two rounds
    assert forms(lambda x, r: x * r, x.astype("complex128"), r) == [None]
    assert forms(lambda x, r: x * r * cnp.arange(3.0), x, r) == [FlatRows(4, 3, 4)]  # a constant
    assert forms(lambda x, i: x[i] * 2.0, x, np.arange(9)) == [None]  # rows by index
