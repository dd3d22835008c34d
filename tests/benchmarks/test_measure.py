"""Measuring a case: who is compared, who is timed, and what is said of those that are not."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.case import Case, Entry, Goal
from benchmarks.measure import measure
from benchmarks.outcome import Outcome
from benchmarks.process import THREAD_COUNTS, Failure, Surroundings, Worker
from benchmarks.report import Report, table

SURROUNDINGS = Surroundings(cores=1, patience=60.0, pythons={}, python=sys.executable)


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake programs can be imported in the processes."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def entry(label: str, program: str, system: str = "jax", **more: Any) -> Entry:
    return Entry(label, system, f"fake_programs:{program}", **more)


def outcomes(*entries: Entry, rounds: int = 2, **more: Any) -> list[Outcome]:
    return measure(Case("fake", "a case", "step", entries, **more), SURROUNDINGS, rounds, lambda text: None)


def failure_of(outcome: Outcome) -> Failure:
    assert outcome.failure is not None
    assert outcome.cost is None and outcome.ratio is None
    return outcome.failure


def test_costs_and_ratios_are_per_unit_and_paired() -> None:
    base, slow = outcomes(
        entry("ours", "steady", "ctrlgrad", arguments={"seconds": 0.05}, units=10),
        entry("theirs", "steady", arguments={"seconds": 0.1, "units": 4}),
        rounds=3,
    )
    assert base.failure is None and slow.failure is None
    assert len(base.costs) == len(slow.costs) == len(slow.ratios) == 3
    assert slow.ratios == [b / a for a, b in zip(base.costs, slow.costs, strict=True)]
    assert base.costs == pytest.approx([0.005] * 3) and slow.costs == pytest.approx([0.025] * 3)
    assert base.ratio is None
    assert (base.compared_with, base.difference) == ("theirs", 0.0)


def test_a_system_that_computes_something_else_is_not_timed() -> None:
    ours, good, bad = outcomes(
        entry("ours", "steady", "ctrlgrad", arguments={"value": 1.00001}),
        entry("good", "steady"),
        entry("bad", "steady", arguments={"value": 1.001}),
    )
    assert ours.failure is None and good.failure is None
    assert ours.difference == pytest.approx(1e-5)
    assert failure_of(bad).status == "disagrees"
    assert failure_of(bad).text == "'value' differs from good's by 1.0e-03 of its largest entry; 1e-04 is allowed"


def test_ctrlgrad_is_the_one_that_is_judged() -> None:
    ours, _ = outcomes(entry("ours", "steady", "ctrlgrad", arguments={"value": 2.0}), entry("theirs", "steady"))
    assert failure_of(ours).status == "disagrees"


def test_an_entry_that_is_not_compared_is_timed() -> None:
    _, floor = outcomes(
        entry("ours", "steady", "ctrlgrad"), entry("floor", "steady", arguments={"value": 5.0}, is_compared=False)
    )
    assert floor.failure is None and floor.difference is None and len(floor.costs) == 2


def test_a_package_that_is_missing_is_named() -> None:
    ours, missing = outcomes(entry("ours", "steady", "ctrlgrad"), entry("theirs", "not_installed"))
    assert ours.failure is None and len(ours.costs) == 2
    assert failure_of(missing).status == "not installed"
    assert failure_of(missing).text == "not installed: a_package_that_nobody_has"


def test_an_error_is_kept_and_ratios_to_it_do_not_exist() -> None:
    failed, fine = outcomes(entry("ours", "failing", "ctrlgrad"), entry("theirs", "steady"))
    assert failure_of(failed).status == "failed"
    assert failure_of(failed).text == "ValueError: no such thing\n  and more about it"
    assert "in step" in failure_of(failed).details
    assert fine.cost is not None and fine.ratio is None


def test_a_process_that_dies_is_reported_with_its_last_words() -> None:
    _, dead = outcomes(entry("ours", "steady", "ctrlgrad"), entry("theirs", "dying"))
    assert failure_of(dead).text == "run: the process ended, code 3"
    assert failure_of(dead).details == "last words"


def test_patience_ends() -> None:
    impatient = replace(SURROUNDINGS, patience=1.0)
    case = Case("fake", "a case", "step", (entry("slow", "waiting", arguments={"seconds": 60.0}),))
    (slow,) = measure(case, impatient, 1, lambda text: None)
    assert failure_of(slow).status == "timed out"
    assert "no answer within 1 s" in failure_of(slow).text


def test_printed_text_is_no_answer() -> None:
    (outcome,) = outcomes(entry("ours", "talkative", "ctrlgrad"))
    assert outcome.failure is None


def test_the_check_may_use_other_arguments_than_the_timing() -> None:
    ours, theirs = outcomes(
        entry("ours", "steady", "ctrlgrad", arguments={"value": 3.0}),
        entry("theirs", "steady", arguments={"value": 4.0}),
        check={"value": 1.0},
    )
    assert ours.failure is None and ours.difference == 0.0 and theirs.failure is None


def test_first_runs_are_of_new_processes() -> None:
    (outcome,) = outcomes(entry("ours", "warming", "ctrlgrad"), measure="first run")
    assert len(outcome.import_seconds) == 2
    assert outcome.costs == pytest.approx([0.5, 0.5])


def test_compilation_is_the_first_run_beyond_a_later_one() -> None:
    (outcome,) = outcomes(entry("ours", "warming", "ctrlgrad"), measure="compilation")
    assert outcome.costs == pytest.approx([0.3, 0.3])


def test_only_an_entry_with_a_cache_finds_what_an_earlier_process_left() -> None:
    cold, cached = outcomes(
        entry("cold", "caching", "ctrlgrad"),
        entry("cached", "caching", "ctrlgrad", has_cache=True),
        measure="first run",
    )
    assert cold.costs == pytest.approx([0.1, 0.1]) and cached.costs == pytest.approx([0.5, 0.5])


def test_kept_bytes_are_counted_once() -> None:
    ours, theirs, silent = outcomes(
        entry("ours", "steady", "ctrlgrad", arguments={"kept": 100.0}, goal=Goal("cost", "at most", 200.0)),
        entry("theirs", "steady", arguments={"kept": 250.0}),
        entry("silent", "steady"),
        measure="kept bytes",
    )
    assert ours.costs == [100.0] and theirs.ratios == [2.5]
    assert "does not count" in failure_of(silent).text


def test_a_process_has_the_cores_and_threads_it_is_given(tmp_path: Path) -> None:
    with Worker(SURROUNDINGS, "jax", tmp_path) as worker:
        worker.ask("build", program="fake_programs:counting_cores", arguments={})
        assert worker.ask("run", times=1)["units"] == 1
    assert {SURROUNDINGS.environment(tmp_path, has_cache=False)[name] for name in THREAD_COUNTS} == {"1"}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's list of processes")
def test_busy_processes_run_beside_a_run_and_end_with_it(tmp_path: Path) -> None:
    with Worker(SURROUNDINGS, "jax", tmp_path) as worker:
        worker.ask("build", program="fake_programs:counting_runners", arguments={}, busy=2)
        assert worker.ask("run", times=1)["units"] == 2.0
        (children,) = (p.read_text().split() for p in Path(f"/proc/{worker._process.pid}/task").glob("*/children"))
        assert len(children) == 2
        assert _soon(lambda: [_state(pid) for pid in children] == ["T", "T"])
    assert _soon(lambda: {_state(pid) for pid in children} <= {"Z", "X", ""})


def _state(pid: str) -> str:
    """The letter that Linux has for what a process does; empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _soon(holds: Callable[[], bool]) -> bool:
    """Signals take a while to arrive."""
    end = time.monotonic() + 30.0
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    return holds()


