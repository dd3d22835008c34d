"""Programs on the command line: `ctrlgrad graph`, `verify` and `profile` of `FILE.py:FUNCTION`, and `ctrlgrad demo`.

`load_target` finds the function in the user's file, and `Target.example_args` the arguments beside it. An exception of
the user's code becomes an error that names the line of the file.
"""

from __future__ import annotations

import importlib.util
import inspect
import io
import json
import math
import sys
import traceback
import zipfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

import ctrlgrad as cg
from ctrlgrad import tree
from ctrlgrad.cli.errors import BAD_INPUT, print_error
from ctrlgrad.dataflow import Settings, lower
from ctrlgrad.dataflow.drawing import format_flat_dot, format_partition_dot
from ctrlgrad.dataflow.settings import partitioned
from ctrlgrad.demos.catalogue import Panel, show, titles
from ctrlgrad.errors import CtrlgradError, ExecutionError, UserInputError
from ctrlgrad.execution import plan_text
from ctrlgrad.files import open_file
from ctrlgrad.ir import Graph, format_graph
from ctrlgrad.ir.page import format_page
from ctrlgrad.ir.svg import format_svg
from ctrlgrad.memory.profile.pictures import Profile
from ctrlgrad.memory.profile.summary import Summary, show_peak, show_rate, show_seconds, show_share, what_became
from ctrlgrad.memory.session import budget, profile
from ctrlgrad.memory.sizes import show_size
from ctrlgrad.mpi.launch import FAILED
from ctrlgrad.train.checkpoint import write_atomically
from ctrlgrad.verify.check import JUDGES, MODES, compare
from ctrlgrad.verify.report import GradientReport, Row, advice

ARGUMENTS = "example_args"


@dataclass(frozen=True)
class Target:
    """A function of a file; `command` is the subcommand that errors name."""

    command: str
    path: Path
    name: str
    module: ModuleType
    fn: Callable[..., Any]

    def example_args(self, purpose: str) -> tuple[Any, ...]:
        """Result of the file's `example_args()`; an error that names the `purpose` where there is none."""
        make = getattr(self.module, ARGUMENTS, None)
        arguments = self.guarded(f"calling {ARGUMENTS}", make) if callable(make) else None
        if not isinstance(arguments, tuple):
            got = "no such function" if make is None else f"{type(arguments).__name__} from {ARGUMENTS}()"
            raise UserInputError(
                f"{self.command}: arguments are needed{purpose}",
                expected=f"a function {ARGUMENTS}() in {self.path} that returns a tuple of arguments",
                got=got,
                hint=f"def {ARGUMENTS}(): return (np.float64(2.0),)",
            )
        return arguments

    def guarded(self, what: str, action: Callable[[], Any]) -> Any:
        """Run the user's code; what it raises becomes an error that names his line."""
        return _guarded(self.command, self.path, what, action)


def load_target(command: str, text: str) -> Target:
    """The function that `text` names; raises `UserInputError` where it cannot be used."""
    path, name = _split(command, text)
    module = _load(command, path)
    fn = getattr(module, name, None)
    if not callable(fn):
        functions = [
            k for k, v in vars(module).items() if callable(v) and getattr(v, "__module__", None) == module.__name__
        ]
        raise UserInputError(
            f"{command}: there is no function {name!r} in the file",
            expected=" or ".join(n for n in functions if n != ARGUMENTS) or "a function at the top level of the file",
            got=text,
        )
    return Target(command, path, name, module, fn)


def _split(command: str, text: str) -> tuple[Path, str]:
    file, colon, name = text.rpartition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        raise UserInputError(
            f"{command}: the target is not understood",
            expected="FILE.py:FUNCTION, such as programs.py:newton",
            got=text,
        )
    path = Path(file)
    try:
        open_file(path).close()
    except OSError as error:
        what = "there is no such file" if isinstance(error, FileNotFoundError) else "the file cannot be read"
        raise UserInputError(f"{command}: {what}", got=f"{path}: {error.strerror}", hint="check the path") from None
    return path, name


def _load(command: str, path: Path) -> ModuleType:
    """The file as a module under its own name; what lies beside it can be imported, as when it is run."""
    name = f"ctrlgrad_{command}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    execute = spec.loader.exec_module
    try:
        _guarded(command, path, "loading the file", lambda: execute(module))
    finally:
        sys.path.pop(0)
    return module


def _guarded(command: str, path: Path, what: str, action: Callable[[], Any]) -> Any:
    try:
        return action()
    except (CtrlgradError, KeyboardInterrupt):
        raise
    except BaseException as error:  # the user's code may raise anything, SystemExit among it
        lines = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).resolve() == path.resolve()]
        if isinstance(error, SyntaxError):
            source = f"{error.filename}:{error.lineno}"
        else:
            source = f"{lines[-1].filename}:{lines[-1].lineno} in {lines[-1].name}" if lines else str(path)
        raise UserInputError(
            f"{command}: {what} failed",
            source=source,
            got=f"{type(error).__name__}: {error}",
            hint="run it in Python for the whole traceback",
        ) from error


def _wide_console() -> Console:
    """Return a console; where no terminal limits the width, nothing is cut."""
    console = Console()
    return console if console.is_terminal else Console(width=400)


# Graphs.


