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
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ctrlgrad.dataflow.devices import DeviceRun, Leaving, parse_device
from ctrlgrad.dataflow.frames import Dead, DevicePlan, FrameRun, Iteration, Step, Tag
from ctrlgrad.dataflow.graph import EXIT, FlatNode, Recv
from ctrlgrad.dataflow.partition import Edge
from ctrlgrad.dataflow.scopes import describe
from ctrlgrad.dtypes import dtype_code
from ctrlgrad.engines.block_kernels import as_lists
from ctrlgrad.errors import CtrlgradError, ExecutionError
from ctrlgrad.ir import StackType, TensorType
from ctrlgrad.mpi import wire
from ctrlgrad.mpi.launch import Joined
from ctrlgrad.mpi.wire import DEAD, KINDS, REPORT, VALUE, Header, decode_error, decode_stack, encode_error, frame_number
from ctrlgrad.records import record
from ctrlgrad.source import Source

# Detection of a deadlock between ranks, so that it is an error there too.
#
# A rank whose devices have all waited for `IDLE_SECONDS` tells rank 0 how many messages it has sent and received, and
# says so again as long as it waits. All ranks are quiescent if they have said so twice, the second time after all had
# said it once, with the same numbers, and the sent ones are as many as the received ones.
#
# Source: Mattern, "Algorithms for distributed termination detection", Distributed Computing 2, 1987 (the four-counter
# method, with reports in place of its two waves).


# Seconds between reports of a rank that waits.
IDLE_SECONDS = 1.0


@record
class IdleReport:
    """One rank, idle: how many messages it has sent and received, and what its nodes wait for, a line each."""

    sent: int
    received: int
    waiting: tuple[str, ...] = ()


@record(frozen=False)
class Quiescence:
    """Record on rank 0 of the idle reports of all ranks.

    >>> found = Quiescence(2)
    >>> first, second = IdleReport(3, 1), IdleReport(1, 3)
    >>> [found.add(0, first), found.add(1, second), found.add(0, first)]
    [False, False, False]
    >>> found.add(1, IdleReport(1, 3))
    True
    """

    ranks: int
    reports: dict[int, IdleReport] = field(default_factory=dict)
    # The ranks that have said the same again since all had said it; None before all have.
    repeated: set[int] | None = None

    def add(self, rank: int, report: IdleReport) -> bool:
        """Take a report in; whether all ranks are quiescent."""
        if self.reports.get(rank) != report:
            self.reports[rank] = report
            self.repeated = None
        if self.repeated is None:
            counts = self.reports.values()
            if len(counts) == self.ranks and sum(r.sent for r in counts) == sum(r.received for r in counts):
                self.repeated = set()
            return False
        self.repeated.add(rank)
        return len(self.repeated) == self.ranks


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
        assert self.transport is not None, "a single device sends no messages"
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


# Deadlock in a process.


class StuckError(Exception):
    """All devices wait and no message is on its way."""


class StoppedError(Exception):
    """Another device has failed, or the user has interrupted: this one gives up."""


def stuck_error(waiting: Sequence[str]) -> ExecutionError:
    """Error of a deadlock; `waiting` has a line for each waiting node and its missing operand."""
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


# Transport between devices of several ranks: one end per device; one thread at a time uses the network.
#
# A message to a device of the same rank goes straight into its mailbox; to another rank it goes by a non-blocking
# send. There is no thread that waits for messages. A device that has nothing to do polls for some itself, and hands
# those for its neighbours over; while it does, its idle neighbours wait for it (the leader and its followers). So
# with one device per rank everything happens on one thread, and a predicate reaches the other ranks without a thread
# being woken.
#
# A run ends on all ranks together, in two rounds. A rank whose devices have finished tells all ranks that it is done,
# and waits for them. What a rank sends is received in order, so when all are done it has received everything, and
# nothing can go wrong any more: then it tells all that it agrees to the end, and leaves when all agree. A rank that
# fails before that tells all why, in place of agreeing; a rank that hears of it stops. All raise the failure of the
# lowest rank.
#
# A message of the next run, from a rank that is ahead, is kept. One of an earlier run is dropped: this rank has left
# it, by an exception in the middle of its end.


if TYPE_CHECKING:
    from ctrlgrad.mpi.world import Arrived

