"""Starts small programs under mpirun; skips where the extra `mpi` is not installed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from instruments import warm

# Generous: the ranks share the cores with whatever else the machine does.
TIMEOUT = 120
MPIRUN = Path(sys.executable).with_name("mpirun")


@dataclass(frozen=True)
class Ended:
    """The end of a program under mpirun; `stderr` is without mpirun's own messages."""

    code: int
    stdout: str
    stderr: str


def _without_mpirun(text: str) -> str:
    """The text without mpirun's own notes, which stand between lines of dashes."""
    return "".join(text.split("-" * 74)[::2])


@dataclass(frozen=True)
class Mpirun:
    """Starts Python programs in a folder: `mpirun(3, code, *arguments)` runs one on three ranks, to its end.

    The ranks come from the server at an address; `unlike` ranks, and those of `command`, are processes of their own.
    """

    folder: Path
    address: str

    def command(self, ranks: int, code: str, *arguments: object, address: str | None = None) -> list[str]:
        program = self.folder / "program.py"
        program.write_text(code)
        given = [str(program), *map(str, arguments)]
        rank = [sys.executable, *given] if address is None else warm.command(address, *given)
        return [str(MPIRUN), "--oversubscribe", "-n", str(ranks), *rank]

    @property
    def environment(self) -> dict[str, str]:
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        # The ranks share memory. To look for networks of other kinds takes Open MPI a second at each start.
        near = {"OMPI_MCA_btl": "^ofi"}
        return {**os.environ, **root, **near, "OPENBLAS_NUM_THREADS": "1"}

    def start(self, ranks: int, code: str, *arguments: object, address: str | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(ranks, code, *arguments, address=address),
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, ranks: int, code: str, *arguments: object, unlike: bool = False) -> Ended:
        address = None if unlike else self.address
        with self.start(ranks, code, *arguments, address=address) as process:
            try:
                stdout, stderr = process.communicate(timeout=TIMEOUT)
            except subprocess.TimeoutExpired:
                # The ranks end with mpirun; it does not pass SIGKILL on.
                process.terminate()
                raise
        return Ended(process.returncode, stdout, _without_mpirun(stderr))


@pytest.fixture(scope="session")
def ranks() -> Iterator[str]:
    """The address of a server that ranks come from; it has not imported mpi4py, which may start MPI."""
    if find_spec("mpi4py") is None or not MPIRUN.exists():
        pytest.skip("needs mpi4py and an mpirun beside python: pip install -e '.[mpi]'")
    with warm.server("ctrlgrad.cli", "ctrlgrad.cli.train", "ctrlgrad.dataflow.messages") as address:
        yield address


@pytest.fixture
def mpirun(tmp_path: Path, ranks: str) -> Mpirun:
    return Mpirun(tmp_path, ranks)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """120 different lines of different length, of few words."""
    rng = random.Random(0)
    words = ["loop", "stack", "value", "graph", "push", "pop", "branch"]
    path = tmp_path / "text.txt"
    path.write_text("\n".join(f"{n} " + " ".join(rng.choices(words, k=rng.randint(1, 3))) for n in range(120)))
    return path
