"""A recorder of runs: every firing and every message, and a Chrome trace of them.

The trace has a process per rank, a row per device and a slice per firing with its frame and iteration; an arrow goes
from each Send to its Recv; a firing that was dead says so in its name, and is of the category "dead". Load it at
https://ui.perfetto.dev or chrome://tracing.

Over ranks each has a recorder of its own, and a file of its own; `join_traces` makes one of them.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctrlgrad.dataflow import graph as flat
from ctrlgrad.dataflow.devices import parse_device

if TYPE_CHECKING:
    from ctrlgrad.dataflow.running import Iteration
    from ctrlgrad.dataflow.steps import Step
    from ctrlgrad.dataflow.transport import Tag


@dataclass(frozen=True, slots=True)
class Firing:
    """One firing; times in seconds from the recorder's start.

    `tag` has the root's 0 first. `edge` is that of a Send or Recv.
    """

    device: str
    node: str
    op: str
    frame: str
    tag: Tag
    began: float
    ended: float
    is_dead: bool
    edge: int | None = None


@dataclass(frozen=True, slots=True)
class Passage:
    """One end of a message's way."""

    device: str
    edge: int
    tag: Tag
    time: float
    is_arrival: bool


class Recorder:
    """Collects what happens in runs; give it to `ctrlgrad.dataflow.settings(recorder=...)`.

    >>> import ctrlgrad as cg
    >>> from ctrlgrad import dataflow
    >>> recorder = dataflow.Recorder()
    >>> with dataflow.settings(recorder=recorder):
    ...     _ = cg.function(lambda x: cg.cond(x > 0.0, lambda: x * x, lambda: x), engine="dataflow")(2.0)
    >>> [firing.op for firing in recorder.firings if firing.is_dead]
    []

    Over ranks, on each of them: `recorder.save(f"trace-{rank}.json")`; and when all have ended, once:
    `join_traces(["trace-0.json", "trace-1.json"], "trace.json")`.
    """

    def __init__(self) -> None:
        self.firings: list[Firing] = []
        self.passages: list[Passage] = []
        # The same moment on this process's clock and on the one that other processes have too: the closest of some.
        moments = [(time.perf_counter(), time.time(), time.perf_counter()) for _ in range(5)]
        self._start, self._began, _ = min(moments, key=lambda moment: moment[2] - moment[0])
        self._lock = threading.Lock()

    def now(self) -> float:
        return time.perf_counter() - self._start

    def fired(self, device: str, step: Step, iteration: Iteration, began: float, dead: bool) -> None:
        frame = iteration.frame.plan.name
        node = step.node
        edge = node.attrs["edge"] if node.op in (flat.SEND, flat.RECV) else None
        firing = Firing(device, step.name, node.op, frame, iteration.tag, began, self.now(), dead, edge)
        with self._lock:
            self.firings.append(firing)

    def sent(self, device: str, edge: int, tag: Tag) -> None:
        with self._lock:
            self.passages.append(Passage(device, edge, tag, self.now(), False))

    def received(self, device: str, edge: int, tag: Tag) -> None:
        with self._lock:
            self.passages.append(Passage(device, edge, tag, self.now(), True))

    def chrome_trace(self) -> dict[str, Any]:
        """The trace in Chrome's format, times in microseconds from the recorder's start."""
        with self._lock:
            firings = list(self.firings)
        devices = sorted({f.device for f in firings})
        ranks = {device: parse_device(device).rank for device in devices}
        rows = {device: {"pid": ranks[device] or 0, "tid": row} for row, device in enumerate(devices)}
        events: list[dict[str, Any]] = [
            {"ph": "M", "pid": rank or 0, "tid": 0, "name": "process_name", "args": {"name": _process(rank)}}
            for rank in dict.fromkeys(ranks.values())
        ]
        events += [{"ph": "M", **rows[device], "name": "thread_name", "args": {"name": device}} for device in devices]
        events += [_slice(firing, rows[firing.device]) for firing in firings]
        events += _arrows(firings, rows)
        return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"began": self._began}}

    def save(self, path: str | Path) -> None:
        """Write the Chrome trace as JSON."""
        Path(path).write_text(json.dumps(self.chrome_trace()), encoding="utf-8")


def _process(rank: int | None) -> str:
    return "ctrlgrad" if rank is None else f"rank {rank}"


def _slice(firing: Firing, row: Mapping[str, int]) -> dict[str, Any]:
    return {
        "ph": "X",
        **row,
        "name": f"{firing.node} (dead)" if firing.is_dead else firing.node,
        "cat": "dead" if firing.is_dead else "alive",
        "ts": firing.began * 1e6,
        "dur": (firing.ended - firing.began) * 1e6,
        "args": {
            "op": firing.op,
            "frame": firing.frame or "root",
            "iteration": list(firing.tag[1:]),
            "dead": firing.is_dead,
        },
    }


def _arrows(firings: Iterable[Firing], rows: Mapping[str, Mapping[str, int]]) -> Iterator[dict[str, Any]]:
    """The two ends of each arrow: the slice of a Send, and that of the Recv of the same edge, tag and run."""
    ends: Counter[tuple[str, int, Tag]] = Counter()
    for firing in firings:
        if firing.edge is None:
            continue
        ends[firing.op, firing.edge, firing.tag] += 1
        run = ends[firing.op, firing.edge, firing.tag]
        path = ".".join(map(str, firing.tag))
        end = {
            **rows[firing.device],
            "name": f"edge {firing.edge}",
            "cat": "message",
            "id": f"{firing.edge}/{path}/{run}",
            "ts": firing.began * 1e6,
        }
        # An arrow ends at the slice that is open at its time, not at the one after.
        yield {"ph": "s", **end} if firing.op == flat.SEND else {"ph": "f", **end, "bp": "e"}


def join_traces(paths: Iterable[str | Path], path: str | Path) -> None:
    """Make one Chrome trace of those that ranks have saved.

    A Send on one rank is joined to its Recv on another. Times are moved to the start of the first recorder, by the
    clocks of the machines: between machines they are as right as those.

    >>> import ctrlgrad as cg, tempfile
    >>> from pathlib import Path
    >>> from ctrlgrad import dataflow
    >>> from ctrlgrad.dataflow.recorder import join_traces
    >>> folder, recorder = Path(tempfile.mkdtemp()), dataflow.Recorder()
    >>> with dataflow.settings(recorder=recorder):
    ...     _ = cg.function(lambda x: x * x, engine="dataflow")(2.0)
    >>> recorder.save(folder / "trace-0.json")
    >>> join_traces([folder / "trace-0.json"], folder / "trace.json")
    """
    traces = [json.loads(Path(each).read_text(encoding="utf-8")) for each in paths]
    first = min((trace["otherData"]["began"] for trace in traces), default=0.0)
    events = []
    for trace in traces:
        later = (trace["otherData"]["began"] - first) * 1e6
        events += [{**event, "ts": event["ts"] + later} if "ts" in event else event for event in trace["traceEvents"]]
    joined = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"began": first}}
    Path(path).write_text(json.dumps(joined), encoding="utf-8")


__all__ = ["Firing", "Passage", "Recorder", "join_traces"]
