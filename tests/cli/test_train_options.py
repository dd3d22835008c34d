"""Options of `ctrlgrad train`, runs that are longer than they were to be, and what a finished run can do."""

import dataclasses
import json
import re
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file
from trained import assert_same_numbers, metrics_of

import ctrlgrad as cg
from ctrlgrad.cli import OptimiserName, PrecisionName, ScheduleName, TokenName
from ctrlgrad.errors import UserInputError
from ctrlgrad.train import Settings, checkpoint, corpus, load, settings, trainer
from ctrlgrad.train.corpus import pad
from ctrlgrad.train.model import Model

OPTIONS = {
    "embedding": ("--embedding", 5),
    "bytes": ("--tokens", "byte"),
    "words": ("--tokens", "word", "--vocabulary", 12),
    "short lines in buckets": ("--line-limit", 6, "--buckets"),
    "adamw, a constant rate": ("--optimiser", "adamw", "--weight-decay", 0.1, "--schedule", "constant"),
    "sgd, a line": ("--optimiser", "sgd", "--learning-rate", 0.5, "--schedule", "linear", "--warmup", 3),
    "decay of another optimiser's": ("--optimiser", "rmsprop", "--weight-decay", 0.01, "--clip", 0),
    "dropout": ("--dropout", 0.3, "--layers", 2),
    "truncated": ("--truncate", 4, "--cell", "gru"),
    "float64": ("--precision", "float64"),
    "bfloat16": ("--precision", "bfloat16"),
    "intervals": ("--validation-interval", 7, "--checkpoint-interval", 5),
}


def settings_of(run):
    return checkpoint.read(run.out / "checkpoint.safetensors").identity.settings


@pytest.mark.parametrize("name", OPTIONS)
def test_a_run_with_an_option_stops_and_continues_to_the_same_numbers(train, train_until, name):
    options = (*OPTIONS[name], "--engine", "reference", "--steps", 12)
    whole = train("whole", *options)
    assert whole.exit_code == 0, whole.output
    assert settings_of(whole) != Settings(hidden=8, batch=4, steps=12)
    broken = train_until(8, "broken", *options)
    assert broken.exit_code == 130, broken.output
    resumed = train("broken", "--resume", "--steps", 12)
    assert resumed.exit_code == 0, resumed.output
    assert_same_numbers(whole, resumed)


def test_every_setting_is_an_option_with_help(command):
    text = re.sub(r"\s+", " ", re.sub(r"[│╭╮╰╯─]", " ", command("train", "--help").stdout))
    for field in dataclasses.fields(Settings):
        assert f"--{field.name.replace('_', '-')} " in text, field.name


@pytest.mark.parametrize(
    "names, found",
    [
        (OptimiserName, settings.OPTIMISERS),
        (ScheduleName, settings.SCHEDULES),
        (TokenName, corpus.TOKENS),
        (PrecisionName, settings.PRECISIONS),
    ],
)
def test_the_choices_of_options_are_those_of_the_settings(names, found):
    assert [name.value for name in names] == list(found)


def test_precision_is_the_dtype_of_the_parameters(train):
    for precision in settings.PRECISIONS:
        run = train(precision, "--precision", precision, "--engine", "reference", steps=1)
        tensors = checkpoint.read(run.out / "checkpoint.safetensors").tensors
        assert {x.dtype.name for name, x in tensors.items() if name.startswith("params")} == {precision}


def test_a_schedule_that_is_longer_than_the_run_is_continued_exactly(train):
    """The rate at each step is that of the whole run."""
    whole = train("whole", "--engine", "reference", steps=24)
    train("parts", "--engine", "reference", "--schedule-steps", 24, steps=13)
    continued = train("parts", "--resume", steps=24)
    assert continued.exit_code == 0 and "schedule ends" not in continued.stdout
    assert continued.summary["validation_bits_per_char"] == whole.summary["validation_bits_per_char"]
    tensors, others = (load_file(run.out / "checkpoint.safetensors") for run in (whole, continued))
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, others[name], err_msg=name)


def test_more_steps_than_the_schedule_has_are_announced_and_keep_its_last_rate(train):
    train("run", "--engine", "reference", "--warmup", 2, steps=12)
    longer = train("run", "--resume", steps=24)
    assert longer.exit_code == 0
    assert "schedule ends at step 12: later steps have its last rate" in " ".join(longer.stdout.split())
    found = settings_of(longer)
    assert (found.steps, found.schedule_end) == (24, 12)
    assert [found.rate()(step) for step in (13, 20, 24)] == pytest.approx([1e-3] * 3)
    other = train("run", "--resume", "--schedule-steps", 30, steps=30)
    assert other.exit_code == 0 and settings_of(other).schedule_end == 30