def test_a_request_that_does_not_exist(tmp_path: Path) -> None:
    with Worker(SURROUNDINGS, "jax", tmp_path) as worker, pytest.raises(Failure, match="no_such_request"):
        worker.ask("no_such_request")


def test_the_report_says_all_of_it(tmp_path: Path) -> None:
    found = outcomes(
        entry("ours", "steady", "ctrlgrad", arguments={"seconds": 0.01}),
        entry("theirs", "steady", arguments={"seconds": 0.1}, goal=Goal("ratio", "at least", 1.5)),
        entry("far", "steady", arguments={"seconds": 0.01}, goal=Goal("ratio", "at least", 1000.0)),
        entry("gone", "not_installed", goal=Goal("ratio", "at least", 2.0)),
        entry("broken", "failing"),
    )
    case = Case("fake", "a case", "step", tuple(o.entry for o in found))
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table(case, found))
    text = console.export_text(clear=False)
    lines = {line.split("│")[1].strip(): line for line in text.splitlines() if line.startswith("│")}
    assert "at least 1.5: met" in lines["theirs"]
    assert "at least 1e+03: missed" in lines["far"]
    assert "not installed" in lines["gone"] and "at least 2: not measured" in lines["gone"]
    assert "ValueError: no such thing" in lines["broken"]
    machine = {"date": "2000-01-01", "processor": "abacus"}
    report = Report(machine, {"cores": 1, "engine": "steam"}, {"jax": "0"}, [(case, found)])
    record, tables, picture = report.save(tmp_path / "found", text)
    (written,) = json.loads(record.read_text())["cases"]
    assert [e["status"] for e in written["entries"]] == ["ok", "ok", "ok", "not installed", "failed"]
    assert [e["goal_is_met"] for e in written["entries"]] == [None, True, False, None, None]
    assert tables.read_text() == text
    assert picture.read_bytes().startswith(b"\x89PNG")
