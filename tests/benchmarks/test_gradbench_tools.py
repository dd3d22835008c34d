"""Other tools for GradBench as peers: what they are asked, whose times count, and what is said of those that fail."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.__main__ import main, parse
from benchmarks.case import Case
from benchmarks.catalogue import cases
from benchmarks.gradbench.__main__ import MODULES, module_of
from benchmarks.gradbench.inputs import SIZES, make
from benchmarks.gradbench.with_ctrlgrad import read
from benchmarks.measure import measure
from benchmarks.outcome import Outcome
from benchmarks.process import Failure, Surroundings, Worker

FAKE = Path(__file__).parent / "fake_tool.py"
FUNCTIONS = [(m, f) for m in MODULES if m in SIZES for f in module_of(m).functions]
# ctrlgrad's own end of the protocol.
OURS = shlex.join([sys.executable, "-m", "benchmarks.gradbench"])
SURROUNDINGS = Surroundings(cores=1, patience=60.0, pythons={}, python=sys.executable)


def fake(behaviour: str) -> str:
    return shlex.join([sys.executable, str(FAKE), behaviour])


def case_of(name: str, command: str) -> Case:
    """A case between ctrlgrad and one tool."""
    (case,) = (c for c in cases("native", True, {"theirs": command}) if c.name == name)
    return Case(**vars(case) | {"entries": tuple(e for e in case.entries if e.system != "jax")})


def outcomes(name: str, command: str, rounds: int = 2) -> list[Outcome]:
    return measure(case_of(name, command), SURROUNDINGS, rounds, lambda text: None)


def failure(of: Outcome) -> Failure:
    assert of.failure is not None and of.cost is None
    return of.failure


@pytest.mark.parametrize(("module", "function"), FUNCTIONS, ids=lambda x: x)
def test_the_numbers_of_an_answer_are_those_that_were_computed(module: str, function: str) -> None:
    found = module_of(module).functions[function]
    result = found.compute(*found.prepare(make(module, SIZES[module][1])))
    answer = json.loads(json.dumps(found.finish(result)))
    np.testing.assert_array_equal(found.numbers(answer), read(result)["numbers"])


def test_only_the_first_run_of_all_finds_nothing_prepared(tmp_path: Path) -> None:
    entry = case_of("gradbench-lse-primal", fake("is good")).entries[1]
    with Worker(SURROUNDINGS, entry.system, tmp_path) as worker:
        worker.ask("build", program=entry.program, arguments=entry.arguments)
        assert worker.ask("run", times=1)["seconds"] == [100.0]
        assert worker.ask("run", times=1)["seconds"] == [1.0]
        assert worker.ask("run", times=3)["seconds"] == [1.0, 2.0, 3.0]


def test_the_times_are_those_that_the_tool_says() -> None:
    ours, theirs = outcomes("gradbench-lse-primal", fake("is good"))
    assert ours.failure is None and theirs.failure is None
    assert theirs.first_seconds == 100.0
    assert theirs.costs == [1.0, 1.0]
    assert theirs.ratios == [1.0 / cost for cost in ours.costs]
    assert ours.compared_with == "theirs" and ours.difference is not None and ours.difference < 1e-15


def test_a_tool_that_computes_something_else_is_found_out() -> None:
    ours, _ = outcomes("gradbench-lse-primal", fake("is wrong"))
    assert failure(ours).status == "disagrees"


@pytest.mark.parametrize(
    ("behaviour", "text"),
    [
        ("fails", "evaluate: no such thing"),
        ("ends", "evaluate: the tool ended, code 3"),
        ("answers others", 'evaluate: message 2 was answered by \'{"id": 12'),
        ("runs once", "evaluate: the tool was asked for 3 runs, and timed 1"),
    ],
)
def test_failures_of_a_tool_are_reported(behaviour: str, text: str) -> None:
    ours, theirs = outcomes("gradbench-lse-primal", fake(behaviour))
    assert ours.failure is None and len(ours.costs) == 2
    assert failure(theirs).status == "failed" and not failure(theirs).is_absence
    assert failure(theirs).text.startswith(text)


def test_a_module_that_a_tool_does_not_define_is_not_offered() -> None:
    ours, theirs = outcomes("gradbench-particle-ff", fake("is good"))
    assert ours.failure is None and len(ours.costs) == 2
    assert (failure(theirs).status, failure(theirs).text) == ("not offered", "the tool does not define particle")
    assert failure(theirs).details == "no rule for it" and failure(theirs).is_absence


def test_the_command_with_a_tool(tmp_path: Path) -> None:
    stem = tmp_path / "found"
    chosen = ["gradbench-ba-jacobian", "gradbench-saddle-rr"]
    settings = ["--tiny", "--peers", "numpy", "--repeats", "1", "--cores", "1", "--output", str(stem)]
    assert main([*settings, "--only", *chosen, "--gradbench-tool", f"twin={OURS}"]) == 0
    for case in json.loads(stem.with_suffix(".json").read_text())["cases"]:
        ours, twin = case["entries"]
        assert (ours["system"], ours["status"], ours["difference"]) == ("ctrlgrad", "ok", 0.0)
        assert (twin["label"], twin["system"], twin["status"]) == ("twin", "tool", "ok")
        assert twin["cost"] > 0.0 and len(twin["ratios"]) == 1


def test_a_tool_is_a_peer_in_every_case_of_gradbench_and_in_no_other() -> None:
    with_it = [c.name for c in cases("native", tools={"theirs": "x"}) if any(e.label == "theirs" for e in c.entries)]
    assert with_it == [c.name for c in cases("native") if c.name.startswith("gradbench-")]


def test_where_ctrlgrad_is_meant_to_be_ahead() -> None:
    bounds = {
        c.name: {e.goal.bound for e in c.entries if e.goal is not None}
        for c in cases("native", tools={"theirs": "x"})
        if c.name.startswith("gradbench-")
    }
    assert bounds["gradbench-lstm-jacobian"] == bounds["gradbench-particle-rr"] == {1.0}
    assert bounds["gradbench-gmm-jacobian"] == {1 / 1.5}


@pytest.mark.parametrize("given", [["theirs"], ["=x"], ["theirs="], ["jax=x"], ["ctrlgrad=x"], ["a=x", "a=y"]])
def test_tools_have_a_name_of_their_own_and_a_command(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([part for item in given for part in ("--gradbench-tool", item)])
    assert "--gradbench-tool takes" in capsys.readouterr().err
