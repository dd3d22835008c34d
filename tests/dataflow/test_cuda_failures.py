"""Errors with devices `cuda:N`, on the stand-in: as on one device, with the user's line."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from instruments.cards import BY_CLOCK, INSTANT, ON_BOTH, Cards, on_both, registered
from instruments.comparing import assert_same
from instruments.dataflow_runs import run
from instruments.simulated import Fault
from instruments.stand_in import StandIn

import ctrlgrad as cg
from ctrlgrad import dataflow
from ctrlgrad.engines.cuda.copies import Copies
from ctrlgrad.errors import (
    ExecutionError,
    IndexOutOfRangeError,
    MaximumIterationsError,
    NonFiniteError,
    TierRefusedError,
    UserInputError,
)
from ctrlgrad.execution import run_on


def out_of_range(x: Any, index: Any, n: Any) -> Any:
    def body(carry: Any) -> Any:
        i, y = carry
        with cg.device("cuda:0"):
            y = y + np.sum(x[index * 2])
        with cg.device("cpu:1"):
            z = y * 1.0
        return i + 1, z

    return cg.while_loop(lambda carry: carry[0] < n, body, (0, 0.0))[1]


def test_an_index_that_the_device_finds_out_of_range(cards: Cards) -> None:
    arguments = [np.arange(4.0), np.array([0, 1, 3]), np.int64(3)]
    graph = cg.function(out_of_range).graph(*arguments)
    for _ in range(2):
        with pytest.raises(IndexOutOfRangeError, match="index 6 is out of bounds for an axis with size 4") as caught:
            run(graph, arguments)
        assert caught.value.source.file == __file__
        # The error is found when a value comes to the host, so the iteration is not known.
        assert not caught.value.notes
        del caught
        cards.assert_nothing_is_left()
    fine = [arguments[0], np.array([0, 1, 1]), np.int64(3)]
    assert_same(run(graph, fine)[0], run_on("reference", graph, fine))


def test_no_message_carries_what_an_index_out_of_range_has_spoiled(cards: Cards) -> None:
    """A message carries no values read by a wrong index. The device wraps the index around; cpu:1 would fail on
    these values with another error."""

    def f(x: Any, index: Any, table: Any) -> Any:
        with cg.device("cuda:0"):
            places = x[index * 1]
        with cg.device("cpu:1"):
            found = table[places]
        with cg.device("cuda:0"):
            return found * 2.0

    arguments = [np.array([100, 1, 1, 1]), np.array([1, 4]), np.arange(3.0)]
    graph = cg.function(f).graph(*arguments)
    with pytest.raises(IndexOutOfRangeError, match="index 4 is out of bounds for an axis with size 4"):
        run(graph, arguments)


def test_a_failure_on_one_device_stops_all_and_the_next_call_works(cards: Cards) -> None:
    @cg.function(engine="dataflow")
    def f(x: Any, n: Any) -> Any:
        def body(carry: Any) -> Any:
            i, y, z = carry
            with cg.device("cpu:1"):
                y = y + x[i]
            with cg.device("cuda:0"):
                z = z * 1.01
            with cg.device("cuda:1"):
                w = z + 1.0
            return i + 1, y + np.sum(w) * 0.0, z

        return cg.while_loop(lambda carry: carry[0] < n, body, (0, 0.0, np.ones(3)))

    for _ in range(3):
        with pytest.raises(IndexOutOfRangeError) as caught:
            f(np.ones(5), 50)
        assert caught.value.source.file == __file__
        assert "in iteration 5 of the while_loop" in str(caught.value)
        # The error refers to the frames that it went through.
        del caught
        assert f(np.ones(5), 5)[1] == 5.0
    cards.assert_nothing_is_left()


def test_a_loop_without_end_is_stopped_with_its_iterations(cards: Cards) -> None:
    def f(x: Any) -> Any:
        return cg.while_loop(lambda y: np.sum(y) < 1e9, lambda y: y + x, x, maximum_iterations=3)

    graph = cg.function(f).graph(np.ones(2))
    with pytest.raises(MaximumIterationsError) as caught:
        run(graph, [np.ones(2)], place=lambda node: "cuda:0")
    with pytest.raises(MaximumIterationsError) as expected:
        run_on("reference", graph, [np.ones(2)])
    assert str(caught.value) == str(expected.value)


def test_nans_are_looked_for_on_the_host(cards: Cards) -> None:
    def f(x: Any) -> Any:
        with cg.device("cuda:0"):
            return np.log(x) * 2.0

    x = np.array([1.0, -1.0])
    graph = cg.function(f).graph(x)
    with pytest.raises(NonFiniteError) as caught:
        run_on("dataflow", graph, [x], check_nans=True)
    with pytest.raises(NonFiniteError) as expected:
        run_on("reference", graph, [x], check_nans=True)
    assert str(caught.value) == str(expected.value)
    assert np.isnan(run_on("dataflow", graph, [x])[0][1])


@pytest.mark.parametrize("copies", [INSTANT, BY_CLOCK], ids=["instant", "by the clock"])
@pytest.mark.parametrize("stream", ["out", "in"])
def test_a_copy_that_fails_is_an_error_with_the_users_line(stream: str, copies: dict[str, Any]) -> None:
    library = StandIn(faults=(Fault("fail", stream, 3),), **copies)
    with registered({"cuda:0": library}):

        def f(x: Any, n: Any) -> Any:
            def body(carry: Any) -> Any:
                i, y = carry
                with cg.device("cuda:0"):
                    y = y + 1.0
                return i + 1, y * 0.5

            return cg.while_loop(lambda carry: carry[0] < n, body, (0, x))[1]

        arguments = [np.ones(3), np.int64(6)]
        graph = cg.function(f).graph(*arguments)
        with pytest.raises(ExecutionError, match=f"copy 3 on stream '{stream}'") as caught:
            run(graph, arguments)
        assert caught.value.source.file == __file__
        # A failed send is found during other steps; a failed receive is found when its value is used.
        assert len(caught.value.notes) == (stream == "in")
        assert_same(run(graph, arguments)[0], run_on("reference", graph, arguments), 0.0)
    # The error refers to the frames that it went through.
    del caught
    gc.collect()
    assert library.copier().used == {"device": 0, "host": 0}
    library.copier().close()


def test_pinned_memory_that_is_refused_is_an_error_with_the_users_line() -> None:
    library = StandIn(faults=(Fault("refuse", "host", 2),))
    with registered({"cuda:0": library}):
        graph = cg.function(on_both).graph(*ON_BOTH)
        with pytest.raises(TierRefusedError, match="tier 'host'") as caught:
            run(graph, ON_BOTH)
        assert caught.value.source.file == on_both.__code__.co_filename
        assert_same(run(graph, ON_BOTH)[0], run_on("reference", graph, ON_BOTH))
    library.copier().close()


def test_a_copy_out_does_not_hold_up_what_computes() -> None:
    """A copy out does not delay computation: the device goes on, and the message is sent when the copy is done."""
    library = StandIn(latency=1.0)
    copies = Copies(library)
    with library.running():
        x = library.upload(np.arange(3.0))
        copy = copies.out([x])
        assert not copy.is_done()
        y = library.xp.add(x, x)
        assert not copy.is_done() and library.copier().clock.now == 0.0
        assert_same(copy.arrays(), [np.arange(3.0)], 0.0)
        assert_same(library.read([y]), [np.arange(3.0) * 2.0], 0.0)
        copies.close()
    library.copier().close()


# Names of devices.


def test_a_device_that_is_not_there_is_refused_with_the_users_line(cards: Cards) -> None:
    @cg.function(engine="dataflow")
    def f(x: Any) -> Any:
        with cg.device("cuda:2"):
            return x + 1.0

    with pytest.raises(UserInputError, match="cuda:2 does not exist here: there is no CUDA device 2") as caught:
        f(1.0)
    assert caught.value.source.file == __file__
    assert caught.value.expected == "cpu:0 to cpu:63, sim:0 to sim:63; of GPUs: cuda:0 to cuda:1"


def test_without_cupy_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "cupy" else find(name, *rest))
    with (
        dataflow.settings(place=lambda node: "cuda:0"),
        pytest.raises(UserInputError, match="the CUDA engine is not installed") as caught,
    ):
        cg.function(lambda x: x + 1.0, engine="dataflow")(1.0)
    assert caught.value.source.file == __file__
    assert "pip install -e '.[cuda12]'" in str(caught.value.hint)
