"""Ranks that run a loop together, as often as they are asked.

Rank 0 has a connection to the process that started them: for each line that comes it runs the loop once, with all
ranks, and answers with the cells as JSON. When the connection ends, however it ends, all ranks do. (What mpirun
forwards to rank 0 as its input has no end.) Between two runs no rank computes: an MPI call that waits would take a core
from the timed program.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# Seconds between two looks at whether there is a run to take part in. The ranks of other entries look too while one is
# timed: each look takes some of its cores.
LOOK = 5e-3


# Seconds for the ranks to start.
START = 60.0


class Ranks:
    """The ranks, seen from the process that starts them. They end when it does."""

    def __init__(self, ranks: int, n: int, dependent: bool) -> None:
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        # That of this Python, else of the machine; where there is none, its name is told by the error.
        folders = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        mpirun = [shutil.which("mpirun", path=folders) or "mpirun", "--oversubscribe", "--bind-to", "none"]
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(START)
            port = server.getsockname()[1]
            command = [*mpirun, "-n", str(ranks), sys.executable, "-m", "benchmarks.dataflow.ranks", str(n), str(port)]
            self._process = subprocess.Popen(
                [*command, "--dependent"] if dependent else command,
                env={**os.environ, **root, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                # Nothing but answers may go to the output of a process that answers requests.
                stdout=sys.stderr,
            )
            try:
                self._connection, _ = server.accept()
            except TimeoutError:
                self._process.terminate()
                raise RuntimeError(f"the ranks did not start within {START:.0f} s") from None
        self._lines = self._connection.makefile("r")

    def run(self) -> list[float]:
        """The cells after one run."""
        self._connection.sendall(b"run\n")
        line = self._lines.readline()
        if not line:
            raise RuntimeError(f"the ranks ended, code {self._process.wait()}")
        cells: list[float] = json.loads(line)
        return cells

    def close(self) -> int:
        """Let the ranks end; their exit code."""
        self._lines.close()
        self._connection.close()
        return self._process.wait()


def take_part(n: int, port: int, dependent: bool) -> None:
    """Run as a rank until the connection to the starting process ends."""
    from mpi4py import MPI

    from benchmarks.dataflow.with_ctrlgrad import cells

    world: Any = MPI.COMM_WORLD.Dup()
    program = cells(n, world.Get_size(), dependent, "/rank:{}/cpu:0")
    is_first = world.Get_rank() == 0
    connection = socket.create_connection(("127.0.0.1", port)) if is_first else None
    order = bytearray(1)
    while True:
        if connection is not None:
            order[0] = _is_asked(connection)
            for other in range(1, world.Get_size()):
                world.Send(order, other)
        else:
            while not world.Iprobe(0):
                time.sleep(LOOK)
            world.Recv(order, 0)
        if not order[0]:
            return
        found = [float(x) for x in program.step()]
        if connection is not None:
            connection.sendall(f"{json.dumps(found)}\n".encode())


def _is_asked(connection: socket.socket) -> bool:
    """Wait for a request; False where the other end is gone."""
    try:
        return bool(connection.recv(4, socket.MSG_WAITALL))
    except ConnectionError:
        return False


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dataflow.ranks")
    parser.add_argument("iterations", type=int)
    parser.add_argument("port", type=int, help="where the process that started the ranks listens")
    parser.add_argument("--dependent", action="store_true", help="each cell takes its neighbour's last value")
    options = parser.parse_args()
    take_part(options.iterations, options.port, options.dependent)
