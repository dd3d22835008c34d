"""Any number of programs, each batch in a forked child: a crash is a failure of the program that the child had begun.

The parent never computes: a process reads its number of threads and its width of vectors once, and each child has its
own.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TextIO

from ctrlgrad.errors import CtrlgradError
from size_sweep.judge import MismatchError, judge
from size_sweep.program import BATCH, Program, machine_of, program

# Seconds of the processor that a program may take, and seconds until one that waits for ever is ended.
LIMIT, WAITING = 120, 1800.0


@dataclass
class Outcome:
    judged: int = 0
    compared: Counter[str] = field(default_factory=Counter)
    forms: Counter[str] = field(default_factory=Counter)
    machines: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


@dataclass
class _Child:
    """Process that judges the programs up to `end`; `begun` and `program` are the number and text of the latest."""

    pid: int
    output: int
    end: int
    begun: int
    since: float
    program: str = ""
    text: bytes = b""


def sweep(
    seed: int, first: int, count: int, jobs: int, widths: tuple[int, ...], names: tuple[str, ...]
) -> Iterator[Outcome]:
    """The outcome so far, after each batch."""
    end, outcome = first + count, Outcome()
    waiting = [(k, min(end, (k // BATCH + 1) * BATCH)) for k in _starts(first, end)][::-1]
    running: dict[int, _Child] = {}
    with selectors.DefaultSelector() as selector:
        while waiting or running:
            while waiting and len(running) < jobs:
                child = _started(seed, *waiting.pop(), widths, names)
                running[child.output] = child
                selector.register(child.output, selectors.EVENT_READ)
            for key, _ in selector.select(timeout=1.0):
                child = running[key.fd]
                if piece := os.read(key.fd, 1 << 16):
                    _read(child, piece, outcome)
                    continue
                selector.unregister(key.fd)
                del running[key.fd]
                os.close(key.fd)
                status = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
                if status != 0:
                    how = signal.Signals(-status).name if status < 0 else f"exit {status}"
                    outcome.failures.append(f"{child.program}\n    the process ended: {how}")
                    if child.begun + 1 < child.end:
                        waiting.append((child.begun + 1, child.end))
                yield outcome
            for child in running.values():
                if time.monotonic() - child.since > WAITING:
                    os.kill(child.pid, signal.SIGKILL)
                    child.since = time.monotonic()


def _starts(first: int, end: int) -> Iterator[int]:
    while first < end:
        yield first
        first = (first // BATCH + 1) * BATCH


def _read(child: _Child, piece: bytes, outcome: Outcome) -> None:
    *lines, child.text = (child.text + piece).split(b"\n")
    for line in lines:
        told: dict[str, Any] = json.loads(line)
        child.begun, child.since = told["number"], time.monotonic()
        child.program = told.get("program", child.program)
        if "failure" in told:
            outcome.failures.append(told["failure"])
        if "compared" in told:
            outcome.compared.update(told["compared"])
        if "form" in told:
            outcome.judged += 1
            outcome.forms[told["form"]] += 1
            outcome.machines[told["machine"]] += 1


def _started(seed: int, first: int, end: int, widths: tuple[int, ...], names: tuple[str, ...]) -> _Child:
    """A child that judges the programs of a batch from `first` on."""
    output, into = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(into)
        return _Child(pid, output, end, first, time.monotonic())
    status = 1
    try:
        os.close(output)
        os.environ.update(machine_of(seed, first, widths).environment)
        with os.fdopen(into, "w", buffering=1) as out:
            for number in range(first, end):
                print(json.dumps(_judged(program(seed, number, widths, names), out)), file=out)
        status = 0
    finally:
        os._exit(status)


def _judged(drawn: Program, out: TextIO) -> dict[str, Any]:
    machine = f"{drawn.machine.threads} threads, {drawn.machine.bits} bits"
    told: dict[str, Any] = {"number": drawn.number, "form": drawn.name.rstrip("0123456789"), "machine": machine}
    begun = [drawn]

    def begin(sized: Program) -> None:
        begun.append(sized)
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + LIMIT, resource.RLIM_INFINITY))
        print(json.dumps({"number": sized.number, "program": str(sized)}), file=out)

    try:
        told["compared"] = judge(drawn, begin)
    except (MismatchError, CtrlgradError) as error:
        told["failure"] = f"{begun[-1]}\n    {type(error).__name__}: {error}"
    except Exception:
        told["failure"] = f"{begun[-1]}\n    {traceback.format_exc()}"
    return told
