"""The executor of one device: fires steps until its part of the graph has run.

A step is ready when all that it takes in one iteration is there. What is ready fires first come, first served; with
other devices around the oldest iteration first, since they wait for that; or in an order drawn at random. Results do
not depend on it. Beside that an executor opens and releases frames, begins iterations within the window, and finds the
iteration that a message belongs to. A message may come before its iteration has begun here; it is kept until then.
Between two steps it takes in the messages that have come: else values that other devices need could wait behind work
for later iterations. It also hands over the values to send that have reached the host by then from a device that is not
the host; a Send begins such a copy, and does not wait.

The executor counts what it makes and what it releases. At the end nothing may be left: no frame, no value, no message.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ctrlgrad.dataflow.devices import DeviceRun
from ctrlgrad.dataflow.drawing import Recorder
from ctrlgrad.dataflow.frames import (
    Dead,
    DevicePlan,
    Entry,
    FrameRun,
    Iteration,
    Ready,
    Step,
    Tag,
    Targets,
    deliver,
    deliver_dead,
)
from ctrlgrad.dataflow.messages import Message, Outbox, StoppedError, Transport, waiting_in
from ctrlgrad.engines.reference.interpreter import explained
from ctrlgrad.errors import CtrlgradError, MaximumIterationsError, locate
from ctrlgrad.records import record
from ctrlgrad.source import Source


@record(frozen=False)
class Counts:
    """Counts of one run on one device."""

    firings: int = 0
    dead: int = 0
    iterations: int = 0
    most_in_flight: int = 0
    frames_opened: int = 0
    frames_released: int = 0
    sent: int = 0
    received: int = 0


class OldestFirst:
    """Queue of ready steps, the oldest iteration first; a deque has the order of arrival instead.

    A device must not work far ahead while other devices wait for an old value of it.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Tag, int, Entry]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    def append(self, entry: Entry) -> None:
        self._count += 1
        heapq.heappush(self._heap, (entry[0].tag, self._count, entry))

    def appendleft(self, entry: Entry) -> None:
        """In front of everything."""
        self._count += 1
        heapq.heappush(self._heap, ((), -self._count, entry))

    def popleft(self) -> Entry:
        return heapq.heappop(self._heap)[2]


