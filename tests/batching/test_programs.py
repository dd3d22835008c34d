"""vmap of whole programs against a Python loop over the rows: values, both modes, two orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from batching import programs
from batching.rows import check, checked
from instruments.tables import in_turn

import ctrlgrad as cg


@in_turn("program, order", programs.SCALAR, [1, 2])
def test_scalar_rows(program: Callable[[Any], Any], order: int) -> None:
    check(program, programs.SCALAR_ROWS, order)


@in_turn("program, order", programs.VECTOR, [1, 2])
def test_vector_rows(program: Callable[[Any], Any], order: int) -> None:
    check(program, programs.VECTOR_ROWS, order)


@pytest.mark.parametrize("program", programs.SCALAR, ids=lambda p: p.__name__)
def test_no_rows(program: Callable[[Any], Any]) -> None:
    assert checked(cg.vmap(program), np.zeros(0)).shape == (0,)


@in_turn("program, order", programs.SCALAR, [0, 1])
def test_one_row_alone(program: Callable[[Any], Any], order: int) -> None:
    check(program, programs.SCALAR_ROWS[:1], order)


@in_turn("program, order", programs.SCALAR, [0, 1])
def test_vmap_of_vmap(program: Callable[[Any], Any], order: int) -> None:
    grid = programs.SCALAR_ROWS[[[0, 1], [2, 1], [3, 4]]]
    check(lambda row: cg.vmap(program)(row).sum(), grid, order)
