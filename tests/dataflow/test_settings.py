"""Settings of the engine: wrong ones are refused before a run, with advice."""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import numpy as np
import pytest
from instruments.dataflow_runs import at_random, run

import ctrlgrad as cg
from ctrlgrad import dataflow, execution
from ctrlgrad.dataflow import Recorder, Settings
from ctrlgrad.dataflow.devices import single_threaded_products
from ctrlgrad.dataflow.settings import is_one_plan, prepare
from ctrlgrad.errors import NonFiniteError, UserInputError
from ctrlgrad.execution import run_on


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("parallel_iterations", 0, "an int of 1 or more, or None"),
        ("parallel_iterations", True, "an int of 1 or more, or None"),
        ("parallel_iterations", 2.0, "an int of 1 or more, or None"),
        ("clusters", "small", "None or 'whole' or 'flowing' or 'none'"),
        ("loops", "half", "None or 'lowered'"),
        ("place", "cpu:1", "a function that takes a FlatNode and returns a device's name or None, or None"),
        ("order", "random", "an int, or None"),
        ("order", 1.5, "an int, or None"),
        ("latency", -1.0, "seconds, 0 or more"),
        ("latency", math.nan, "seconds, 0 or more"),
        ("latency", "1 ms", "seconds, 0 or more"),
        ("delay", 0.1, "a function that takes a random.Random and returns seconds, or None"),
        ("recorder", Recorder, "a ctrlgrad.dataflow.Recorder, or None"),
    ],
)
def test_unusable_settings_are_refused(name: str, value: Any, expected: str) -> None:
    with (
        pytest.raises(UserInputError, match=f"the setting {name} is not usable") as caught,
        dataflow.settings(**{name: value}),
    ):
        pass
    assert (caught.value.expected, caught.value.got) == (expected, repr(value))
    assert caught.value.source.file == __file__
    with pytest.raises(UserInputError, match=f"the setting {name} is not usable"):
        Settings(**{name: value})


def test_a_setting_that_there_is_not() -> None:
    with pytest.raises(UserInputError, match="no such setting") as caught, dataflow.settings(window=3):
        pass
    assert "parallel_iterations" in str(caught.value.expected)


@pytest.mark.parametrize("seconds", [-0.5, math.nan, None, "1 ms"])
def test_a_delay_that_is_no_time(seconds: Any) -> None:
    def f(x: Any) -> Any:
        with cg.device("cpu:1"):
            y = np.sin(x)
        return y + 1.0

    with pytest.raises(UserInputError, match="the setting delay is not usable") as caught:
        run(cg.function(f).graph(1.0), [np.float64(1.0)], delay=lambda draw: seconds)
    assert repr(seconds) in str(caught.value.got)


def test_a_place_that_is_no_device() -> None:
    def f(x: Any) -> Any:
        return x + 1.0

    with (
        dataflow.settings(place=lambda node: "gpu:0"),
        pytest.raises(UserInputError, match="there is no device 'gpu:0'") as caught,
    ):
        cg.function(f, engine="dataflow")(1.0)
    assert caught.value.source.file == __file__


# Loops that stay whole.


def two_loops(x: Any, n: Any) -> Any:
    y = cg.fori_loop(0, n, lambda i, y: np.sin(y) + i, x)
    return cg.fori_loop(0, n, lambda i, z: np.cos(z) * y, x)


def by_op(*names: str) -> Any:
    """A device assignment: these ops on cpu:1, all other ops on cpu:0."""
    return lambda node: "cpu:1" if node.op.name in names else "cpu:0"


# Plans.


def test_plans_are_kept_by_what_they_depend_on() -> None:
    graph = cg.function(two_loops).graph(0.5, 3)

    def place(node: Any) -> str:
        return "cpu:1"

    first = prepare(graph, Settings(place=place, order=2))
    assert prepare(graph, Settings(place=place, order=3, latency=0.1)) is first
    assert prepare(graph, Settings(place=place)) is not first, "its loops may be divided"
    assert prepare(graph, Settings(place=place, order=2), True) is not first
    assert prepare(graph, Settings(place=lambda node: "cpu:1", order=2)) is not first


# Single-threaded products.


def test_a_label_that_would_be_untrue_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    missing = "threadpoolctl"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == missing else find(name, *rest))
    with pytest.raises(UserInputError, match="cannot be made single-threaded") as caught:
        single_threaded_products()
    assert "pip install -e '.[dataflow]'" in str(caught.value.hint)
    # A run on several devices still works.
    graph = cg.function(two_loops).graph(0.5, 3)
    arguments = [np.float64(0.5), np.int64(3)]
    found, _ = run(graph, arguments, place=at_random(2, 1))
    np.testing.assert_allclose(found[0], run_on("reference", graph, arguments)[0], rtol=1e-12)


# A graph on one device as one plan.


def _summed(x: Any) -> Any:
    def body(carry: Any) -> Any:
        i, total = carry
        return i + 1, np.sin(total) + x

    return cg.while_loop(lambda carry: carry[0] < 5, body, (0, x))[1]


@pytest.mark.parametrize(
    "place",
    [None, lambda node: "cpu:3", lambda node: None, lambda node: "cpu:1" if node.op.name == "sin" else "cpu:0"],
    ids=["default", "device", "any", "a loop of two devices that is no pipeline"],
)
def test_a_graph_without_a_pipeline_is_one_plan_of_the_native_engine(place: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(execution, "run_dataflow", lambda *given: pytest.fail("the executor ran"))
    gradient = cg.value_and_grad(_summed)
    with dataflow.settings(loops=None, place=place, parallel_iterations=2):
        found = cg.function(gradient, engine="dataflow")(0.5)
    assert [float(x) for x in found] == [float(x) for x in cg.function(gradient, engine="native")(0.5)]


@pytest.mark.parametrize(
    "changes",
    [
        {"loops": "lowered"},
        {"clusters": "none"},
        {"order": 1},
        {"delay": lambda draw: 0.0},
        {"latency": 1e-9},
        {"recorder": dataflow.Recorder()},
        {"place": lambda node: "sim:0"},
        {"place": lambda node: "/rank:0/cpu:0"},
        {"place": lambda node: "cuda:0"},
        {"place": lambda node: "gpu:0"},
    ],
    ids=lambda changes: "".join(map(str, changes)),
)
def test_settings_that_need_the_executor_use_it(changes: dict[str, Any]) -> None:
    graph = cg.function(_summed).graph(0.5)
    with dataflow.settings(**{"loops": None, **changes}) as now:
        assert not is_one_plan(graph, now)
    with dataflow.settings(loops=None) as now:
        assert is_one_plan(graph, now)


def test_checks_for_nan_look_at_every_op() -> None:
    """The executor checks each op for NaN, also on one device."""
    with dataflow.settings(loops=None), cg.options(engine="dataflow", check_nans=True):
        with pytest.raises(NonFiniteError):
            cg.function(lambda x: np.log(x))(-1.0)
        assert float(cg.function(_summed)(0.5)) == float(cg.function(_summed, engine="reference")(0.5))
