"""`ctrlgrad profile FILE.py:function`: where the bytes of a user's loops were, and what they waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

import ctrlgrad as cg
from ctrlgrad.cli.target import Target, load_target
from ctrlgrad.errors import UserInputError
from ctrlgrad.memory.plot import write_plot
from ctrlgrad.memory.records import Recording
from ctrlgrad.memory.session import budget, profile
from ctrlgrad.memory.sizes import show_size
from ctrlgrad.memory.summary import (
    Summary,
    show_peak,
    show_rate,
    show_seconds,
    show_share,
    summarize,
    what_became,
)
from ctrlgrad.memory.trace import write_trace

# Nothing is cut where no terminal limits the width.
_UNLIMITED = 400


@dataclass(frozen=True)
class Limits:
    """The budget as the command's options say it."""

    device: str | None
    host: str | None
    disk: Path | None


def profile_and_report(text: str, limits: Limits, output: Path, *, grad: bool) -> None:
    """Run, print the tables, and write OUTPUT.txt, OUTPUT.json (the trace) and OUTPUT.png."""
    target = load_target("profile", text)
    arguments = target.example_args("")
    if not output.parent.is_dir():
        raise UserInputError("profile: no such folder", got=str(output.parent), hint="check the path of --output")
    recording = _run(target, arguments, limits, grad)
    summary = summarize(recording)
    console = Console()
    if not console.is_terminal:
        console = Console(width=_UNLIMITED)
    print_summary(console, target.name + (" and its gradient" if grad else ""), summary)
    written = write(recording, summary, output)
    console.print(Text(f"written: {', '.join(str(path) for path in written)}"))
    if len(written) < 3:
        console.print(Text("No picture: it needs matplotlib (pip install 'ctrlgrad[plot]')"))


def _run(target: Target, arguments: tuple[Any, ...], limits: Limits, grad: bool) -> Recording:
    """The recording of the second run: the first one compiles."""
    fn = cg.function(cg.grad(target.fn) if grad else target.fn)
    for _ in range(2):
        with profile() as recording, budget(limits.device, limits.host, limits.disk):
            target.guarded(f"running {target.name}", lambda: fn(*arguments))
    return recording


def write(recording: Recording, summary: Summary, output: Path) -> list[Path]:
    """The summary, the trace, and where matplotlib is installed the picture; answers the files."""
    text, trace, picture = (output.with_name(output.name + suffix) for suffix in (".txt", ".json", ".png"))
    text.write_text(f"{summary}\n", encoding="utf-8")
    write_trace(recording, trace)
    if find_spec("matplotlib") is None:
        return [text, trace]
    write_plot(recording, picture)
    return [text, trace, picture]


# Tables.


def print_summary(console: Console, name: str, summary: Summary) -> None:
    """What the text says, as tables."""
    console.print(Text(f"{name} on {', '.join(summary.devices) or 'no device'}", style="bold"))
    if not summary.values and not summary.routes:
        console.print(Text("Nothing was pushed: no loop kept values for a gradient."))
        return
    _print(console, ("", "forward", "backward", "elsewhere"), _phases(summary))
    _print(console, ("tier", "peak bytes"), [(peak.tier, show_peak(peak)) for peak in summary.peaks])
    routes = [
        (
            f"{route.source} to {route.target}",
            str(route.copies),
            show_size(route.nbytes),
            show_rate(route.rate),
            show_share(route.hidden),
        )
        for route in summary.routes
    ]
    _print(console, ("copies", "number", "bytes", "rate", "hidden behind computation"), routes)
    stalls = [(s.phase, show_seconds(s.seconds), str(s.times), s.cause) for s in summary.stalls]
    _print(console, ("stalled", "time", "waits", "cause"), stalls)
    values = [(v.label, v.loop, str(v.blocks), show_size(v.nbytes), what_became(v)) for v in summary.values]
    _print(console, ("pushed value", "loop", "blocks", "bytes", "what became of it"), values)


def _phases(summary: Summary) -> Sequence[tuple[str, ...]]:
    if summary.seconds is None:
        return []
    computing = (show_seconds(summary.forward_seconds), show_seconds(summary.backward_seconds))
    stalled = (show_seconds(summary.stalled("forward")), show_seconds(summary.stalled("backward")))
    rows = [("computing", *computing, ""), ("stalled", *stalled, ""), ("", "", "", show_seconds(summary.elsewhere))]
    if summary.recomputed_chunks:
        again = f"{show_seconds(summary.recomputed_seconds)} in {summary.recomputed_chunks} chunks"
        rows.insert(1, ("  of it again", "", again, ""))
    return rows


def _print(console: Console, heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """A table; none where it would be empty."""
    if not rows:
        return
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


__all__ = ["Limits", "print_summary", "profile_and_report", "write"]
