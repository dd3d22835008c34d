"""Input that cannot be used: one clear error on stderr, exit code 2, and everything as it was."""

import json
import os
import re
import struct

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from ctrlgrad.cli import app
from ctrlgrad.train.model import Model

SMALL = ("--hidden", "8", "--batch", "4", "--steps", "2")


def snapshot(folder):
    return {p.relative_to(folder): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def refused(command, tmp_path):
    """Run the command, demand that it refuses, and return what it said."""

    def run(*arguments):
        before = snapshot(tmp_path)
        result = command(*arguments)
        assert result.exit_code == 2, (result.exit_code, result.output, result.exception)
        assert result.stdout == "" and "Traceback" not in result.stderr
        assert len(re.findall(r"^(Error:|╭─ Error)", result.stderr, re.M)) == 1
        assert snapshot(tmp_path) == before
        return result.stderr

    return run


@pytest.mark.parametrize(
    "data, words",
    [
        (None, "no such file"),
        (b"", "empty"),
        (b"\n  \n\t\n", "empty"),
        (b"some text\n" * 100 + b"\0\1\2", "NUL byte at offset 1000"),
        (b"caf\xe9 au lait\n" * 100, "0xe9 at offset 3"),
        (b"one line\nanother line\n", "too short"),
    ],
    ids=["missing", "empty", "blank", "binary", "latin-1", "short"],
)
def test_a_text_that_cannot_be_used(refused, tmp_path, data, words):
    path = tmp_path / "text"
    if data is not None:
        path.write_bytes(data)
    message = refused("train", *SMALL, "--text", path, "--out", tmp_path / "out")
    assert words in message and str(path) in message
    assert not (tmp_path / "out").exists()


def test_a_text_that_is_a_folder(refused, tmp_path):
    assert "folder" in refused("train", *SMALL, "--text", tmp_path, "--out", tmp_path / "out")


@pytest.mark.parametrize("held", ["checkpoint.safetensors", "metrics.jsonl", "summary.json", "loss.png"])
def test_an_output_folder_that_holds_a_run(refused, tmp_path, text, held):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / held).write_text("kept")
    message = refused("train", *SMALL, "--text", text, "--out", tmp_path / "out")
    assert held in message and "--resume" in message


def test_an_output_folder_that_is_a_file(refused, tmp_path, text):
    assert "is a file" in refused("train", *SMALL, "--text", text, "--out", text)
    assert "is a file" in refused("train", *SMALL, "--text", text, "--out", text / "below" / "it")


@pytest.mark.parametrize(
    "option, value",
    [
        ("--hidden", "0"),
        ("--hidden", "many"),
        ("--layers", "-1"),
        ("--batch", "0"),
        ("--steps", "0"),
        ("--seed", "-1"),
        ("--cell", "elman"),
        ("--hiden", "8"),
    ],
)
def test_options_that_make_no_sense(refused, tmp_path, text, option, value):
    message = refused("train", option, value, "--text", text, "--out", tmp_path / "out")
    assert option in message


def test_resume_without_a_run(refused, tmp_path, text):
    assert "no checkpoint" in refused("train", *SMALL, "--text", text, "--out", tmp_path / "out", "--resume")
    assert "--out" in refused("train", *SMALL, "--text", text, "--resume")


@pytest.fixture
def run(train):
    """The folder of a finished run."""
    return train("run", "--engine", "reference", steps=2).out


def resume(refused, run, text, *options):
    arguments = dict(zip(SMALL[::2], SMALL[1::2], strict=True)) | dict(zip(options[::2], options[1::2], strict=True))
    flat = [part for pair in arguments.items() for part in pair]
    return refused("train", *flat, "--text", text, "--out", run, "--resume")


@pytest.mark.parametrize(
    "option",
    [
        ("--hidden", "9"),
        ("--seed", "5"),
        ("--cell", "gru"),
        ("--layers", "2"),
        ("--engine", "native"),
        ("--memory-budget", "1000"),
        ("--pipeline",),
    ],
)
def test_resume_with_other_settings(refused, train, option):
    """The error names the options that differ; options that were not given do not count."""
    run = train("run", "--engine", "reference", "--layers", 3, steps=2).out
    message = refused("train", "--resume", "--out", run, *option)
    assert "other settings" in message and f"got: {' '.join(option)}\n" in message


