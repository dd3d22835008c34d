"""Messages between ranks: what is sent is what arrives, and what does not fit its edge is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ctrlgrad.dataflow.drawing import join_traces
from ctrlgrad.dataflow.messages import check
from ctrlgrad.dataflow.partition import Edge
from ctrlgrad.errors import ExecutionError, ShapeError
from ctrlgrad.ir import StackType, TensorType
from ctrlgrad.mpi import wire
from ctrlgrad.mpi.wire import Header, decode_error, encode_error

MATRIX = TensorType(np.dtype(np.float32), (2, None))
EDGE = Edge(3, "/rank:0/cpu:0", "/rank:1/cpu:0", ("while_1", "while_2"), MATRIX)
HEADER = Header(wire.VALUE, b"identity", 5, 3, wire.frame_number(EDGE.frame), (0, 4, 7))


def sent(parts):
    """The bytes of a message, as they arrive."""
    return np.frombuffer(b"".join(bytes(memoryview(part)) for part in parts), np.uint8)


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(24.0).reshape(2, 3, 4)[:, ::2, 1].T,
        np.zeros((2, 0)),
        np.array(2 + 3j),
        np.array([True, False]),
        np.int8(-3),
        np.bool_(True),
        np.uint64(2**64 - 1),
    ],
    ids=repr,
)
def test_an_array_or_scalar_arrives_as_it_was(value):
    header, payload = wire.decode(sent(wire.encode_value(HEADER, value)))
    found = wire.decode_value(header, payload)
    assert type(found) is type(value)
    assert (found.dtype, found.shape) == (value.dtype, value.shape)
    np.testing.assert_array_equal(found, value)
    assert replace(header, dtype="", shape=(), form=HEADER.form) == HEADER


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_stack_arrives_as_it_was(count):
    rng = np.random.default_rng(count)
    stack = [rng.standard_normal((2, n)).astype(np.float32) for n in range(count)]
    header, payload = wire.decode(sent(wire.encode_value(HEADER, stack)))
    check(header, payload, replace(EDGE, type=StackType(MATRIX)), 0)
    found = wire.decode_value(header, payload)
    assert len(found) == count
    for a, b in zip(found, stack, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_death_and_a_report_carry_no_value():
    dead = replace(HEADER, kind=wire.DEAD, shape=(0, 1, 2, 1, 0, 4))
    header, payload = wire.decode(sent(wire.encode(dead)))
    check(header, payload, EDGE, 0)
    assert header == dead and payload.size == 0
    report = replace(HEADER, kind=wire.REPORT)
    header, payload = wire.decode(sent(wire.encode(report)))
    check(header, payload, replace(EDGE, type=None), 0)


GOOD = np.ones((2, 3), np.float32)


def test_matching_messages_are_accepted():
    check(*wire.decode(sent(wire.encode_value(HEADER, GOOD))), EDGE, 0)


@pytest.mark.parametrize(
    ("header", "value", "edge"),
    [
        (HEADER, GOOD.astype(np.float64), EDGE),
        (HEADER, GOOD.astype(np.int32), EDGE),
        (HEADER, GOOD[0], EDGE),
        (HEADER, GOOD.T, EDGE),
        (HEADER, [GOOD], EDGE),
        (HEADER, GOOD, replace(EDGE, type=StackType(MATRIX))),
        (HEADER, [GOOD, GOOD.T], replace(EDGE, type=StackType(MATRIX))),
        (HEADER, GOOD, replace(EDGE, type=None)),
        (HEADER, GOOD, replace(EDGE, frame=("while_1", "while_3"))),
        (HEADER, GOOD, replace(EDGE, frame=("while_1",))),
        (HEADER, GOOD, None),
        (replace(HEADER, tag=(0, 4)), GOOD, EDGE),
        (replace(HEADER, tag=(0, -1, 4)), GOOD, EDGE),
        (replace(HEADER, frame=1), GOOD, EDGE),
        (replace(HEADER, kind=wire.OUTPUT), GOOD, EDGE),
        (replace(HEADER, kind=wire.REPORT), GOOD, EDGE),
    ],
)
def test_messages_that_do_not_match_their_edge_are_refused(header, value, edge):
    with pytest.raises(ExecutionError, match="does not match its edge"):
        check(*wire.decode(sent(wire.encode_value(header, value))), edge, 0)


def test_bytes_that_are_no_whole_message_are_refused():
    whole = sent(wire.encode_value(HEADER, GOOD))
    other = whole.copy()
    other[4] = 99
    for data in (whole[:-1], whole[:70], whole[:10], np.concatenate([whole, whole]), other, np.zeros(200, np.uint8)):
        with pytest.raises(ExecutionError, match="cannot be read"):
            wire.decode(data)


def test_a_stack_whose_bytes_do_not_fit_is_refused():
    header, payload = wire.decode(sent(wire.encode_value(HEADER, [GOOD, GOOD])))
    with pytest.raises(ExecutionError, match="cannot be read"):
        check(header, payload[:100], replace(EDGE, type=StackType(MATRIX)), 0)


def test_an_error_keeps_its_class_and_text():
    error = ShapeError("no", source="a.py:3 in f", expected="x", got="y\nz", hint="try")
    error.notes.append("in iteration 3")
    found = decode_error(encode_error(error), 2)
    assert type(found) is ShapeError
    assert str(found) == str(error).replace("in iteration 3", "in iteration 3\n  on rank 2")
    other = decode_error(encode_error(ZeroDivisionError("by zero")), 1)
    assert type(other) is ExecutionError and str(other) == "ZeroDivisionError: by zero\n  on rank 1"
    assert type(decode_error(encode_error(KeyboardInterrupt()), 1)) is KeyboardInterrupt


# Traces of a run over ranks: a file per rank, and one of both.


PROGRAM = """
import numpy as np
from mpi4py import MPI
import ctrlgrad as cg
from ctrlgrad import dataflow

@cg.function(engine="dataflow")
def f(x):
    def body(carry):
        i, y = carry
        with cg.device("/rank:1/cpu:0"):
            y = cg.cond(y > 0.5, lambda: np.sin(y), lambda: y * x)
        return i + 1, y
    return cg.while_loop(lambda carry: carry[0] < 3, body, (0, x))[1]

recorder = dataflow.Recorder()
with dataflow.settings(recorder=recorder):
    f(2.0)
recorder.save(f"trace-{MPI.COMM_WORLD.Get_rank()}.json")
"""


def test_each_rank_saves_its_rows_and_the_arrows_join_them(mpirun: Any) -> None:
    ended = mpirun(2, PROGRAM)
    assert ended.code == 0, ended.stderr
    paths = [mpirun.folder / f"trace-{rank}.json" for rank in range(2)]
    for rank, path in enumerate(paths):
        assert {e["pid"] for e in json.loads(path.read_text())["traceEvents"]} == {rank}
    join_traces(paths, mpirun.folder / "trace.json")
    events = json.loads((mpirun.folder / "trace.json").read_text())["traceEvents"]
    rows = {(e["pid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    assert rows == {(0, "/rank:0/cpu:0"), (1, "/rank:1/cpu:0")}
    starts, ends = ({e["id"]: e for e in events if e["ph"] == phase} for phase in "sf")
    assert starts.keys() == ends.keys() and starts
    assert all(start["pid"] != ends[number]["pid"] for number, start in starts.items())
    # Both ranks are on one machine, so their clocks are one.
    assert all(start["ts"] <= ends[number]["ts"] for number, start in starts.items())
