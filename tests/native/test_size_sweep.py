"""A short size sweep; its machinery reports a crash and a wrong number."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from instruments.machines import VECTOR_BITS
from size_sweep.forms import FORMS
from size_sweep.program import BATCH, THREADS, program

ROOT = Path(__file__).resolve().parents[2]


def swept(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.size_sweep", "--bits", ",".join(map(str, VECTOR_BITS)), *arguments]
    variables = {**os.environ, **environment}
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=600)


def test_a_short_sweep() -> None:
    found = swept("--seed", "0", "--count", "30")
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.splitlines()[-1] == "30 programs judged, 0 failures"


def test_a_program_follows_from_its_seed_and_its_number() -> None:
    programs = [program(3, k, (128,)) for k in range(6 * BATCH)]
    assert [str(p) for p in programs] == [str(program(3, k, (128,))) for k in range(6 * BATCH)]
    assert {p.machine.threads for p in programs} == set(THREADS)
    assert len({p.name.rstrip("0123456789") for p in programs}) == len({n.rstrip("0123456789") for n in FORMS})


def test_a_program_of_unknown_sizes_is_judged_at_further_ones() -> None:
    programs = [program(3, k, (128,)) for k in range(200)]
    further = {p.number: list(p.at_further_sizes()) for p in programs}
    assert all(p.unknown or not further[p.number] for p in programs)
    assert sum(map(len, further.values())) > 100
    for p in programs:
        assert {sized.form.source for sized in further[p.number]} <= {p.form.source}
        assert len({str(sized) for sized in (p, *further[p.number])}) == 1 + len(further[p.number])


WRONG = """
import os, signal
import numpy as np
from size_sweep import judge, sweep

def judged(drawn, begin):
    begin(drawn)
    if drawn.number == 1:
        os.kill(os.getpid(), signal.SIGFPE)
    if drawn.number == 3:
        judge._same("value, by NumPy", np.ones(3), np.array([1.0, 2.0, 1.0]), drawn, [])
    return {}

sweep.judge = judged
*_, outcome = sweep.sweep(5, 0, 6, 1, (128,), ("product", "vectors"))
print(outcome.judged)
print("\\n".join(outcome.failures))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_a_crash_and_a_wrong_number_are_failures_of_their_programs() -> None:
    variables = {**os.environ, "PYTHONPATH": "tests"}
    command = [sys.executable, "-c", WRONG]
    found = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    judged, *lines = found.stdout.splitlines()
    text = "\n".join(lines)
    assert judged == "5"
    assert "program 1 of seed 5" in text and f"the process ended: {signal.SIGFPE.name}" in text
    assert "program 3 of seed 5" in text and "1 of 3 elements differ; at [1]" in text
    assert text.count("--seed 5 --first") == 2
