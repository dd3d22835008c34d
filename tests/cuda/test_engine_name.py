"""The engine by its name: as a user calls it, and what it says where it cannot run."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
from stand_in import StandIn

import ctrlgrad as cg
from ctrlgrad.engines.cuda import cupy_library
from ctrlgrad.errors import NonFiniteError, UserInputError


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """A stand-in in the place of the first device."""
    found = StandIn()
    monkeypatch.setattr(cupy_library, "cupy_library", lambda number=0: found)
    return found


def loss(x: Any) -> Any:
    return np.sum(np.square(cg.while_loop(lambda x: np.sum(x) > 1.0, lambda x: np.tanh(x) * 0.9, x)))


def test_a_function_runs_on_the_device(card: StandIn) -> None:
    x = np.array([1.0, 2.0, 3.0])
    found = cg.function(cg.grad(loss), engine="cuda")(x)
    assert type(found) is np.ndarray and card.texts
    np.testing.assert_allclose(found, cg.function(cg.grad(loss), engine="reference")(x), rtol=1e-12)
    with cg.options(engine="cuda"):
        np.testing.assert_array_equal(cg.function(cg.grad(loss))(x), found)


def test_the_check_for_nans_looks_at_every_op(card: StandIn) -> None:
    with cg.options(check_nans=True), pytest.raises(NonFiniteError, match="log makes a NaN"):
        cg.function(lambda x: np.log(x) + 1.0, engine="cuda")(np.array([-1.0]))


def test_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy_library.cupy_library.cache_clear()
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "cupy" else find(name, *rest))
    with pytest.raises(UserInputError, match="the CUDA engine is not installed") as error:
        cg.function(loss, engine="cuda")(np.ones(3))
    assert error.value.hint is not None and "ctrlgrad[cuda13]" in error.value.hint
