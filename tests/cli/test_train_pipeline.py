"""`ctrlgrad train --pipeline` on one process: each layer on a device of its own. Several ranks: tests/mpi."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from ctrlgrad.errors import UserInputError
from ctrlgrad.train.settings import Settings


def test_layers_on_their_own_devices_train_the_same_model(train):
    whole = train("whole", "--layers", 2, "--engine", "reference", steps=12)
    split = train("split", "--layers", 2, "--pipeline", steps=12)
    assert split.exit_code == 0, split.output
    assert "layers on cpu:0, cpu:1" in " ".join(split.stdout.split())
    expected, found = (load_file(result.out / "checkpoint.safetensors") for result in (whole, split))
    for name, tensor in expected.items():
        np.testing.assert_allclose(found[name], tensor, rtol=1e-5, atol=1e-7, err_msg=name)


def test_a_pipelined_run_resumes_as_one(train):
    train("run", "--layers", 2, "--pipeline", steps=3)
    resumed = train("run", "--resume", steps=4)
    assert resumed.exit_code == 0 and "layers on cpu:0, cpu:1" in " ".join(resumed.stdout.split())
    other = train("run", "--engine", "reference", "--resume", steps=4)
    assert other.exit_code == 2 and "--engine dataflow" in other.stderr


def test_unsplittable_pipelines_are_refused(train):
    one = train("one", "--pipeline")
    assert one.exit_code == 2 and "--layers 2 or more" in one.stderr
    native = train("native", "--pipeline", "--layers", 2, "--engine", "native")
    assert native.exit_code == 2 and "no --engine" in native.stderr


def test_a_pipelined_run_within_a_budget(train):
    plain = train("plain", "--pipeline", "--layers", 2, steps=2)
    bounded = train("bounded", "--pipeline", "--layers", 2, "--memory-budget", "1MiB", steps=2)
    assert plain.exit_code == bounded.exit_code == 0, bounded.stderr
    assert bounded.summary["validation_bits_per_char"] == plain.summary["validation_bits_per_char"]


def test_a_pipeline_on_another_engine_is_refused():
    with pytest.raises(UserInputError, match="run on the dataflow engine") as found:
        Settings(layers=2, engine="native", pipeline=True)
    assert "--engine native" in str(found.value)
