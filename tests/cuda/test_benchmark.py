"""The benchmark of the CUDA engine runs, on the stand-in, in small sizes; nothing is timed here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from instruments.stand_in import StandIn, StandInDevice

from benchmarks.cuda import LAUNCHING, TINY, TINY_LENGTHS, WAYS, main


def test_the_benchmark_runs_and_its_rows_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library = StandIn()
    output = tmp_path / "found"
    arguments = ["--tiny", "--repeats", "1", "--budget", "24 KiB", "--output", str(output)]
    assert main(arguments, library, lambda: {library.name: StandInDevice()}) == 0
    found = json.loads(output.with_suffix(".json").read_text())
    assert found["size"] == list(TINY)
    rows = found["lengths"]
    assert [(row["length"], row["name"]) for row in rows] == [(n, way) for n in TINY_LENGTHS for way in WAYS]
    for length in TINY_LENGTHS:
        group = [row for row in rows if row["length"] == length]
        losses = {round(row["loss"], 5) for row in group if row["loss"] is not None}
        assert len(losses) == 1
        # Swapped it fits; kept on the device the longer one does not.
        assert group[2]["copied_bytes"] > 0 and group[2]["device_bytes"] <= 24 << 10
    assert "out of memory" in rows[-1]["note"]
    # Once in graphs, once from lists, once step by step: the same loss, by fewer launches of the host's.
    first = found["step"][:3]
    assert [row["name"] for row in first] == [f"no budget, {name}" for name in LAUNCHING]
    assert len({round(row["loss"], 5) for row in first}) == 1
    assert first[0]["graphs"] and not first[1]["graphs"] and not first[2]["graphs"]
    assert first[0]["launches"] < first[1]["launches"]
    # Peers that are not there say so.
    assert all(row["loss"] is not None or row["note"] for row in found["step"])
    text = capsys.readouterr().out
    assert "us/iteration" in text and output.with_suffix(".txt").read_text() in text + "\n"
