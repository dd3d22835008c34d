"""Updates by indices from the card in prepared iterations: NumPy's order where positions repeat, and its bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cuda.test_prepared_bodies import all_from_lists, launching_of
from instruments.bodies import chosen, updated
from instruments.comparing import assert_same
from instruments.order import Judge
from instruments.recorded import recorded_run
from instruments.stand_in import StandIn
from instruments.stand_in_runs import on_reference, on_stand_in

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda import indexing as stages
from ctrlgrad.engines.cuda.engine import run_with
from ctrlgrad.engines.cuda.indexing import SortSpec
from ctrlgrad.engines.cuda.program import Context
from ctrlgrad.errors import ExecutionError, IndexOutOfRangeError
from ctrlgrad.execution import run_on

X = np.linspace(-1.0, 1.0, 60).reshape(3, 4, 5)
ROWS, COLUMNS = np.array([[2, 0], [-1, 2]]), np.array([3, -4, 3], np.int32)


@pytest.mark.parametrize(
    "update",
    [
        lambda x, i, rows, columns: cnp.at(x)[rows].set(x[:2, None] * 0.5),
        lambda x, i, rows, columns: cnp.at(x)[rows].add(1.0),
        lambda x, i, rows, columns: cnp.at(x)[:, columns].add(cnp.sin(x[:, :3])),
        lambda x, i, rows, columns: cnp.at(x)[rows, columns[0]].add(x[:2, :2]),
        lambda x, i, rows, columns: cnp.at(x)[columns % 3, :, columns].set(x[0, :3, :4]),
        lambda x, i, rows, columns: cnp.at(x)[i, columns].add(x[i, columns]),
        lambda x, i, rows, columns: cnp.at(x)[None, ::-1, columns, 1:4:2].add(x[1, :3, :2]),
        lambda x, i, rows, columns: cnp.at(x)[rows[0, 0]].set(x[i] * 0.5),
        lambda x, i, rows, columns: cnp.at(x)[:, columns[0], rows[1, 1]].add(i * 1.0),
        lambda x, i, rows, columns: cnp.at(x)[rows[1, 0]].set(i * 0.5),
    ],
)
def test_updates(update: Callable[..., Any]) -> None:
    def loop(x: Any, rows: Any, columns: Any) -> Any:
        return cg.fori_loop(0, 3, lambda i, x: cnp.sin(update(x, i, rows, columns)), x)

    assert launching_of(loop, X, ROWS, COLUMNS)[0].startswith("from a list")


@pytest.mark.parametrize("fn", [chosen, updated])
@pytest.mark.parametrize("few", [0, 64])
def test_gradients(fn: Callable[[Any], Any], few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read by indices adds by them in the backward pass."""
    monkeypatch.setattr(stages, "FEW", few)
    x = np.linspace(-0.5, 1.0, 27).reshape(3, 3, 3) ** 2
    loss = lambda x: sum(cnp.sum(cnp.sin(y)) for y in cg.tree.leaves(fn(x)))
    assert all_from_lists(loss, x)
    assert all_from_lists(lambda x: cnp.sum(cnp.cos(cg.grad(loss)(x))), x)


