"""`ctrlgrad verify FILE.py:function`: a user's function against finite differences and JAX, as a table or JSON."""

from __future__ import annotations

import inspect
import json
import math
import zipfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

import ctrlgrad as cg
from ctrlgrad.cli.errors import BAD_INPUT, print_error
from ctrlgrad.cli.target import Target, load_target
from ctrlgrad.errors import ExecutionError, UserInputError
from ctrlgrad.files import open_file
from ctrlgrad.mpi.launch import FAILED
from ctrlgrad.verify.check import JUDGES, MODES, compare
from ctrlgrad.verify.report import GradientReport, Row, advice

# Nothing is cut where no terminal limits the width.
_UNLIMITED = 400
_LEAST_WIDTH = 110
_STYLES = {"ok": "green", "WRONG": "bold red", "not judged": "yellow"}


@dataclass(frozen=True)
class Request:
    """Comparisons that the options ask for."""

    order: int
    modes: tuple[str, ...]
    against: tuple[str, ...]
    seed: int


def verify_and_report(text: str, npz: Path | None, request: Request, *, as_json: bool) -> None:
    """Compare, print, and exit with code 1 where something disagrees or nothing could be judged.

    Raises `UserInputError` for what cannot be used.
    """
    target = load_target("verify", text)
    arguments = target.example_args(", or --npz") if npz is None else npz_args(target, npz)
    _check_count(target, arguments)
    try:
        with _waiting(f"checking {target.name}", as_json):
            report = target.guarded(f"checking {target.name}", lambda: _compare(target.fn, arguments, request))
    except ExecutionError as error:
        # Nothing was compared: the function itself fails at these arguments.
        print_error("Error", str(error))
        raise typer.Exit(BAD_INPUT) from None
    names = _names(target.fn, len(arguments))
    if as_json:
        typer.echo(json.dumps(as_data(target.name, report, names), indent=2, allow_nan=False))
    else:
        print_report(target.name, report, names)
    if not report.ok:
        raise typer.Exit(FAILED)


def _compare(fn: Callable[..., Any], arguments: tuple[Any, ...], request: Request) -> GradientReport:
    return compare(
        fn,
        arguments,
        gradient=cg.grad,
        jvp=cg.jvp,
        order=request.order,
        modes=request.modes,
        against=request.against,
        seed=request.seed,
    )


def request_of(order: int, modes: str, against: str, seed: int) -> Request:
    """The request of the command's options; lists are separated by commas."""
    return Request(order, _listed("--modes", modes, MODES), _listed("--against", against, JUDGES), seed)