def test_resume_with_fewer_steps(refused, run):
    message = refused("train", "--resume", "--out", run, "--steps", "1")
    assert "--steps 2 or more" in message and "got: --steps 1" in message


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "--out", ""),
        ("train", "--text", ""),
        ("graph", "f.py:f", "--svg", ""),
        ("verify", "f.py:f", "--npz", ""),
        ("profile", "f.py:f", "--disk", ""),
        ("profile", "f.py:f", "--output", ""),
    ],
    ids=" ".join,
)
def test_an_empty_path_is_refused(refused, tmp_path, monkeypatch, arguments):
    """An empty path is refused, because it would mean the current folder."""
    monkeypatch.chdir(tmp_path)
    assert "an empty path" in refused(*arguments)


def test_resume_with_another_text(refused, run, text, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text(text.read_text().replace("loop", "lop"))
    assert "another text" in resume(refused, run, other)


@pytest.mark.parametrize("part", [0.0, 0.0001, 0.01, 0.5, 0.999])
def test_a_truncated_checkpoint(refused, run, text, part):
    path = run / "checkpoint.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])
    message = resume(refused, run, text)
    assert "cannot be used" in message and str(path) in message


def test_foreign_checkpoints(refused, run, text):
    path = run / "checkpoint.safetensors"
    whole = path.read_bytes()
    size = struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8 : 8 + size])

    path.write_bytes(b"PK\3\4 this is a pickle in a zip file, as of another library" * 20)
    assert "cannot be used" in resume(refused, run, text)

    save_file({"weight": np.zeros((3, 3), np.float32)}, path)
    assert "not one of this program" in resume(refused, run, text)

    save_file({"weight": np.zeros((3, 3), np.float32)}, path, metadata=header["__metadata__"])
    assert "tensor" in resume(refused, run, text)

    header["__metadata__"]["run"] = "{}"
    changed = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(changed)) + changed + whole[8 + size :])
    assert "metadata" in resume(refused, run, text)


def rewritten(path, change):
    """Change what a checkpoint holds: `change` gets the metadata's strings, the run's record and the tensors."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    metadata = json.loads(data[8 : 8 + size])["__metadata__"]
    record, tensors = json.loads(metadata["run"]), load_file(path)
    metadata["run"] = json.dumps(record)
    text = change(metadata, record, tensors)
    save_file(tensors, path, metadata={**metadata, "run": text or json.dumps(record)})


def put(**figures):
    return lambda metadata, record, tensors: record.update(figures)


def setting(**settings):
    return lambda metadata, record, tensors: record["settings"].update(settings)


def spoil(name, value):
    def change(metadata, record, tensors):
        tensors[name] = tensors[name].copy()
        tensors[name][...] = value

    return change


MALFORMED = {
    "a record that is a list": (lambda m, r, t: "[]", "metadata"),
    "a record that is a number": (lambda m, r, t: "7", "metadata"),
    "settings that are a list": (put(settings=[1]), "metadata"),
    "nested too deeply": (lambda m, r, t: "[" * 100_000, "metadata"),
    "an unknown setting": (setting(speed=3), "speed"),
    "a size that is no whole number": (setting(hidden=8.5), "hidden is 8.5"),
    "a size that is true": (setting(layers=True), "layers is True"),
    "a size that is negative": (setting(hidden=-8), "--hidden"),
    "a size that no file of this size holds": (setting(hidden=10**6), "do not fit into"),
    "a number of layers that no file of this size holds": (setting(layers=10**8), "do not fit into"),
    "more steps than can be counted": (setting(steps=10**400), "steps"),
    "an unknown engine": (setting(engine="steam"), "engine"),
    "a budget that is negative": (setting(memory_budget=-1), "memory_budget is -1"),
    "an infinite number of seconds": (put(seconds=float("inf")), "seconds is inf"),
    "a loss that is not a number": (put(bits=float("nan")), "bits is nan"),
    "a negative number of seconds": (put(timed_seconds=-1.0), "timed_seconds is -1.0"),
    "a negative step": (put(step=-1), "step is -1"),
    "an infinite step": (put(step=float("inf")), "step is inf"),
    "a step that is a text": (put(step="2"), "step is '2'"),
    "a step after the last": (put(step=3), "step 3 of 2"),
    "a step that the optimiser does not know": (put(step=1), "optimiser.1.0.count counts other steps than 1"),
    "a negative number of characters": (put(characters=-5), "characters is -5"),
    "more characters than can be written": (put(timed_characters=10**4000, characters=-(10**4000)), "characters is"),
    "a fingerprint that is a number": (put(fingerprint=3), "text"),
    "a text that is a number": (put(text=3), "text"),
    "a verdict that is a text": (put(verified="yes"), "verified is 'yes'"),
    "parameters that are NaN": (spoil("params.layers.0.wh", np.nan), "params.layers.0.wh holds NaN"),
    "parameters that are infinite": (spoil("params.out.b", -np.inf), "params.out.b holds NaN or inf"),
    "an optimiser that is NaN": (spoil("optimiser.1.0.mu.out.b", np.nan), "optimiser.1.0.mu.out.b holds NaN"),
    "an optimiser before its first step": (spoil("optimiser.1.0.count", -3), "optimiser.1.0.count counts"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a checkpoint, and the text it was trained on."""
    folder = tmp_path_factory.mktemp("whole")
    text = folder / "text.txt"
    text.write_text("\n".join(f"line number {n}" for n in range(40)))
    options = ("--engine", "reference", "--text", str(text), "--out", str(folder / "run"))
    assert CliRunner().invoke(app, ["train", *SMALL, *options]).exit_code == 0
    return (folder / "run" / "checkpoint.safetensors").read_bytes()