# MPI tags: the tag of an edge is its number plus this; messages without an edge have tag 0.
FIRST_TAG = 1
# Seconds that a rank waits for messages from a rank that has ended its program.
AFTER_GOODBYE = 1.0
# Seconds between polls of the network by a device that is busy. Ranks that share a core take turns this long:
# with 8 ranks on 2 cores a loop runs at twice the speed that 1e-4 gives.
BUSY_POLL = 5e-4


class Run:
    """One call of a graph, on this rank."""

    def __init__(
        self, joined: Joined, number: int, identity: bytes, edges: Sequence[Edge], plans: dict[str, DevicePlan]
    ) -> None:
        self.world = joined.world
        self.watch = joined.watch
        self.rank = self.world.rank
        self.number = number
        self.identity = identity
        self.edges = edges
        self.plans = plans
        self.rank_of = [(_rank(edge.sender), _rank(edge.receiver)) for edge in edges]
        # Number of each edge's frame, as in headers.
        self.frame_of = [wire.frame_number(edge.frame) for edge in edges]
        self.lock = threading.Lock()
        self.boxes = {name: Box(self) for name in plans if _rank(name) == self.rank}
        # True while a device polls the network as the leader; and the time of a busy device's last poll.
        self.has_leader = False
        self.last_poll = 0.0
        self.is_stopped = False
        self.on_stop: list[Callable[[], None]] = []
        # Devices that wait for messages, and that wait for nothing more; what the former wait for, a line each.
        self.idle = self.finished = 0
        self.waiting: Callable[[], list[str]] = list
        # Messages over the network.
        self.sent = self.received = 0
        self.quiescence = Quiescence(self.world.size)
        # Errors by failed rank; ranks that are done; ranks that send nothing more; outputs of other ranks; messages of
        # the next run.
        self.failures: dict[int, BaseException] = {}
        self.done: set[int] = set()
        self.ended: set[int] = set()
        self.outputs: dict[int, Any] = {}
        self.early: list[Arrived] = []

    # Sending.

    def send(self, number: int, tag: Tag, dead: Dead | None, value: Any) -> None:
        edge = self.edges[number]
        if edge.receiver in self.boxes:
            self._hand_over(Message(number, tag, dead, value))
            return
        frame = self.frame_of[number]
        if edge.type is None:
            parts = wire.encode(Header(wire.REPORT, self.identity, self.number, number, frame, tag))
        elif dead is not None:
            origin = self._place_of(dead)
            parts = wire.encode(Header(wire.DEAD, self.identity, self.number, number, frame, tag, shape=origin))
        else:
            header = Header(wire.VALUE, self.identity, self.number, number, frame, tag)
            parts = wire.encode_value(header, as_lists([value])[0])
        with self.lock:
            self.sent += 1
        self.world.post(self.rank_of[number][1], FIRST_TAG + number, parts)

    def _place_of(self, dead: Dead) -> tuple[int, ...]:
        """Place of the Switch in the plans, which all ranks have; the side that it chose; and its iteration."""
        for device, plan in enumerate(self.plans.values()):
            for frame in plan.frames:
                if dead.switch.index < len(frame.steps) and frame.steps[dead.switch.index] is dead.switch:
                    return (device, frame.number, dead.switch.index, dead.chosen, *dead.tag)
        raise AssertionError(dead.switch.name)

    def _dead_at(self, origin: tuple[int, ...]) -> Dead:
        try:
            device, frame, step, chosen, *tag = origin
            plan = list(self.plans.values())[device]
            return Dead(plan.frames[frame].steps[step], tuple(tag), chosen)
        except (ValueError, IndexError):
            raise ExecutionError(
                "a message from another rank says that a value is dead because of a Switch that is not there",
                expected="device, frame, step and side of a Switch in this graph",
                got=str(origin),
                hint="run the same program with the same arguments on all ranks",
            ) from None

    # Receiving.

    def poll(self) -> bool:
        """Receive one message from the network, if one has arrived."""
        arrived = self.world.poll()
        if arrived is None:
            return False
        self.take(arrived)
        return True

    def take(self, arrived: Arrived) -> None:
        """Act on a message; what is wrong with it is this rank's failure."""
        try:
            header, payload = self._decoded(arrived)
            if header.run > self.number:
                self.early.append(arrived)
            elif header.run == self.number:
                self._check_identity(header, arrived.rank)
                self._act_on(header, payload, arrived)
        except ExecutionError as error:
            self.fail(error)

    def _decoded(self, arrived: Arrived) -> tuple[Header, Any]:
        try:
            return wire.decode(arrived.data)
        except ExecutionError:
            # It may have been the last that comes from there.
            self.ended.add(arrived.rank)
            raise

    def _check_identity(self, header: Header, sender: int) -> None:
        if header.identity == self.identity:
            return
        # The end that a message of another graph tells is true all the same.
        if header.kind in (wire.AGREED, wire.FAILED):
            self.ended.add(sender)
        raise ExecutionError(
            f"rank {sender} does not run what rank {self.rank} runs",
            expected=f"graph {self.identity.hex()}, in call {self.number} of the dataflow engine over ranks",
            got=f"graph {header.identity.hex()}",
            hint="call the same functions on every rank, in the same order, with arguments of the same shapes",
        )

    def _act_on(self, header: Header, payload: Any, arrived: Arrived) -> None:
        if header.kind == wire.DONE:
            self.done.add(arrived.rank)
        elif header.kind == wire.AGREED:
            self.ended.add(arrived.rank)
        elif header.kind == wire.FAILED:
            self.failures[arrived.rank] = decode_error(payload.tobytes(), arrived.rank)
            self.ended.add(arrived.rank)
            self.stop()
        elif header.kind == wire.OUTPUT:
            self.outputs[header.tag[0]] = wire.decode_value(header, payload)
        elif header.kind == wire.IDLE:
            lines = tuple(payload.tobytes().decode().splitlines())
            self._heard_idle(arrived.rank, IdleReport(header.tag[0], header.tag[1], lines))
        elif not self.is_stopped:
            is_ours = header.edge < len(self.edges) and self.rank_of[header.edge] == (arrived.rank, self.rank)
            edge = self.edges[header.edge] if is_ours and arrived.tag == FIRST_TAG + header.edge else None
            check(header, payload, edge, arrived.rank)
            with self.lock:
                self.received += 1
            dead = self._dead_at(header.shape) if header.kind == wire.DEAD else None
            value = wire.decode_value(header, payload) if header.kind == wire.VALUE else None
            self._hand_over(Message(header.edge, header.tag, dead, value))

    def _hand_over(self, message: Message) -> None:
        box = self.boxes[self.edges[message.edge].receiver]
        with self.lock:
            box.messages.append(message)
            box.arrived.notify()

    def receive_now(self, box: Box) -> list[Message]:
        """Messages that have come for a device, without waiting."""
        now = time.monotonic()
        if now - self.last_poll > BUSY_POLL and not self.has_leader:
            self.last_poll = now
            with self.lock:
                leads = not self.has_leader
                self.has_leader = True
            try:
                while leads and self.poll():
                    pass
            finally:
                if leads:
                    self._pass_lead()
        if not box.messages:
            return []
        with self.lock:
            found, box.messages = box.messages, []
        return found

    def receive(self, box: Box) -> list[Message]:
        """Messages for a device; waits for them."""
        while True:
            with self.lock:
                self.idle += 1
                while self.has_leader and not box.messages and not self.is_stopped:
                    box.arrived.wait()
                if self.is_stopped:
                    raise StoppedError
                if box.messages:
                    self.idle -= 1
                    found, box.messages = box.messages, []
                    return found
                self.has_leader = True
            try:
                backoff = _Backoff(self, spins=len(self.boxes) == 1)
                while not box.messages and not self.is_stopped:
                    backoff.after(self.poll())
            finally:
                with self.lock:
                    self.idle -= 1
                self._pass_lead()

    def _pass_lead(self) -> None:
        """Let another device poll the network from now on, if one is idle."""
        with self.lock:
            self.has_leader = False
            for other in self.boxes.values():
                other.arrived.notify()

    # The end.

    def report_idle(self) -> None:
        """Called when nothing has come for a while: where all devices wait, rank 0 hears of it."""
        if self.idle + self.finished < len(self.boxes) or self.is_stopped or self._all_are_done:
            return
        report = IdleReport(self.sent, self.received, tuple(self.waiting()))
        if self.rank == 0:
            self._heard_idle(0, report)
            return
        header = Header(wire.IDLE, self.identity, self.number, tag=(report.sent, report.received))
        self.world.post(0, 0, wire.encode(header, ["\n".join(report.waiting).encode()]))

    def _heard_idle(self, rank: int, report: IdleReport) -> None:
        if self.quiescence.add(rank, report):
            reports = self.quiescence.reports
            self.fail(stuck_error([line for r in sorted(reports) for line in reports[r].waiting]))

    def fail(self, error: BaseException) -> None:
        """Note that this rank has failed, and stop its devices; `end` tells the other ranks."""
        self.failures.setdefault(self.rank, error)
        self.stop()

    def stop(self) -> None:
        """Make this rank's devices give up."""
        with self.lock:
            self.is_stopped = True
            for box in self.boxes.values():
                box.arrived.notify_all()
        for stop in self.on_stop:
            stop()

    def end(self, outputs: dict[int, Any]) -> dict[int, Any]:
        """Exchange the outputs or the failure of this rank with the other ranks; return all outputs.

        Raises:
            ExecutionError: a rank has failed, with its error.
        """
        backoff = _Backoff(self, spins=True)
        try:
            if not self.is_stopped:
                for place, value in outputs.items():
                    header = Header(wire.OUTPUT, self.identity, self.number, tag=(place,))
                    for rank in self._others:
                        self.world.post(rank, 0, wire.encode_value(header, as_lists([value])[0]))
                self._tell(wire.DONE)
            while not self.is_stopped and not self._all_are_done:
                backoff.after(self.poll())
        except BaseException as error:  # Ctrl-C too: other ranks must not wait on
            self.fail(error)
        own = self.failures.get(self.rank)
        if own is None:
            self._tell(wire.AGREED)
        else:
            self._tell(wire.FAILED, encode_error(own))
        # Other ranks may still be taking messages that this rank has sent.
        while len(self.ended) < len(self._others) or self.world.is_sending:
            backoff.after(self.poll())
        if self.failures:
            raise self.failures[min(self.failures)]
        return {**outputs, **self.outputs}

    @property
    def _others(self) -> list[int]:
        return [rank for rank in range(self.world.size) if rank != self.rank]

    @property
    def _all_are_done(self) -> bool:
        return len(self.done) == len(self._others)

    def _tell(self, kind: int, payload: bytes = b"") -> None:
        for rank in self._others:
            self.world.post(rank, 0, wire.encode(Header(kind, self.identity, self.number), [payload]))


