"""Graphs with products stay from call to call where a pool gives the same memory again."""

from __future__ import annotations

import gc
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.stand_in import StandIn, StandInArray
from instruments.stand_in_runs import on_reference

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda import stacks
from ctrlgrad.engines.cuda.engine import explain_on, run_with
from ctrlgrad.engines.cuda.prepared import binding
from ctrlgrad.engines.cuda.prepared.binding import Binding
from ctrlgrad.engines.cuda.program import Context
from ctrlgrad.ir import Graph, interning


class _Returned:
    """Held by an array: its memory goes back when it dies."""

    def __init__(self, free: list[np.ndarray], memory: np.ndarray) -> None:
        self.free, self.memory = free, memory

    def __del__(self) -> None:
        self.free.append(self.memory)


class Pooled(StandIn):
    """A pool that hands out, of the free blocks of a size, the one with the lowest address."""

    def __init__(self) -> None:
        super().__init__()
        self.free: dict[int, list[np.ndarray]] = defaultdict(list)

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> StandInArray:
        self.driver.graph_calls.forbid("allocation")
        size = math.prod(shape) * dtype.itemsize
        free = self.free[size]
        free.sort(key=lambda memory: memory.ctypes.data)
        memory = free.pop(0) if free else np.empty(max(size, 1), np.uint8)
        memory.fill(113)
        return StandInArray(memory[:size].view(dtype).reshape(tuple(shape)), held=_Returned(free, memory))

    @property
    def xp(self) -> Any:
        return _PooledNamespace(self, super().xp)


class _PooledNamespace:
    """NumPy's functions, whose results lie in memory of the pool too."""

    def __init__(self, library: Pooled, functions: Any) -> None:
        self._library, self._functions = library, functions

    def __getattr__(self, name: str) -> Any:
        def function(*given: Any, **options: Any) -> Any:
            found = getattr(self._functions, name)(*given, **options)
            if not isinstance(found, StandInArray) or found.base is not None:
                return found
            pooled = self._library.empty(found.shape, found.dtype)
            pooled.data[...] = found.data
            return pooled

        return function


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Pooled:
    monkeypatch.setattr(stacks, "LEAST_ROWS", 256)
    return Pooled()


def gradients(steps: int | None = 40) -> tuple[Graph, list[np.ndarray]]:
    """Of a recurrent network, whose state begins with what is computed; None: of any length."""

    def loss(w: Any, u: Any, x: Any) -> Any:
        return cnp.sum(cg.fori_loop(0, x.shape[0], lambda t, h: cnp.tanh(x[t] @ w + h @ u), x[0, :, :3] * 0.5) ** 2)

    rng = np.random.default_rng(0)
    arguments = [rng.normal(size=(4, 3)) * 0.3, rng.normal(size=(3, 3)) * 0.3, rng.normal(size=(40, 2, 4))]
    shapes = [*(x.shape for x in arguments[:2]), (steps, 2, 4)]
    specs = tuple(cg.TensorSpec(shape, np.float64) for shape in shapes)
    graph = cg.function(cg.value_and_grad(loss, argnums=(0, 1, 2)), signature=specs).graph(*arguments)
    return optimised_graph(graph, is_for_gpu=True), arguments


class Calls:
    """The same program again and again, on the same arrays of a card with other numbers in them."""

    def __init__(self, library: Pooled) -> None:
        self.library = library
        self.graph, self.arguments = gradients()
        with library.running():
            self.given = [library.upload(x) for x in self.arguments]

        # The first call takes memory that the second one finds in the pool's order.
        self.first = [self(), self()]

    def __call__(self) -> int:
        """Number of graphs made."""
        before = self.library.driver.graph_calls.calls["cuGraphInstantiateWithFlags"]
        for x, its in zip(self.arguments, self.given, strict=True):
            x *= 1.1
            its.data[...] = x
        context = Context(self.library)
        found = run_with(context, self.graph, self.given)
        assert_same(found, on_reference(self.graph, self.arguments), 1e-9)
        assert context.counts.graphs == 2
        return self.library.driver.graph_calls.calls["cuGraphInstantiateWithFlags"] - before


def test_a_graph_with_products_is_not_made_again(library: Pooled) -> None:
    """Graphs of both loops are kept although other arrays used their memory in between."""
    calls = Calls(library)
    assert calls.first[0] == 2 and [calls() for _ in range(3)] == [0, 0, 0]
    # Between two calls they have no memory.
    assert len(library.free[library.driver.workspace_bytes]) >= 1


def test_where_the_workspace_has_moved_it_is_made_again(library: Pooled) -> None:
    calls = Calls(library)
    assert calls() == 0
    with library.running():
        others = [library.empty((library.driver.workspace_bytes,), np.dtype(np.uint8)) for _ in range(2)]
    assert [calls(), calls()] == [2, 0]
    assert len(others) == 2


