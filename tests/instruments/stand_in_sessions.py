"""Runs of graphs on the stand-in in a session."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ctrlgrad import memory
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda.engine import run_with
from ctrlgrad.engines.cuda.program import Context, Counts
from ctrlgrad.errors import MemoryBudgetError
from ctrlgrad.ir import Graph
from ctrlgrad.memory.manager import LoopMemory, Manager
from instruments.comparing import assert_same_bits
from instruments.sessions import check_actions
from instruments.stand_in import StandInArray, StandInDevice
from instruments.stand_in_runs import LIBRARY


def run_within(
    limit: int | None, graph: Graph, arguments: list[Any], kinds: str = "", device: StandInDevice | None = None
) -> tuple[list[Any], Manager]:
    """The results under a budget, arguments of some dtype kinds being on the device from the start; and the manager.

    Whatever the manager did has been checked, and given back.
    """
    given = [StandInArray(np.array(x)) if np.asarray(x).dtype.kind in kinds else x for x in arguments]
    devices = {LIBRARY.name: device or StandInDevice()}
    with memory.profile() as recording, memory.budget(device=limit, devices=devices) as session:
        results = run_with(Context(LIBRARY), optimised_graph(graph, is_for_gpu=True), given)
        manager = session.manager(LIBRARY.name)
    check_actions(recording, manager)
    kinds_in_use = manager.accounts[0].kinds
    assert not kinds_in_use["blocks"] and not kinds_in_use["entry states"] and not manager.index, kinds_in_use
    return results, manager


def unlimited(graph: Graph, arguments: list[Any]) -> list[Any]:
    return run_with(Context(LIBRARY), optimised_graph(graph, is_for_gpu=True), arguments)


def counts_of(graph: Graph, arguments: list[Any], limit: int | None = None) -> Counts:
    context = Context(LIBRARY)
    with memory.budget(device=limit, devices={LIBRARY.name: StandInDevice()}):
        run_with(context, optimised_graph(graph, is_for_gpu=True), arguments)
    return context.counts


# Policy asked of every loop; None: the program's own, which has none.
SWAP, RECOMPUTE, FREE = "swapping", "recomputing", "as the planner likes"


def force(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Ask for a way in the place of every loop's user."""
    loop = Manager.loop

    def forced(self: Manager, label: str, *, recompute: Any, **_: Any) -> LoopMemory:
        again = way == RECOMPUTE and recompute is not None
        return loop(self, label, swap=way == SWAP or None, checkpoint=True if again else None, recompute=recompute)

    if way != FREE:
        monkeypatch.setattr(Manager, "loop", forced)


def same_in_sessions(monkeypatch: pytest.MonkeyPatch, way: str, graph: Graph, arguments: list[Any]) -> None:
    """The same bits with a session as without one, and with less and less memory, as long as it is enough."""
    expected = unlimited(graph, arguments)
    force(monkeypatch, way)
    results, manager = run_within(None, graph, arguments)
    assert_same_bits(results, expected)
    for share in (4, 3, 2):
        try:
            results, manager = run_within(manager.stats.peak_bytes["device"] * share // 5, graph, arguments)
        except MemoryBudgetError:
            return
        assert_same_bits(results, expected)
