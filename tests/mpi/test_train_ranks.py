"""`mpirun -n N ctrlgrad train`: the run of one process on several, and how it ends when a rank does not go on."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from ctrlgrad.cli import app
from ctrlgrad.train import metrics

# Rank RANK does something in the middle of step STEP: the first argument says what. With "draw" the picture is drawn,
# which takes longer than the training.
PROGRAM = """
import os, signal, sys
from ctrlgrad.cli import main
from ctrlgrad.errors import ExecutionError
from ctrlgrad.train import metrics
from ctrlgrad.train.model import Model

what, rank, step = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sys.argv[1:] = sys.argv[4:]
if what != "draw":
    metrics.plot = lambda path, *run: path.write_bytes(b"drawn") > 0
calls = 0
init = Model.__init__

def patched(self, *options):
    init(self, *options)
    right = self.bits_and_grads

    def bits_and_grads(*arguments):
        global calls
        calls += 1
        if calls == step and int(os.environ["OMPI_COMM_WORLD_RANK"]) == rank:
            if what == "interrupt":
                os.kill(os.getpid(), signal.SIGINT)
            if what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "fail":
                raise ExecutionError("the kernel is broken")
            if what == "diverge":
                bits, grads = right(*arguments)
                return bits * float("nan"), grads
        return right(*arguments)

    self.bits_and_grads = bits_and_grads

Model.__init__ = patched
main()
"""
STEPS = 30
TIMEOUT = 120
# mpirun's code is that of the process that it sees end first: the killed one, or one that ends because of it.
KILLED = (137, 1)


@pytest.fixture
def options(text, tmp_path):
    """The options of a small run in the folder `name`. A batch of 7 does not divide by 2 or 3."""

    def of(name, *more):
        small = ("--hidden", 8, "--batch", 7, "--steps", STEPS, "--engine", "reference", "--text", text)
        return [str(a) for a in ("train", *small, "--out", tmp_path / name, *more)]

    return of


@pytest.fixture
def alone(options, tmp_path, monkeypatch):
    """The run on one process, in this one."""
    monkeypatch.setattr(metrics, "plot", lambda path, *run: path.write_bytes(b"drawn") > 0)

    def run(name, *more):
        result = CliRunner().invoke(app, options(name, *more))
        assert result.exit_code == 0, result.output
        return tmp_path / name

    return run


def losses(out, steps=STEPS):
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [m["step"] for m in lines] == list(range(10, steps + 1, 10))
    return [m["bits_per_char"] for m in lines]


def assert_same_within_rounding(one, several, steps=STEPS):
    np.testing.assert_allclose(losses(several, steps), losses(one, steps), rtol=1e-6)
    figures = [json.loads((out / "summary.json").read_text()) for out in (one, several)]
    np.testing.assert_allclose(*(f["validation_bits_per_char"] for f in figures), rtol=1e-5)
    expected, found = (load_file(out / "checkpoint.safetensors") for out in (one, several))
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        np.testing.assert_allclose(found[name], tensor, rtol=1e-3, atol=2e-5, err_msg=name)


def test_three_ranks_train_as_one_process_does(mpirun, options, alone, tmp_path):
    ended = mpirun(3, PROGRAM, "draw", 0, 0, *options("three"))
    assert ended.code == 0, ended.stderr
    assert ended.stderr == ""
    assert ended.stdout.count("over 3 ranks") == 1 and ended.stdout.count("Lines that the model writes") == 1
    names = ["best.safetensors", "checkpoint.safetensors", "loss.png", "metrics.jsonl", "summary.json"]
    assert sorted(p.name for p in (tmp_path / "three").iterdir()) == names
    assert_same_within_rounding(alone("one"), tmp_path / "three")


def test_a_pipeline_over_two_ranks_trains_as_one_process_does(mpirun, options, alone, tmp_path):
    """The ranks compute what one process does, in the same order."""
    few = ("--layers", 2, "--steps", 10)
    ended = mpirun(2, PROGRAM, "nothing", 0, 0, *options("two", *few, "--engine", "auto", "--pipeline"))
    assert ended.code == 0 and ended.stderr == "", ended.stderr
    assert "/rank:0/cpu:0" in ended.stdout and "/rank:1/cpu:0" in ended.stdout
    expected, found = (load_file(out / "checkpoint.safetensors") for out in (alone("one", *few), tmp_path / "two"))
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        np.testing.assert_allclose(found[name], tensor, rtol=1e-5, atol=1e-7, err_msg=name)


# Each rank tells in which order sums begin, and backward loops of the layers.
ORDER = """
import sys
from dataclasses import replace
import ctrlgrad as cg
from ctrlgrad.cli import main
from ctrlgrad.mpi.launch import launched
from ctrlgrad.mpi.sums import Sums
from ctrlgrad.train.model import Model

