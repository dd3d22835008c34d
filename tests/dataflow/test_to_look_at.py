"""Displays of graphs and runs: DOT, the command, the Chrome trace."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from instruments.dataflow_runs import run

import ctrlgrad as cg
from ctrlgrad.cli.programs import graph_text
from ctrlgrad.dataflow import Recorder, Settings
from ctrlgrad.dataflow.drawing import Firing, format_flat_dot, join_traces
from ctrlgrad.dataflow.settings import placed

PROGRAM = """
import numpy as np
import ctrlgrad as cg

def f(x):
    def body(carry):
        i, y = carry
        with cg.device("cpu:1"):
            y = cg.cond(y > 0.5, lambda: np.sin(y), lambda: y * x)
        return i + 1, y
    return cg.while_loop(lambda carry: carry[0] < 3, body, (0, x))[1]

def example_args():
    return (2.0,)
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    return f"{tmp_path / 'program.py'}:f"


def text(target: str, stage: str, dot: bool = False) -> str:
    return graph_text(target, grad=False, dot=dot, sources=False, stage=stage)


def is_balanced(dot: str) -> bool:
    """Return true if the ends of every edge are drawn and braces match."""
    drawn = set(re.findall(r"^\s*(n\d+) \[", dot, re.MULTILINE))
    ends = re.findall(r"^\s*(n\d+) -> (n\d+)", dot, re.MULTILINE)
    return dot.count("{") == dot.count("}") and {n for pair in ends for n in pair} <= drawn


def test_the_lowered_graph(target: str) -> None:
    assert "NextIteration" in text(target, "lowered")
    dot = text(target, "lowered", dot=True)
    assert is_balanced(dot)
    assert dot.count("subgraph") == 1 and 'label="frame while_1"' in dot
    assert "style=dotted" in dot and "style=dashed" in dot


def test_the_partitioned_graph(target: str) -> None:
    plain = text(target, "partitioned")
    assert plain.startswith("cpu:0\n\nflat f(") and "\n\ncpu:1\n\nflat f(" in plain
    assert "Send predicate [edge 0 to cpu:1] @cpu:0" in plain
    dot = text(target, "partitioned", dot=True)
    assert is_balanced(dot)
    for label in ("cpu:0", "cpu:1"):
        assert f'label="device {label}"' in dot
    assert dot.count('label="frame while_1"') == 2
    assert "style=bold" in dot and 'label=" edge 0"' in dot


def traced(x: Any) -> Any:
    def body(carry: Any) -> Any:
        i, y = carry
        with cg.device("cpu:1"):
            y = cg.cond(y > 0.5, lambda: np.sin(y), lambda: y * x)
        return i + 1, y

    return cg.while_loop(lambda carry: carry[0] < 3, body, (0, x))[1]


def ends_of(events: list[dict[str, Any]], phase: str) -> dict[str, dict[str, Any]]:
    found = [e for e in events if e["ph"] == phase]
    assert len({e["id"] for e in found}) == len(found)
    return {e["id"]: e for e in found}


def slice_at(events: list[dict[str, Any]], end: dict[str, Any]) -> dict[str, Any]:
    """The slice at an end of an arrow: on its row, open at its time."""
    row = (end["pid"], end["tid"])
    slices = (e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == row)
    (found,) = (e for e in slices if e["ts"] <= end["ts"] < e["ts"] + e["dur"])
    return found


def test_the_trace_has_rows_slices_and_arrows(tmp_path: Path) -> None:
    recorder = Recorder()
    graph = cg.function(traced).graph(2.0)
    outcomes = [run(graph, [np.float64(2.0)], recorder=recorder)[1] for _ in range(2)]
    recorder.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert sorted(rows.values()) == ["cpu:0", "cpu:1"]
    slices = [e for e in events if e["ph"] == "X"]
    for row, device in rows.items():
        mine = sorted((e for e in slices if e["tid"] == row), key=lambda e: e["ts"])
        assert len(mine) == sum(outcome.counts[device].firings for outcome in outcomes)
        assert all(e["ts"] + e["dur"] <= after["ts"] + 1e-6 for e, after in pairwise(mine))
        assert {tuple(e["args"]["iteration"]) for e in mine if e["args"]["frame"] == "while_1"} >= {(0,), (3,)}
    dead = [e for e in slices if e["args"]["dead"]]
    assert dead and all(e["cat"] == "dead" and e["name"].endswith("(dead)") for e in dead)
    assert not any(e["name"].endswith("(dead)") for e in slices if not e["args"]["dead"])
    # Arrows connect sends and receives of values; reports to a loop's owner have none.
    starts, ends = ends_of(events, "s"), ends_of(events, "f")
    sends = sum(e["args"]["op"] == "Send" for e in slices)
    assert starts.keys() == ends.keys() and len(starts) == sends > 0
    for number, start in starts.items():
        assert start["ts"] <= ends[number]["ts"]
        sent, received = slice_at(events, start)["args"], slice_at(events, ends[number])["args"]
        assert (sent["op"], received["op"]) == ("Send", "Recv")
        assert (sent["frame"], sent["iteration"]) == (received["frame"], received["iteration"])


def test_traces_of_ranks_become_one(tmp_path: Path) -> None:
    """Traces of several ranks are merged: rank 1's clock began a second later, and its receive comes after the send."""
    for rank, (op, began) in enumerate((("Send", 1000.0), ("Recv", 1001.0))):
        recorder = Recorder()
        firing = Firing(f"/rank:{rank}/cpu:0", op, op, "loop", (0, 3), 0.25, 0.5, False, edge=7)
        recorder.firings.append(firing)
        trace = recorder.chrome_trace()
        assert {e["pid"] for e in trace["traceEvents"]} == {rank}
        trace["otherData"]["began"] = began
        (tmp_path / f"{rank}.json").write_text(json.dumps(trace))
    join_traces([tmp_path / "0.json", tmp_path / "1.json"], tmp_path / "both.json")
    events = json.loads((tmp_path / "both.json").read_text())["traceEvents"]
    names = {(e["name"], e["args"]["name"]) for e in events if e["ph"] == "M"}
    assert names == {
        ("process_name", "rank 0"),
        ("process_name", "rank 1"),
        ("thread_name", "/rank:0/cpu:0"),
        ("thread_name", "/rank:1/cpu:0"),
    }
    (start,), (end,) = ([e for e in events if e["ph"] == phase] for phase in "sf")
    assert start["id"] == end["id"] == "7/0.3/1"
    assert (start["ts"], end["ts"]) == (0.25e6, 1.25e6)
    assert slice_at(events, end)["args"]["op"] == "Recv"


def test_the_drawing_of_a_graph_without_frames() -> None:
    graph = placed(cg.function(lambda x: np.sin(x)).graph(2.0), Settings())
    assert is_balanced(format_flat_dot(graph))