def stage_of(*, lowered: bool, partitioned: bool, plan: bool, sources: bool, dot: bool, is_drawn: bool) -> str:
    """Form of the graph that the options ask for; refuses options that exclude each other."""
    stages = {"lowered": lowered, "partitioned": partitioned, "plan": plan}
    asked = [f"--{name}" for name, is_set in [*stages.items(), ("sources", sources)] if is_set]
    if len(asked) > 1:
        raise UserInputError(
            "graph: options that exclude each other",
            expected="one of --lowered, --partitioned, --plan and --sources",
            got=" ".join(asked),
        )
    stage = next((name for name, is_set in stages.items() if is_set), "traced")
    if dot and not (lowered or partitioned):
        raise UserInputError(
            "graph: --dot is for lowered graphs",
            expected="--dot with --lowered or --partitioned",
            got=" ".join(["--dot", *asked]),
            hint="--svg FILE draws the graph itself",
        )
    if is_drawn and stage != "traced":
        raise UserInputError(
            "graph: --svg and --html draw traced graphs",
            expected=f"--svg or --html without --{stage}",
            got=f"--{stage} with one of them",
            hint=None if plan else f"print it with --{stage} --dot, and draw that with Graphviz",
        )
    return stage


# Functions that draw a traced graph, by the option that asks for it.
DRAWN = {"svg": format_svg, "html": format_page}


def write_drawing(text: str, path: Path, form: str, *, grad: bool) -> None:
    """Draw the traced graph into a file, as "svg" or "html"."""
    drawn = DRAWN[form](_traced(text, grad)[0])
    try:
        path.write_text(drawn, encoding="utf-8")
    except OSError as error:
        raise UserInputError(
            f"--{form}: the file cannot be written", got=f"{path}: {error.strerror}", hint="name another file"
        ) from None


def graph_text(text: str, *, grad: bool, dot: bool, sources: bool, stage: str = "traced") -> str:
    """The text that the command prints; raises `UserInputError` for a target that cannot be used."""
    graph, arguments = _traced(text, grad)
    if stage == "plan":
        return plan_text(graph, [np.asarray(x) for x in tree.leaves(arguments)])
    if stage == "lowered":
        flat = lower(graph)
        return format_flat_dot(flat) if dot else str(flat)
    if stage == "partitioned":
        split = partitioned(graph, Settings())
        if dot:
            return format_partition_dot(split)
        return "\n\n".join(f"{device}\n\n{part.graph}" for device, part in split.parts.items())
    return format_graph(graph, sources=sources)


def _traced(text: str, grad: bool) -> tuple[Graph, tuple[Any, ...]]:
    """The graph of a target, and the arguments whose dtypes and shapes are its own."""
    target = load_target("graph", text)
    arguments = target.example_args(", for their dtypes and shapes")
    fn = cg.function(cg.grad(target.fn) if grad else target.fn)
    return target.guarded(f"tracing {target.name}", lambda: fn.graph(*arguments)), arguments


# Derivatives, compared.

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

    def check() -> GradientReport:
        return compare(
            target.fn,
            arguments,
            gradient=cg.grad,
            jvp=cg.jvp,
            order=request.order,
            modes=request.modes,
            against=request.against,
            seed=request.seed,
        )

    waiting = Console(stderr=True)
    is_shown = waiting.is_terminal and not as_json
    try:
        with waiting.status(f"checking {target.name}") if is_shown else nullcontext():
            report = target.guarded(f"checking {target.name}", check)
    except ExecutionError as error:
        # Nothing was compared: the function itself fails at these arguments.
        print_error("Error", str(error))
        raise typer.Exit(BAD_INPUT) from None
    names = [p.name for p in _parameters(target.fn)][: len(arguments)]
    names += [f"args[{position}]" for position in range(len(names), len(arguments))]
    if as_json:
        typer.echo(json.dumps(as_data(target.name, report, names), indent=2, allow_nan=False))
    else:
        print_report(target.name, report, names)
    if not report.ok:
        raise typer.Exit(FAILED)


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
        f"verify: {path} holds a single array",
        expected="a file that numpy.savez wrote",
        got="an .npy file",
        hint="numpy.savez(path, x=array)",
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


def _shown(row: Row, names: Sequence[str]) -> str:
    """The row's path with the parameter's name in place of its position."""
    if row.order == 0:
        return "(value)"
    position, _, rest = row.path.removeprefix("args[").partition("]")
    return names[int(position)] + rest


def print_report(name: str, report: GradientReport, names: Sequence[str]) -> None:
    """The table, and one line that sums it up."""
    console = _wide_console()
    if console.is_terminal and console.width < _LEAST_WIDTH:
        # Rather lines that the terminal breaks than columns that are left out.
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


# Memory.


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
    console = _wide_console()
    print_summary(console, target.name + (" and its gradient" if grad else ""), summary)
    if not (grad or summary.values):
        console.print(Text("--grad runs the gradient, for which loops keep values."))
    try:
        written = recording.write_all(output)
    except OSError as error:
        where = error.filename or output
        raise UserInputError(
            "profile: --output cannot be written", got=f"{where}: {error.strerror}", hint="name another file"
        ) from None
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


# Demos.


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
        raise UserInputError(
            "--out: the picture cannot be written", got=f"{path}: {error.strerror}", hint="name another file"
        ) from None
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
