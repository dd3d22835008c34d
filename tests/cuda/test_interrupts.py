"""Ctrl-C while the card works: it is raised soon, the card has little left to do, and the next call works."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.graph_loops import rnn
from instruments.stand_in import StandIn, StandInArray, StandInDevice
from instruments.stand_in_runs import on_reference, on_stand_in

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import memory
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda import program
from ctrlgrad.engines.cuda.engine import run_with
from ctrlgrad.engines.cuda.prepared import graphs, runner
from ctrlgrad.engines.cuda.reductions import KernelSpec, without_reductions

X = np.linspace(0.1, 1.0, 5)
# Turns after which a test gives up: what is to end has not ended.
TOO_MANY = 3000


def within(x: Any, limit: Any) -> Any:
    """A loop inside ends where the numbers say so: below a limit of zero, never."""
    inner = lambda y: cg.while_loop(lambda y: cnp.sum(y * y) > limit, lambda y: y * 0.9 + 0.01, y)
    return cg.fori_loop(0, 24, lambda i, y: inner(y) + 1.0, x)


def outermost(x: Any, limit: Any) -> Any:
    return cg.while_loop(lambda y: cnp.sum(y * y) > limit, lambda y: y * 0.9 + 0.01, x)


def counted(x: Any, limit: Any) -> Any:
    """As often as the host knows."""
    return cg.fori_loop(0, 2000, lambda i, y: y * 0.9 + limit, x)


def saving(x: Any, limit: Any) -> Any:
    """Rows are pushed as often as the data says: the card ends runs, and says behind each how many there are."""
    return cg.grad(lambda x: cnp.sum(within(x, limit) ** 2))(x)


class Interrupted:
    """A host that is interrupted when while nodes have had so many turns: it is seen where it next waits."""

    def __init__(self, library: StandIn, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.library, self.after, self.turns, self.stopped = library, after, 0, False
        self.stop, self.number = library.stop, 0
        library.driver.graph_calls.meanwhile = self.turn
        monkeypatch.setattr(library, "wait", self.wait)
        monkeypatch.setattr(library, "stop", self.asked)
        made = program.Context.__init__

        def noted(its: program.Context, *given: Any, **options: Any) -> None:
            made(its, *given, **options)
            self.number = its.run_number

        monkeypatch.setattr(program.Context, "__init__", noted)

    def turn(self) -> None:
        self.turns += 1
        if self.turns == self.after:
            # The host is ahead of the card, which works on: what the engine does then happens here.
            self.stop(self.number)
        assert self.turns < TOO_MANY, "the card goes on"

    def wait(self, event: Any) -> None:
        if self.after <= self.turns and not self.stopped:
            raise KeyboardInterrupt

    def asked(self, run: int) -> None:
        assert run == self.number
        self.stopped = True


def interrupt(fn: Callable[..., Any], library: StandIn, monkeypatch: pytest.MonkeyPatch, after: int = 100) -> None:
    graph = cg.function(fn).graph(X, 1.0)
    # More graphs than are in flight at once.
    monkeypatch.setattr(runner, "LONGEST_RUN", 400)
    # A list is gone through before there is a graph of it.
    on_stand_in(graph, [X, 1.0], "f", library=library)
    with monkeypatch.context() as patched:
        host = Interrupted(library, after, patched)
        try:
            with pytest.raises(KeyboardInterrupt):
                on_stand_in(graph, [X, -1.0], "f", library=library)
        finally:
            library.driver.graph_calls.meanwhile = lambda: None
    assert host.stopped and host.turns <= host.after + 4
    # The next call is not stopped, and its graph is that of this one.
    ran = on_stand_in(graph, [X, 1.0], "f", library=library)
    assert_same(ran.results, on_reference(graph, [X, 1.0]), 1e-9)


@pytest.mark.parametrize("fn", [within, outermost, counted, saving])
def test_a_loop_that_goes_on_for_long_is_stopped(fn: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    library = StandIn()
    interrupt(fn, library, monkeypatch)
    gc.collect()
    graphs_made = library.driver.graph_calls.calls["cuGraphInstantiateWithFlags"]
    assert graphs_made and library.driver.graph_calls.turns


def test_memory_of_a_budget_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    library = StandIn()
    with memory.budget(device=1 << 16, devices={library.name: StandInDevice()}) as session:
        manager, used = session.manager(library.name), list[int]()
        on_stand_in(cg.function(saving).graph(X, 1.0), [X, 1.0], "f", library=library)
        gc.collect()
        used.append(manager.accounts[0].used)
        for _ in range(3):
            interrupt(saving, library, monkeypatch)
            gc.collect()
            used.append(manager.accounts[0].used)
    # Objects that a session holds in any case.
    assert len(set(used)) == 1


def test_few_graphs_are_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A counted loop is launched ahead of the card, but not far."""
    library, waits = StandIn(), list[int]()
    monkeypatch.setattr(runner, "LONGEST_RUN", 32)
    launched = library.driver.graph_calls.calls
    monkeypatch.setattr(library, "mark", lambda: launched["cuGraphLaunch"])

    def wait(event: int) -> None:
        assert launched["cuGraphLaunch"] - event <= program.MOST_IN_FLIGHT
        waits.append(event)

    monkeypatch.setattr(library, "wait", wait)
    graph = cg.function(lambda x: cg.fori_loop(0, 32 * 20, lambda i, y: y * 0.5 + i, x)).graph(X)
    ran = on_stand_in(graph, [X], "f", library=library)
    assert_same(ran.results, on_reference(graph, [X]), 1e-12)
    assert waits == list(range(1, ran.counts.graphs - program.MOST_IN_FLIGHT + 1)) and len(waits) > 12


def test_another_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph is the same, and the word says which run is to end."""
    library = StandIn()
    graph, arguments = rnn(40)
    for _ in range(2):
        library.stop(1 << 40)
        assert_same(on_stand_in(graph, arguments, library=library).results, on_reference(graph, arguments), 1e-9)
    assert sum(library.driver.graph_calls.turns) > 4 * 16


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_error_stops_the_graphs_of_its_run_alone(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    library, stopped = StandIn(), list[int]()
    graph = cg.function(lambda x: cnp.flip(cg.fori_loop(0, 90, lambda i, y: y * 0.5, x))).graph(X)
    its = program.Context(library)

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(library, "stop", stopped.append)
    monkeypatch.setattr(program.Context, "launched_graph", lambda self, is_endless: (self.in_flight.append(0), fail()))
    with pytest.raises(error):
        run_with(its, optimised_graph(graph, is_for_gpu=True), [StandInArray(X)])
    assert stopped == [its.run_number]


# Mistakes.


def a_node_does_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(numbers: Sequence[int]) -> KernelSpec:
        its = choice(numbers)
        operation = its.text.element.operation.replace("(a1 != a2)", "true")
        return replace(its, text=without_reductions(replace(its.text.element, operation=operation)))

    choice = graphs.choice
    monkeypatch.setattr(graphs, "choice", blind)


@pytest.mark.parametrize(
    ("mistake", "fn"),
    [
        (a_node_does_not_look, within),
        (a_node_does_not_look, outermost),
        (a_node_does_not_look, counted),
    ],
)
def test_mistakes_show(
    mistake: Callable[[pytest.MonkeyPatch], None], fn: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        interrupt(fn, StandIn(), monkeypatch)
