"""`ctrlgrad demo`: a small program, what it found, and its picture."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ctrlgrad.demos.catalogue import Panel, show, titles
from ctrlgrad.errors import UserInputError
from ctrlgrad.train.checkpoint import write_atomically


def list_demos() -> None:
    """Print the names of all demos, and what they are about."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, title in titles().items():
        table.add_row(Text(name, style="bold"), Text(title))
    Console().print(table)


def run_and_draw(name: str, path: Path) -> None:
    """Run a demo, print what it found, and draw it; raises `UserInputError` without matplotlib (the extra `plot`)."""
    finding = show(name)
    console = Console()
    for line in finding.lines:
        console.print(Text(line), soft_wrap=True)
    picture = drawn(finding.panels)
    try:
        write_atomically(path, picture)
    except OSError as error:
        raise UserInputError("--out: the picture cannot be written", got=f"{path}: {error.strerror}") from None
    console.print(Text(f"the picture is {path}"), soft_wrap=True)


def drawn(panels: tuple[Panel, ...]) -> bytes:
    """A PNG with the panels side by side."""
    try:
        from matplotlib.figure import Figure  # a heavy import, and an extra
    except ImportError as error:
        raise UserInputError(
            "the picture of a demo needs matplotlib", got=str(error), hint="pip install -e '.[plot]'"
        ) from None
    figure = Figure(figsize=(1 + 5 * len(panels), 4.5), layout="constrained")
    for number, panel in enumerate(panels, start=1):
        panel(figure.add_subplot(1, len(panels), number))
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()
