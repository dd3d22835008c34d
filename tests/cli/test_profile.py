"""`ctrlgrad profile` runs a user's function under a budget, shows tables, and writes text, trace and picture."""

import importlib
import json

import pytest
from rich.console import Console

from ctrlgrad.cli.programs import print_summary
from ctrlgrad.memory.profile.records import FellBack, Recording
from ctrlgrad.memory.profile.summary import summarize

PROGRAM = """
import numpy as np
import ctrlgrad as cg
import ctrlgrad.numpy as cnp


def example_args():
    random = np.random.default_rng(0)
    return random.normal(size=(16, 16)) * 0.1, random.normal(size=(8, 16))


def recurrent(w, x):
    def step(carry):
        number, h = carry
        return number + 1, cnp.tanh(h @ w)

    # Else the planner copies or computes again, as the machine's times are.
    return cnp.sum(cg.while_loop(lambda carry: carry[0] < 200, step, (0, x), swap_memory=True)[1] ** 2)


def straight(w, x):
    return cnp.sum(x @ w)


def failing(w, x):
    raise RuntimeError("on purpose")
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.parametrize("budget", ["64KiB", "1GiB"])
def test_a_gradient_under_a_budget(command, program, tmp_path, budget):
    pytest.importorskip("matplotlib")
    spill = tmp_path / "spill"
    spill.mkdir()
    stem = tmp_path / "out"
    result = command(
        "profile", f"{program}:recurrent", "--grad", "--device-budget", budget, "--disk", spill, "--output", stem
    )
    assert result.exit_code == 0, result.output
    assert "recurrent and its gradient on cpu" in result.output
    assert "program.py:15" in result.output
    text = (tmp_path / "out.txt").read_text()
    trace = json.loads((tmp_path / "out.json").read_text())
    assert text.startswith("memory on cpu\n")
    limit = trace["otherData"]["limits"]["device"]
    assert limit == {"64KiB": 1 << 16, "1GiB": 1 << 30}[budget]
    counted = [e["args"]["bytes"] for e in trace["traceEvents"] if e["ph"] == "C" and e["name"] == "device bytes"]
    assert 0 < max(counted) <= limit
    copies = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["cat"].startswith("copy")]
    # 200 steps of 8 x 16 doubles are 200 KiB.
    assert bool(copies) == (budget == "64KiB")
    assert ("device to disk" in text) == bool(copies)
    assert {e["cat"] for e in trace["traceEvents"] if e["ph"] == "X"} >= {"forward", "backward"}
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert all(str(stem) + suffix in result.output for suffix in (".txt", ".json", ".html", ".png"))
    assert list(spill.iterdir()) == []


def test_a_function_without_loops(command, program, tmp_path):
    result = command("profile", f"{program}:straight", "--output", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "Nothing was pushed" in result.output and "--grad runs the gradient" in result.output
    assert "pushed values\n  none" in (tmp_path / "out.txt").read_text()


def test_without_matplotlib_there_is_no_picture(command, program, tmp_path, monkeypatch):
    # By name from the import system: `ctrlgrad.memory.profile` as an attribute is the public function.
    monkeypatch.setattr(importlib.import_module("ctrlgrad.memory.profile.pictures"), "find_spec", lambda name: None)
    result = command("profile", f"{program}:straight", "--output", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "No picture: it needs matplotlib" in result.output
    assert sorted(path.name for path in tmp_path.glob("out.*")) == ["out.html", "out.json", "out.txt"]


def test_deviations_from_the_plan_are_a_table():
    made = Recording()
    made.fell_back += [FellBack(1.0, 1, "h: a copy failed: the disk is full\n  got: 0 free bytes")] * 3
    made.devices[1] = "cpu"
    console = Console(width=100, record=True)
    print_summary(console, "step", summarize(made))
    lines = [line.split(None, 1) for line in console.export_text().splitlines() if line.strip()]
    assert ["times", "otherwise than planned"] in [[part.strip() for part in line] for line in lines]
    assert ["3", "h: a copy failed: the disk is full"] in [[part.strip() for part in line] for line in lines]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["program.py:missing"], "there is no function 'missing'"),
        (["program.py:recurrent", "--device-budget", "much"], "not a size"),
        (["program.py:recurrent", "--disk", "nowhere"], "the folder for spill files cannot be used: nowhere"),
        (["program.py:straight", "--output", "nowhere/out"], "no such folder"),
        (["program.py:failing"], "running failing failed"),
    ],
)
def test_unusable_arguments_are_refused(command, program, monkeypatch, arguments, message):
    monkeypatch.chdir(program.parent)
    result = command("profile", *arguments)
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert not list(program.parent.glob("memory-profile*"))


def test_an_output_that_is_a_folder_or_cannot_be_written(command, program, tmp_path):
    (tmp_path / "taken.txt").mkdir()
    result = command("profile", f"{program}:straight", "--output", tmp_path / "taken")
    assert result.exit_code == 2 and "--output cannot be written" in result.stderr
    assert "taken.txt: Is a directory" in result.stderr
    result = command("profile", f"{program}:straight", "--output", "/")
    assert result.exit_code == 2 and "--output is a folder" in result.stderr


def test_a_budget_that_is_too_small_says_what_is_needed(command, program, tmp_path):
    result = command("profile", f"{program}:recurrent", "--grad", "--device-budget", "100", "--output", tmp_path / "o")
    assert result.exit_code == 2, result.output
    assert "needs" in result.output
    assert "limit 100 bytes" in result.output