def test_a_run_without_a_better_validation_ends_early(train):
    run = train("run", "--learning-rate", 0, "--validation-interval", 2, "--patience", 2, "--engine", "reference")
    assert run.exit_code == 0, run.output
    assert run.summary["steps"] == 6
    again = train("run", "--resume")
    assert again.exit_code == 0 and again.summary["steps"] == 6


def test_the_best_checkpoint_is_of_the_lowest_validation(train):
    run = train("run", "--validation-interval", 3, "--learning-rate", 0.5, "--engine", "reference")
    figures = {m["step"]: m["validation_bits_per_char"] for m in metrics_of(run.out)}
    figures = {step: bits for step, bits in figures.items() if bits is not None}
    saved = checkpoint.read(run.out / "best.safetensors")
    assert saved.figures["step"] == min(figures, key=figures.get)
    assert saved.figures["best"] == min(figures.values())


def test_the_rate_finder_names_the_rate_of_the_steepest_fall_and_writes_nothing(train):
    run = train("run", "--learning-rate-finder", "--engine", "reference", "--json")
    assert run.exit_code == 0 and not run.out.exists(), run.output
    found = json.loads(run.stdout)
    rates, losses = found["rates"], found["losses"]
    assert rates == pytest.approx(np.geomspace(1e-6, 1.0, 100)[: len(rates)])
    at = rates.index(found["suggested"])
    assert losses[at + 1] - losses[at - 1] == min(b - a for a, b in zip(losses, losses[2:], strict=False))
    assert 1e-3 < found["suggested"] < 1.0
    told = train("run", "--learning-rate-finder", "--engine", "reference").stdout
    assert f"try --learning-rate {found['suggested']:.2g}" in told


def test_a_loss_that_never_falls_has_no_suggested_rate():
    class Rising:
        def __init__(self):
            self.losses = iter(range(1, 1000))

        def value_and_grad(self, params):
            return float(next(self.losses)), params

        def share_at(self, step):
            return trainer.Share((), 1)

    params = {"w": np.ones(2)}
    job = trainer.Job(Rising(), None, None, checkpoint.State(0, params, None), None, steps=1)
    found = trainer.learning_rates(job, cg.optim.sgd(1.0))
    assert found.suggested is None and found.losses[-1] <= 4 * found.losses[0]


