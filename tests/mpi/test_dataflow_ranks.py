"""The dataflow engine over ranks: the reference engine's values, and one error on all ranks where there is one."""

import ast
import json
from pathlib import Path

import pytest

import ctrlgrad as cg
from ctrlgrad.errors import UserInputError

FILE = Path(__file__).resolve()
TESTS = FILE.parent.parent

# Every rank compares what it gets with what the reference engine says.
COMPARE = """
import random, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from ctrlgrad import dataflow, tree
from ctrlgrad.dataflow.engine import Outcome, run_prepared
from ctrlgrad.dataflow.settings import prepare
from ctrlgrad.execution import run_on

RANKS, DEVICES = 3, 2
sent = received = 0

def compare(graph, arguments, number, rtol, **way):
    global sent, received
    draw = random.Random(number)
    place = lambda node: f"/rank:{draw.randrange(RANKS)}/cpu:{draw.randrange(DEVICES)}"
    with dataflow.settings(place=place, **way) as now:
        outcome = Outcome()
        found = run_prepared(prepare(graph, now), arguments, now, outcome=outcome)
    for counts in outcome.counts.values():
        assert counts.frames_opened == counts.frames_released
        sent += counts.sent
        received += counts.received
    for a, b in zip(found, run_on("reference", graph, arguments), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * max(1.0, np.max(np.abs(b), initial=0.0)))
"""
CORPUS = (
    COMPARE
    + """
from programs import PROGRAMS

WAYS = ({}, {"parallel_iterations": 1}, {"order": 3, "parallel_iterations": 2}, {"clusters": "none"})
chosen = list(enumerate(PROGRAMS))[:: int(sys.argv[2])]
for number, program in chosen:
    leaves = program.leaves
    compare(program.graph(number % 2), leaves, number, 1e-11, **WAYS[number % len(WAYS)])
print((len(chosen), sent, received))
"""
)
# All ranks draw the same programs, as hypothesis begins from the same seed on each.
RANDOM = (
    COMPARE
    + """
from random_programs.engines import graphs
from random_programs.expected import UnsuitableError, expectation
from random_programs.generate import generate

count = 0
for seed in range(int(sys.argv[2])):
    program = generate(seed)
    try:
        if expectation(program).results is None:
            continue
    except UnsuitableError:
        continue
    arguments = [a.value for a in program.arguments]
    for graph in graphs(program, 2):
        compare(graph, arguments, count, 1e-10, parallel_iterations=(1, 3, 32)[count % 3])
    count += 1

print((count, sent, received))
"""
)


def counted(ended, ranks=3):
    """The output of each rank: programs, messages sent and received."""
    assert ended.code == 0, ended.stderr
    found = [ast.literal_eval(line) for line in ended.stdout.splitlines()]
    assert len(found) == ranks
    return found


def assert_all_arrived(found):
    assert len({programs for programs, _, _ in found}) == 1
    assert sum(sent for _, sent, _ in found) == sum(received for _, _, received in found) > 100


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.long)])
def test_the_corpus(mpirun, every):
    assert_all_arrived(counted(mpirun(3, CORPUS, TESTS, every, unlike=True)))


def test_random_programs_and_their_gradients(mpirun):
    found = counted(mpirun(3, RANDOM, TESTS, 6, unlike=True))
    assert_all_arrived(found)
    assert found[0][0] >= 3


# Arrays that MPI does not send at once, but when the receiver is ready; the last of them as a program's last act.
LARGE = """
import numpy as np
import ctrlgrad as cg

@cg.function(engine="dataflow")
def f(x, n):
    def body(carry):
        i, y, total = carry
        with cg.device("/rank:0/cpu:0"):
            y = (y * 1.5 + 1.0).T
        with cg.device("/rank:1/cpu:0"):
            total = total + y
        return i + 1, y, total

    return cg.while_loop(lambda carry: carry[0] < n, body, (0, x, 0.0 * x))

x = np.random.default_rng(0).standard_normal((300, 400, 1))[:, :300, 0]
y, total = x, 0.0 * x
for _ in range(10):
    y = (y * 1.5 + 1.0).T
    total = total + y
for _ in range(3):
    _, *found = f(x, 10)
    np.testing.assert_allclose(found[0], y, rtol=1e-13)
    np.testing.assert_allclose(found[1], total, rtol=1e-13)
print("done")
"""


@pytest.mark.parametrize("again", [False, pytest.param(True, marks=pytest.mark.long)])
def test_large_arrays(mpirun, again):
    """Large messages arrive before a program's end; a loss there shows only in some runs."""
    ended = mpirun(2, LARGE)
    assert ended.code == 0 and ended.stdout.count("done") == 2, ended.stderr


