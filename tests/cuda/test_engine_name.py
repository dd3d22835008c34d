"""The engine by its name: as a user calls it, and what it says where it cannot run."""

from __future__ import annotations

import importlib.util
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, ClassVar

import numpy as np
import pytest
from instruments.stand_in import StandIn

import ctrlgrad as cg
from ctrlgrad import memory
from ctrlgrad.engines.cuda import cupy_library
from ctrlgrad.engines.device_array import DeviceArray
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
    assert type(found) is DeviceArray and card.texts
    np.testing.assert_allclose(np.asarray(found), cg.function(cg.grad(loss), engine="reference")(x), rtol=1e-12)
    with cg.options(engine="cuda"):
        np.testing.assert_array_equal(np.asarray(cg.function(cg.grad(loss))(x)), np.asarray(found))


def test_explain_says_what_ran_where(card: StandIn) -> None:
    def solved(x: Any) -> Any:
        scale = np.linalg.det(x) * 0.5
        return loss(x[0] * scale)

    x = np.array([[1.0, 2.0], [3.0, -4.0]])
    report = cg.function(solved, engine="cuda").explain(x)
    assert report.outside is not None and report.outside.ops["through the host, for want of a device kernel"] == ["det"]
    assert [(loop.engine, loop.mode) for loop in report.loops] == [("cuda", "read")]
    assert any("tanh" in text for text in report.loops[0].kernels)
    assert report.counts["other reads"] == 1 and report.counts["reads of predicates"] >= 1
    with cg.options(engine="cuda"):
        assert cg.function(solved).explain(x).loops[0].engine == "cuda"
    assert cg.function(solved).explain(x).loops[0].engine == "native"


def test_explain_tells_of_callbacks_and_branches(card: StandIn) -> None:
    """Both are on the host; what branches do is told of the region around them."""

    def branching(x: Any) -> Any:
        cg.debug.callback(lambda x, iterations: None, x)
        return cg.cond(np.sum(x) > 0, lambda: np.cumsum(x), lambda: np.tanh(x))

    outside = cg.function(branching, engine="cuda").explain(np.ones(3)).outside
    assert outside is not None and outside.ops["on the host"] == ["callback"]
    assert "cumsum" in outside.ops["on the device"] and any("tanh" in text for text in outside.kernels)


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_gpu_arguments_are_not_explained_by_another_engine(engine: str) -> None:
    with pytest.raises(UserInputError, match="lies on a GPU"):
        cg.function(loss, engine=engine).explain(OnACard())


class OnACard:
    """An array of three numbers on a GPU, by the interface."""

    shape, dtype = (3,), np.dtype(np.float64)
    __cuda_array_interface__: ClassVar = {"shape": (3,), "typestr": "<f8", "data": (0, False), "version": 3}


def test_the_check_for_nans_looks_at_every_op(card: StandIn) -> None:
    with cg.options(check_nans=True), pytest.raises(NonFiniteError, match="log makes a NaN"):
        cg.function(lambda x: np.log(x) + 1.0, engine="cuda")(np.array([-1.0]))


def test_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy_library.cupy_library.cache_clear()
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "cupy" else find(name, *rest))
    with pytest.raises(UserInputError, match="the CUDA engine is not installed") as error:
        cg.function(loss, engine="cuda")(np.ones(3))
    assert error.value.hint is not None and "'.[cuda13]'" in error.value.hint


def test_threads_read_rows_of_a_budget_that_has_ended_in_turns(card: StandIn) -> None:
    """Once a call was refused beside another one's reading, in a budget with room for one."""
    flow = lambda x: cg.fori_loop(0, 40, lambda i, x: x + 0.01 * np.sin(x), x)
    make = lambda: cg.vjp(flow, np.linspace(0.0, 1.0, 4000))[1]
    with cg.options(engine="native"):
        expected = make()(np.ones(4000))[0]
        with memory.budget(device=memory.plan(lambda: make()(np.ones(4000))).least):
            pull = make()

    def work() -> None:
        with cg.options(engine="cuda"):
            for _ in range(20):
                np.testing.assert_allclose(np.asarray(pull(np.ones(4000))[0]), expected)

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(copy_context().run, work) for _ in range(2)]:
            future.result(timeout=300)
