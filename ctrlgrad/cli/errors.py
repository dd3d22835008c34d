"""What a user sees when something cannot be done: the error's own text on stderr, and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from ctrlgrad.errors import CtrlgradError, ExecutionError, GradientMismatch
from ctrlgrad.train.trainer import Interrupted

FAILED, BAD_INPUT, STOPPED = 1, 2, 130


@contextmanager
def reported() -> Iterator[None]:
    """Turn the library's errors and Ctrl-C into a message and an exit code; a defect's traceback passes."""
    try:
        yield
    except Interrupted as stop:
        told = f"after step {stop.step}; the checkpoint is {stop.path}\n  try: the same command with --resume"
        print_error("Stopped", told)
        raise typer.Exit(STOPPED) from None
    except KeyboardInterrupt:
        print_error("Stopped", "by Ctrl-C; what was written before is as it was")
        raise typer.Exit(STOPPED) from None
    except BrokenPipeError:
        sys.stderr.close()  # whoever read the output has gone: there is nobody to tell
        raise typer.Exit(FAILED) from None
    except CtrlgradError as error:
        print_error("Error", str(error))
        raise typer.Exit(FAILED if isinstance(error, ExecutionError | GradientMismatch) else BAD_INPUT) from None


def print_error(title: str, text: str) -> None:
    console = Console(stderr=True)
    if console.is_terminal:
        console.print(Panel(Text(text), title=title, title_align="left", border_style="red"))
    else:
        # Whole lines, so that a path is not broken where a log is read or searched.
        print(f"{title}: {text}", file=sys.stderr)
