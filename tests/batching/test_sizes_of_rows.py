"""Rows of a vmap whose sizes follow from data: one size for all, or an error that says so, never rows that are repeated
or cut otherwise to be of another one's size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import ShapeError

ENGINES = pytest.mark.parametrize("engine", ["reference", "native"])
Mapped = Callable[..., Any]


def doubled_where_positive(x: Any) -> Any:
    rest = cg.unknown_dims(x)
    return cg.cond(x[0] > 0.0, lambda: cnp.concat([rest, x]), lambda: rest * 2.0)


def chosen(x: Any) -> Any:
    """One of three, the first two of one size."""
    rest = cg.unknown_dims(x)
    forms = [lambda: rest, lambda: rest * 2.0, lambda: cnp.concat([rest, x])]
    return cg.switch(cnp.astype(x[0], np.int64), forms)


def grown_to_three(x: Any) -> Any:
    """As often joined as it takes, which may be never."""
    body = lambda s: (cnp.concat([s[0], x]), s[1] + x[0])
    return cg.while_loop(lambda s: s[1] < 3.0, body, (cg.unknown_dims(x), x[0]))[0]


def pushed_in_a_branch(x: Any) -> Any:
    """Elements of as many numbers, in two rows or in three."""
    wide = cg.unknown_dims(cnp.stack([x, x, x]), (0, 1))
    rows = cg.TensorArray("float64", rewritable=True)
    rows = cg.cond(x[0] > 0.0, lambda: rows.push(wide), lambda: rows.push(cnp.transpose(wide)))
    return rows.read(0) * 2.0


def written_by_index(x: Any) -> Any:
    wide = cg.unknown_dims(cnp.stack([x, x, x]), (0, 1))
    rows = cg.TensorArray("float64", size=2, rewritable=True)
    write = lambda value: lambda: rows.write(1, value)
    return cg.cond(x[0] > 0.0, write(wide), write(cnp.transpose(wide))).read(1)


ONE, TWO = np.array([[1.0], [2.0]]), np.array([[1.0, 4.0], [2.0, 5.0]])
SAME: dict[str, tuple[Mapped, np.ndarray]] = {
    "one branch": (doubled_where_positive, ONE),
    "the other": (doubled_where_positive, -TWO),
    "branches of one size": (chosen, TWO - 1.0),
    "as many iterations": (grown_to_three, np.array([[1.0], [1.4]])),
    "none": (grown_to_three, TWO + 3.0),
    "elements of one shape": (pushed_in_a_branch, TWO),
    "elements written": (written_by_index, -TWO),
}
DIFFERENT: dict[str, tuple[Mapped, np.ndarray]] = {
    "branches of one number and of two": (doubled_where_positive, ONE * [[1.0], [-1.0]]),
    "branches of two numbers and of four": (doubled_where_positive, TWO * [[-1.0], [1.0]]),
    "the last of three branches": (chosen, np.array([[0.0], [2.0]])),
    "an iteration for one row alone": (grown_to_three, np.array([[2.0], [3.0]])),
    "fewer iterations for one row": (grown_to_three, np.array([[1.0, 0.0], [2.0, 0.0]])),
    "elements of one count": (pushed_in_a_branch, TWO * [[1.0], [-1.0]]),
    "elements written of one count": (written_by_index, TWO * [[1.0], [-1.0]]),
}


@ENGINES
@pytest.mark.parametrize("name", SAME)
def test_rows_of_one_size_are_what_each_is_alone(name: str, engine: Any) -> None:
    fn, rows = SAME[name]
    with cg.options(engine=engine):
        found = cg.function(cg.vmap(fn))(rows)
        np.testing.assert_array_equal(found, np.stack([cg.function(fn)(x) for x in rows]))


@ENGINES
@pytest.mark.parametrize("name", DIFFERENT)
def test_rows_of_different_sizes_are_refused(name: str, engine: Any) -> None:
    """As found by a random program: of sizes that broadcast, the shorter row was repeated."""
    fn, rows = DIFFERENT[name]
    assert len({cg.function(fn)(x).shape for x in rows}) == 2
    with cg.options(engine=engine), pytest.raises(ShapeError, match=r"vmap: the size of .* differs from row to row"):
        cg.function(cg.vmap(fn))(rows)


@ENGINES
def test_gradients_of_rows_of_different_sizes_are_refused(engine: Any) -> None:
    rows = ONE * [[1.0], [-1.0]]
    loss = lambda x: cnp.sum(cnp.sin(doubled_where_positive(x)))
    with cg.options(engine=engine), pytest.raises(ShapeError, match="vmap: the size of what the branches give"):
        cg.function(cg.vmap(cg.grad(loss)))(rows)
