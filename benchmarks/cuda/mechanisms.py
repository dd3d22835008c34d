"""One small program for each thing that the engine does with a loop, held against the reference engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from benchmarks.agreement import difference
from benchmarks.cuda.results import Check
from ctrlgrad import memory, tree
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda.engine import explain_on, run_with
from ctrlgrad.engines.cuda.library import ArrayLibrary
from ctrlgrad.engines.cuda.program import Context
from ctrlgrad.errors import IndexOutOfRangeError
from ctrlgrad.execution import run_on
from ctrlgrad.ir import Graph
from ctrlgrad.memory.devices.device import Device

# Iterations: of a list, of a graph, and of loops whose saved values do not fit.
FEW, MANY, LONG = 8, 60, 300
# The elements of an array that each iteration of a long loop saves, the bytes of the device's budget, and the same in
# small.
SAVED, TINY_SAVED = (1 << 14, 4 << 20), (64, 16 << 10)


@dataclass(frozen=True)
class Mechanism:
    """A function and its arguments; how far results may be off, and whether its loops are graphs."""

    name: str
    fn: Callable[..., Any]
    arguments: tuple[Any, ...]
    tolerance: float = 1e-9
    has_graphs: bool = False


def mechanisms() -> list[Mechanism]:
    """Return the mechanisms; each uses only mechanisms that stand before it."""
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(5, 8)), rng.normal(size=(8, 8)) / 4
    single = x.astype(np.float32), w.astype(np.float32)
    rows, index = rng.normal(size=(MANY, 5, 8)), rng.integers(0, 5, MANY)
    recurrent = cg.value_and_grad(_recurrent, argnums=(0, 1))
    counted = np.array([float(MANY + 1), 0.3])
    return [
        Mechanism("kernels and reductions", _kernels, (x,)),
        Mechanism("products", lambda x, w: (x @ w, cnp.stack([x, x]) @ w, x.T @ x), (x, w)),
        Mechanism("products of float32", lambda x, w: x @ w, single, 1e-5),
        Mechanism("half floats", _half, single, 0.05),
        Mechanism("running sums", lambda x: np.cumsum(x, axis=0), (rng.normal(size=(3000, 2)),)),
        Mechanism("updates by index", _updates, (x, index)),
        Mechanism("a list", recurrent, (w, rows[:FEW])),
        Mechanism("a graph", recurrent, (w, rows), has_graphs=True),
        Mechanism("a graph that asks a predicate", cg.value_and_grad(_asking), (counted,), has_graphs=True),
        Mechanism("branches", cg.value_and_grad(_branching), (x,), has_graphs=True),
        Mechanism("a loop inside", cg.value_and_grad(_nested), (x,), has_graphs=True),
        Mechanism("a loop inside that ends by data", cg.value_and_grad(_nested_asking), (x,), has_graphs=True),
        Mechanism("rows that a loop reads and writes", _rows, (x, index), has_graphs=True),
    ]


def _kernels(x: Any) -> Any:
    return np.sin(x) * np.exp(-x), np.sum(x * x, axis=0), np.max(x), np.argmax(x, axis=1), np.tanh(np.mean(x))


def _half(x: Any, w: Any) -> Any:
    return tuple((np.tanh(x.astype(d)) @ w.astype(d)).astype("float32") for d in ("float16", "bfloat16"))


def _updates(x: Any, index: Any) -> Any:
    return x[index], x.at[index].add(x[index] * 0.5), x.at[index].set(1.0)


def _recurrent(w: Any, rows: Any) -> Any:
    step = lambda t, h: np.tanh(rows[t] + h @ w)
    return np.sum(cg.fori_loop(0, rows.shape[0], step, rows[0] * 0.5) ** 2)


def _asking(x: Any) -> Any:
    body = lambda c: (c[0] - 1.0, np.sin(c[1] * 1.1) + c[1] * 0.5)
    return np.sum(cg.while_loop(lambda c: c[0][0] > 0.5, body, (x, x * 0.01))[1] ** 2)


def _branching(x: Any) -> Any:
    turn = lambda i, y: cg.cond(np.sum(y) > 0.0, lambda y: np.sin(y) - 0.1, lambda y: y * 0.9 + 0.1, y)
    return np.sum(cg.fori_loop(0, MANY, turn, x) ** 2)


def _nested(x: Any) -> Any:
    inside = lambda j, y: np.sin(y) * 1.01
    return np.sum(cg.fori_loop(0, MANY, lambda i, y: cg.fori_loop(0, 3, inside, y * 0.99), x) ** 2)


def _nested_asking(x: Any) -> Any:
    inside = lambda y: cg.while_loop(lambda y: np.sum(y * y) > 1.0, lambda y: y * 0.9, y)
    return np.sum(cg.fori_loop(0, MANY, lambda i, y: inside(np.sin(y) + y), x) ** 2)


def _rows(x: Any, index: Any) -> Any:
    turn = lambda t, table: table.at[index[t]].add(np.tanh(table[index[t]]))
    return cg.fori_loop(0, MANY, turn, x)


def check(library: ArrayLibrary, its: Mechanism) -> Check:
    """Run it twice: the second time nothing is compiled, and graphs are launched that the first one made."""
    found = Check(its.name)
    graph, leaves = cg.function(its.fn).graph(*its.arguments), tree.leaves(its.arguments)
    expected, optimised = run_on("reference", graph, leaves), optimised_graph(graph)
    for _ in range(2):
        context, start = Context(library), time.perf_counter()
        results = run_with(context, optimised, leaves)
        found.seconds = time.perf_counter() - start
        found.graphs = context.counts.graphs
        _compare(found, results, expected, its.tolerance)
    if its.has_graphs and not found.graphs:
        loops = explain_on(library, optimised, leaves).all_loops()
        _fail(found, "no graph: " + "; ".join(loop.launching for loop in loops))
    return found


def _compare(found: Check, results: Sequence[Any], expected: Sequence[Any], tolerance: float) -> None:
    here, there = ({str(n): np.asarray(x) for n, x in enumerate(xs)} for xs in (results, expected))
    off, which = difference(here, there)
    found.difference = max(off, found.difference or 0.0)
    if not off <= tolerance:
        _fail(found, f"result {which} differs by more than {tolerance:.0e}")


def _fail(found: Check, reason: str) -> None:
    found.has_failed, found.note = True, "; ".join(filter(None, [found.note, reason]))


def check_bad_index(library: ArrayLibrary) -> Check:
    """An index out of range, that the card finds in a graph, is the error that names the iteration."""
    found, table = Check("an index out of range"), np.arange(12.0)
    index = np.where(np.arange(MANY) == MANY - 10, len(table), 3)
    fn = lambda x, index: cg.fori_loop(0, MANY, lambda t, total: total + x[index[t]], 0.0)
    graph = cg.function(fn).graph(table, index)
    start = time.perf_counter()
    try:
        run_with(Context(library), optimised_graph(graph), [table, index])
        _fail(found, "no error was raised")
    except IndexOutOfRangeError as error:
        found.note = error.problem
    found.seconds = time.perf_counter() - start
    return found


def check_budget(library: ArrayLibrary, way: str, devices: Mapping[str, Device] | None, is_tiny: bool) -> Check:
    """A loop whose saved values do not fit in the budget is swapped, or runs again."""
    size, limit = TINY_SAVED if is_tiny else SAVED
    found, x = Check(f"saved values are {way}"), np.linspace(-1.0, 1.0, size)

    def graph_of(**options: bool) -> Graph:
        def loss(x: Any) -> Any:
            body = lambda c: (c[0] + 1, np.sin(c[1]) * 1.01)
            return np.sum(cg.while_loop(lambda c: c[0] < LONG, body, (0, x), **options)[1] ** 2)

        return cg.function(cg.value_and_grad(loss)).graph(x)

    expected = run_on("reference", graph_of(), [x])
    graph = graph_of(swap_memory=True) if way == "swapped" else graph_of(checkpoint=True)
    start = time.perf_counter()
    with memory.budget(device=limit, devices=devices) as session:
        context = Context(library)
        results = run_with(context, optimised_graph(graph), [x])
        stats = session.manager(library.name).stats
    found.seconds, found.graphs = time.perf_counter() - start, context.counts.graphs
    _compare(found, results, expected, 1e-9)
    count = stats.copies_out if way == "swapped" else stats.recomputed_chunks
    found.note = f"{count} {'copies' if way == 'swapped' else 'chunks'}, {stats.peak_bytes['device']} bytes at most"
    if not count or stats.peak_bytes["device"] > limit:
        _fail(found, "which is not what was asked for")
    return found


def all_checks(
    library: ArrayLibrary, devices: Callable[[], Mapping[str, Device] | None], is_tiny: bool
) -> list[tuple[str, Callable[[], Check]]]:
    """What makes each check, by its name."""
    found: list[tuple[str, Callable[[], Check]]] = [(its.name, partial(check, library, its)) for its in mechanisms()]
    found.append(("an index out of range", lambda: check_bad_index(library)))
    for way in ("swapped", "run again"):
        name = f"saved values are {way}"
        found.append((name, lambda way=way: check_budget(library, way, devices(), is_tiny)))  # type: ignore[misc]
    return found


__all__ = ["all_checks"]