class Executor:
    """Runs one device's plan once."""

    def __init__(
        self,
        plan: DevicePlan,
        device: DeviceRun,
        transport: Transport | None = None,
        order: random.Random | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.plan, self.device, self.transport = plan, device, transport
        self.order = order
        self.recorder = recorder
        self.counts = Counts()
        self.ready: Ready = deque() if transport is None or order is not None else OldestFirst()
        self.outputs: dict[int, Any] = {}
        # Set by another thread: give up before the next step.
        self.stopped = False
        # How far it had come when it gave up, in a loop or outside.
        self.stopped_at: Iteration | None = None
        # Frames and iterations that messages must find, and messages that came before their iteration.
        self.frames: dict[tuple[int, Tag], FrameRun] = {}
        self.iterations: dict[tuple[int, Tag], Iteration] = {}
        self.early: dict[tuple[int, Tag], list[Message]] = {}
        self.outbox = Outbox(device, transport)
        self.root: FrameRun | None = None
        self.finished = False

    # Running.

    def start(self, arguments: Sequence[Any]) -> None:
        """Hand out the inputs; takes a list over, so that nothing but the graph holds them."""
        root = self.open(0, None)
        self.root = root
        iteration = root.oldest
        self.end_at(iteration)
        for step in self.plan.starters:
            self.ready.append((iteration, step))
        for (its, targets), value in zip(self.plan.inputs, arguments, strict=True):
            if targets:
                deliver(iteration, targets, self.device.entered(value, its), self)
        if not iteration.remaining:
            self.completed(iteration)

    def drain(self) -> None:
        """Fire until nothing is ready."""
        ready, order, counts, listens = self.ready, self.order, self.counts, self.transport is not None
        fired = 0
        iteration = step = None
        try:
            with np.errstate(all="ignore"):
                while ready:
                    if self.stopped:
                        raise StoppedError
                    if order is not None and isinstance(ready, deque):
                        ready.rotate(-order.randrange(len(ready)))
                    iteration, step = ready.popleft()
                    fired += 1
                    if self.recorder is None:
                        self._fire(iteration, step) if iteration.dead else step.fire(iteration, self)
                    else:
                        self._recorded(iteration, step)
                    remaining = iteration.remaining - 1
                    iteration.remaining = remaining
                    if not remaining:
                        self.completed(iteration)
                    if listens:
                        self._listen()
        except StoppedError:
            self.stopped_at = iteration
            raise
        except BaseException as error:
            if step is None or iteration is None:
                raise
            found = _explained(error, step, iteration, self.device.is_late)
            if found is error:
                raise
            raise found from error
        finally:
            counts.firings += fired

    def _listen(self) -> None:
        assert self.transport is not None
        messages = self.transport.receive_now()
        if messages:
            self.accept_all(messages)
        if self.outbox.departures and self.outbox.departures[0].value.is_done():
            self.outbox.send_oldest()

    def _fire(self, iteration: Iteration, step: Step) -> None:
        dead = iteration.dead.pop(step.index, None)
        if dead is None:
            step.fire(iteration, self)
            return
        self.counts.dead += 1
        iteration.slots[step.first : step.last] = [None] * (step.last - step.first)
        step.fire_dead(iteration, dead, self)

    def _recorded(self, iteration: Iteration, step: Step) -> None:
        assert self.recorder is not None
        began = self.recorder.now()
        is_dead = step.index in iteration.dead
        self._fire(iteration, step)
        frame = iteration.frame.plan.name
        self.recorder.fired(self.plan.device, step.name, step.node, frame, iteration.tag, began, is_dead)

    # Frames and iterations.

    def open(self, number: int, parent: Iteration | None) -> FrameRun:
        plan = self.plan.frames[number]
        frame = FrameRun(plan, parent)
        self.counts.frames_opened += 1
        if plan.has_messages:
            self.frames[number, frame.tag] = frame
        self.register(frame.oldest)
        return frame

    def child(self, iteration: Iteration, number: int) -> FrameRun:
        """The frame that an iteration enters; opened by the first Enter."""
        frame = iteration.children.get(number)
        if frame is None:
            frame = iteration.children[number] = self.open(number, iteration)
        return frame

    def register(self, iteration: Iteration) -> None:
        """An iteration is there: what has come early goes in."""
        self.counts.iterations += 1
        frame = iteration.frame
        in_flight = iteration.number - frame.floor + 1
        if in_flight > self.counts.most_in_flight:
            self.counts.most_in_flight = in_flight
        if frame.plan.receives:
            key = (frame.plan.number, iteration.tag)
            self.iterations[key] = iteration
            for message in self.early.pop(key, ()):
                self._deliver(iteration, message)

    def following(self, frame: FrameRun) -> Iteration | None:
        """Begin the iteration after the newest; None where the window is full, or values wait for it already."""
        if frame.waiting or not frame.may_advance:
            return None
        following = frame.begin_next()
        self.register(following)
        return following

    def broadcast(self, frame: FrameRun, targets: Targets, value: Any) -> None:
        """Hand a constant to all iterations, those that are there and those to come."""
        if frame.total is None:
            if frame.slots is frame.plan.slots:
                frame.slots, frame.pending = frame.slots.copy(), frame.pending.copy()
            for slot, index, _ in targets.data:
                frame.slots[slot] = value
                frame.pending[index] -= 1
            for index, _ in targets.controls:
                frame.pending[index] -= 1
            for switch in targets.switches:
                frame.slots[switch.slot] = value
        iteration: Iteration | None = frame.oldest
        while iteration is not None:
            deliver(iteration, targets, value, self)
            iteration = iteration.next

    def end_at(self, iteration: Iteration) -> None:
        """No iteration follows this one: the frame drops its constants."""
        iteration.is_last = True
        frame = iteration.frame
        frame.total = iteration.number + 1
        frame.slots = frame.plan.slots

    def completed(self, iteration: Iteration) -> None:
        """All has happened in an iteration. Release it, if it is the oldest, and those after it that are done too."""
        frame = iteration.frame
        if iteration is not frame.oldest:
            return
        while not iteration.remaining:
            frame.floor = iteration.number + 1
            if frame.plan.receives:
                del self.iterations[frame.plan.number, iteration.tag]
            if frame.plan.report is not None:
                self._report(frame)
            if iteration.is_last:
                self._release(frame)
                return
            if iteration.next is None:
                break
            frame.oldest = iteration = iteration.next
        self.advance(frame)

    def advance(self, frame: FrameRun) -> None:
        """Let the values that wait for the next iteration in, if the window has room for it now."""
        if not frame.waiting or not frame.may_advance:
            return
        waiting, frame.waiting = frame.waiting, []
        before = frame.newest
        following = frame.begin_next()
        if before is frame.oldest and not before.remaining:
            # It was kept as the oldest, done, until there was one after it.
            frame.oldest = following
        self.register(following)
        while waiting:
            targets, value = waiting.pop(0)
            deliver(following, targets, value, self)

    def _report(self, frame: FrameRun) -> None:
        """Tell the loop's owner how many iterations are done here: at the end, and a few times per window."""
        assert frame.plan.report is not None
        if frame.floor == frame.total or frame.floor % frame.plan.report_every == 0:
            self.send(frame.plan.report, (*frame.tag, frame.floor), None, None, None)

    def _release(self, frame: FrameRun) -> None:
        """Release a frame whose last iteration is done, here and on all who report."""
        if frame.total != frame.floor or frame.reports != frame.expected_reports:
            return
        self.counts.frames_released += 1
        if frame.plan.has_messages:
            del self.frames[frame.plan.number, frame.tag]
        parent = frame.parent
        if parent is None:
            self.finished = True
            return
        del parent.children[frame.plan.number]
        parent.remaining -= 1
        if not parent.remaining:
            self.completed(parent)

    # Messages.

    def send(self, edge: int, tag: Tag, dead: Dead | None, value: Any, source: Source | None) -> None:
        """Send a message, as soon as its value is on the host."""
        self.counts.sent += 1
        if self.recorder is not None:
            self.recorder.sent(self.plan.device, edge, tag)
        self.outbox.send(edge, tag, dead, value, source)

    def accept_all(self, messages: list[Message]) -> None:
        """Take messages in, in their order. The list is emptied, so that what is computed holds the only references."""
        messages.reverse()
        while messages:
            self.accept(messages.pop())

    def accept(self, message: Message) -> None:
        """Take a message in."""
        self.counts.received += 1
        plan = self.plan.arrivals[message.edge]
        if self.recorder is not None:
            self.recorder.received(self.plan.device, message.edge, message.tag)
        if message.edge in plan.reported:
            *tag, done = message.tag
            frame = self.frames[plan.number, tuple(tag)]
            frame.reported[message.edge] = max(done, frame.reported[message.edge])
            frame.reports += 1
            if frame.floor == frame.total:
                self._release(frame)
            else:
                self.advance(frame)
            return
        key = (plan.number, message.tag)
        if message.dead is None:
            # It may start on its way to the device at once, though its iteration has not begun.
            step, _ = plan.receives[message.edge]
            try:
                value = self.device.arrive(message.value, step.node.results[0].type)
            except CtrlgradError as error:
                error.source = error.source or step.source
                raise
            if value is not message.value:
                message = Message(message.edge, message.tag, None, value)
        iteration = self.iterations.get(key)
        if iteration is None:
            self.early.setdefault(key, []).append(message)
        else:
            self._deliver(iteration, message)

    def _deliver(self, iteration: Iteration, message: Message) -> None:
        _, targets = iteration.frame.plan.receives[message.edge]
        if message.dead is None:
            deliver(iteration, targets, message.value, self)
        else:
            deliver_dead(iteration, targets, message.dead, self)

    # At the end.

    def finish(self) -> None:
        """Bring the outputs to the host."""
        self.outputs = self.device.results(self.outputs)

    def left_behind(self) -> dict[str, int]:
        """Numbers of objects that an ended run should have released and has not."""
        return {
            "frames": self.counts.frames_opened - self.counts.frames_released,
            "frames to be found": len(self.frames),
            "iterations to be found": len(self.iterations),
            "early messages": sum(map(len, self.early.values())),
            "messages under way": len(self.outbox.departures),
            "ready steps": len(self.ready),
        }

    def blocked(self) -> Iterator[str]:
        """Report of a run that cannot go on: a line for each step that waits, with its operand and its iteration."""
        if self.root is not None and not self.finished:
            yield from waiting_in(self.root, self.plan.device)


def _explained(error: BaseException, step: Step, iteration: Iteration, is_late: bool) -> BaseException:
    """The error with the place in the user's code and the iterations that it happened in.

    Where it was seen late, the iterations are those of another step, and are left out.
    """
    node = next(iter(step.node.regions[0].nodes), None) if step.node.regions else None
    found = error
    if node is None:
        locate(error, step.name, step.source)
    else:
        found = explained(error, node)
    if is_late:
        return found
    notes = iteration.notes()
    if isinstance(error, MaximumIterationsError) and not step.node.regions:
        # The loop itself says in its error how far it came.
        notes = notes[1:]
    for text in notes:
        found.add_note(text)
    return found
