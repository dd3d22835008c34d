"""The catalogue of cases, and the command on ctrlgrad alone."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from benchmarks.__main__ import main, select
from benchmarks.case import Entry, Goal
from benchmarks.catalogue import PEERS, cases
from benchmarks.report import quantity

ROOT = Path(__file__).resolve().parent.parent.parent


def entries() -> Iterator[Entry]:
    for tiny in (False, True):
        for case in cases("native", tiny):
            yield from case.entries


@cache
def parameters(program: str) -> inspect.Signature:
    """The parameters of a program, read from its source: its system need not be installed."""
    path, _, name = program.partition(":")
    module = ast.parse(ROOT.joinpath(*path.split(".")).with_suffix(".py").read_text())
    (found,) = (n for n in module.body if isinstance(n, ast.FunctionDef) and n.name == name)
    required = len(found.args.args) - len(found.args.defaults)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature(
        [
            inspect.Parameter(a.arg, kind, default=inspect.Parameter.empty if i < required else None)
            for i, a in enumerate(found.args.args)
        ]
    )


def test_every_program_exists_and_takes_its_arguments() -> None:
    for entry in entries():
        parameters(entry.program).bind(**entry.arguments)


def test_a_program_belongs_to_its_system() -> None:
    for entry in entries():
        assert entry.system in ("ctrlgrad", *PEERS)
        assert entry.program.partition(":")[0].endswith(f".with_{entry.system}")


def test_cases_have_names_of_their_own_and_start_with_ctrlgrad() -> None:
    every = cases("native")
    assert len({case.name for case in every}) == len(every)
    for case in every:
        assert case.entries[0].system == "ctrlgrad"
        assert len({entry.label for entry in case.entries}) == len(case.entries)
    assert [c.name for c in cases("native", tiny=True)] == [c.name for c in every]


def test_every_goal_names_an_entry_of_its_case() -> None:
    from benchmarks.catalogue import RECURRENT_GOALS

    for size, goals in RECURRENT_GOALS.items():
        name = f"lstm-concat-{'x'.join(map(str, size))}"
        (case,) = select(cases("native"), [name], None)
        assert goals.keys() <= {entry.label for entry in case.entries}


def test_tiny_cases_have_no_goals() -> None:
    assert all(entry.goal is None for case in cases("native", tiny=True) for entry in case.entries)
    assert sum(entry.goal is not None for case in cases("native") for entry in case.entries) > 20


def test_a_goal_is_met_at_its_bound() -> None:
    assert Goal("ratio", "at least", 2.0).is_met(cost=1.0, ratio=2.0) is True
    assert Goal("ratio", "at least", 2.0).is_met(cost=1.0, ratio=1.9) is False
    assert Goal("cost", "at most", 0.5).is_met(cost=0.5, ratio=None) is True
    assert Goal("cost", "at most", 0.5).is_met(cost=0.6, ratio=None) is False
    assert Goal("ratio", "at least", 2.0).is_met(cost=1.0, ratio=None) is None


def test_peers_and_patterns_select() -> None:
    chosen = select(cases("native"), ["gru-*", "nested"], ["torch"])
    assert len(chosen) == 9
    assert {entry.system for case in chosen for entry in case.entries} == {"ctrlgrad", "torch"}


@pytest.mark.parametrize(
    ("value", "is_bytes", "text"),
    [
        (2.5, False, "2.5 s"),
        (0.0421, False, "42.1 ms"),
        (3.2e-8, False, "32 ns"),
        (4e-11, False, "0.04 ns"),
        (0.0, False, "0 ns"),
        (1234.0, False, "1,234 s"),
        (393216.0, True, "393 kB"),
    ],
)
def test_quantities_read_well(value: float, is_bytes: bool, text: str) -> None:
    assert quantity(value, is_bytes) == text


def test_a_case_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "no-such-case"]) == 2
    assert "--list" in capsys.readouterr().err


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert "lstm-concat-200x64x128x256" in capsys.readouterr().out


def test_an_engine_that_does_not_exist_is_an_error_in_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--tiny", "--engine", "steam", "--only", "nested", "--peers", "numpy", "--repeats", "1"]) == 1
    assert "there is no such engine" in capsys.readouterr().out


def test_ctrlgrad_alone(tmp_path: Path) -> None:
    stem = tmp_path / "out" / "found"
    chosen = ["lstm-concat-50x1x32x64", "nested", "runge-kutta", "lengths", "compilation", "kept-bytes"]
    arguments = ["--tiny", "--engine", "reference", "--peers", "numpy", "--repeats", "1", "--output", str(stem)]
    assert main([*arguments, "--only", *chosen]) == 0
    found = json.loads(stem.with_suffix(".json").read_text())
    assert {case["name"] for case in found["cases"]} == set(chosen)
    assert found["machine"]["processor"] and found["settings"]["engine"] == "reference"
    everything = [entry for case in found["cases"] for entry in case["entries"]]
    assert {entry["status"] for entry in everything} == {"ok"}
    assert all(entry["cost"] >= 0 for entry in everything if "compil" not in entry["label"])
    (unrolled,) = (e for e in everything if e["label"] == "ctrlgrad, unrolled")
    assert unrolled["difference"] < 1e-5
    (whole, less) = (e["cost"] for e in found["cases"][-1]["entries"])
    assert whole == 6 * 3 * 5 * 4 and less == 2 * 3 * 5 * 4  # gates, c, h; then c and h
    assert stem.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
