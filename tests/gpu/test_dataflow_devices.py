"""Devices `cuda:N` of the dataflow engine on a real card: what `tests/dataflow` holds against a stand-in.

Values differ from the CPU's within rounding: products and functions of the card round in another way.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.dataflow_runs import at_random, run
from programs import PROGRAMS, Program

import ctrlgrad as cg
from ctrlgrad.engines.cuda.copies import Copies
from ctrlgrad.engines.cuda.cupy_library import cupy_library, device_count
from ctrlgrad.errors import IndexOutOfRangeError, UserInputError
from ctrlgrad.execution import run_on

WAYS: tuple[dict[str, Any], ...] = (
    {"parallel_iterations": 1},
    {"parallel_iterations": 2, "order": 3},
    {"parallel_iterations": 32, "order": 4},
    {"clusters": "none", "parallel_iterations": 32},
)


def assert_nothing_is_left() -> None:
    """No memory that a copy landed in, and no piece of a slab, belongs to anybody."""
    gc.collect()
    library = cupy_library()
    with library.running():
        Copies(library).settle()
    copier = library.copier()
    pinned = sum(slab.array.nbytes - slab.free.nbytes for slab in copier.pinned.slabs)
    assert (copier.memory.cache.used, pinned) == (0, 0)


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("program", PROGRAMS, ids=repr)
def test_corpus(program: Program, order: int) -> None:
    graph, leaves = program.graph(order), program.leaves
    expected = program.expected(order)
    number = PROGRAMS.index(program) + order
    assert_same(run(graph, leaves, place=lambda node: "cuda:0", **WAYS[number % 4])[0], expected, 1e-9)
    for turn in range(2):
        way = WAYS[(number + turn) % 4]
        found, _ = run(graph, leaves, place=at_random(1 + turn, number, device_count()), **way)
        assert_same(found, expected, 1e-9)
    assert_nothing_is_left()


def across(x: Any, w: Any, n: Any) -> Any:
    """A state that is made on the card, changed on the host and comes back, in every iteration."""

    def body(carry: Any) -> Any:
        i, y, total = carry
        with cg.device("cuda:0"):
            y = y @ w + 1.0
        with cg.device("cpu:1"):
            y = y * 0.5
            total = total + y[i % 8]
        return i + 1, y, total

    return cg.while_loop(lambda carry: carry[0] < n, body, (0, x, x[0]))[1:]


@pytest.mark.parametrize("window", [1, 2, 32])
@pytest.mark.parametrize("width", [1, 64, 1024])
def test_many_messages_both_ways(width: int, window: int) -> None:
    """Slabs and landing memory go round; a wait that is missing shows as bytes of another iteration."""
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(256, width)), rng.normal(size=(width, width)) / np.sqrt(width)
    arguments = [x, w, np.int64(60)]
    graph = cg.function(across).graph(*arguments)
    expected = run_on("reference", graph, arguments)
    for order in (None, 1, 2):
        assert_same(run(graph, arguments, parallel_iterations=window, order=order)[0], expected, 1e-9)
    assert_nothing_is_left()


def test_every_dtype_goes_both_ways() -> None:
    for dtype in ("bool", "int8", "uint16", "int32", "int64", "float32", "float64", "complex64", "complex128"):

        def f(x: Any) -> Any:
            with cg.device("cuda:0"):
                y = x[::-1]
            with cg.device("cpu:1"):
                z = y[1:]
            with cg.device("cuda:0"):
                return z.T

        x = (np.arange(6).reshape(3, 2) % 2 if dtype == "bool" else np.arange(6).reshape(3, 2)).astype(dtype)
        graph = cg.function(f).graph(x)
        assert_same(run(graph, [x])[0], [x[::-1][1:].T], 0.0)
    assert_nothing_is_left()


def test_sent_arrays_are_not_written_to() -> None:
    def f(x: Any, n: Any) -> Any:
        def body(carry: Any) -> Any:
            i, table, total = carry
            with cg.device("cpu:0"):
                total = total + table.sum()
            with cg.device("cuda:0"):
                table = table.at[i].set(-1.0)
            return i + 1, table, total

        return cg.while_loop(lambda carry: carry[0] < n, body, (0, x, 0.0))

    arguments = [np.arange(float(1 << 20)), np.int64(60)]
    graph = cg.function(f).graph(*arguments)
    assert_same(run(graph, arguments)[0], run_on("reference", graph, arguments), 1e-12)


def test_a_send_does_not_hold_up_the_card() -> None:
    """A copy out that was begun behind much work is not over when the call that began it returns."""
    library = cupy_library()
    copies = Copies(library)
    with library.running():
        x = library.upload(np.ones((4096, 4096), np.float32))
        # The first time pinned memory is allocated, for which CUDA may wait for the card.
        copies.out([x]).arrays()
        for _ in range(20):
            x = x @ x * np.float32(1 / 4096)
        copy = copies.out([x])
        assert not copy.is_done()
        np.testing.assert_allclose(copy.arrays()[0], 1.0, rtol=1e-3)
        copies.close()


def test_an_index_that_the_device_finds_out_of_range() -> None:
    def f(x: Any, index: Any) -> Any:
        with cg.device("cuda:0"):
            places = x[index * 2]
        with cg.device("cpu:1"):
            return places + 1

    arguments = [np.arange(4), np.array([0, 3])]
    graph = cg.function(f).graph(*arguments)
    with pytest.raises(IndexOutOfRangeError, match="index 6 is out of bounds for an axis with size 4") as caught:
        run(graph, arguments)
    assert caught.value.source.file == __file__


def test_a_card_that_is_not_there_is_refused() -> None:
    with pytest.raises(UserInputError, match="there is no CUDA device 63"):
        run(cg.function(lambda x: x + 1.0).graph(1.0), [np.float64(1.0)], place=lambda node: "cuda:63")
