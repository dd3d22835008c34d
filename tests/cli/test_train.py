"""A run of `ctrlgrad train`: what it leaves, that it is repeatable, and that it continues exactly."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import load_file
from trained import KEYS, assert_same_numbers, metrics_of, numbers

import ctrlgrad
from ctrlgrad.train import trainer
from ctrlgrad.train.layers import LAYERS
from ctrlgrad.train.model import Model
from ctrlgrad.train.text import TextTask


@pytest.mark.parametrize("cell", LAYERS)
def test_a_run_learns_and_leaves_its_results(train, cell, drawing):
    result = train("run", "--cell", cell, steps=45)
    assert result.exit_code == 0, result.output
    assert list(result.summary) == KEYS
    names = ["best.safetensors", "checkpoint.safetensors", "loss.png", "metrics.jsonl", "summary.json"]
    assert sorted(p.name for p in result.out.iterdir()) == names
    lines = metrics_of(result.out)
    assert [m["step"] for m in lines] == [10, 20, 30, 40, 45]
    others = {"step", "bits_per_char", "characters_per_second", "peak_memory_bytes"}
    assert set(lines[0]) == {*others, "validation_bits_per_char"}
    # Of five parts of the run; two of them end in one interval of the log.
    assert [m["validation_bits_per_char"] is not None for m in lines] == [True, True, True, True, True]
    assert lines[-1]["validation_bits_per_char"] == result.summary["validation_bits_per_char"]
    assert lines[-1]["bits_per_char"] < lines[0]["bits_per_char"]
    assert result.summary["validation_bits_per_char"] < result.summary["unigram_bits_per_char"]
    assert result.summary["steps"] == 45 and result.summary["verified"] is None
    assert (result.out / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_it_prints_lines_that_the_model_writes(train):
    result = train("run", steps=3)
    written = result.stdout.split("Lines that the model writes:\n")[1].splitlines()
    assert len([line for line in written if line.startswith("  ")]) == 3


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others(train):
    first, again, other = train("a"), train("b"), train("c", "--seed", 1)
    assert_same_numbers(first, again)
    assert numbers(other) != numbers(first)


def test_two_layers_are_two_cells(train):
    train("run", "--layers", 2, steps=2)
    tensors = load_file(train("run2", "--layers", 2, steps=2).out / "checkpoint.safetensors")
    assert tensors["params.layers.1.wx"].shape == (8, 32)


def test_json_prints_the_summary_alone(train):
    result = train("run", "--json", steps=3)
    assert json.loads(result.stdout) == result.summary
    assert result.stderr == ""


def test_a_run_without_out_takes_the_first_free_folder(command, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "1").mkdir(parents=True)
    assert command("train", "--hidden", 4, "--batch", 2, "--steps", 1, "--text", text).exit_code == 0
    assert (tmp_path / "runs" / "2" / "summary.json").exists()


def test_a_run_stopped_after_any_step_continues_to_the_same_numbers(train, train_until):
    whole = train("whole")
    for stop in (1, 10, 13, 30):
        name = f"stopped-{stop}"
        broken = train_until(stop, name)
        assert broken.exit_code == 130 and broken.summary is None
        # A step whose validation was stopped is made again.
        kept = stop - (stop in (10, 30))
        assert f"after step {kept};" in broken.stderr and str(broken.out) in broken.stderr
        resumed = train(name, "--resume")
        assert resumed.exit_code == 0, resumed.output
        assert_same_numbers(whole, resumed)


def test_metrics_that_a_killed_run_wrote_after_its_checkpoint_are_written_again(train, train_until):
    whole = train("whole")
    broken = train_until(13, "broken")
    with open(broken.out / "metrics.jsonl", "a") as file:
        lost = {"step": 20, "bits_per_char": 1.0, "characters_per_second": 1.0, "peak_memory_bytes": 1}
        file.write(json.dumps(lost) + '\n{"step": 30, "bits')
    assert_same_numbers(whole, train("broken", "--resume"))


def test_unfinished_checkpoints_of_a_killed_run_are_removed(train):
    run = train("run", steps=3)
    (run.out / ".checkpoint.safetensors.12345").write_bytes(b"half of")
    assert train("run", "--resume", steps=3).exit_code == 0
    assert not list(run.out.glob(".*"))


def test_resuming_a_finished_run_ends_in_the_same_numbers(train):
    first = train("run", steps=12)
    before = numbers(first)
    assert numbers(train("run", "--resume", steps=12)) == before


def test_the_advice_after_ctrl_c_is_the_command_that_works(command, train_until, tmp_path, monkeypatch):
    """Without --out, and with a folder that a shell would split."""
    for name in ("run", "a run of 'mine'"):
        broken = train_until(7, name, "--cell", "gru", "--engine", "reference")
        advice = broken.stderr.split("try: ")[1].strip()
        words = shlex.split(advice)
        assert words == ["ctrlgrad", "train", "--resume", "--out", str(tmp_path / name)]
        assert command(*words[1:]).exit_code == 0
        assert json.loads((tmp_path / name / "summary.json").read_text())["steps"] == 30


def test_the_advice_names_the_folder_that_was_chosen(command, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = trainer.run

    def stopped(job, on_step):
        return run(job, lambda step: signal.raise_signal(signal.SIGINT))

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "run", stopped)
        options = ("--hidden", 4, "--batch", 2, "--steps", 4, "--engine", "reference", "--text", text)
        broken = command("train", *options)
    assert broken.exit_code == 130
    assert broken.stderr.endswith("try: ctrlgrad train --resume --out runs/1\n")
    assert command("train", "--resume", "--out", "runs/1").exit_code == 0


def test_a_run_resumes_with_its_own_options(train, train_until, command):
    """The numbers are those of the whole run: cell, sizes, seed, engine, budget and text are in the folder."""
    options = ("--cell", "gru", "--seed", 5, "--engine", "reference", "--memory-budget", "1MiB")
    whole = train("whole", *options)
    broken = train_until(13, "broken", *options)
    assert command("train", "--resume", "--out", broken.out).exit_code == 0
    broken.summary = json.loads((broken.out / "summary.json").read_text())
    assert_same_numbers(whole, broken)


def test_a_finished_run_is_trained_further(train, command):
    first = train("run", "--engine", "reference", steps=12)
    result = command("train", "--resume", "--out", first.out, "--steps", 25)
    assert result.exit_code == 0, result.output
    assert "from step 12" in " ".join(result.stdout.split())
    assert json.loads((first.out / "summary.json").read_text())["steps"] == 25
    assert [m["step"] for m in metrics_of(first.out)] == [10, 12, 20, 25]
    again = command("train", "--resume", "--out", first.out)  # 25 steps are now its own
    assert again.exit_code == 0 and "25 steps from step 25" in " ".join(again.stdout.split())


def test_a_run_that_is_trained_further_has_no_summary_until_its_end(train, train_until):
    train("run", "--engine", "reference", steps=5)
    broken = train_until(7, "run", "--resume")
    assert broken.exit_code == 130 and broken.summary is None


class Clock:
    """Each step takes two seconds, a process's first one a hundred; a look at the clock in between takes none."""

    def __init__(self):
        self.now = 0.0
        self.looks = 0

    def __call__(self):
        self.looks += 1
        if self.looks % 2 == 0:
            self.now += 100.0 if self.looks == 2 else 2.0
        return self.now


