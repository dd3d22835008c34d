"""What shows graphs and runs: DOT, the command, the Chrome trace."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import run

import ctrlgrad as cg
from ctrlgrad.cli.graph import graph_text, stage_of
from ctrlgrad.dataflow import Recorder, Settings
from ctrlgrad.dataflow.dot import format_flat_dot
from ctrlgrad.dataflow.engine import placed
from ctrlgrad.errors import UserInputError

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
    """Whether every edge's ends are drawn, and every brace is closed."""
    drawn = set(re.findall(r"^\s*(n\d+) \[", dot, re.MULTILINE))
    ends = re.findall(r"^\s*(n\d+) -> (n\d+)", dot, re.MULTILINE)
    return dot.count("{") == dot.count("}") and {n for pair in ends for n in pair} <= drawn


def test_the_lowered_graph(target: str) -> None:
    assert "NextIteration" in text(target, "lowered")
    dot = text(target, "lowered", dot=True)
    assert is_balanced(dot)
    assert dot.count("subgraph") == 1 and 'label="while_1"' in dot
    assert "style=dotted" in dot and "style=dashed" in dot


def test_the_partitioned_graph(target: str) -> None:
    plain = text(target, "partitioned")
    assert plain.startswith("cpu:0\n\nflat f(") and "\n\ncpu:1\n\nflat f(" in plain
    assert "Send predicate [edge 0 to cpu:1] @cpu:0" in plain
    dot = text(target, "partitioned", dot=True)
    assert is_balanced(dot)
    for label in ("cpu:0", "cpu:1"):
        assert f'label="{label}"' in dot
    assert dot.count('label="while_1"') == 2
    assert "style=bold" in dot and 'label="edge 0"' in dot


def test_options_that_exclude_each_other() -> None:
    with pytest.raises(UserInputError, match="exclude each other"):
        stage_of(lowered=True, partitioned=True, sources=False)
    assert stage_of(lowered=False, partitioned=True, sources=False) == "partitioned"


def traced(x: Any) -> Any:
    def body(carry: Any) -> Any:
        i, y = carry
        with cg.device("cpu:1"):
            y = cg.cond(y > 0.5, lambda: np.sin(y), lambda: y * x)
        return i + 1, y

    return cg.while_loop(lambda carry: carry[0] < 3, body, (0, x))[1]


def test_the_trace_has_rows_slices_and_arrows(tmp_path: Path) -> None:
    recorder = Recorder()
    _, outcome = run(cg.function(traced).graph(2.0), [np.float64(2.0)], recorder=recorder)
    recorder.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    rows = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    assert sorted(rows.values()) == ["cpu:0", "cpu:1"]
    slices = [e for e in events if e["ph"] == "X"]
    for row, device in rows.items():
        mine = [e for e in slices if e["tid"] == row]
        assert len(mine) == outcome.counts[device].firings
        assert {tuple(e["args"]["iteration"]) for e in mine if e["args"]["frame"] == "while_1"} >= {(0,), (3,)}
    dead = [e for e in slices if e["args"]["dead"]]
    assert dead and all(e["cat"] == "dead" for e in dead)
    starts = {e["id"]: e["ts"] for e in events if e["ph"] == "s"}
    ends = {e["id"]: e["ts"] for e in events if e["ph"] == "f"}
    assert starts.keys() == ends.keys() and len(starts) == sum(c.sent for c in outcome.counts.values())
    assert all(starts[i] <= ends[i] for i in starts)


def test_the_drawing_of_a_graph_without_frames() -> None:
    graph = placed(cg.function(lambda x: np.sin(x)).graph(2.0), Settings())
    assert is_balanced(format_flat_dot(graph))
