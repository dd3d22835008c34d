"""Traces of a run over ranks: a file per rank, and one of both."""

from __future__ import annotations

import json
from typing import Any

from ctrlgrad.dataflow.drawing import join_traces

PROGRAM = """
import numpy as np
from mpi4py import MPI
import ctrlgrad as cg
from ctrlgrad import dataflow

@cg.function(engine="dataflow")
def f(x):
    def body(carry):
        i, y = carry
        with cg.device("/rank:1/cpu:0"):
            y = cg.cond(y > 0.5, lambda: np.sin(y), lambda: y * x)
        return i + 1, y
    return cg.while_loop(lambda carry: carry[0] < 3, body, (0, x))[1]

recorder = dataflow.Recorder()
with dataflow.settings(recorder=recorder):
    f(2.0)
recorder.save(f"trace-{MPI.COMM_WORLD.Get_rank()}.json")
"""


def test_each_rank_saves_its_rows_and_the_arrows_join_them(mpirun: Any) -> None:
    ended = mpirun(2, PROGRAM)
    assert ended.code == 0, ended.stderr
    paths = [mpirun.folder / f"trace-{rank}.json" for rank in range(2)]
    for rank, path in enumerate(paths):
        assert {e["pid"] for e in json.loads(path.read_text())["traceEvents"]} == {rank}
    join_traces(paths, mpirun.folder / "trace.json")
    events = json.loads((mpirun.folder / "trace.json").read_text())["traceEvents"]
    rows = {(e["pid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    assert rows == {(0, "/rank:0/cpu:0"), (1, "/rank:1/cpu:0")}
    starts, ends = ({e["id"]: e for e in events if e["ph"] == phase} for phase in "sf")
    assert starts.keys() == ends.keys() and starts
    assert all(start["pid"] != ends[number]["pid"] for number, start in starts.items())
    # Both ranks are on one machine, so their clocks are one.
    assert all(start["ts"] <= ends[number]["ts"] for number, start in starts.items())
