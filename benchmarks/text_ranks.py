"""Scaling of `ctrlgrad train` over processes: a step of one process beside a step of N ranks with N times the batch.

`python -m benchmarks.text_ranks` runs both on the text that comes with the command, with its default model and one
thread a process, in turns of `TURN` steps, so that what else the machine does meets both. The ranks sleep while the
other side has its turn. Efficiency is the time of one process over that of the ranks: each process computes as many
lines in either. The processor time of a rank says what the ranks cost on a machine whose cores are shared.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import header
from benchmarks.process import THREAD_COUNTS

TURN = 20
_TIMES = struct.Struct("<dd")


def take_part(port: int, batch: int, options: list[str], folder: str) -> None:
    """Make steps of a run whenever the process that listens at the port asks for a turn."""
    from ctrlgrad.mpi.launch import join, number_of_ranks
    from ctrlgrad.train import corpus, text, trainer
    from ctrlgrad.train.ranks import DataParallel, Ranks
    from ctrlgrad.train.settings import Settings

    given = dict(option.split("=") for option in options)
    settings = Settings(engine="native", batch=batch, steps=1 << 40, **{k: int(v) for k, v in given.items()})
    ranks: Ranks = Ranks()
    if number_of_ranks() > 1:
        joined = join()
        ranks = DataParallel(joined.world, joined.watch)
    job = text.prepare(settings, corpus.load(None, batch, settings.reading), None, Path(folder), ranks=ranks)
    steps = trainer.steps(job, lambda step: None, lambda: None, lambda: False)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while connection.recv(1):
            start, used = time.perf_counter(), time.process_time()
            for _ in range(TURN):
                next(steps)
            connection.sendall(_TIMES.pack(time.perf_counter() - start, time.process_time() - used))


class Side:
    """So many processes of one run."""

    def __init__(self, ranks: int, batch: int, options: list[str], folder: str) -> None:
        self.ranks = ranks
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.text_ranks", *options, "--folder", folder]
        if ranks > 1:
            places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
            command = [shutil.which("mpirun", path=places) or "mpirun", "-n", str(ranks), *command]
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        one = dict.fromkeys(("CTRLGRAD_THREADS", *THREAD_COUNTS), "1")
        with socket.create_server(("127.0.0.1", 0)) as server:
            command += ["--batch", str(batch), "--port", str(server.getsockname()[1])]
            self.process = subprocess.Popen(command, env={**os.environ, **root, **one}, stdin=subprocess.DEVNULL)
            server.settimeout(120)
            self.connections = [server.accept()[0] for _ in range(ranks)]

    def turn(self) -> tuple[float, float]:
        """Milliseconds a step, and those of processor time for each process."""
        for connection in self.connections:
            connection.sendall(b"t")
        found = [_TIMES.unpack(c.recv(_TIMES.size, socket.MSG_WAITALL)) for c in self.connections]
        wall, used = max(wall for wall, _ in found), sum(used for _, used in found) / self.ranks
        return 1e3 * wall / TURN, 1e3 * used / TURN

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        self.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("options", nargs="*", help="settings of numbers, as hidden=256 or layers=2")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32, help="lines of a process")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.port:
        take_part(given.port, given.batch, given.options, given.folder)
        return
    load = f"load {os.getloadavg()[0]:.1f}"
    print(f"{header('native')}, {given.ranks} ranks, {given.batch} lines each, {given.options}, {load}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        sides = [Side(n, n * given.batch, given.options, f"{folder}/{n}") for n in (1, given.ranks)]
        times: list[list[Any]] = [[], []]
        for number in range(given.turns + 1):
            for at in (0, 1) if number % 2 else (1, 0):
                found = sides[at].turn()
                if number:  # the first turn compiles
                    times[at].append(found)
        for side in sides:
            side.close()
    one, several = (np.array(side) for side in times)
    print("milliseconds a step | best | quartiles of turns | processor time of a process: best | median")
    for name, side in (("one process", one), (f"{given.ranks} ranks", several)):
        wall, used = side.T
        quartiles = "  ".join(f"{q:.2f}" for q in np.quantile(wall, [0.25, 0.5, 0.75]))
        print(f"{name} | {wall.min():.2f} | {quartiles} | {used.min():.2f} | {np.median(used):.2f}")
    best, used = (one[:, k].min() / several[:, k].min() for k in (0, 1))
    quartiles = "  ".join(f"{q:.2f}" for q in np.quantile(one[:, 0] / several[:, 0], [0.25, 0.5, 0.75]))
    print(f"efficiency, best turns {best:.2f}; quartiles of turns {quartiles}; by processor time {used:.2f}")


if __name__ == "__main__":
    main()