# A loop over both ranks. `f` fails on rank 1 in iteration 7, where the table is too short.
FAILURES = """
import json, sys
import numpy as np
import ctrlgrad as cg
from ctrlgrad.dataflow import messages
from ctrlgrad.errors import CtrlgradError
from ctrlgrad.mpi import wire
from ctrlgrad.mpi.launch import launched

rank = launched().rank

@cg.function(engine="dataflow")
def f(table, n):
    def body(carry):
        i, y, z = carry
        with cg.device("/rank:1/cpu:0"):
            y = y + table[i]
        with cg.device("/rank:0/cpu:0"):
            z = z * 1.5 + y
        return i + 1, y, z

    return cg.while_loop(lambda carry: carry[0] < n, body, (0, 0.0, 1.0))

@cg.function(engine="dataflow")
def g(x):
    with cg.device("/rank:1/cpu:0"):
        y = x * 2.0
    return y + 1.0

def attempt(call):
    try:
        call()
        return None
    except CtrlgradError as error:
        return type(error).__name__, str(error)

def works():
    i, y, z = f(np.ones(5), 5)
    assert (int(i), float(y)) == (5, 5.0), (i, y)

works()
told = {"index": attempt(lambda: f(np.ones(7), 9))}
works()
told["shapes"] = attempt(lambda: g(np.ones(2 + rank)))
works()
told["functions"] = attempt(lambda: g(np.ones(3)) if rank else works())
works()

encode = wire.encode_value
def other_dtype(header, value):
    return encode(header, np.float32(value) if header.kind == wire.VALUE else value)
if rank == 1:
    wire.encode_value = other_dtype
told["header"] = attempt(works)
wire.encode_value = encode
works()

send = messages.Box.send
def lossy(self, edge, tag, dead, value):
    if tag != (0, 3) or self.run.edges[edge].type is None:
        send(self, edge, tag, dead, value)
messages.Box.send = lossy
told["stuck"] = attempt(works)
messages.Box.send = send
works()
sys.stdout.write(json.dumps(told) + "\\n")
"""


def test_an_error_is_raised_on_all_ranks_and_the_next_call_works(mpirun):
    ended = mpirun(2, FAILURES)
    assert ended.code == 0, ended.stderr
    ranks = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(ranks) == 2
    line = next(n for n, text in enumerate(FAILURES.splitlines(), start=1) if "table[i]" in text)
    for told in ranks:
        name, text = told["index"]
        assert name == "IndexOutOfRangeError" and f"program.py:{line}" in text and "iteration 7" in text
        assert told["shapes"][0] == "ExecutionError" and "does not run what rank" in told["shapes"][1]
        assert "does not run what rank" in told["functions"][1]
        assert "does not match its edge" in told["header"][1]
        assert "f64[]" in told["header"][1] and "<f4[]" in told["header"][1]
        assert "cannot go on" in told["stuck"][1] and "waits for a message on edge" in told["stuck"][1]
        assert "at iteration 3" in told["stuck"][1]
    assert sum("on rank 1" in told["index"][1] for told in ranks) == 1


# Rank 0 is in a call over both ranks, which rank 1 leaves, or does not make.
LEAVING = """
import os, signal, sys, threading
import ctrlgrad as cg
from ctrlgrad.mpi.launch import launched

rank, what = launched().rank, sys.argv[1]

@cg.function(engine="dataflow")
def f(n):
    def body(carry):
        i, y = carry
        with cg.device("/rank:1/cpu:0"):
            return i + 1, y + i

    return cg.while_loop(lambda carry: carry[0] < n, body, (0, 0))

assert int(f(4)[1]) == 6
if rank == 1 and what == "kill":
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
if rank == 1 and what == "raise":
    raise ValueError("of my own")
if rank == 0 or what == "kill":
    f(10**12)
"""


@pytest.mark.parametrize(
    ("what", "codes", "said"),
    [
        # mpirun's code is that of the process that it sees end first.
        ("kill", (137, 1), "Error: rank 1 of 2 has died"),
        ("raise", (1,), "Error: on rank 1: ValueError; all ranks stop"),
        ("leave", (1,), "rank 1 has ended its program, and rank 0 waits for it"),
    ],
)
def test_a_rank_that_leaves_ends_a_call(mpirun, what, codes, said):
    ended = mpirun(2, LEAVING, what)
    assert ended.code in codes and ended.stderr.count(said) == 1, ended.stderr


def test_a_rank_that_does_not_exist_is_refused():
    @cg.function(engine="dataflow")
    def f(x):
        with cg.device("/rank:2/cpu:0"):
            return x * 2.0

    with pytest.raises(UserInputError, match="mpirun -n 3") as found:
        f(1.0)
    assert "with cg.device" in FILE.read_text().splitlines()[found.value.source.line - 2]


def test_a_simulated_device_over_ranks_is_refused():
    @cg.function(engine="dataflow")
    def f(x):
        with cg.device("/rank:0/sim:1"):
            return x * 2.0

    with pytest.raises(UserInputError, match="simulated inside of one process"):
        f(1.0)


# No machine has so many GPUs.
NO_GPU = """
import sys
import ctrlgrad as cg
from ctrlgrad.errors import UserInputError
from ctrlgrad.mpi.launch import launched

@cg.function(engine="dataflow")
def f(x, device):
    with cg.device(device):
        y = x * 2.0
    return y + 1.0

def on(device):
    return cg.function(lambda x: f.fn(x, device), engine="dataflow")

for _ in range(2):
    try:
        on("/rank:1/cuda:63")(3.0)
    except UserInputError as error:
        told = str(error)
    assert float(on("/rank:1/cpu:0")(3.0)) == 7.0
sys.stdout.write(f"{launched().rank} {told!r}\\n")
"""


def test_a_gpu_that_its_rank_lacks_is_an_error_on_all_ranks(mpirun):
    ended = mpirun(3, NO_GPU)
    assert ended.code == 0, ended.stderr
    told = dict(line.split(" ", 1) for line in ended.stdout.splitlines())
    assert sorted(told) == ["0", "1", "2"]
    for rank, text in told.items():
        assert "rank 1 has no device cuda:63" in text and "program.py" in text
        assert ("on rank 1" in text) == (rank != "1")


def test_rank_0_of_one_process_is_this_process():
    @cg.function(engine="dataflow")
    def f(x):
        with cg.device("/rank:0/cpu:1"):
            y = x * 2.0
        return y + 1.0

    assert float(f(3.0)) == 7.0
