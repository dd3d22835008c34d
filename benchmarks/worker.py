"""The process of one system: reads requests, one JSON object a line, and answers each with one line.

    {"do": "build", "program": "module:function", "arguments": {...}, "busy": 0}
                                                                         -> {"import_seconds": ...}
    {"do": "run", "times": 3}            -> {"seconds": [...], "processor_seconds": [...], "units": null,
                                             "peak_bytes": ..., "resident_bytes": ...}
    {"do": "save", "path": "results.npz"}                                -> {}
    {"do": "kept_bytes"}                                                 -> {"bytes": ...}
    {"do": "versions", "packages": ["jax"]}                              -> {"versions": {"jax": "..."}}

A request that fails is answered by {"error": ..., "details": ..., "status": that of a `Failure`}. Where a system times
its runs itself there are no processor seconds. Results travel as NumPy files without pickle. What libraries print goes
to the standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from importlib import metadata
from typing import Any, TextIO

from benchmarks.process import Failure


class Session:
    """The state between requests: the program, and what its last run returned."""

    def __init__(self) -> None:
        self.program: Any = None
        self.result: Any = None
        self.busy: list[subprocess.Popen[bytes]] = []
        self.resident = 0

    def build(self, program: str, arguments: dict[str, Any], busy: int = 0) -> dict[str, Any]:
        """Load a program. So many processes that do nothing but count run beside each run of it.

        Memory of its runs is counted from here on.
        """
        module, _, function = program.partition(":")
        start = time.perf_counter()
        loaded = importlib.import_module(module)
        import_seconds = time.perf_counter() - start
        self.program = self.result = None
        self.program = getattr(loaded, function)(**arguments)
        self.resident = memory_now("VmRSS")
        while len(self.busy) < busy:
            self.busy.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            self.busy[-1].send_signal(signal.SIGSTOP)
        return {"import_seconds": import_seconds}

    def run(self, times: int) -> dict[str, Any]:
        seconds, processor_seconds = [], []
        self.wake(True)
        forget_peak()
        if self.program.timed_runs is not None:
            self.result, seconds = self.program.timed_runs(times)
        else:
            for _ in range(times):
                self.result = None
                start, used = time.perf_counter(), time.process_time()
                self.result = self.program.step()
                seconds.append(time.perf_counter() - start)
                processor_seconds.append(time.process_time() - used)
        self.wake(False)
        peak = max(0, memory_now("VmHWM") - self.resident)
        units = self.program.units
        found = None if units is None else units(self.result)
        taken = {"seconds": seconds, "processor_seconds": processor_seconds}
        return taken | {"units": found, "peak_bytes": peak, "resident_bytes": self.resident}

    def wake(self, awake: bool) -> None:
        for process in self.busy:
            process.send_signal(signal.SIGCONT if awake else signal.SIGSTOP)

    def save(self, path: str) -> dict[str, Any]:
        import numpy as np

        np.savez(path, **self.program.read(self.result))
        return {}

    def kept_bytes(self) -> dict[str, Any]:
        if self.program.kept_bytes is None:
            raise NotImplementedError("this program does not count the bytes that it keeps")
        return {"bytes": float(self.program.kept_bytes())}

    def versions(self, packages: list[str]) -> dict[str, Any]:
        return {"versions": {name: metadata.version(name) for name in packages}}


def answer(session: Session, request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request; failures become answers too."""
    try:
        return getattr(session, request.pop("do"))(**request)  # type: ignore[no-any-return]
    except Failure as failure:
        return {"error": failure.text, "details": failure.details, "status": failure.status}
    except ModuleNotFoundError as error:
        text = f"not installed: {(error.name or '').partition('.')[0]}"
        return {"error": text, "details": traceback.format_exc(), "status": "not installed"}
    except Exception as error:
        text = "".join(traceback.format_exception_only(error)).strip()
        return {"error": text, "details": traceback.format_exc(), "status": "failed"}


def memory_now(name: str) -> int:
    """Bytes of a line of `/proc/self/status`: `VmRSS` is resident memory, `VmHWM` its peak."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


def forget_peak() -> None:
    """Reset `VmHWM` to the resident memory of now (`proc(5)`, `clear_refs`)."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def own_channel() -> TextIO:
    """The standard output for answers alone: what anyone else prints goes to the standard error from now on."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return channel


def bind(cores: int) -> None:
    """Run on the first so many of the cores that this process may use; threads made later inherit it."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def main() -> None:
    bind(int(sys.argv[1]))
    channel = own_channel()
    session = Session()
    for line in sys.stdin:
        channel.write(json.dumps(answer(session, json.loads(line))) + "\n")
        channel.flush()


if __name__ == "__main__":
    main()
