"""Input that cannot be used: one clear error on stderr, exit code 2, and everything as it was."""

import json
import os
import re
import struct

import numpy as np
import pytest
from safetensors.numpy import save_file

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
    return train("run", steps=2).out


def resume(refused, run, text, *options):
    arguments = dict(zip(SMALL[::2], SMALL[1::2], strict=True)) | dict(zip(options[::2], options[1::2], strict=True))
    flat = [part for pair in arguments.items() for part in pair]
    return refused("train", *flat, "--text", text, "--out", run, "--resume")


@pytest.mark.parametrize(
    "option", [("--hidden", "9"), ("--steps", "3"), ("--seed", "5"), ("--cell", "gru"), ("--layers", "2")]
)
def test_resume_with_other_settings(refused, run, text, option):
    message = resume(refused, run, text, *option)
    assert "other settings" in message and " ".join(option) in message


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


def test_metrics_that_are_not_ours(refused, run, text):
    (run / "metrics.jsonl").write_text('{"loss": 3}\n')
    assert "line 1" in resume(refused, run, text)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_an_output_folder_that_cannot_be_written(refused, tmp_path, text):
    (tmp_path / "locked").mkdir(mode=0o500)
    assert "cannot be written" in refused("train", *SMALL, "--text", text, "--out", tmp_path / "locked" / "out")
