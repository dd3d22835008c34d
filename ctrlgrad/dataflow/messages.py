"""Messages between devices: what a message is, how an executor sends and receives them, and the mailboxes of a process.

A message belongs to an edge of the partition and to a tag: the number of the iteration of each frame around, the root's
0 first. One message per edge and tag is sent and received, dead or alive; messages may overtake each other. Where none
can come any more, an error says what waits for which.

Between ranks they go as bytes, `ctrlgrad.mpi.wire`. The receiver knows from the partition what an edge carries, and in
which frame: a message that says anything else is an error, never a wrong number.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from ctrlgrad.dataflow.devices import DeviceRun, Leaving
from ctrlgrad.dataflow.frames import Dead, FrameRun, Iteration, Step, Tag
from ctrlgrad.dataflow.graph import EXIT, FlatNode, Recv
from ctrlgrad.dataflow.partition import Edge
from ctrlgrad.dataflow.scopes import describe
from ctrlgrad.dtypes import dtype_code
from ctrlgrad.errors import CtrlgradError, ExecutionError
from ctrlgrad.ir import StackType, TensorType
from ctrlgrad.mpi.wire import DEAD, KINDS, REPORT, VALUE, Header, decode_stack, frame_number
from ctrlgrad.records import record
from ctrlgrad.source import Source


@record
class Message:
    """A message as it arrives: a value, or the news that the value is dead. A report carries neither."""

    edge: int
    tag: Tag
    dead: Dead | None
    value: Any


class Transport(Protocol):
    """One device's end of all edges that it sends or receives on."""

    def send(self, edge: int, tag: Tag, dead: Dead | None, value: Any) -> None:
        """Send; returns at once. The receiver only reads the value, unless it has the last reference to it."""

    def receive(self) -> list[Message]:
        """Wait for messages; one at least.

        Raises:
            StuckError: no message can come any more.
            StoppedError: the run has been stopped.
        """

    def receive_now(self) -> list[Message]:
        """Messages that have come, without waiting."""

    def done(self) -> None:
        """Note that this device waits for nothing more."""


@record
class Departure:
    """A message whose value is on its way to the host; `source` is the place in the user's code that it is of."""

    edge: int
    tag: Tag
    value: Leaving
    source: Source | None


class Outbox:
    """Messages that a device sends: each leaves as soon as its value is on the host."""

    def __init__(self, device: DeviceRun, transport: Transport | None) -> None:
        self.device = device
        self.transport = transport
        # The oldest first: copies end in the order in which they were begun.
        self.departures: deque[Departure] = deque()

    def send(self, edge: int, tag: Tag, dead: Dead | None, value: Any, source: Source | None) -> None:
        leaving = self.device.leave(value)
        if leaving is None:
            self._hand_over(edge, tag, dead, value)
        else:
            self.departures.append(Departure(edge, tag, leaving, source))

    def send_oldest(self) -> None:
        """Give the oldest message whose value was under way to the transport; waits for the value."""
        departure = self.departures.popleft()
        try:
            value = departure.value.value()
        except CtrlgradError as error:
            error.source = error.source or departure.source
            raise
        self._hand_over(departure.edge, departure.tag, None, value)

    def _hand_over(self, edge: int, tag: Tag, dead: Dead | None, value: Any) -> None:
        assert self.transport is not None, "a device alone has nobody to send to"
        self.transport.send(edge, tag, dead, value)


# Devices of one process.


class Exchange:
    """The mailboxes of the devices of one process. `delay(edge)` is how many seconds a message takes."""

    def __init__(self, devices: Sequence[str], edges: Sequence[Edge], delay: Callable[[Edge], float] | None) -> None:
        self.edges = edges
        self.delay = delay
        self.lock = threading.Lock()
        self.boxes = {device: Mailbox(self) for device in devices}
        self.running = len(devices)
        self.idle = 0
        # Messages that were sent and not received.
        self.in_flight = 0
        self.is_stuck = False
        self.is_stopped = False
        self.numbers = itertools.count()

    def send(self, message: Message) -> None:
        edge = self.edges[message.edge]
        due = 0.0 if self.delay is None else time.monotonic() + self.delay(edge)
        box = self.boxes[edge.receiver]
        with self.lock:
            self.in_flight += 1
            heapq.heappush(box.heap, (due, next(self.numbers), message))
            box.arrived.notify()

    def stop(self) -> None:
        """Wake every device up to end."""
        with self.lock:
            self.is_stopped = True
            self._wake()

    def check_stuck(self) -> None:
        """Called with the lock held, when a device has nothing to do."""
        if self.running and self.idle == self.running and not self.in_flight:
            self.is_stuck = True
            self._wake()

    def _wake(self) -> None:
        for box in self.boxes.values():
            box.arrived.notify_all()