@pytest.mark.parametrize("change, words", MALFORMED.values(), ids=MALFORMED)
def test_a_checkpoint_with_other_contents(refused, tmp_path, whole, change, words):
    """A refused checkpoint stays unchanged: `refused` compares all files."""
    path = tmp_path / "run" / "checkpoint.safetensors"
    path.parent.mkdir()
    path.write_bytes(whole)
    rewritten(path, change)
    message = refused("train", "--resume", "--out", path.parent)
    assert "cannot be used" in message and words in message and str(path) in message
    assert len(message) < 1000


@pytest.mark.parametrize(
    "header",
    [b"[]", b"3", b'"text"', b'{"__metadata__": []}', b'{"__metadata__": 3}', b"[" * 200_000, b'{"a":' * 100_000],
    ids=["list", "number", "text", "metadata list", "metadata number", "deep list", "deep object"],
)
def test_a_checkpoint_with_another_header(refused, tmp_path, header):
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    assert "cannot be used" in refused("train", "--resume", "--out", tmp_path)


def test_a_checkpoint_of_another_format_is_named(refused, tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    for value in ([1] * 1000, {"a": 1}, "ctrlgrad.train 1"):
        header = json.dumps({"__metadata__": {"format": value, "run": 3}}).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header)
        assert "not one of this program" in refused("train", "--resume", "--out", tmp_path)


def test_a_text_that_is_gone_when_the_run_goes_on(refused, run, text):
    text.unlink()
    message = refused("train", "--resume", "--out", run)
    assert "no such file" in message and str(text) in message


def test_a_model_that_no_memory_holds(refused, tmp_path, text, monkeypatch):
    options = ("--batch", "4", "--steps", "1", "--text", text, "--out", tmp_path / "out")
    assert "--hidden: too small or too large" in refused("train", "--hidden", 1 << 60, *options)

    def init(model, rng):
        raise MemoryError("Unable to allocate 2.00 PiB")

    monkeypatch.setattr(Model, "init", init)
    message = refused("train", "--hidden", 1 << 31, *options)
    assert "does not fit into memory" in message and "2.00 PiB" in message
    assert not (tmp_path / "out").exists()


def test_metrics_nested_too_deeply(refused, run):
    (run / "metrics.jsonl").write_text("[" * 100_000 + "\n")
    assert "line 1" in refused("train", "--resume", "--out", run)


def test_metrics_that_are_not_ours(refused, run, text):
    (run / "metrics.jsonl").write_text('{"loss": 3}\n')
    assert "line 1" in resume(refused, run, text)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_an_output_folder_that_cannot_be_written(refused, tmp_path, text):
    (tmp_path / "locked").mkdir(mode=0o500)
    assert "cannot be written" in refused("train", *SMALL, "--text", text, "--out", tmp_path / "locked" / "out")