def _listed(option: str, text: str, known: Sequence[str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names or any(name not in known for name in names):
        raise UserInputError(
            f"verify: {option}", expected=f"one or more of {', '.join(known)}, separated by commas", got=repr(text)
        )
    return names


# Arguments.


def npz_args(target: Target, path: Path) -> tuple[Any, ...]:
    """The arguments in an .npz file: arrays arg0, arg1, ..., or named as the function's parameters are."""
    arrays = _arrays(path)
    numbered = [f"arg{position}" for position in range(len(arrays))]
    if arrays and set(arrays) == set(numbered):
        return tuple(arrays[name] for name in numbered)
    parameters = _parameters(target.fn)
    needed = [p.name for p in parameters if p.default is inspect.Parameter.empty]
    named = [p.name for p in parameters]
    given = named[: len(arrays)]
    if not arrays or set(arrays) != set(given) or not set(needed) <= set(arrays):
        raise UserInputError(
            f"verify: the arrays in {path} are not the function's arguments",
            expected=f"arg0, arg1, ..., or {', '.join(named) or 'the names of its parameters'}",
            got=", ".join(sorted(arrays)) or "no arrays",
            hint=f"numpy.savez({path.name!r}, arg0=...)",
        )
    return tuple(arrays[name] for name in given)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with open_file(path) as stream:
            loaded = np.load(stream, allow_pickle=False)
            if isinstance(loaded, np.lib.npyio.NpzFile):
                with loaded:
                    return {name: loaded[name] for name in loaded.files}
    except FileNotFoundError:
        raise UserInputError(
            "verify: there is no such file", got=str(path), hint="check the path given to --npz"
        ) from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UserInputError(
            f"verify: {path} cannot be read",
            expected="a file that numpy.savez wrote, with arrays of numbers (pickled objects are never loaded)",
            got=str(error) or type(error).__name__,
        ) from error
    raise UserInputError(
        f"verify: {path} holds a single array", expected="a file that numpy.savez wrote", got="an .npy file"
    )


def _parameters(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    """The positional parameters; none where a callable does not tell."""
    try:
        parameters = inspect.signature(getattr(fn, "fn", fn)).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p for p in parameters if p.kind in kinds]


def _check_count(target: Target, arguments: Sequence[Any]) -> None:
    try:
        signature = inspect.signature(getattr(target.fn, "fn", target.fn))
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise UserInputError(
            f"verify: the arguments do not fit {target.name}{signature}",
            got=f"{len(arguments)} arguments: {error}",
            hint="example_args() returns a tuple with one entry per parameter, and --npz holds one array for each",
        ) from error


def _names(fn: Callable[..., Any], count: int) -> list[str]:
    """Names of the arguments in the table."""
    names = [p.name for p in _parameters(fn)][:count]
    return names + [f"args[{position}]" for position in range(len(names), count)]


def _shown(row: Row, names: Sequence[str]) -> str:
    """The row's path with the parameter's name in place of its position."""
    if row.order == 0:
        return "(value)"
    position, _, rest = row.path.removeprefix("args[").partition("]")
    return names[int(position)] + rest


# Output.


def print_report(name: str, report: GradientReport, names: Sequence[str]) -> None:
    """The table, and one line that sums it up."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_UNLIMITED)
    elif console.width < _LEAST_WIDTH:  # rather lines that the terminal breaks than columns that are left out
        console = Console(width=_LEAST_WIDTH)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for label in ("argument", "order", "mode", "judge"):
        table.add_column(label, vertical="bottom", overflow="fold", no_wrap=label != "argument")
    for label in ("absolute\nerror", "relative\nerror", "tolerance"):
        table.add_column(label, justify="right", vertical="bottom", no_wrap=True)
    table.add_column("", vertical="bottom", overflow="fold")
    for row in report.rows:
        _, order, mode, judge, absolute, relative, tolerance, verdict = row.cells()
        cells = [_shown(row, names), order, mode, judge, absolute, relative, tolerance]
        table.add_row(*map(Text, cells), Text(verdict, style=_STYLES[row.verdict]))
    console.print(table)
    console.print(Text(f"{name}: {report.summary}", style="green" if report.ok else "bold red"))
    if not report.ok:
        console.print(Text(" ".join(advice(report))))


def as_data(name: str, report: GradientReport, names: Sequence[str]) -> dict[str, Any]:
    """The report as JSON's types; null stands for a number that is not finite, and for the verdict where none was
    possible."""
    rows = [
        {
            "argument": None if row.order == 0 else _shown(row, names),
            "order": row.order,
            "mode": row.mode or None,
            "judge": row.judge,
            "absolute_error": _finite(row.absolute),
            "relative_error": _finite(row.relative),
            "tolerance": _finite(row.tolerance),
            "ok": bool(row.ok) if row.is_judged else None,
            "note": row.note or None,
        }
        for row in report.rows
    ]
    return {"function": name, "ok": bool(report.ok), "not_judged": len(report.not_judged), "rows": rows}


def _finite(x: float) -> float | None:
    return float(x) if math.isfinite(x) else None


def _waiting(what: str, quiet: bool) -> AbstractContextManager[Any]:
    """A sign of life on a terminal."""
    console = Console(stderr=True)
    return nullcontext() if quiet or not console.is_terminal else console.status(what)
