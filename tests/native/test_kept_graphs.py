"""Optimised graphs that a process left on disk for the next one: what comes back, and when they are made anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same_bits
from instruments.tables import programs_at_orders
from programs import BY_NAME, Program

import ctrlgrad as cg
from ctrlgrad.engines import optimised_graph, without_passes
from ctrlgrad.engines.native import kept_graphs, kept_records
from ctrlgrad.engines.native.kept_plans import version
from ctrlgrad.engines.native.objects import DiskCache, ObjectCode
from ctrlgrad.execution import run_on
from ctrlgrad.ir import Graph, attributes, verify, walk
from ctrlgrad.ir.interning import fingerprint
from ctrlgrad.passes import optimise

NO_GRAPH = kept_records.written(("no graph",), kept_records.Vocabulary({}, {}))


@pytest.fixture(name="kept_plans")
def entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for entries."""
    monkeypatch.setenv("CTRLGRAD_CACHE_DIR", str(tmp_path / "entries"))
    return tmp_path / "entries"


@pytest.fixture
def optimised(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """The graphs that the passes make during a test."""
    found: list[Graph] = []
    monkeypatch.setattr(kept_graphs, "optimise", lambda *given: (found.append(made := optimise(*given)), made)[1])
    return found


def graphs_in(kept: Path) -> list[Path]:
    return [path for path in kept.iterdir() if b'"source of a node"' in path.read_bytes()]


@programs_at_orders(0, 1, 2, share=(2, 3))
def test_a_graph_comes_back_as_it_was(program: Program, order: int) -> None:
    graph = program.graph(order)
    made = optimised_graph(graph)
    if fingerprint(graph) is None:
        return
    data = kept_graphs.packed(made, graph)
    assert data is not None
    found = kept_graphs.unpacked(data, graph)
    verify(found, program.name)
    assert str(found) == str(made) and fingerprint(found) == fingerprint(made)
    for a, b in zip(walk(made), walk(found), strict=True):
        assert (a.source, a.attrs.given().keys()) == (b.source, b.attrs.given().keys())
        if constant := attributes.Constant.find(b):
            assert not constant.value.flags.writeable


@pytest.mark.parametrize("name", ["lstm", "branch_in_a_loop", "nested_data_dependent_counts"])
def test_a_new_process_runs_no_pass(name: str, kept_plans: Path, optimised: list[Graph]) -> None:
    program = BY_NAME[name]
    found = [run_on("native", program.traced_again(1), program.leaves) for _ in range(2)]
    assert len(optimised) == 1
    assert_same_bits(*found)


def test_other_passes_are_another_graph(kept_plans: Path, optimised: list[Graph]) -> None:
    program = BY_NAME["lstm"]
    for without in ((), ("distribute",)):
        with without_passes(*without):
            for _ in range(2):
                assert run_on("native", program.traced_again(1), program.leaves)
    assert len(optimised) == 2


def test_lines_of_code_are_those_of_the_graph_at_hand(kept_plans: Path, optimised: list[Graph]) -> None:
    """The same loop, moved down in its file, finds the entry; its nodes stand where it stands now."""

    def moved(lines: int) -> Callable[..., Any]:
        names: dict[str, Any] = {"cg": cg, "np": np}
        body = "    return cg.fori_loop(0, 3, lambda i, y: y * np.sin(x[i]), 1.0)\n"
        exec(compile("\n" * lines + "def f(x):\n" + body, "moved.py", "exec"), names)
        return names["f"]

    for lines in (0, 40):
        graph = cg.function(cg.grad(moved(lines))).graph(np.arange(3.0))
        found = optimised_graph(graph, kept_graphs.optimised)
        lines_found = {node.source.line for node in walk(found) if node.source is not None}
        assert lines_found == {lines + 2}
    assert len(optimised) == 1


@pytest.mark.parametrize("data", [b"", b"no graph", b"{}\n", NO_GRAPH])
def test_an_entry_that_holds_no_graph_is_made_anew(data: bytes, kept_plans: Path, optimised: list[Graph]) -> None:
    program = BY_NAME["lstm"]
    first = run_on("native", program.traced_again(1), program.leaves)
    (entry,) = graphs_in(kept_plans)
    DiskCache(kept_plans).write(entry.stem, ObjectCode((), (version() or b"") + b"\n" + data))
    assert_same_bits(first, run_on("native", program.traced_again(1), program.leaves))
    assert len(optimised) == 2 and graphs_in(kept_plans) == [entry]


def test_a_graph_of_other_lines_is_not_kept() -> None:
    """Where its nodes stand in the user's code could not be told to the next process."""
    graph, other = (BY_NAME["lstm"].traced_again(0) for _ in range(2))
    assert kept_graphs.packed(optimise(graph), graph) is not None
    assert kept_graphs.packed(optimise(other), graph) is None