seen = []
begin, init = Sums.begin, Model.__init__

def watched_begin(self, number, array, **how):
    seen.append(f"sum {number}")
    begin(self, number, array, **how)

def patched(self, *options):
    init(self, *options)
    step = self.cell.step

    def watched_step(params, state, x):
        layer = "layer above" if x.shape[1] == self.settings.hidden else "layer 0"
        x = cg.debug.watch_cotangent(x, lambda ct, at: seen.append(layer))
        return step(params, state, x)

    self.cell = replace(self.cell, step=watched_step)

Sums.begin, Model.__init__ = watched_begin, patched
try:
    main()
except SystemExit as end:
    assert not end.code
order = [seen[0]] + [now for before, now in zip(seen, seen[1:]) if now != before]
print(launched().rank, order, file=sys.__stdout__, flush=True)
"""


def orders(ended):
    """The order on each rank."""
    assert ended.code == 0, ended.stderr
    return [line.split(" ", 1)[1] for line in ended.stdout.splitlines() if line[:3] in ("0 [", "1 [")]


def test_a_gradient_is_summed_while_the_backward_pass_goes_on_below(mpirun, options):
    """Parameters are numbered: embedding 0, layers 1 to 3 and 4 to 6, read-out 7 and 8; 9 is the loss."""
    above, lowest = ["sum 6", "sum 5", "sum 4"], ["sum 3", "sum 2", "sum 1", "sum 0"]
    expected = ["sum 8", "sum 7", "layer above", *above, "layer 0", *lowest, "sum 9"]
    ended = mpirun(2, ORDER, *options("two", "--layers", 2, "--steps", 1, "--json"))
    assert orders(ended) == [str(expected)] * 2


def test_one_layer_is_one_loop_whose_gradients_are_summed_after_it(mpirun, options):
    """A loop for the layer and one for the read-out would take longer, and no loop is left to hide a sum behind."""
    ended = mpirun(2, ORDER, *options("two", "--layers", 1, "--steps", 1, "--json"))
    assert orders(ended) == [str(["layer 0", *(f"sum {number}" for number in range(7))])] * 2


def test_verify_compares_the_sum_of_all_ranks(mpirun, options, tmp_path):
    pytest.importorskip("jax")
    ended = mpirun(2, PROGRAM, "nothing", 0, 0, *options("two", "--layers", 2, "--steps", 1, "--verify"))
    assert ended.code == 0, ended.stderr
    assert ended.stdout.count("agrees") == 9 and "differs" not in ended.stdout
    assert json.loads((tmp_path / "two" / "summary.json").read_text())["verified"] is True


def test_a_run_within_a_budget_trains_as_one_process_does(mpirun, options, alone, tmp_path):
    way = ("--engine", "native", "--memory-budget", "256KiB")
    ended = mpirun(2, PROGRAM, "nothing", 0, 0, *options("two", *way))
    assert ended.code == 0, ended.stderr
    np.testing.assert_allclose(losses(tmp_path / "two"), losses(alone("one", *way)), rtol=1e-4)


def test_an_interrupted_run_resumes_on_another_number_of_ranks(mpirun, options, alone, tmp_path):
    """Ctrl-C at one rank stops both with exit code 130, and the checkpoint is of the last whole step."""
    ended = mpirun(2, PROGRAM, "interrupt", 1, 17, *options("two"))
    assert ended.code == 130
    assert ended.stderr.count("Stopped: after step ") == 1 and str(tmp_path / "two") in ended.stderr
    assert "Traceback" not in ended.stderr
    assert f"try: mpirun -n 2 ctrlgrad train --resume --out {tmp_path / 'two'}\n" in ended.stderr
    step = int(ended.stderr.split("after step ")[1].split(";")[0])
    assert 15 <= step <= 18
    assert_same_within_rounding(alone("one"), alone("two", "--resume"))


# A terminal of its own around mpirun: what is written to its standard input is typed there.
TERMINAL = """
import pty, sys
raise SystemExit(pty.spawn(sys.argv[1:]) >> 8)
"""


def test_ctrl_c_at_the_terminal_of_mpirun_is_answered_there(mpirun, options, tmp_path):
    """mpirun drops what the ranks print then; rank 0 says it on the terminal itself."""
    command = mpirun.command(2, PROGRAM, "nothing", 0, 0, *options("run", "--steps", 100_000))
    with subprocess.Popen(
        [sys.executable, "-c", TERMINAL, *command], env=mpirun.environment, stdin=-1, stdout=-1, stderr=-1, text=True
    ) as process:
        wait_for_a_line(tmp_path / "run" / "metrics.jsonl", process)
        stdout, stderr = process.communicate("\x03", timeout=TIMEOUT)
    assert process.returncode == 1, stderr
    assert stdout.count("Stopped: after step ") == 1 and "Traceback" not in stdout
    step = int(stdout.split("after step ")[1].split(";")[0])
    assert step >= 10
    load_file(tmp_path / "run" / "checkpoint.safetensors")


def wait_for_a_line(path, process):
    deadline = time.monotonic() + TIMEOUT
    while not path.exists() or "\n" not in path.read_text():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)


def test_ctrl_c_at_mpirun_leaves_a_whole_checkpoint(mpirun, options, tmp_path):
    """mpirun gives the ranks half a second, and keeps what they print and their exit codes to itself."""
    out = tmp_path / "run"
    metrics = out / "metrics.jsonl"
    with mpirun.start(2, PROGRAM, "nothing", 0, 0, *options("run", "--steps", 100_000)) as process:
        wait_for_a_line(metrics, process)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=TIMEOUT)
    assert process.returncode != 0
    time.sleep(1.0)  # whatever the ranks still do is done
    lines = metrics.read_text()
    data = (out / "checkpoint.safetensors").read_bytes()
    load_file(out / "checkpoint.safetensors")
    time.sleep(0.5)
    assert (metrics.read_text(), (out / "checkpoint.safetensors").read_bytes()) == (lines, data)
    # A file that a killed rank was writing has a hidden name.
    assert sorted(p.name for p in out.glob("[!.]*")) == ["checkpoint.safetensors", "metrics.jsonl"]


def test_a_rank_that_dies_ends_all_and_the_last_checkpoint_resumes(mpirun, options, alone, tmp_path):
    ended = mpirun(3, PROGRAM, "kill", 2, 55, *options("run", "--steps", 60))
    assert ended.code in KILLED
    assert ended.stderr.count("rank 2 of 3 has died") == 1 and "Traceback" not in ended.stderr
    assert f"try: mpirun -n 3 ctrlgrad train --resume --out {tmp_path / 'run'}\n" in ended.stderr
    # The options and the text are in the folder, where rank 0 reads them for all.
    resumed = mpirun(2, PROGRAM, "nothing", 0, 0, "train", "--resume", "--out", tmp_path / "run")
    assert resumed.code == 0 and "from step 50" in " ".join(resumed.stdout.split())
    assert_same_within_rounding(alone("one", "--steps", 60), tmp_path / "run", 60)


def test_a_rank_of_a_pipeline_that_dies_ends_all_and_the_last_checkpoint_resumes(mpirun, options, alone, tmp_path):
    few = ("--layers", 2, "--steps", 20, "--checkpoint-interval", 10)
    ended = mpirun(2, PROGRAM, "kill", 1, 14, *options("run", *few, "--engine", "auto", "--pipeline"))
    assert ended.code in KILLED and ended.stderr.count("rank 1 of 2 has died") == 1 and "Traceback" not in ended.stderr
    assert f"try: mpirun -n 2 ctrlgrad train --resume --out {tmp_path / 'run'}\n" in ended.stderr
    resumed = mpirun(2, PROGRAM, "nothing", 0, 0, "train", "--resume", "--out", tmp_path / "run")
    assert resumed.code == 0 and "from step 10" in " ".join(resumed.stdout.split()), resumed.stderr
    expected, found = (load_file(out / "checkpoint.safetensors") for out in (alone("one", *few), tmp_path / "run"))
    for name, tensor in expected.items():
        np.testing.assert_allclose(found[name], tensor, rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_rank_that_dies_in_the_first_step_leaves_nothing_to_resume(mpirun, options, tmp_path):
    ended = mpirun(2, PROGRAM, "kill", 1, 1, *options("run"))
    assert ended.code in KILLED
    assert "try: the same command again" in ended.stderr
    assert list((tmp_path / "run").iterdir()) == []


def test_the_death_of_rank_0_is_told_too(mpirun, options):
    ended = mpirun(3, PROGRAM, "kill", 0, 3, *options("run"))
    assert ended.code in KILLED
    assert ended.stderr.count("rank 0 of 3 has died") == 1


def test_an_error_on_one_rank_ends_all_and_is_told_once(mpirun, options):
    ended = mpirun(3, PROGRAM, "fail", 1, 3, *options("run"))
    assert ended.code == 1
    assert ended.stderr.count("Error: on rank 1: the kernel is broken") == 1 and "Traceback" not in ended.stderr
    assert ended.stderr.count("Error") == 1


def test_divergence_is_told_once(mpirun, options):
    ended = mpirun(2, PROGRAM, "diverge", 1, 3, *options("run"))
    assert ended.code == 1
    assert ended.stderr.count("Error: training has diverged: the loss is nan at step 3") == 1
    assert ended.stderr.count("Error") == 1


def test_unusable_input_is_told_once(mpirun, options, tmp_path):
    ended = mpirun(3, PROGRAM, "nothing", 0, 0, *options("run", "--batch", 2))
    assert ended.code == 2 and ended.stderr.count("--batch: fewer lines than ranks") == 1
    assert not (tmp_path / "run").exists()


LAUNCHED = """
import os, sys
sys.modules["mpi4py"] = None
os.environ.update(OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK=sys.argv.pop(1), OPENBLAS_NUM_THREADS="1")
from ctrlgrad.cli import main
main()
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_without_mpi4py_rank_0_says_what_to_install(options, rank):
    ended = subprocess.run(
        [sys.executable, "-c", LAUNCHED, str(rank), *options("run")], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 2 and ended.stdout == ""
    assert ("pip install -e '.[mpi]'" in ended.stderr) == (rank == 0)


def test_one_process_never_loads_mpi4py(options):
    code = (
        "import sys\nsys.modules['mpi4py'] = None\nimport os\nos.environ['OPENBLAS_NUM_THREADS'] = '1'\n"
        "from ctrlgrad.cli import main\nmain()"
    )
    few = options("run", "--steps", 1)
    ended = subprocess.run([sys.executable, "-c", code, *few], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
