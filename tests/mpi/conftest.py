"""Starts small programs under mpirun; skips where the extra `mpi` is not installed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

# Generous: the ranks share the cores with whatever else the machine does.
TIMEOUT = 120
MPIRUN = Path(sys.executable).with_name("mpirun")


@dataclass(frozen=True)
class Ended:
    """How a program under mpirun ended; `stderr` is without what mpirun itself says."""

    code: int
    stdout: str
    stderr: str


def _without_mpirun(text: str) -> str:
    """The text without mpirun's own notes, which stand between lines of dashes."""
    return "".join(text.split("-" * 74)[::2])


@pytest.fixture
def mpirun(tmp_path: Path) -> Callable[..., Ended]:
    """Run a Python program on some ranks: `mpirun(3, code, *arguments)`."""
    if find_spec("mpi4py") is None or not MPIRUN.exists():
        pytest.skip("needs mpi4py and an mpirun beside python: pip install 'ctrlgrad[mpi]'")

    def run(ranks: int, code: str, *arguments: object) -> Ended:
        program = tmp_path / "program.py"
        program.write_text(code)
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        ended = subprocess.run(
            [MPIRUN, "--oversubscribe", "-n", str(ranks), sys.executable, program, *map(str, arguments)],
            env={**os.environ, **root, "OPENBLAS_NUM_THREADS": "1"},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        return Ended(ended.returncode, ended.stdout, _without_mpirun(ended.stderr))

    return run


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """120 different lines of different length, of few words."""
    rng = random.Random(0)
    words = ["loop", "stack", "value", "graph", "push", "pop", "branch"]
    path = tmp_path / "text.txt"
    path.write_text("\n".join(f"{n} " + " ".join(rng.choices(words, k=rng.randint(1, 5))) for n in range(120)))
    return path