def test_where_what_it_reads_has_moved_it_is_made_again(library: Pooled) -> None:
    calls = Calls(library)
    assert calls() == 0
    with library.running():
        calls.given = [library.upload(x) for x in calls.arguments]
    assert [calls(), calls()] == [2, 0]


def test_calls_that_alternate_find_their_graphs(library: Pooled) -> None:
    """By the addresses of their arrays; of more of them than are kept the one that was asked for longest ago goes."""
    calls = Calls(library)
    with library.running():
        places = [calls.given] + [[library.upload(x) for x in calls.arguments] for _ in range(binding.GRAPHS)]

    def made(order: Sequence[int]) -> list[int]:
        found = []
        for place in order:
            calls.given = places[place]
            found.append(calls())
        return found

    assert made([1, 0, 1, 0, 1]) == [2, 0, 0, 0, 0]
    assert made([2, 3, 0, 1, 2, 3]) == [2, 2, 0, 0, 0, 0]
    # The fifth takes the place of the first, which was asked for longest ago.
    assert made([4, 1, 2, 3, 0]) == [2, 0, 0, 0, 2]
    gc.collect()
    assert library.driver.graph_calls.alive == 2 * binding.GRAPHS
    report = str(explain_on(library, calls.graph, places[3]))
    assert report.count(f"in a graph, one of {binding.GRAPHS} that are kept") == 2
    del report
    places.clear()
    calls.__dict__.clear()
    # Nor does a later trace find the graph, which a function may be traced to again.
    interning.forget()
    gc.collect()
    assert not library.driver.graph_calls.alive


def test_calls_that_alternate_between_sizes_find_their_graphs(library: Pooled) -> None:
    """A size is another list."""
    graph, arguments = gradients(None)
    instantiated = library.driver.graph_calls.calls
    sizes: dict[int, list[np.ndarray]] = {
        steps: [*arguments[:2], np.linspace(-1.0, 1.0, steps * 8).reshape(steps, 2, 4)] for steps in (40, 60)
    }
    with library.running():
        lying = {steps: [library.upload(x) for x in its] for steps, its in sizes.items()}
    found = []
    for steps in (40, 60) * 4:
        before = instantiated["cuGraphInstantiateWithFlags"]
        context = Context(library)
        assert_same(run_with(context, graph, lying[steps]), on_reference(graph, sizes[steps]), 1e-9)
        assert context.counts.graphs == 2
        found.append(instantiated["cuGraphInstantiateWithFlags"] - before)
    assert found[:2] == [2, 2] and found[-4:] == [0] * 4


def the_first_graph_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the addresses are."""

    def has_graph(self: Binding) -> bool:
        self._have_workspace()
        self.graph = next(iter(self._graphs.values()), None)
        return self.graph is not None

    monkeypatch.setattr(Binding, "has_graph", has_graph)


def test_a_graph_of_other_addresses_shows(library: Pooled, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(library)
    the_first_graph_is_taken(monkeypatch)
    with library.running():
        calls.given = [library.upload(x) for x in calls.arguments]
    with pytest.raises(AssertionError):
        calls()


def workspace_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def has_graph(self: Binding) -> bool:
        self._have_workspace()
        self.graph = next((its for (state, _), its in self._graphs.items() if state == self.list.state), None)
        return self.graph is not None

    monkeypatch.setattr(Binding, "has_graph", has_graph)


def workspace_is_not_had(monkeypatch: pytest.MonkeyPatch) -> None:
    have = Binding._have_workspace

    def before(self: Binding) -> int:
        return have(self) if not self._graphs else next(reversed(self._graphs))[1]

    monkeypatch.setattr(Binding, "_have_workspace", before)


@pytest.mark.parametrize("mistake", [workspace_is_not_looked_at, workspace_is_not_had])
def test_a_workspace_that_is_somebody_elses_shows(
    mistake: Callable[[pytest.MonkeyPatch], None], library: Pooled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph computes in memory that it was made with: the record of a launch says so."""
    calls = Calls(library)
    with library.running():
        size = library.driver.workspace_bytes
        others = [library.empty((size,), np.dtype(np.uint8)) for _ in range(2)]
        taken = {library.address(x) for x in others}
    mistake(monkeypatch)
    seen: set[int] = set()
    array = library.driver._array

    def named(address: int, dtype: str, shape: Sequence[int], strides: Sequence[int]) -> np.ndarray:
        seen.add(address)
        return array(address, dtype, shape, strides)

    monkeypatch.setattr(library.driver, "_array", named)
    calls()
    assert seen & taken
