"""Output of a command beside its result: compilations that take long, and an error's text with an exit code."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from ctrlgrad.engines.compiling import observed
from ctrlgrad.errors import CtrlgradError, ExecutionError, GradientMismatch
from ctrlgrad.mpi.launch import FAILED, STOPPED, Ending
from ctrlgrad.train.trainer import Interrupted

BAD_INPUT = 2
# Seconds after which a compilation is shown.
PATIENCE = 1.0


@contextmanager
def compiling_shown(is_terminal: bool | None = None, patience: float = PATIENCE) -> Iterator[None]:
    """Say on stderr, where that is a terminal, what compiles in a block of code for longer than `patience` seconds."""

    @contextmanager
    def shown(name: str) -> Iterator[None]:
        begun = time.monotonic()
        timer = threading.Timer(patience, lambda: _say(f"compiling {name} ..."))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            seconds = time.monotonic() - begun
            if seconds > patience:
                _say(f"compiled {name} in {seconds:.1f} s")

    if sys.stderr.isatty() if is_terminal is None else is_terminal:
        with observed(shown):
            yield
    else:
        yield


def _say(text: str) -> None:
    # A bar that shows progress stands in place of stderr, and keeps below what is written.
    print(text, file=sys.stderr, flush=True)


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