@pytest.mark.parametrize("size", [3, 41], ids=["list", "graph"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64", "int8"])
def test_bits_are_those_of_the_order_of_the_list(dtype: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of many sizes, whose last bits depend on the order, in runs that are merged."""
    monkeypatch.setattr(stages, "RUN", 4)
    monkeypatch.setattr(stages, "FEW", 4)
    rng = np.random.default_rng(3)
    x = (rng.normal(size=(5, 2)) * 10.0 ** rng.integers(-3, 2, (5, 1))).astype(dtype)
    value = (rng.normal(size=(size, 23, 2)) * 10.0 ** rng.integers(-3, 2, (size, 23, 1))).astype(dtype)
    index = rng.integers(-5, 5, (size, 23))

    def loop(x: Any, v: Any, i: Any) -> Any:
        body = lambda k, c: (cnp.at(c[0])[i[k]].add(v[k]), cnp.at(c[1])[i[k], 1].set(v[k, :, 0]))
        return cg.fori_loop(0, size, body, (x, x))

    graph, library = cg.function(loop).graph(x, value, index), StandIn()
    context = Context(library)
    with np.errstate(all="ignore"):
        found = run_with(context, optimised_graph(graph, is_for_gpu=True), [x, value, index])
        assert_same(found, on_reference(graph, [x, value, index]), 0.0)
    assert {spec.merges for spec in library.driver.specs if isinstance(spec, SortSpec)} == {False, True}
    assert context.counts.graphs == (size > 3)


def test_python_has_a_part_in_two_runs_however_long_they_are() -> None:
    index = np.arange(6) % 4

    def counts(size: int) -> tuple[int, int]:
        x = np.ones(4)
        loop = lambda x, i: cg.fori_loop(0, size, lambda k, x: cnp.at(x)[i].add(x[i] * 0.5), x)
        graph, context = cg.function(loop).graph(x, index), Context(StandIn())
        context.library.driver.without_graphs = "none"  # type: ignore[attr-defined]
        run_with(context, optimised_graph(graph, is_for_gpu=True), [x, index])
        return context.counts.runs, context.counts.calls

    # The first run is a short one, in which kernels may be loaded.
    assert counts(40) == counts(300) == (2, 0)


@pytest.mark.parametrize("size", [3, 40], ids=["list", "graph"])
@pytest.mark.parametrize("bad", [4, -5, 2**40])
@pytest.mark.parametrize("how", ["set", "add"])
def test_an_index_out_of_range_is_named_with_its_line(bad: int, size: int, how: str) -> None:
    rows = np.ones((size, 2), np.int64)
    rows[size - 2, 1] = bad
    loop = lambda x, rows: cg.fori_loop(0, size, lambda i, x: getattr(cnp.at(x)[rows[i]], how)(x[0] * 2.0), x)
    arguments = X[0], rows
    graph = cg.function(loop).graph(*arguments)
    with pytest.raises(ExecutionError) as plain:
        run_on("reference", graph, arguments)
    with pytest.raises(IndexOutOfRangeError, match=f"index {bad} is out of bounds for an axis with size 4") as found:
        on_stand_in(graph, arguments)
    assert found.value.source == plain.value.source


def test_arrays_read_again_are_copied_before_updates() -> None:
    def loop(x: Any, i: Any) -> Any:
        def body(k: Any, c: Any) -> Any:
            x, before = c
            return cnp.at(x)[i].add(before[0]), x

        return cg.fori_loop(0, 5, body, (x, x))

    assert launching_of(loop, X[0], np.array([1, 1, 3]))[0].startswith("from a list")


@pytest.mark.parametrize("limit", [None, 1 << 14])
def test_a_recorded_run(monkeypatch: pytest.MonkeyPatch, limit: int | None) -> None:
    """Waits of streams if positions are sorted, and if pushed blocks leave the card."""
    monkeypatch.setattr(stages, "FEW", 3)
    x = np.linspace(-0.5, 1.0, 27).reshape(3, 3, 3) ** 2
    graph = cg.function(cg.grad(lambda x: cnp.sum(cnp.sin(updated(x)[0])))).graph(x)
    results, entries, _ = recorded_run(monkeypatch, graph, [x], limit, 0.3)
    assert_same(results, on_reference(graph, [x]), 1e-11)
    assert Judge().judge(entries) > 100


@pytest.mark.parametrize("method", ["max", "min", "multiply", "divide", "power"])
def test_a_loop_over_positions_that_repeat(method: str) -> None:
    """Updates other than set and add combine position by position, in a loop of their own."""
    fn = lambda x, i, v: getattr(cnp.at(x)[i], method)(v)
    x, value = np.linspace(0.5, 2.0, 12).reshape(4, 3), np.linspace(0.7, 1.6, 18).reshape(6, 3)
    index = np.array([0, 3, 3, -4, 1, 3])
    assert launching_of(fn, x, index, value)[0].startswith("from a list")
    assert all_from_lists(lambda *given: cnp.sum(cnp.sin(fn(*given))), x, index, value)


def set_in_rows(x: Any, k: Any) -> Any:
    """The gradient reads and clears an element of each row that it pops, by a number of the host's."""
    rows = cg.scan(lambda c, v: (c * 1.1, cnp.at(c)[k].set(v * c[0])), x, x)[1]
    return cnp.sum(rows**2 * np.arange(1.0, 10.0).reshape(3, 3))


def set_further_on(x: Any, k: Any) -> Any:
    """The number moves with the iterations."""
    return cnp.sum(cg.fori_loop(0, 3, lambda i, c: cnp.sin(cnp.at(c * 1.1)[(i + k) % 3].set(c[k] * x[0])), x))


@pytest.mark.parametrize("k", [0, 1, 2])
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("fn", [set_in_rows, set_further_on])
def test_an_element_of_a_popped_row_by_a_number_of_the_host(fn: Callable[..., Any], order: int, k: int) -> None:
    """Found: a row's address was without what the host's numbers add to it; its first element was read."""
    slope = cg.grad(fn)
    derivative = slope if order == 1 else cg.grad(lambda x, k: cnp.sum(slope(x, k) ** 2))
    x = np.array([1.5, 1.06, -0.85])
    graph = cg.function(derivative).graph(x, np.int64(k))
    ran = on_stand_in(graph, [x, np.int64(k)])
    assert ran.counts.runs
    assert_same(ran.results, on_reference(graph, [x, np.int64(k)]), 1e-12)