def test_the_summary_and_the_log_have_the_same_characters_per_second(train, train_until, monkeypatch):
    """Neither counts a process's first step, in which the functions are compiled."""
    lengths = {}
    share_at = TextTask.share_at

    def noted(task, step):
        share = share_at(task, step)
        lengths[step] = share.characters
        return share

    monkeypatch.setattr(TextTask, "share_at", noted)
    monkeypatch.setattr(trainer.time, "perf_counter", Clock())
    train_until(13, "run", "--engine", "reference")
    monkeypatch.setattr(trainer.time, "perf_counter", Clock())
    result = train("run", "--resume")
    assert result.exit_code == 0, result.output
    rates = {m["step"]: m["characters_per_second"] for m in metrics_of(result.out)}
    mean = lambda steps: sum(lengths[s] for s in steps) / (2.0 * len(steps))
    assert rates[10] == pytest.approx(mean(range(1, 10)))
    assert rates[20] == pytest.approx(mean(range(14, 20)))  # since it was resumed at 13
    assert rates[30] == pytest.approx(mean(range(20, 30)))
    assert result.summary["characters_per_second"] == pytest.approx(mean([*range(1, 13), *range(14, 30)]))
    assert result.summary["seconds"] == 2 * 100.0 + 28 * 2.0
    last = re.findall(r"([\d,]+) chars/s", result.stdout)[-1]
    assert min(lengths.values()) / 2 <= float(last.replace(",", "")) <= max(lengths.values()) / 2


