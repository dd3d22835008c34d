"""How messages go from one device to another: an interface, and the one for devices of one process.

A message belongs to an edge of the partition and to a tag: the number of the iteration of each frame around, the root's
0 first. One message per edge and tag is sent and received, dead or alive; messages may overtake each other.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ctrlgrad.dataflow.partition import Edge
from ctrlgrad.dataflow.tokens import Dead
from ctrlgrad.errors import ExecutionError

Tag = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Message:
    """What arrives: a value, or that it is dead. A report carries neither."""

    edge: int
    tag: Tag
    dead: Dead | None
    value: Any


class StuckError(Exception):
    """All devices wait and no message is on its way."""


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

    def take_arrived(self) -> list[Message]:
        """What has come, without waiting."""

    def done(self) -> None:
        """This device waits for nothing more."""


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
        self.on_their_way = 0
        self.is_stuck = False
        self.is_stopped = False
        self.numbers = itertools.count()

    def send(self, message: Message) -> None:
        edge = self.edges[message.edge]
        due = 0.0 if self.delay is None else time.monotonic() + self.delay(edge)
        box = self.boxes[edge.receiver]
        with self.lock:
            self.on_their_way += 1
            heapq.heappush(box.heap, (due, next(self.numbers), message))
            box.arrived.notify()

    def stop(self) -> None:
        """Wake every device up to end."""
        with self.lock:
            self.is_stopped = True
            self._wake()

    def check_stuck(self) -> None:
        """Called with the lock held, when a device has nothing to do."""
        if self.running and self.idle == self.running and not self.on_their_way:
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

    def take_arrived(self) -> list[Message]:
        if not self.heap:
            return []
        with self.exchange.lock:
            return self._due()

    def _due(self) -> list[Message]:
        found = []
        now = time.monotonic()
        while self.heap and self.heap[0][0] <= now:
            found.append(heapq.heappop(self.heap)[2])
        self.exchange.on_their_way -= len(found)
        return found

    def done(self) -> None:
        with self.exchange.lock:
            self.exchange.running -= 1
            self.exchange.check_stuck()


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


__all__ = ["Exchange", "Mailbox", "Message", "StoppedError", "StuckError", "Tag", "Transport", "stuck_error"]
