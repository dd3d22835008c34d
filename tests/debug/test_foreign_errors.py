"""An exception of a callback, or one that interrupts a run, keeps its type and text, and names the place in the run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
from ctrlgrad import dataflow
from ctrlgrad.errors import ExecutionError, IndexOutOfRangeError

KINDS = (ValueError, IndexError, KeyError, ZeroDivisionError, TimeoutError, AssertionError, KeyboardInterrupt)


def raising(kind: type[BaseException]) -> Any:
    """Raises in iteration (1, 2) of two loops."""

    def raise_there(value: Any, iterations: tuple[int, ...]) -> None:
        if iterations == (1, 2):
            raise kind("mine")

    def inner(i: Any, c: Any) -> Any:
        cg.debug.callback(raise_there, c)  # the place
        return c * 1.5

    return lambda x: cg.fori_loop(0, 3, lambda i, c: cg.fori_loop(0, 4, inner, c), x)


@pytest.mark.parametrize("engine", ["reference", "dataflow", "native"])
@pytest.mark.parametrize("kind", KINDS)
def test_callback_errors_keep_their_type_and_name_the_iteration(engine: str, kind: Any) -> None:
    with cg.options(engine=engine), pytest.raises(kind) as caught:
        cg.function(raising(kind))(1.0)
    assert type(caught.value) is kind and caught.value.args == ("mine",)
    place, *loops = caught.value.__notes__
    assert place.startswith("in callback, at: ") and place.endswith("raising.<locals>.inner")
    assert [note.split(" at ")[0] for note in loops] == [
        "in iteration 2 of the fori_loop",
        "in iteration 1 of the fori_loop",
    ]


def test_on_several_devices_too() -> None:
    draw = iter(range(1000))
    place = dataflow.settings(place=lambda node: f"cpu:{next(draw) % 2}")
    with place, cg.options(engine="dataflow"), pytest.raises(TimeoutError) as caught:
        cg.function(raising(TimeoutError))(1.0)
    assert len(caught.value.__notes__) == 3


@pytest.mark.parametrize("engine", ["reference", "dataflow"])
def test_sizes_and_values_of_a_run_are_errors_of_the_library(engine: str) -> None:
    x = np.ones((3, 2))
    with cg.options(engine=engine):
        with pytest.raises(IndexOutOfRangeError, match="in iteration 3 of the fori_loop"):
            cg.function(lambda x: cg.fori_loop(0, 5, lambda i, c: c + x[i], np.zeros(2)))(x)
        with pytest.raises(ExecutionError, match=r"in iteration 0 of the fori_loop[\s\S]*not invertible"):
            cg.function(lambda a: cg.fori_loop(0, 5, lambda i, c: np.linalg.inv(c), a))(np.zeros((2, 2)))


@pytest.mark.parametrize("engine", ["reference", "dataflow"])
def test_a_defect_of_a_kernel_keeps_its_type(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An AttributeError, say, is nothing that a user's sizes explain."""
    from ctrlgrad.engines.reference.table import PURE

    def broken(x: Any) -> Any:
        raise AttributeError("a defect")

    monkeypatch.setitem(PURE, "tanh", lambda node: broken)
    by_kernels = dataflow.settings(loops="lowered")
    with by_kernels, cg.options(engine=engine), pytest.raises(AttributeError, match="a defect") as caught:
        cg.function(lambda x: cg.fori_loop(0, 5, lambda i, c: np.tanh(c), x))(1.0)
    assert caught.value.__notes__[0].startswith("in tanh, at: ") and "in iteration 0" in caught.value.__notes__[1]


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("engine", ["reference", "dataflow", "native"])
def test_an_index_out_of_range_is_told_of_the_forward_read_that_went_wrong_first(engine: str, devices: int) -> None:
    """The sum's gradient needs no value of a row: there is no forward read, and the backward loop begins at row 7."""

    def rows(xs: Any, n: Any) -> Any:
        return cg.fori_loop(0, n, lambda i, s: s + xs[i] * 2.0, 0.0)

    draw = iter(range(10000))
    place = lambda: dataflow.settings(place=lambda node: f"cpu:{next(draw) % devices}")
    for traced in (cg.function(rows), cg.function(cg.grad(rows))):
        with place(), cg.options(engine=engine), pytest.raises(IndexOutOfRangeError) as caught:
            traced(np.ones(5), 8)
        text = str(caught.value)
        assert text.startswith("getitem: index 5 is out of bounds for axis 0 with size 5")
        assert caught.value.source.order == 0 and "in iteration 5 of the fori_loop" in text