def test_a_run_of_one_step_has_that_steps_characters_per_second(train):
    result = train("run", "--engine", "reference", steps=1)
    assert result.summary["characters_per_second"] == metrics_of(result.out)[0]["characters_per_second"] > 0.0


def test_a_run_that_cannot_make_a_step_leaves_no_folder(train, tmp_path):
    for name in ("run", "above/run"):
        result = train(name, "--engine", "reference", "--memory-budget", "10", steps=2)
        assert result.exit_code == 2 and "limit 10 bytes" in result.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["text.txt"]


def test_a_folder_that_was_there_stays(train, tmp_path):
    (tmp_path / "run").mkdir()
    assert train("run", "--engine", "reference", "--memory-budget", "10", steps=2).exit_code == 2
    assert list((tmp_path / "run").iterdir()) == []


def test_version(command):
    result = command("--version")
    assert result.exit_code == 0 and result.stdout == f"ctrlgrad {ctrlgrad.__version__}\n"


def test_ctrl_c_leaves_a_valid_checkpoint_and_exit_code_130(train, text, tmp_path):
    out = tmp_path / "broken"
    steps = 150
    options = ["--hidden", "8", "--batch", "4", "--steps", str(steps), "--text", str(text), "--out", str(out)]
    code = "from ctrlgrad.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "train", *options], stdin=subprocess.DEVNULL, stderr=-1, text=True
    )
    deadline = time.monotonic() + 120
    while not (out / "metrics.jsonl").exists() or not metrics_of(out):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130
    assert str(out / "checkpoint.safetensors") in stderr and "Traceback" not in stderr
    assert 10 <= metrics_of(out)[-1]["step"] < steps
    assert_same_numbers(train("whole", steps=steps), train("broken", "--resume", steps=steps))


def test_verify_compares_every_parameter_with_jax(train):
    pytest.importorskip("jax")
    result = train("run", "--verify", steps=2)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("agrees") == 6 and "differs" not in result.stdout
    assert result.summary["verified"] is True


def test_verified_survives_a_resume(train):
    pytest.importorskip("jax")
    train("run", "--verify", steps=2)
    assert train("run", "--resume", steps=2).summary["verified"] is True


def test_a_wrong_gradient_stops_the_run_before_it_starts(train, monkeypatch):
    pytest.importorskip("jax")
    init = Model.__init__

    def init_with_a_wrong_gradient(self, *options):
        init(self, *options)
        right = self.bits_and_grads

        def wrong(*arguments):
            bits, grads = right(*arguments)
            grads["layers"][0]["wh"] = grads["layers"][0]["wh"] * np.float32(1.001)
            return bits, grads

        self.bits_and_grads = wrong

    monkeypatch.setattr(Model, "__init__", init_with_a_wrong_gradient)
    result = train("run", "--verify", "--json", steps=2)
    assert result.exit_code == 1
    assert json.loads(result.stdout)["verified"] is False
    assert "wh" in result.stderr and not result.out.exists()


def test_a_budget_and_a_profile(train):
    """Less memory, the same run; and what a few steps did with it lies beside the metrics."""
    plain = train("plain", "--engine", "native", steps=6)
    bounded = train("bounded", "--engine", "native", "--memory-budget", "256KiB", "--profile", steps=6)
    assert bounded.exit_code == 0, bounded.output
    for name in ("memory.txt", "memory.json", "memory.html", "memory.png"):
        assert (bounded.out / name).stat().st_size
    text = (bounded.out / "memory.txt").read_text()
    assert "device: " in text and "of 256.0 KiB" in text
    assert json.loads((bounded.out / "memory.json").read_text())["traceEvents"]
    np.testing.assert_allclose(
        bounded.summary["validation_bits_per_char"], plain.summary["validation_bits_per_char"], rtol=1e-3
    )


def test_a_budget_holds_for_the_reference_engine(train):
    plain = train("plain", "--engine", "reference", steps=2)
    bounded = train("bounded", "--engine", "reference", "--memory-budget", "1MiB", "--profile", steps=2)
    assert plain.exit_code == bounded.exit_code == 0, bounded.output
    assert bounded.summary["validation_bits_per_char"] == plain.summary["validation_bits_per_char"]
    assert "device" in (bounded.out / "memory.txt").read_text()


def test_a_budget_that_is_no_size_is_refused(train):
    result = train("wrong", "--memory-budget", "lots", steps=2)
    assert result.exit_code == 2 and "not a size" in result.output
