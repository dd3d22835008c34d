"""One rank of a loop over ranks: `mpirun -n RANKS python -m benchmarks.dataflow.ranks ITERATIONS [--dependent]`.

Rank 0 reads lines. For each it runs the loop once, with all ranks, and answers with the cells as JSON; without it, it
ends, and the others do. Between two runs nobody computes: an MPI call that waits would take a core from what is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# Seconds between two looks at whether there is a run to take part in.
LOOK = 1e-3


class Ranks:
    """The other end: ranks that wait to be asked for a run. They end when this process does."""

    def __init__(self, ranks: int, n: int, dependent: bool) -> None:
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        mpirun = [str(Path(sys.executable).with_name("mpirun")), "--oversubscribe", "--bind-to", "none"]
        command = [*mpirun, "-n", str(ranks), sys.executable, "-m", "benchmarks.dataflow.ranks", str(n)]
        self._process = subprocess.Popen(
            [*command, "--dependent"] if dependent else command,
            env={**os.environ, **root, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self) -> list[float]:
        """The cells after one run."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the ranks ended, code {self._process.wait()}")
        cells: list[float] = json.loads(line)
        return cells

    def close(self) -> int:
        """Let the ranks end; their exit code."""
        self._process.communicate()
        return self._process.returncode


def take_part(n: int, dependent: bool) -> None:
    """Be a rank until rank 0 has nothing more to run."""
    from mpi4py import MPI

    from benchmarks.dataflow.with_ctrlgrad import cells

    world: Any = MPI.COMM_WORLD.Dup()
    program = cells(n, world.Get_size(), dependent, "/rank:{}/cpu:0")
    order = bytearray(1)
    while True:
        if world.Get_rank() == 0:
            order[0] = bool(sys.stdin.readline())
            for other in range(1, world.Get_size()):
                world.Send(order, other)
        else:
            while not world.Iprobe(0):
                time.sleep(LOOK)
            world.Recv(order, 0)
        if not order[0]:
            return
        found = [float(x) for x in program.step()]
        if world.Get_rank() == 0:
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dataflow.ranks")
    parser.add_argument("iterations", type=int)
    parser.add_argument("--dependent", action="store_true", help="each cell takes its neighbour's last value")
    options = parser.parse_args()
    take_part(options.iterations, options.dependent)
