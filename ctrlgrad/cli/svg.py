"""DOT drawn as SVG by Graphviz, where that is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from ctrlgrad.errors import UserInputError

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


__all__ = ["write_svg"]
