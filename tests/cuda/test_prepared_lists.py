"""Lists of launches in memory: kept from run to run, with buffers as long as a run lasts that share what they can."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.stand_in import StandIn, StandInDevice
from instruments.stand_in_runs import LIBRARY, on_reference, on_stand_in

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import memory, nn
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda.engine import run_with
from ctrlgrad.engines.cuda.prepared import placement
from ctrlgrad.engines.cuda.prepared.binding import Binding
from ctrlgrad.engines.cuda.prepared.entries import LaunchList
from ctrlgrad.engines.cuda.prepared.model import Buffer, Carried, View, all_launches
from ctrlgrad.engines.cuda.prepared.placement import accesses, alignment, placed
from ctrlgrad.engines.cuda.prepared.reading import Launches
from ctrlgrad.engines.cuda.prepared.runner import Iterations
from ctrlgrad.engines.cuda.program import Context
from ctrlgrad.ir import Graph

X = np.linspace(-0.5, 1.0, 9).reshape(3, 3)


def nested(x: Any, k: Any) -> Any:
    """A loop that runs in each iteration of another one, which has no list, on other arrays and numbers; its own
    result goes on."""

    def outer(i: Any, c: Any) -> Any:
        y, total = c
        w = cnp.sin(y) + x[0]
        found = cg.fori_loop(0, 3, lambda j, z: cnp.tanh(z @ w) * k + w * j + i, y)
        return cnp.linalg.solve(2.0 * np.eye(3), found), total + found

    return cg.fori_loop(0, 4, outer, (x, x * 0.0))


def loss(x: Any, k: Any) -> Any:
    return sum(cnp.sum(cnp.sin(y)) for y in nested(x, k))


@pytest.fixture
def bindings(monkeypatch: pytest.MonkeyPatch) -> list[Binding]:
    """All lists that are written."""
    found: list[Binding] = []
    init = Binding.__init__

    def noted(self: Binding, *args: Any) -> None:
        found.append(self)
        init(self, *args)

    monkeypatch.setattr(Binding, "__init__", noted)
    return found


def agrees(graph: Graph, arguments: Any, library: StandIn) -> int:
    """Check a run against the reference engine; return its number of runs of iterations."""
    ran = on_stand_in(graph, arguments, library=library)
    assert_same(ran.results, on_reference(graph, arguments), 1e-9)
    return ran.counts.runs


def test_a_list_is_kept_from_run_to_run(bindings: list[Binding]) -> None:
    """Of an inner loop, and of the next call, whose captures lie elsewhere and whose numbers differ."""
    library = StandIn()
    graph = cg.function(cg.grad(loss)).graph(X, np.float64(0.7))
    inner = agrees(graph, [X, np.float64(0.7)], library)
    lists = len(bindings)
    assert inner >= 4 + 4 and lists < inner
    for number in (1.3, -0.4):
        agrees(graph, [X + number, np.float64(number)], library)
    assert len(bindings) == lists


def test_a_list_that_no_loop_runs_has_no_memory(bindings: list[Binding]) -> None:
    gc.collect()
    graph = cg.function(loss).graph(X, np.float64(0.7))
    with memory.budget(device=1 << 20, devices={LIBRARY.name: StandInDevice()}) as session:
        for _ in range(2):
            run_with(Context(LIBRARY), optimised_graph(graph, is_for_gpu=True), [X, np.float64(0.7)])
            manager = session.manager(LIBRARY.name)
            # Work left by finalizers is done with the next request.
            manager.allocate((1,), np.dtype(np.uint8), "something").release()
            manager.arena.sweep(0)
            assert not any(manager.accounts[0].kinds.values()), manager.accounts[0].show()
    assert bindings and not any(b._given or b.carried or b._memory for b in bindings)


def keeps_old_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but what is set for the first time stays as it was."""
    set_word = LaunchList.set
    monkeypatch.setattr(
        LaunchList, "set", lambda self, what, word: None if self._now[what] else set_word(self, what, word)
    )


def overlaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_meet", lambda a, b: a[0] < 0 or b[0] < 0)


@pytest.mark.parametrize("mistake", [keeps_old_addresses, overlaps])
def test_mistakes_are_found(mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    library, arguments = StandIn(), [X, np.float64(0.7)]
    graph = cg.function(cg.grad(loss)).graph(*arguments)
    mistake(monkeypatch)
    with pytest.raises(Exception):  # noqa: B017 (whatever goes wrong first)
        for _ in range(2):
            agrees(graph, arguments, library)


@pytest.mark.parametrize("seed", range(20))
def test_live_buffers_do_not_overlap(seed: int) -> None:
    rng = np.random.default_rng(seed)
    launches, dtype, end = Launches(), np.dtype(np.float32), 24
    shapes = [(int(rng.integers(1, 400)),) for _ in range(12)]
    views = [launches.buffer(shape, dtype) for shape in shapes]
    views += [View(Carried(k), dtype, (int(rng.integers(1, 400)),), (4,)) for k in range(4)]
    for _ in range(end):
        launches.product(*(views[int(rng.integers(len(views)))] for _ in range(3)), False)
    found = placed(launches.items, launches.buffers, lambda source: source)
    spans: dict[Any, list[int]] = {}
    for position, launch in enumerate(all_launches(launches.items)):
        for view in itertools.chain(*accesses(launch)):
            if isinstance(view.source, Buffer):
                spans.setdefault(view.source, []).append(position)
    spans[Buffer(0)] = [-1, end]
    rooms: dict[Any, tuple[int, int]] = {}
    for source in spans:
        ((size,), its_dtype), place = launches.buffers[source.number], found.places[source.number]
        assert place is not None and place[0] == Buffer(0) and place[1] % alignment(size * its_dtype.itemsize) == 0
        rooms[source] = place[1], place[1] + size * its_dtype.itemsize
        assert rooms[source][1] <= found.nbytes
    assert rooms[Buffer(0)][0] == 0
    for a, b in itertools.combinations(spans, 2):
        if min(spans[a]) <= max(spans[b]) and min(spans[b]) <= max(spans[a]):
            assert rooms[a][1] <= rooms[b][0] or rooms[b][1] <= rooms[a][0]


def normed(params: Any, state: Any, x: Any) -> Any:
    h, c = nn.lstm_cell(params, state, x)
    return nn.layer_norm(h), nn.layer_norm(c)


@pytest.mark.parametrize(
    ("init", "cell", "count"),
    [(nn.rnn_init, nn.rnn_cell, 1), (nn.gru_init, nn.gru_cell, 1), (nn.lstm_init, normed, 2)],
)
def test_a_list_needs_hardly_more_memory_than_step_by_step(
    init: Callable[..., Any], cell: Callable[..., Any], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most 5 % more at the peak: words lie beside temporaries."""
    rng = np.random.default_rng(0)
    params, xs = init(cg.random.key(0), 32, 64, np.float32), rng.normal(size=(6, 48, 32)).astype(np.float32)

    def loss(params: Any, xs: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            state = cell(params, state, x)
            return state, state[0]

        return cnp.sum(cg.scan(step, (np.zeros((48, 64), np.float32),) * count, xs)[1] ** 2)

    graph, leaves = optimised_graph(cg.function(loss).graph(params, xs), is_for_gpu=True), cg.tree.leaves((params, xs))

    def peak() -> int:
        context = Context(LIBRARY)
        with memory.budget(device=1 << 24, devices={LIBRARY.name: StandInDevice()}) as session:
            run_with(context, graph, leaves)
            assert bool(context.counts.runs) == is_prepared
            return session.manager(LIBRARY.name).accounts[0].peak

    is_prepared = True
    prepared = peak()
    monkeypatch.setattr(Iterations, "_count", lambda self, form, most: 0)
    is_prepared = False
    assert prepared <= 1.05 * peak()