class Box:
    """A device's end of a run; a `Transport`."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.messages: list[Message] = []
        self.arrived = threading.Condition(run.lock)

    def send(self, edge: int, tag: Tag, dead: Dead | None, value: Any) -> None:
        self.run.send(edge, tag, dead, value)

    def receive(self) -> list[Message]:
        return self.run.receive(self)

    def receive_now(self) -> list[Message]:
        return self.run.receive_now(self)

    def done(self) -> None:
        with self.run.lock:
            self.run.finished += 1


class _Backoff:
    """Waits between polls of the network: at first by yielding the core to another thread, then asleep."""

    def __init__(self, run: Run, *, spins: bool) -> None:
        self.run = run
        self.spins = spins
        self.since = self.reported = time.monotonic()

    def after(self, found: bool) -> None:
        """Wait a while, or not at all where a message was found."""
        now = time.monotonic()
        if found:
            self.since = self.reported = now
            return
        waited = now - self.since
        if self.spins and waited < 0.01:
            os.sched_yield()
            return
        time.sleep(5e-5 if waited < 0.1 else 1e-3)
        if now - self.reported > IDLE_SECONDS:
            self.reported = now
            self.run.report_idle()
        if waited > AFTER_GOODBYE:
            missing = sorted(self.run.watch.gone - self.run.ended)
            if missing:
                raise ExecutionError(
                    f"rank {missing[0]} has ended its program, and rank {self.run.rank} waits for it",
                    expected="the same calls on every rank",
                    got=f"call {self.run.number} of the dataflow engine over ranks on rank {self.run.rank} alone",
                    hint=f"let rank {missing[0]} make the call too, before it leaves its program",
                )


def _rank(device: str) -> int:
    return parse_device(device).rank or 0
