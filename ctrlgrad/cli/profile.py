"""`ctrlgrad profile FILE.py:function`: where the bytes of a user's loops were, and what they waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

import ctrlgrad as cg
from ctrlgrad.cli.target import Target, load_target
from ctrlgrad.errors import UserInputError
from ctrlgrad.memory.profile.pictures import Profile
from ctrlgrad.memory.profile.summary import (
    Summary,
    show_peak,
    show_rate,
    show_seconds,
    show_share,
    what_became,
)
from ctrlgrad.memory.session import budget, profile
from ctrlgrad.memory.sizes import show_size

# Nothing is cut where no terminal limits the width.
_UNLIMITED = 400


@dataclass(frozen=True)
class Limits:
    """The budget as the command's options say it."""

    device: str | None
    host: str | None
    disk: Path | None


def profile_and_report(text: str, limits: Limits, output: Path, *, grad: bool) -> None:
    """Run, print the tables, and write OUTPUT.txt, OUTPUT.json (the trace), .html and .png."""
    target = load_target("profile", text)
    arguments = target.example_args("")
    if not output.parent.is_dir():
        raise UserInputError("profile: no such folder", got=str(output.parent), hint="check the path of --output")
    if not output.name:
        raise UserInputError(
            "profile: --output is a folder", expected="a path that ends in a file's name", got=str(output)
        )
    recording = _run(target, arguments, limits, grad)
    summary = recording.summary()
    console = Console()
    if not console.is_terminal:
        console = Console(width=_UNLIMITED)
    print_summary(console, target.name + (" and its gradient" if grad else ""), summary)
    try:
        written = recording.write_all(output)
    except OSError as error:
        where = error.filename or output
        raise UserInputError("profile: --output cannot be written", got=f"{where}: {error.strerror}") from None
    console.print(Text(f"written: {', '.join(str(path) for path in written)}"))
    if not any(path.suffix == ".png" for path in written):
        console.print(Text("No picture: it needs matplotlib (pip install -e '.[plot]')"))


def _run(target: Target, arguments: tuple[Any, ...], limits: Limits, grad: bool) -> Profile:
    """The recording of the second run: the first one compiles."""
    fn = cg.function(cg.grad(target.fn) if grad else target.fn)
    for _ in range(2):
        with profile() as recording, budget(limits.device, limits.host, limits.disk):
            target.guarded(f"running {target.name}", lambda: fn(*arguments))
    return recording


# Tables.


def print_summary(console: Console, name: str, summary: Summary) -> None:
    """Print the summary as tables."""
    console.print(Text(f"{name} on {', '.join(summary.devices) or 'no device'}", style="bold"))
    if not (summary.values or summary.routes or summary.fallbacks):
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
    fallbacks = [(str(f.times), f.text) for f in summary.fallbacks]
    _print(console, ("times", "otherwise than planned"), fallbacks)
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


__all__ = ["Limits", "print_summary", "profile_and_report"]
