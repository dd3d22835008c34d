"""`ctrlgrad graph FILE.py:function`: the graph of a user's function, as text, DOT, a picture or a page.

As it is traced, lowered to the dataflow primitives, split by device as the dataflow engine runs it, or as the plan that
the native engine makes of it.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

import ctrlgrad as cg
from ctrlgrad import tree
from ctrlgrad.cli.target import load_target
from ctrlgrad.dataflow import Settings, lower
from ctrlgrad.dataflow.drawing import format_flat_dot, format_partition_dot
from ctrlgrad.dataflow.settings import partitioned
from ctrlgrad.errors import UserInputError
from ctrlgrad.execution import plan_text
from ctrlgrad.ir import Graph, format_graph
from ctrlgrad.ir.dot import format_dot, format_page
from ctrlgrad.ir.svg import format_svg

# Graphviz, which draws DOT.
PROGRAM = "dot"
# Graphviz may take long over a large graph.
_PATIENCE = 120.0


def write_svg(dot: str, path: Path) -> None:
    """Draw a graph into a file. Raises `UserInputError` without Graphviz, and where the file cannot be written."""
    program = shutil.which(PROGRAM)
    if program is None:
        raise UserInputError(
            "--svg: Graphviz is not installed",
            expected=f"its program {PROGRAM!r} among the commands",
            got="a system without it",
            hint="install Graphviz (https://graphviz.org), or print the graph with --dot and draw it elsewhere",
        )
    try:
        drawn = subprocess.run([program, "-Tsvg"], input=dot, capture_output=True, text=True, timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        raise UserInputError(
            "--svg: the graph is too large for Graphviz", got=f"{len(dot)} characters of DOT"
        ) from None
    if drawn.returncode:
        raise UserInputError("--svg: Graphviz failed", got=drawn.stderr.strip() or f"exit code {drawn.returncode}")
    try:
        path.write_text(drawn.stdout, encoding="utf-8")
    except OSError as error:
        raise UserInputError("--svg: the file cannot be written", got=f"{path}: {error.strerror}") from None


def stage_of(*, lowered: bool, partitioned: bool, plan: bool, sources: bool, drawn: bool) -> str:
    """Form of the graph that the options ask for; refuses options that exclude each other."""
    stages = {"lowered": lowered, "partitioned": partitioned, "plan": plan}
    asked = [f"--{name}" for name, is_set in [*stages.items(), ("sources", sources)] if is_set]
    if len(asked) > 1:
        raise UserInputError(
            "graph: options that exclude each other",
            expected="one of --lowered, --partitioned, --plan and --sources",
            got=" ".join(asked),
        )
    if plan and drawn:
        raise UserInputError(
            "graph: a plan is text", expected="--plan without --dot, --svg and --html", got="--plan with one of them"
        )
    return next((name for name, is_set in stages.items() if is_set), "traced")


# Functions that draw a traced graph, by the option that asks for it.
DRAWN = {"svg": format_svg, "html": format_page}


def write_drawing(text: str, path: Path, form: str, *, grad: bool, stage: str) -> None:
    """Draw the graph into a file, as "svg" or "html"; of lowered graphs Graphviz makes the picture."""
    if stage not in ("traced", "sources"):
        if form == "html":
            raise UserInputError(
                "graph: a page shows traced graphs", expected=f"--html without --{stage}", got=f"--html --{stage}"
            )
        write_svg(graph_text(text, grad=grad, dot=True, sources=False, stage=stage), path)
        return
    drawn = DRAWN[form](_traced(text, grad)[0])
    try:
        path.write_text(drawn, encoding="utf-8")
    except OSError as error:
        raise UserInputError(f"--{form}: the file cannot be written", got=f"{path}: {error.strerror}") from None


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
    return format_dot(graph, sources=sources) if dot else format_graph(graph, sources=sources)


def _traced(text: str, grad: bool) -> tuple[Graph, tuple[Any, ...]]:
    """The graph of a target, and the arguments whose dtypes and shapes are its own."""
    target = load_target("graph", text)
    arguments = target.example_args(", for their dtypes and shapes")
    fn = cg.function(cg.grad(target.fn) if grad else target.fn)
    return target.guarded(f"tracing {target.name}", lambda: fn.graph(*arguments)), arguments
