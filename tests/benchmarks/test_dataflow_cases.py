"""The paper's experiments: the programs do what their cases say."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.dataflow.ranks import Ranks
from benchmarks.dataflow.with_ctrlgrad import cells, layers, learning, pipeline
from benchmarks.program import Program
from ctrlgrad import dataflow


def results(program: Program) -> dict[str, np.ndarray]:
    return dict(program.read(program.step()))


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], rtol: float) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=rtol, atol=rtol * np.max(np.abs(array)))


@pytest.mark.parametrize("dependent", [False, True])
def test_cells_end_alike_on_any_number_of_devices(dependent: bool) -> None:
    for devices in (1, 2, 4):
        found = results(cells(20, devices, dependent))
        assert found["cell"] == pytest.approx(0.9**20, rel=1e-12)
        assert found["one more than the spread"] == 1.0


def test_a_cell_is_on_a_device_of_its_own() -> None:
    recorder = dataflow.Recorder()
    with dataflow.settings(recorder=recorder):
        cells(3, 4, True).step()
    assert {f.device for f in recorder.firings} == {"cpu:0", "cpu:1", "cpu:2", "cpu:3"}


@pytest.mark.skipif(find_spec("mpi4py") is None, reason="needs the extra mpi")
def test_ranks_run_when_they_are_asked_and_end_when_nobody_can_ask_any_more() -> None:
    ranks = Ranks(2, 20, dependent=True)
    for _ in range(2):
        assert ranks.run() == pytest.approx([0.9**20] * 2, rel=1e-12)
    assert ranks.close() == 0


@pytest.mark.parametrize("latency", [None, 1e-3])
def test_a_window_does_not_change_what_a_pipeline_computes(latency: float | None) -> None:
    expected = results(pipeline(5, 4, 1))
    assert_same(results(pipeline(5, 4, 8, latency)), expected, 1e-12)


def test_a_latency_is_one_of_the_messages_between_the_stages() -> None:
    recorder = dataflow.Recorder()
    with dataflow.settings(recorder=recorder):
        pipeline(4, 4, 2, 5e-3).step()
    ends: dict[Any, dict[bool, float]] = {}
    for passage in recorder.passages:
        ends.setdefault((passage.edge, passage.tag), {})[passage.is_arrival] = passage.time
    # A message is noted as sent after it has been handed over.
    assert ends and all(end[True] - end[False] > 4e-3 for end in ends.values())


def test_two_layers_are_the_same_on_two_devices() -> None:
    size = (20, 3, 6, 4)
    expected = results(layers(size, devices=1))
    assert {name for name in expected if name.startswith("w")} == {"wx0", "wh0", "wx1", "wh1"}
    assert expected["wx0"].shape == (6, 16) and np.all(np.abs(expected["wx0"]).sum(0) > 0)
    for loops in (None, "lowered"):
        with dataflow.settings(loops=None):
            assert_same(results(layers(size, devices=2, loops=loops)), expected, 1e-6)
    assert_same(results(layers(size, devices=1, engine="reference")), expected, 1e-6)


def test_learning_gives_the_same_rewards_in_the_graph_and_from_python() -> None:
    found = [
        results(learning(60, 20, way, engine))["rewards"]
        for way, engine in (("in graph", "reference"), ("from Python", "reference"), ("in graph", "dataflow"))
    ]
    found.append(results(learning(60, 20, "in graph", "dataflow", loops="lowered"))["rewards"])
    assert found[0].shape == (60,) and 0 < np.sum(found[0] == 0.0) < 20
    assert all(np.array_equal(found[0], rewards) for rewards in found[1:])


def test_programs_that_would_measure_something_else_are_refused() -> None:
    with pytest.raises(ValueError, match="on one device or on two, not on 3"):
        layers((5, 3, 6, 4), devices=3)
    with pytest.raises(ValueError, match="a setting of the dataflow engine"):
        learning(60, 20, "in graph", "native", loops="lowered")


@pytest.mark.parametrize(
    "chosen",
    [
        ["dataflow-unrolling-32"],
        pytest.param(["dataflow-devices-dependent", "dataflow-layers"], marks=pytest.mark.long),
    ],
    ids=lambda names: names[-1],
)
def test_the_cases_by_the_command(chosen: list[str], tmp_path: Path) -> None:
    stem = tmp_path / "found"
    arguments = ["--tiny", "--engine", "reference", "--repeats", "1", "--output", str(stem), "--only", *chosen]
    main(arguments)
    found = {case["name"]: case["entries"] for case in json.loads(stem.with_suffix(".json").read_text())["cases"]}
    assert list(found) == chosen
    # Ranks need mpi4py; everything else is there.
    status = {(entry["label"], entry["status"]) for entries in found.values() for entry in entries}
    assert {state for label, state in status if not label.endswith("ranks")} == {"ok"}
    assert {state for label, state in status if label.endswith("ranks")} <= {"ok", "not installed"}
