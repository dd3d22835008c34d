"""The page of measurements: its table is that of the results file, and a program measured anew changes one row."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import measurements
from benchmarks.catalogue import cases
from benchmarks.measurements import FIGURES, FILE, PAGE, main, page, programs, rows


def test_the_page_is_that_of_the_results_file() -> None:
    record = json.loads(FILE.read_text(encoding="utf-8"))
    assert PAGE.read_text(encoding="utf-8") == page(record)
    assert {case["name"] for case in record["programs"]} <= {case.name for case in programs()}


def test_a_miss_is_shown_and_a_peer_that_failed_has_no_row() -> None:
    record = json.loads(FILE.read_text(encoding="utf-8"))
    one = record["programs"][0]
    ours = {"label": "ctrlgrad", "system": "ctrlgrad"} | dict.fromkeys(FIGURES, 2e6)
    slow, gone = ours | {"label": "slow", "system": "jax", "warm": 1e6}, {"label": "gone", "system": "torch"}
    record["programs"] = [one | {"name": "made up", "entries": [ours, slow, gone | {"failure": "not installed"}]}]
    assert [row[:2] for row in rows(record)] == [("made up", "slow")]
    assert "**0.50**" in page(record) and "Behind by more than 5 %: made up and slow (later call 0.50)." in page(record)


def test_one_program_is_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = {case.name: case for case in cases("native", tiny=True)}
    monkeypatch.setattr(measurements, "programs", lambda: [replace(tiny[name]) for name in ("kalman", "systems")])
    output, shown = tmp_path / "measurements.json", tmp_path / "measurements.md"
    to = ["--output", str(output), "--page", str(shown), "--peers", "numpy", "--rounds", "1", "--cores", "1"]
    main(["--only", "kalman", *to])
    main(["--only", "systems", *to])
    record = json.loads(output.read_text(encoding="utf-8"))
    assert [case["name"] for case in record["programs"]] == ["kalman", "systems"]
    (ours,) = record["programs"][1]["entries"]
    assert all(ours[figure] > 0 for figure in FIGURES) and shown.read_text(encoding="utf-8") == page(record)
