"""The folder of a run of `ctrlgrad train`: one process at a time, and disks that are full."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from trained import assert_same_numbers

from ctrlgrad.memory.profile.pictures import Profile
from ctrlgrad.train import trainer


def test_a_run_is_resumed_by_one_process_at_a_time(train, train_until, monkeypatch):
    """The other one is refused before it has written anything; what has ended holds no lock."""
    broken = train_until(13, "broken", "--engine", "reference")
    run, seen = trainer.run, []

    def and_another(job, on_step):
        before = {p.name: p.read_bytes() for p in broken.out.iterdir()}
        with monkeypatch.context() as patch:
            patch.setattr(trainer, "run", run)
            seen.append(train("broken", "--resume"))
        assert {p.name: p.read_bytes() for p in broken.out.iterdir()} == before
        return run(job, on_step)

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "run", and_another)
        resumed = train("broken", "--resume")
    assert resumed.exit_code == 0
    (other,) = seen
    assert other.exit_code == 2 and "another process is training in this folder" in other.stderr
    assert_same_numbers(train("whole", "--engine", "reference"), resumed)


HOLDER = """
import sys, time
from pathlib import Path
from ctrlgrad.train import folder
with folder.held(Path(sys.argv[1]), True):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_process_that_was_killed_holds_no_lock(train):
    run = train("run", "--engine", "reference", steps=2)
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(run.out)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        assert "another process" in train("run", "--resume", steps=2).stderr
        process.kill()
        process.wait()
    assert train("run", "--resume", steps=2).exit_code == 0


def test_two_new_runs_take_two_folders(command, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ("--hidden", 4, "--batch", 2, "--steps", 1, "--engine", "reference", "--text", text)
    run = trainer.run

    def and_another(job, on_step):
        monkeypatch.setattr(trainer, "run", run)
        assert command("train", *options).exit_code == 0
        return run(job, on_step)

    monkeypatch.setattr(trainer, "run", and_another)
    assert command("train", *options).exit_code == 0
    assert sorted(p.parent.name for p in Path("runs").glob("*/summary.json")) == ["1", "2"]


# A disk that is full.


def full(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("name", ["checkpoint.fsync", "metrics.append", "metrics.plot"])
def test_a_disk_that_is_full_is_an_error_and_the_last_checkpoint_stays(train, train_until, monkeypatch, name):
    """The whole run is still there once there is room."""
    whole = train("whole", "--engine", "reference")
    broken = train_until(13, "broken", "--engine", "reference")
    before = (broken.out / "checkpoint.safetensors").read_bytes()
    with monkeypatch.context() as patch:
        place = {"checkpoint.fsync": "ctrlgrad.train.checkpoint.os.fsync"}.get(name, f"ctrlgrad.train.{name}")
        patch.setattr(place, full)
        stopped = train("broken", "--resume")
    assert stopped.exit_code == 2 and "Traceback" not in stopped.stderr
    assert "cannot be written" in stopped.stderr and "No space left on device" in stopped.stderr
    if name == "checkpoint.fsync":
        assert (broken.out / "checkpoint.safetensors").read_bytes() == before
    assert not list(broken.out.glob(".*"))
    resumed = train("broken", "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert_same_numbers(whole, resumed)


def test_a_disk_that_is_full_from_the_first_leaves_nothing(train, monkeypatch):
    monkeypatch.setattr("ctrlgrad.train.checkpoint.os.fsync", full)
    stopped = train("run", "--engine", "reference")
    assert stopped.exit_code == 2 and "No space left on device" in stopped.stderr
    assert not stopped.out.exists()


def test_a_profile_that_cannot_be_written_is_an_error(train, monkeypatch):
    monkeypatch.setattr(Profile, "write_all", full)
    stopped = train("run", "--engine", "reference", "--profile", steps=8)
    assert stopped.exit_code == 2 and "No space left on device" in stopped.stderr