class Mailbox:
    """A device's end of an exchange."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.heap: list[tuple[float, int, Message]] = []
        self.arrived = threading.Condition(exchange.lock)

    def send(self, edge: int, tag: Tag, dead: Dead | None, value: Any) -> None:
        self.exchange.send(Message(edge, tag, dead, value))

    def receive(self) -> list[Message]:
        exchange = self.exchange
        with exchange.lock:
            while True:
                if exchange.is_stopped:
                    raise StoppedError
                if exchange.is_stuck:
                    raise StuckError
                messages = self._due()
                if messages:
                    return messages
                exchange.idle += 1
                exchange.check_stuck()
                try:
                    if not exchange.is_stuck:
                        self.arrived.wait(None if not self.heap else max(0.0, self.heap[0][0] - time.monotonic()))
                finally:
                    exchange.idle -= 1

    def receive_now(self) -> list[Message]:
        if not self.heap:
            return []
        with self.exchange.lock:
            return self._due()

    def _due(self) -> list[Message]:
        found = []
        now = time.monotonic()
        while self.heap and self.heap[0][0] <= now:
            found.append(heapq.heappop(self.heap)[2])
        self.exchange.in_flight -= len(found)
        return found

    def done(self) -> None:
        with self.exchange.lock:
            self.exchange.running -= 1
            self.exchange.check_stuck()


# Where none comes.


class StuckError(Exception):
    """All devices wait and no message is on its way."""


class StoppedError(Exception):
    """Another device has failed, or the user has interrupted: this one gives up."""


def stuck_error(waiting: Sequence[str]) -> ExecutionError:
    """The error of a run that cannot go on; `waiting` says which node waits for what, a line each."""
    shown = [*waiting[:12], *([f"and {len(waiting) - 12} more"] if len(waiting) > 12 else [])]
    return ExecutionError(
        "the dataflow graph cannot go on: nodes wait for values that will not come",
        expected="a value or its deadness for every operand",
        got="\n".join(shown),
        hint="look where the first of them gets its operand from",
    )


def waiting_in(frame: FrameRun, device: str) -> Iterator[str]:
    """Lines about the nodes that wait in a frame and in the frames inside, each with its operand and iteration."""
    iteration: Iteration | None = frame.oldest
    while iteration is not None:
        for name, missing in _waiting(iteration):
            yield f"{name} on {device} waits for {missing} at {iteration.describe()}"
        for child in iteration.children.values():
            yield from waiting_in(child, device)
        iteration = iteration.next
    for edge, done in frame.reported.items():
        if frame.total is not None and frame.reports != frame.expected_reports:
            what = f"reports on edge {edge}: {done} of {frame.total} done"
            yield f"{frame.plan.name} on {device} waits for {what}"


def _waiting(iteration: Iteration) -> Iterator[tuple[str, str]]:
    """Nodes of an iteration that wait, each with the missing operand: steps, Switches of a carry, and NextIterations
    that begin the next iteration."""
    frame = iteration.frame
    for step in frame.plan.steps:
        if iteration.pending[step.index] > 0 and (step.node.op is not EXIT or iteration.predicate is False):
            yield step.name, _missing(step, iteration)
    for switch in frame.plan.switches:
        if iteration.slots[switch.slot] is None:
            yield describe(switch.node), _operand(switch.node, 1)
    if iteration.predicate is True and iteration.next is None and not frame.waiting:
        for node in frame.plan.backs:
            yield describe(node), _operand(node, 0)


def _operand(node: FlatNode, place: int) -> str:
    hint = node.operands[place].hint
    return f"operand {place}{f' ({hint})' if hint else ''}"


def _missing(step: Step, iteration: Iteration) -> str:
    empty = [k for k in range(len(step.node.operands)) if iteration.slots[step.first + k] is None]
    missing = [_operand(step.node, k) for k in empty]
    received = Recv.find(step.node)
    if received is not None and iteration.slots[step.first] is None:
        missing.append(f"a message on edge {received.edge}")
    return ", ".join(missing) or "a control"


# Between ranks.


def check(header: Header, payload: np.ndarray, edge: Edge | None, sender: int) -> None:
    """Check that a message is one that its edge can carry. `sender` is the rank that it came from; `edge` is None
    where no edge to this rank has that number.

    Raises:
        ExecutionError: it is not.
    """
    expected, got = _said_of_edge(edge), _said_of_message(header, sender)
    if edge is None:
        raise _mismatch(header, "an edge that ends on this rank", f"edge {header.edge}, {got}")
    fits = (
        header.frame == frame_number(edge.frame)
        and len(header.tag) == len(edge.frame) + 1
        and all(number >= 0 for number in header.tag)
        and (header.kind == REPORT) == (edge.type is None)
    )
    if fits and header.kind == VALUE:
        fits = _fits(header, payload, edge.type)
    if not fits or header.kind not in (VALUE, DEAD, REPORT):
        raise _mismatch(header, expected, got)


def _fits(header: Header, payload: np.ndarray, type: TensorType | StackType | None) -> bool:
    if isinstance(type, StackType):
        return header.form >= 0 and all(
            type.element.accepts(TensorType(a.dtype, a.shape)) for a in decode_stack(header.form, payload)
        )
    if type is None or header.form >= 0 or min(header.shape, default=0) < 0:
        return False
    size = type.dtype.itemsize * int(np.prod(header.shape, dtype=np.int64))
    return (
        header.dtype == dtype_code(type.dtype)
        and type.accepts(TensorType(type.dtype, header.shape))
        and payload.nbytes == size
    )


def _said_of_edge(edge: Edge | None) -> str:
    if edge is None:
        return "no edge"
    carried = "a report" if edge.type is None else str(edge.type)
    return f"{carried} on edge {edge.number} from {edge.sender} to {edge.receiver}, in frame {_path(edge.frame)}"


def _said_of_message(header: Header, sender: int) -> str:
    said = f"a {KINDS[header.kind]} from rank {sender}"
    if header.kind == VALUE:
        of = f"a stack of {header.form}" if header.form >= 0 else f"{header.dtype}{list(header.shape)}"
        said += f": {of}"
    return f"{said}, at iteration {', '.join(map(str, header.tag[1:])) or 'none'}, frame number {header.frame:#x}"


def _path(frame: Sequence[str]) -> str:
    return "/".join(frame) or "the root"


def _mismatch(header: Header, expected: str, got: str) -> ExecutionError:
    return ExecutionError(
        "a message from another rank does not match its edge",
        expected=expected,
        got=got,
        hint="start the same program with the same versions of ctrlgrad and NumPy on every rank",
    )
