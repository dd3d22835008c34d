"""A program of JAX read twice: as it stands, and with its imports changed and nothing else."""

from __future__ import annotations

import functools
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

PROGRAMS = Path(__file__).resolve().parent / "programs"

# The beginning of a line that imports from JAX, and its replacement.
IMPORTS = {
    "import jax": "import ctrlgrad as jax",
    "import jax.numpy as jnp": "import ctrlgrad.numpy as jnp",
    "from jax import ": "from ctrlgrad import ",
    "from jax.scipy.linalg import ": "from ctrlgrad.scipy.linalg import ",
    "from jax.scipy.special import ": "from ctrlgrad.scipy.special import ",
}


@dataclass(frozen=True)
class Program:
    """One program, by JAX and with the imports changed."""

    jax: Any
    ours: Any


def with_imports_changed(text: str) -> str:
    return "\n".join(map(_changed, text.split("\n")))


def _changed(line: str) -> str:
    if not re.match(r"\s*(import|from) jax\b", line):
        return line
    for begin, instead in IMPORTS.items():
        if line == begin or (begin.endswith(" ") and line.startswith(begin)):
            return instead + line[len(begin) :]
    raise ValueError(f"the table of imports has no line for {line!r}")


@functools.cache
def load(name: str) -> Program:
    """The two modules of a program in `programs/`."""
    path = PROGRAMS / f"{name}.py"
    text = path.read_text()
    return Program(_module(f"{name}_of_jax", text, path), _module(f"{name}_ported", with_imports_changed(text), path))


def _module(name: str, text: str, path: Path) -> ModuleType:
    module = ModuleType(name)
    # Dataclasses look their module up.
    sys.modules[name] = module
    exec(compile(text, str(path), "exec"), vars(module))
    return module
