"""The benchmark of the CUDA engine runs, on the stand-in, in small sizes; nothing is timed here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from instruments.stand_in import StandIn, StandInDevice

from benchmarks.cuda.__main__ import main
from benchmarks.cuda.lstm import LAUNCHING, TINY, TINY_LENGTHS, WAYS


def test_the_benchmark_runs_and_its_rows_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library = StandIn()
    output = tmp_path / "found"
    arguments = ["--tiny", "--repeats", "1", "--budget", "24 KiB", "--output", str(output)]
    assert main(arguments, library, lambda: {library.name: StandInDevice()}) == 0
    found = json.loads(output.with_suffix(".json").read_text())
    step, scalars, lengths = found["groups"]
    assert str(TINY[0]) in step["title"]
    rows = lengths["rows"]
    assert [(row["length"], row["name"]) for row in rows] == [(n, way) for n in TINY_LENGTHS for way in WAYS]
    for length in TINY_LENGTHS:
        group = [row for row in rows if row["length"] == length]
        losses = {round(row["loss"], 5) for row in group if row["loss"] is not None}
        assert len(losses) == 1
        # Swapped it fits; kept on the device the longer one does not.
        assert group[2]["copied_bytes"] > 0 and group[2]["device_bytes"] <= 24 << 10
    assert "out of memory" in rows[-1]["note"]
    # The stand-in computes in no time: the clock goes on with copies alone, which nothing hides.
    assert rows[-2]["stalled"] == pytest.approx(1) and rows[-2]["hidden"] == 0
    # Once in graphs, once from lists, once step by step: the same loss, by fewer launches of the host's.
    first = step["rows"][:3]
    assert [row["name"] for row in first] == [f"no budget, {name}" for name in LAUNCHING]
    assert len({round(row["loss"], 5) for row in first}) == 1
    assert first[0]["graphs"] and not first[1]["graphs"] and not first[2]["graphs"]
    assert first[0]["launches"] < first[1]["launches"]
    # Peers that are not there say so.
    assert all(row["loss"] is not None or row["note"] for group in found["groups"] for row in group["rows"])
    text = capsys.readouterr().out
    title, _, tables = output.with_suffix(".txt").read_text().partition("\n")
    assert "us/iteration" in tables and text.startswith(title) and tables in text
    assert not any(check["has_failed"] for check in found["checks"])
    # Of the peers nothing is held against anything; nor is where there was no memory, or a first row.
    assert all(row["difference"] < 1e-4 for row in step["rows"] if row["launches"] is not None)
    # The loop of numbers on the host launches nothing, and says the same as the one on the card.
    hosted, carded, _ = scalars["rows"]
    assert hosted["launches"] == 0 < carded["launches"]
    np.testing.assert_allclose(hosted["loss"], carded["loss"], 1e-12)


def test_a_case_that_fails_is_a_row_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each case is written as soon as it is there, so a run that is cut off keeps what it has."""
    written: list[int] = []

    def fail(self: StandIn, given: Sequence[int]) -> Any:
        written.append(len(json.loads((tmp_path / "found.json").read_text())["checks"]))
        raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED")

    monkeypatch.setattr(StandIn, "multiply", fail)
    library = StandIn()
    arguments = [
        "--tiny",
        "--repeats",
        "1",
        "--budget",
        "24 KiB",
        "--output",
        str(tmp_path / "found"),
        "--lengths",
        "4",
    ]
    assert main(arguments, library, lambda: {library.name: StandInDevice()}) == 1
    found = json.loads((tmp_path / "found.json").read_text())
    checks = {check["name"]: check for check in found["checks"]}
    assert checks["products"]["note"] == "failed: RuntimeError: CUBLAS_STATUS_NOT_SUPPORTED"
    failed = [name for name, check in checks.items() if check["has_failed"]]
    assert failed == ["products", "products of float32", "half floats"]
    assert checks["a graph"]["difference"] < 1e-9 and checks["a graph"]["graphs"]
    assert written[0] == list(checks).index("products")


def test_no_case_begins_after_the_end(tmp_path: Path) -> None:
    library = StandIn()
    assert main(["--tiny", "--seconds", "0", "--output", str(tmp_path / "found")], library) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    rows = [*found["checks"], *(row for group in found["groups"] for row in group["rows"])]
    assert len(rows) > 20 and {row["note"] for row in rows} == {"left out: 0 seconds were over"}
