"""Recorded runs under budgets: every wait that is needed is there, and the judge misses none that is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.order import Entry, Judge, OrderError
from instruments.recorded import recorded_run
from instruments.stand_in_runs import on_reference
from instruments.stand_in_sessions import RECOMPUTE, SWAP, force
from programs import BY_NAME

import ctrlgrad as cg
from ctrlgrad.engines.cuda.prepared.runner import Body, Iterations
from ctrlgrad.errors import MemoryBudgetError

X = np.linspace(-1.0, 1.0, 64)


def swapped(x: Any, n: Any) -> Any:
    loop = cg.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, np.tanh(c[1]) * 1.1), (0, x), swap_memory=True)
    return np.sum(np.square(loop[1]))


@pytest.fixture(params=[0.0, 0.1, 0.3], ids="haste {}".format)
def record(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, short_chunks: None) -> list[Entry]:
    """Of the gradient of a loop whose values are swapped, forwards and backwards."""
    arguments = [X, np.int64(40)]
    graph = cg.function(cg.grad(swapped)).graph(*arguments)
    results, entries, stats = recorded_run(monkeypatch, graph, arguments, 8 << 10, request.param)
    assert_same(results, on_reference(graph, arguments), 1e-11)
    assert stats.copies_out > 4 and stats.bytes_in > 0
    return entries


def test_a_loop_whose_prepared_buffers_do_not_fit_runs_step_by_step(
    monkeypatch: pytest.MonkeyPatch, short_chunks: None
) -> None:
    """With the same results, and `explain` says why."""
    force(monkeypatch, SWAP)
    bodies: list[Body] = []
    refuse = Iterations._refuse
    monkeypatch.setattr(Iterations, "_refuse", lambda self, why: (bodies.append(self.body), refuse(self, why))[1])
    program = BY_NAME["lstm"]
    graph, leaves = program.graph(1), program.leaves
    _, _, stats = recorded_run(monkeypatch, graph, leaves, None, 0.3)
    assert not bodies
    # There is a narrow window: a little less, and the steps have too little memory too.
    for percent in range(66, 50, -1):
        results, entries, _ = recorded_run(monkeypatch, graph, leaves, stats.peak_bytes["device"] * percent // 100, 0.3)
        if bodies:
            break
    assert_same(results, program.expected(1), 1e-11)
    Judge().judge(entries)
    assert bodies and all("there is no memory for its buffers" in body.launching for body in bodies)


@pytest.mark.parametrize("way", [SWAP, RECOMPUTE])
@pytest.mark.parametrize("name", ["lstm", "masked_rnn", "branch_in_a_loop"])
def test_the_corpus_in_less_and_less_memory(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch, short_chunks: None
) -> None:
    """To second order; whether the host finds copies done is chance."""
    force(monkeypatch, way)
    program = BY_NAME[name]
    met = copies = 0
    for order in (1, 2):
        graph, leaves = program.graph(order), program.leaves
        limit: int | None = None
        for haste in (0.0, 0.3, 0.6):
            try:
                results, entries, stats = recorded_run(monkeypatch, graph, leaves, limit, haste)
            except MemoryBudgetError:
                break
            assert_same(results, program.expected(order), 1e-11)
            Judge().judge(entries)
            met, copies = met + 1, copies + stats.copies_out
            limit = stats.peak_bytes["device"] * 4 // 5
    assert met >= 3 and (copies > 0 or way is RECOMPUTE)


def kinds(entries: list[Entry]) -> set[str]:
    return {entry[0] for entry in entries}


def test_a_run_under_a_budget_waits_where_it_must(record: list[Entry]) -> None:
    assert kinds(record) == {"allocated", "freed", "launched", "recorded", "waited", "host waited"}
    assert len({entry[1] for entry in record if entry[0] == "launched"}) == 3
    assert Judge().judge(record) > 20


def caught(entries: list[Entry]) -> bool:
    try:
        Judge().judge(entries)
    except OrderError:
        return True
    return False


def test_a_wait_that_is_removed_is_missed(record: list[Entry]) -> None:
    """Of the waits of streams for events most are needed; those for what the host has seen, or waited for, are not."""
    waits = [n for n, entry in enumerate(record) if entry[0] == "waited"]
    found = [caught(record[:n] + record[n + 1 :]) for n in waits]
    assert sum(found) >= 4
    assert caught([entry for entry in record if entry[0] != "waited"])


def test_memory_that_is_freed_early_is_missed(record: list[Entry]) -> None:
    """Right behind the first copy that it is part of, while that may go on."""
    freed = {entry[1]: n for n, entry in enumerate(record) if entry[0] == "freed"}
    tried = 0
    for start, last in freed.items():
        size = next(e[2] for e in record if e[0] == "allocated" and e[1] == start)
        uses = [
            n
            for n, e in enumerate(record)
            if e[0] == "launched" and any(start <= at < start + size for at, _ in (*e[2], *e[3]))
        ]
        streams = {record[n][1] for n in uses}
        if len(streams) > 1:
            tried += 1
            early = [*record[: uses[0] + 1], record[last], *record[uses[0] + 1 : last], *record[last + 1 :]]
            assert caught(early)
    assert tried


def test_an_address_that_is_off_by_one_slot_is_missed(record: list[Entry]) -> None:
    """Each write of a row, one row further: then its own row is read without having been written, or another's is
    overwritten while it is copied."""
    row = X.nbytes
    writes = [
        n for n, e in enumerate(record) if e[0] == "launched" and len(e[3]) == 1 and e[3][0][1] == row and not e[2]
    ] or [n for n, e in enumerate(record) if e[0] == "launched" and any(size == row for _, size in e[3])]
    tried = writes[:6]
    assert tried
    for n in tried:
        what, stream, reads, targets = record[n]
        moved = [(at + row, size) if size == row else (at, size) for at, size in targets]
        assert caught([*record[:n], (what, stream, reads, moved), *record[n + 1 :]])
