"""Output of a failed command: the error's own text on stderr, and an exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from ctrlgrad.cli.waiting import compiling_shown
from ctrlgrad.errors import CtrlgradError, ExecutionError, GradientMismatch
from ctrlgrad.mpi.launch import FAILED, STOPPED, Ending
from ctrlgrad.train.trainer import Interrupted

BAD_INPUT = 2


@contextmanager
def reported() -> Iterator[None]:
    """Turn the library's errors and Ctrl-C into a message and an exit code; a defect's traceback passes.

    What compiles for long says so.
    """
    try:
        with compiling_shown():
            yield
    except (Interrupted, KeyboardInterrupt, CtrlgradError) as error:
        ending = ending_of(error)
        print_error(ending.title, ending.text)
        raise typer.Exit(ending.code) from None
    except BrokenPipeError:
        sys.stderr.close()  # the reader of the output has gone
        raise typer.Exit(FAILED) from None


def ending_of(error: BaseException) -> Ending:
    """Message of an error, and the exit code; of a defect, its traceback."""
    if isinstance(error, Interrupted):
        return error.ending
    if isinstance(error, KeyboardInterrupt):
        return Ending("Stopped", "by Ctrl-C; what was written before is as it was", STOPPED)
    if isinstance(error, CtrlgradError):
        failed = isinstance(error, ExecutionError | GradientMismatch)
        return Ending("Error", str(error), FAILED if failed else BAD_INPUT)
    return Ending("Error", "".join(traceback.format_exception(error)).rstrip(), FAILED)


def print_ending(ending: Ending) -> None:
    print_error(ending.title, ending.text)


def print_error(title: str, text: str) -> None:
    console = Console(stderr=True)
    if console.is_terminal:
        console.print(Panel(Text(text), title=title, title_align="left", border_style="red"))
    else:
        # Whole lines, so that a path is not broken where a log is read or searched.
        print(f"{title}: {text}", file=sys.stderr)


__all__ = ["BAD_INPUT", "FAILED", "STOPPED", "ending_of", "print_ending", "print_error", "reported"]
