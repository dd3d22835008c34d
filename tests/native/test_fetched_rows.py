"""Rows that will be pushed or popped next are prefetched: which rows, and in which order."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.native import engine, objects, shared_code, target
from ctrlgrad.engines.native.emit import PlanWriter
from ctrlgrad.execution import run_on
from ctrlgrad.plan.decisions import with_vectors

RNG = np.random.default_rng(3)
CALL = "call void @fetch("


def text_of(x: np.ndarray, signature: Any = None) -> str:
    graph = optimised_graph(cg.function(cg.grad(saving), signature=signature).graph(x))
    return PlanWriter(with_vectors(engine.plan_of(graph, engine.shapes_of(graph, [x])), 32)).function("plan")


def saving(x: Any) -> Any:
    """A loop whose gradient saves its carry."""
    return cnp.sum(cg.while_loop(lambda x: x[0] < 2.0, lambda x: cnp.sin(x) + x, x))


def fetched(address: int, step: int, nbytes: int) -> list[int]:
    """The addresses that the compiled `fetch` prefetches, in order."""
    text = shared_code.function("fetch").text
    assert text.count("call void @llvm.prefetch.p0(") == 1
    text = re.sub(r"call void @llvm\.prefetch\.p0\((ptr %\d+), .*\)", r"call void @note(ptr %frame, \1)", text)
    note = """
    define internal void @note(ptr %frame, ptr %address) noinline {
      %count = load i64, ptr %frame
      %next = add i64 %count, 1
      store i64 %next, ptr %frame
      %place = getelementptr i64, ptr %frame, i64 %next
      store ptr %address, ptr %place
      ret void
    }
    define void @fetched(ptr %frame, i64 %address, i64 %step, i64 %bytes) {
      call void @fetch(ptr %frame, i64 %address, i64 %step, i64 %bytes, i64 256, i64 4096)
      ret void
    }
    """
    code = objects.ObjectCode(("fetched",), target.compiled(note + text))
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    words = np.zeros(200, np.int64)
    function(objects.loaded(code).kept()["fetched"])(words.ctypes.data, address, step, nbytes)
    return [int(word) for word in words[1 : 1 + words[0]]]


@pytest.mark.parametrize("step", [64, -64])
@pytest.mark.parametrize(("nbytes", "lines"), [(256, 4), (264, 5), (512, 8), (1000, 16), (4096, 64)])
def test_the_lines_of_a_row_are_fetched_one_after_the_other(nbytes: int, lines: int, step: int) -> None:
    assert fetched(1 << 20, step, nbytes) == [(1 << 20) + step * k for k in range(1, lines + 1)]


@pytest.mark.parametrize("nbytes", [0, 8, 248, 4104, 1 << 20])
def test_rows_of_other_sizes_are_not_fetched(nbytes: int) -> None:
    assert fetched(1 << 40, 64, nbytes) == []


def test_pushes_fetch_the_row_after_the_next_one_and_pops_the_one_below_downwards() -> None:
    """A push prefetches the row after the next one, and a pop the row below, downwards.

    The text is checked: both count from the address of the row that is pushed or popped, of 512 bytes.
    """
    text = text_of(RNG.uniform(0.1, 0.2, 64))
    calls = re.findall(
        r"(%\d+) = call ptr @(room1|last)\(.*\n(?:.*\n){0,9}?"
        r"  (%\d+) = ptrtoint ptr \1 to i64\n(?:  %\d+ = (add i64 \3, -?\d+)\n)?  (call void @fetch\(.*\))",
        text,
    )
    assert len(calls) == 2
    for _, function, address, sum_, call in calls:
        if function == "room1":
            assert sum_ == f"add i64 {address}, {2 * 512 - 64}" and call.endswith(
                ", i64 64, i64 512, i64 256, i64 1024)"
            )
        else:
            assert (
                not sum_ and call == f"call void @fetch(ptr %frame, i64 {address}, i64 -64, i64 512, i64 256, i64 2048)"
            )


@pytest.mark.parametrize(("columns", "calls"), [(31, 0), (32, 2), (64, 2), (128, 2), (129, 1), (256, 1), (257, 0)])
def test_a_push_and_a_pop_fetch_a_row_where_it_has_the_size_for_it(columns: int, calls: int) -> None:
    text = text_of(RNG.uniform(0.1, 0.2, columns))
    assert text.count(CALL) == calls and text.count("define internal void @fetch(") == bool(calls)


def test_rows_whose_size_the_run_knows_are_asked_then() -> None:
    text = text_of(RNG.uniform(0.1, 0.2, 64), (cg.TensorSpec((None,)),))
    assert text.count(CALL) == 2


def test_numbers_are_not_fetched() -> None:
    graph = optimised_graph(cg.function(cg.grad(lambda x: saving(x[None]))).graph(0.1))
    assert CALL not in PlanWriter(with_vectors(engine.plan_of(graph, engine.shapes_of(graph, [0.1])), 32)).function(
        "plan"
    )


@pytest.mark.parametrize("columns", [32, 64, 500])
def test_gradients_over_several_blocks_are_the_reference_engines(columns: int) -> None:
    """Gradients over several blocks agree with the reference engine. The first block has 256 rows; the row below a
    block's last row is prefetched but not read."""
    x = RNG.uniform(0.1, 0.2, columns)
    step = lambda c: (c[0] + 1, cnp.sin(c[1]) * 1.01)
    graph = cg.function(
        cg.grad(lambda x: cnp.sum(cg.while_loop(lambda c: c[0] < 1000, step, (0, x))[1])), engine="reference"
    ).graph(x)
    (found,), (expected,) = run_on("native", graph, [x]), run_on("reference", graph, [x])
    np.testing.assert_allclose(found, expected, rtol=1e-11)
