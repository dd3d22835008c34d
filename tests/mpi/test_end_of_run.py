"""The end of a call over ranks, as one of three ranks sees it: no failure is lost, and none is taken for another's."""

from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest

from ctrlgrad.dataflow.messages import Run
from ctrlgrad.errors import ExecutionError, IndexOutOfRangeError
from ctrlgrad.mpi import wire
from ctrlgrad.mpi.wire import Header, encode_error
from ctrlgrad.mpi.world import Arrived

IDENTITY = b"identity"
CALL = 5


class World:
    """Rank 1 of three: gets the messages that it is given, then none; keeps the kinds of what is posted, by rank."""

    rank, size = 1, 3
    is_sending = False

    def __init__(self, *arrivals):
        self.arrivals = deque(arrivals)
        self.posted = {0: [], 2: []}

    def post(self, rank, tag, parts):
        header, _ = wire.decode(joined(parts))
        assert (header.run, header.identity) == (CALL, IDENTITY)
        self.posted[rank].append(header.kind)

    def poll(self):
        if not self.arrivals:
            pytest.fail("it waits for a message that will not come")
        arrived = self.arrivals.popleft()
        if isinstance(arrived, BaseException):
            raise arrived
        return arrived


def joined(parts):
    return np.frombuffer(b"".join(bytes(memoryview(part)) for part in parts), np.uint8)


def message(rank, kind, call=CALL, error=None):
    payload = [] if error is None else [encode_error(error)]
    return Arrived(rank, 0, joined(wire.encode(Header(kind, IDENTITY, call), payload)))


def run_of(world):
    return Run(SimpleNamespace(world=world, watch=SimpleNamespace(gone=set())), CALL, IDENTITY, (), {})


DONE = (message(0, wire.DONE), message(2, wire.DONE))
AGREED = (message(0, wire.AGREED), message(2, wire.AGREED))
LATE = IndexOutOfRangeError("too late")


def test_a_run_ends_when_all_are_done_and_all_agree():
    world = World(*DONE, *AGREED)
    assert run_of(world).end({}) == {}
    assert world.posted == {rank: [wire.DONE, wire.AGREED] for rank in (0, 2)} and not world.arrivals


@pytest.mark.parametrize(
    "arrivals",
    [
        (*DONE, message(0, wire.FAILED, error=LATE), message(2, wire.AGREED)),
        (*DONE, message(2, wire.AGREED), message(0, wire.FAILED, error=LATE)),
        (DONE[0], message(0, wire.FAILED, error=LATE), DONE[1], message(2, wire.AGREED)),
    ],
)
def test_a_failure_after_the_end_was_told_is_raised(arrivals):
    world = World(*arrivals)
    with pytest.raises(IndexOutOfRangeError, match="too late") as found:
        run_of(world).end({})
    assert "on rank 0" in str(found.value) and not world.arrivals


def test_messages_of_an_earlier_run_are_dropped():
    stale = [
        message(0, wire.FAILED, CALL - 1, LATE),
        message(2, wire.DONE, CALL - 1),
        message(2, wire.AGREED, CALL - 1),
    ]
    world = World(stale[0], DONE[0], stale[1], stale[2], DONE[1], *AGREED)
    assert run_of(world).end({}) == {} and not world.arrivals


def test_messages_of_the_next_run_are_kept():
    ahead = message(2, wire.DONE, CALL + 1)
    run = run_of(World(*DONE, AGREED[1], ahead, AGREED[0]))
    assert run.end({}) == {} and run.early == [ahead]


@pytest.mark.parametrize("bad", [Arrived(2, 0, np.zeros(200, np.uint8)), Arrived(2, 0, DONE[1].data[:-70])])
def test_a_failure_of_its_own_after_it_was_done_is_told(bad):
    world = World(DONE[0], bad, AGREED[0])
    with pytest.raises(ExecutionError, match="cannot be read"):
        run_of(world).end({})
    assert world.posted[0] == [wire.DONE, wire.FAILED] == world.posted[2]


def test_ctrl_c_while_it_waits_is_told():
    world = World(DONE[0], KeyboardInterrupt(), *AGREED)
    with pytest.raises(KeyboardInterrupt):
        run_of(world).end({})
    assert world.posted[0] == [wire.DONE, wire.FAILED] == world.posted[2]


def test_a_rank_that_is_told_of_a_failure_is_not_done():
    run = run_of(World(message(2, wire.FAILED, error=LATE), AGREED[0]))
    run.poll()
    assert run.is_stopped
    with pytest.raises(IndexOutOfRangeError, match="on rank 2"):
        run.end({})
    assert run.world.posted[0] == [wire.AGREED]
