"""A recorder of runs: every firing and every message, and a Chrome trace of them.

The trace has a row per device and a slice per firing with its frame and iteration; dead firings are in a category of
their own, and arrows go from each Send to its Recv. Load it at chrome://tracing or https://ui.perfetto.dev.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ctrlgrad.dataflow.running import Iteration
    from ctrlgrad.dataflow.steps import Step

Tag = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Firing:
    """One firing; times in seconds from the recorder's start. `tag` has the root's 0 first."""

    device: str
    node: str
    op: str
    frame: str
    tag: Tag
    began: float
    ended: float
    is_dead: bool


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
    """

    def __init__(self) -> None:
        self.firings: list[Firing] = []
        self.passages: list[Passage] = []
        self._start = time.perf_counter()
        self._lock = threading.Lock()

    def now(self) -> float:
        return time.perf_counter() - self._start

    def fired(self, device: str, step: Step, iteration: Iteration, began: float, dead: bool) -> None:
        frame = iteration.frame.plan.name
        firing = Firing(device, step.name, step.node.op, frame, iteration.tag, began, self.now(), dead)
        with self._lock:
            self.firings.append(firing)

    def sent(self, device: str, edge: int, tag: Tag) -> None:
        with self._lock:
            self.passages.append(Passage(device, edge, tag, self.now(), False))

    def received(self, device: str, edge: int, tag: Tag) -> None:
        with self._lock:
            self.passages.append(Passage(device, edge, tag, self.now(), True))

    def chrome_trace(self) -> dict[str, Any]:
        """The trace in Chrome's format, times in microseconds."""
        devices = sorted({f.device for f in self.firings} | {p.device for p in self.passages})
        rows = {device: row for row, device in enumerate(devices)}
        events: list[dict[str, Any]] = [
            {"ph": "M", "pid": 0, "tid": row, "name": "thread_name", "args": {"name": device}}
            for device, row in rows.items()
        ]
        for firing in self.firings:
            events.append(
                {
                    "ph": "X",
                    "pid": 0,
                    "tid": rows[firing.device],
                    "name": firing.node,
                    "cat": "dead" if firing.is_dead else "alive",
                    "cname": "grey" if firing.is_dead else "good",
                    "ts": firing.began * 1e6,
                    "dur": (firing.ended - firing.began) * 1e6,
                    "args": {
                        "frame": firing.frame or "root",
                        "iteration": list(firing.tag[1:]),
                        "dead": firing.is_dead,
                    },
                }
            )
        for passage in self.passages:
            path = ".".join(map(str, passage.tag))
            event = {
                "ph": "f" if passage.is_arrival else "s",
                "pid": 0,
                "tid": rows[passage.device],
                "name": f"edge {passage.edge}",
                "cat": "message",
                "id": f"{passage.edge}/{path}",
                "ts": passage.time * 1e6,
            }
            events.append({**event, "bp": "e"} if passage.is_arrival else event)
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def save(self, path: str | Path) -> None:
        """Write the Chrome trace as JSON."""
        Path(path).write_text(json.dumps(self.chrome_trace()), encoding="utf-8")


__all__ = ["Firing", "Passage", "Recorder"]