def test_verify_without_jax_is_refused_before_anything_is_made(train, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ctrlgrad.verify.jax_judge", None)
    result = train("run", "--verify")
    assert result.exit_code == 2 and "JAX is not installed" in result.stderr
    assert not (tmp_path / "run").exists()


def test_the_text_that_was_cut_or_replaced_is_counted_in_the_output(train, tmp_path):
    text = tmp_path / "long.txt"
    text.write_text("\n".join([f"line {n}" for n in range(40)] + ["x" * 300]))
    out = " ".join(train("run", "--vocabulary", 5, steps=1, text=text).stdout.split())
    assert "1 lines of more than 256 characters became 2" in out and "are unknown to the model" in out


@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize("given", ["10", "200"])
def test_the_budget_that_an_error_advises_is_enough(train, engine, given):
    options = ("--engine", engine, "--validation-interval", 1)
    refused = train("run", *options, "--memory-budget", given, steps=4)
    assert refused.exit_code == 2 and not refused.out.exists()
    advised = re.search(r"try: --memory-budget (\w+),", refused.stderr)[1]
    result = train("run", *options, "--memory-budget", advised, steps=4)
    assert result.exit_code == 0, result.output


# Dropout and truncation, in the model's gradient.


def gradients(text="a loop and a stack", **options):
    """The loss of two lines and its gradient."""
    model = Model(Settings(hidden=8, batch=2, engine="reference", **options), 20)
    params = model.init(cg.random.key(0))
    rng = np.random.default_rng(0)
    batch = pad([rng.integers(2, 20, 9), rng.integers(2, 20, 5)], 2)
    key = (np.array([0, 1], np.uint32),) if options.get("dropout") else ()
    return model.bits_and_grads(params, batch.symbols, batch.lengths, np.int64(14), *key)


def test_truncation_changes_the_gradient_alone():
    whole, never, often = (gradients(truncate=n) for n in (0, 100, 2))
    assert float(whole[0]) == float(never[0]) == float(often[0])
    for name in ("wx", "wh", "b"):
        found = [grads["layers"][0][name] for _, grads in (whole, never, often)]
        np.testing.assert_array_equal(found[0], found[1])
        assert not np.allclose(found[0], found[2])
    np.testing.assert_allclose(whole[1]["out"]["w"], often[1]["out"]["w"], rtol=1e-6)


def test_truncation_at_every_step_makes_the_gradient_of_the_recurrent_weights_that_of_the_last_step_alone():
    """By the chain rule with a fixed state before each step, in finite differences."""
    model = Model(Settings("rnn", 8, batch=1, engine="reference", truncate=1, precision="float64"), 20)
    params, rng = model.init(cg.random.key(0)), np.random.default_rng(0)
    batch = pad([rng.integers(2, 20, 6)], 1)
    _, grads = model.bits_and_grads(params, batch.symbols, batch.lengths, np.int64(6))
    states = [model.start(1, 6)]
    for t in range(6):
        states.append(model.step(params, states[-1], batch.symbols[t])[0])
    direction = rng.standard_normal((8, 8))

    def loss(distance):
        layer = {**params["layers"][0], "wh": params["layers"][0]["wh"] + distance * direction}
        moved, bits = {**params, "layers": [layer]}, 0.0
        for t in range(6):
            _, logits = model.step(moved, states[t], batch.symbols[t])
            bits += float(cg.nn.softmax_cross_entropy(logits, batch.symbols[t + 1])[0]) / np.log(2) / 6
        return bits

    slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
    np.testing.assert_allclose(np.sum(grads["layers"][0]["wh"] * direction), slope, rtol=1e-7)


def test_dropout_leaves_validation_alone():
    plain, dropped = gradients(), gradients(dropout=0.5)
    assert float(plain[0]) != float(dropped[0])
    model = Model(Settings(hidden=8, batch=2, engine="reference", dropout=0.5), 20)
    params, batch = model.init(cg.random.key(0)), pad([np.arange(2, 11), np.arange(2, 7)], 2)
    once, again = (model.line_bits_of(params, batch.symbols, batch.lengths) for _ in range(2))
    np.testing.assert_array_equal(once, again)


# A run that has ended.


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run, and the text it was trained on."""
    from typer.testing import CliRunner

    from ctrlgrad.cli import app

    folder = tmp_path_factory.mktemp("finished")
    text, other = folder / "text.txt", folder / "other.txt"
    text.write_text("\n".join(f"{n} loop {n * n % 7} stack" for n in range(60)))
    other.write_text("\n".join(f"{n} loops" for n in range(30, 40)))
    options = ["train", "--hidden", "8", "--batch", "4", "--steps", "30", "--engine", "reference", "--text", text]
    result = CliRunner().invoke(app, [str(a) for a in [*options, "--validation", other, "--out", folder / "run"]])
    assert result.exit_code == 0, result.output
    return folder / "run", other, result.stdout


def test_sample_writes_the_lines_that_training_ended_with(command, finished):
    run, _, printed = finished
    result = command("sample", run, "--count", 3)
    lines = [line[2:] for line in printed.split("Lines that the model writes:\n")[1].splitlines()]
    assert result.exit_code == 0 and result.stdout.splitlines() == lines


def test_a_sample_begins_with_the_prompt(command, finished):
    lines = command("sample", finished[0], "--prompt", "12 lo", "--count", 4).stdout.splitlines()
    assert len(set(lines)) > 1 and all(line.startswith("12 lo") for line in lines)


def test_a_low_temperature_writes_the_likeliest_line(command, finished):
    cold = {command("sample", finished[0], "--temperature", 1e-3, "--seed", n).stdout for n in range(3)}
    hot = {command("sample", finished[0], "--temperature", 5, "--seed", n).stdout for n in range(3)}
    assert len(cold) == 1 and len(hot) == 3


def test_evaluate_of_the_validation_text_is_the_summarys_figure(command, finished):
    run, other, _ = finished
    figures = json.loads(command("evaluate", run, other, "--json").stdout)
    summary = json.loads((run / "summary.json").read_text())
    assert figures["bits_per_token"] == summary["validation_bits_per_char"]
    assert figures["perplexity"] == 2 ** figures["bits_per_token"] and figures["unknown"] == 0
    assert f"{figures['bits_per_token']:.4f} bits per token" in command("evaluate", run, other).stdout


def test_a_run_is_loaded_with_its_model_and_vocabulary(finished):
    trained = load(finished[0])
    symbols = trained.vocabulary.encode("7 loop")
    states = trained.model.start(1, len(symbols))
    for symbol in symbols[:-1]:
        states, logits = trained.model.step(trained.params, states, np.array([symbol]))
    assert logits.shape == (1, trained.vocabulary.symbols) and trained.step == 30


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("sample", "nowhere"), "RUN: there is no checkpoint"),
        (("sample", "RUN", "--temperature", "0"), "--temperature: not positive"),
        (("sample", "RUN", "--prompt", "x" * 200), "--prompt: too long"),
        (("evaluate", "RUN", "nowhere"), "there is no such file"),
        (("evaluate", "nowhere", "nowhere"), "RUN: there is no checkpoint"),
    ],
)
def test_a_run_or_text_that_is_not_there_is_said(command, finished, arguments, words):
    result = command(*(finished[0] if a == "RUN" else a for a in arguments))
    assert result.exit_code == 2 and words in result.stderr
    assert "--resume" not in result.stderr and "--out" not in result.stderr


def test_load_says_which_file_is_missing(tmp_path):
    with pytest.raises(UserInputError, match="there is no checkpoint"):
        load(tmp_path)
