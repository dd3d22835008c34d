"""The engine "dataflow": a call from start to end, on one or more devices, of this process or of several ranks.

With one device everything runs on the calling thread. With several each has a thread and a mailbox, and products are
single-threaded. A device that fails stops all devices; so does Ctrl-C, and the next call starts afresh.

Over ranks every rank calls the same function, and each runs the devices that are its own. The ranks do not send each
other graphs. Each traces the function, and so has the same graph and the same partition; a digest of both is in every
message, so that ranks which call different functions, or the same with arguments of other shapes, find out. Constants
are in the digest, arguments only by dtype and shape: every rank passes the same ones, and each device takes an argument
from its own rank. Every rank gets all outputs. Calls over ranks go one at a time: a second thread waits for the first.
All ranks make them in the same order.
"""

from __future__ import annotations

import contextvars
import hashlib
import heapq
import math
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ctrlgrad import memory
from ctrlgrad.dataflow.devices import (
    DeviceRun,
    check_devices,
    parse_device,
    quick_turns,
    single_threaded_products,
)
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
from ctrlgrad.dataflow.graph import FlatGraph
from ctrlgrad.dataflow.messages import (
    FIRST_TAG,
    Exchange,
    Message,
    Outbox,
    StoppedError,
    StuckError,
    Transport,
    stuck_error,
    waiting_in,
)
from ctrlgrad.dataflow.messages import Run as RankRun
from ctrlgrad.dataflow.partition import Edge, Partition
from ctrlgrad.dataflow.settings import Prepared, Settings, current_settings, is_cuda, prepare
from ctrlgrad.engines import asks_for_memory, refuse_checkpoint
from ctrlgrad.engines.block_kernels import as_lists, handed_out, rows_in_blocks
from ctrlgrad.engines.exact_errors import exact_errors
from ctrlgrad.engines.reference import FiniteCheck, Run
from ctrlgrad.engines.reference.interpreter import explained
from ctrlgrad.errors import CtrlgradError, ExecutionError, MaximumIterationsError, UserInputError, locate
from ctrlgrad.ir import Graph
from ctrlgrad.mpi.launch import join
from ctrlgrad.mpi.wire import IDENTITY
from ctrlgrad.records import record
from ctrlgrad.source import Source, note_caller
from ctrlgrad.threads import STOP

# The executor of one device: fires steps until its part of the graph has run.
#
# A step is ready when all that it takes in one iteration is there. What is ready fires first come, first served; with
# other devices around the oldest iteration first, since they wait for that; or in an order drawn at random. Results
# do not depend on it. Beside that an executor opens and releases frames, begins iterations within the window, and
# finds the iteration that a message belongs to. A message may come before its iteration has begun here; it is kept
# until then. Between two steps it takes in the messages that have come: else values that other devices need could
# wait behind work for later iterations. It also hands over the values to send that have reached the host by then from
# a device that is not the host; a Send begins such a copy, and does not wait.
#
# The executor counts what it makes and what it releases. At the end nothing may be left: no frame, no value, no
# message.


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
        # Iteration in which it gave up, in a loop or outside.
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
                    self.check_stopped()
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

    def check_stopped(self) -> None:
        """Raise an error if another thread has asked this one to give up."""
        if self.stopped:
            raise StoppedError

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
        """Register an iteration, and deliver the messages that arrived before it."""
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
        """Send a constant to all iterations of a frame, present and future."""
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
            report, is_due = frame.plan.report, frame.floor % frame.plan.report_every == 0
            if report is not None and (is_due or frame.floor == frame.total):
                # To the loop's owner: a few times per window, and at the end.
                self.send(report, (*frame.tag, frame.floor), None, None, None)
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
        """Report of a deadlock: a line for each waiting step, with the missing operand and the iteration."""
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


if TYPE_CHECKING:
    from ctrlgrad.mpi.world import Arrived

# Runs the devices of this rank with the ends of a transport, and gives the outputs that they have.
RunLocal = Callable[[RankRun], Mapping[int, Any]]


@record(frozen=False)
class Outcome:
    """Record of a run beside its outputs, by device: its counts, its kernels' counters, and the device's state."""

    counts: dict[str, Counts] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    devices: dict[str, DeviceRun] = field(default_factory=dict)


def run_dataflow(graph: Graph, arguments: Sequence[Any], check_nans: bool | Literal["gradients"] = False) -> list[Any]:
    """The outputs of a structured graph, run as the current settings say."""
    if asks_for_memory(graph):
        refuse_checkpoint(graph, "engine='dataflow'")
        if memory.current() is None:
            with memory.budget():
                return as_lists(run_dataflow(graph, arguments, check_nans))
    prepared = prepare(graph, current_settings(), check_nans)
    with nullcontext() if prepared.staged is None else exact_errors(graph, prepared.staged, arguments, as_lists):
        return run_prepared(prepared, arguments, current_settings())


def run_flat(graph: FlatGraph, arguments: Sequence[Any]) -> list[Any]:
    """The outputs of a flat graph for the given arrays (and lists, for stacks), run as the current settings say.

    Raises:
        VerificationError: the graph breaks a rule of `ctrlgrad.dataflow.verifier`.
        UserInputError: a node is on a device that does not exist.
        ExecutionError: an op fails, an output is dead, or the run cannot go on; the error says where.

    >>> from ctrlgrad.dataflow import lower, run_flat
    >>> count = lambda n: cg.while_loop(lambda i: i < n, lambda i: i + 3, 0)
    >>> flat = lower(cg.function(count).graph(3))
    >>> print(run_flat(flat, [np.int64(7)])[0])
    9
    """
    return as_lists(run_prepared(prepare(graph, current_settings()), arguments, current_settings()))


def run_prepared(
    prepared: Prepared,
    arguments: Sequence[Any],
    settings: Settings,
    *,
    outcome: Outcome | None = None,
) -> list[Any]:
    """Run plans; `outcome` is filled with what was counted."""
    outcome = outcome or Outcome()
    devices = _Devices(prepared, list(arguments), settings, outcome)
    with _noted(prepared, settings):
        if prepared.over_ranks is not None:
            if settings.latency or settings.delay is not None:
                raise UserInputError(
                    "simulated latencies are for devices of one process",
                    expected="no latency and no delay in ctrlgrad.dataflow.settings, for a graph over ranks",
                    got=" and ".join(name for name in ("latency", "delay") if getattr(settings, name)),
                    hint="leave them out, or use devices without /rank:R/: "
                    "sim:N of one process stands for a far machine",
                )
            outputs = run_over_ranks(prepared, arguments, lambda run: devices.run(sorted(run.boxes), run))
        else:
            names = sorted(prepared.plans)
            exchange = Exchange(names, prepared.partition.edges, delay_of(settings)) if len(names) > 1 else None
            outputs = devices.run(names, exchange)
        return handed_out([outputs[i] for i in range(len(outputs))])


@contextmanager
def _noted(prepared: Prepared, settings: Settings) -> Iterator[None]:
    """In a session: it records the run, and pushed rows go into its blocks; with `check_nans` they stay, and count."""
    session = memory.current()
    if session is None or not prepared.row_pushes:
        yield
        return
    rows = rows_in_blocks(lambda: prepared.row_pushes)
    with session.manager().recorder.running("the dataflow graph"), nullcontext() if prepared.check_nans else rows:
        yield


@record
class _Devices:
    """The devices of this process in one call."""

    prepared: Prepared
    arguments: list[Any]
    settings: Settings
    outcome: Outcome

    def run(self, names: Sequence[str], exchange: Exchange | RankRun | None) -> dict[int, Any]:
        """Run devices to their end; the outputs that they have, by place."""
        settings, outcome = self.settings, self.outcome
        executors: dict[str, Executor] = {}
        for number, name in enumerate(names):
            run = Run(finite=FiniteCheck(self.prepared.check_nans) if self.prepared.check_nans else None)
            order = None if settings.order is None else random.Random(settings.order + 1000 * number)
            transport = None if exchange is None else exchange.boxes[name]
            device = _device_run(name, run)
            executors[name] = Executor(self.prepared.plans[name], device, transport, order, settings.recorder)
            outcome.runs[name], outcome.counts[name], outcome.devices[name] = run, executors[name].counts, device
        if exchange is None:
            for executor in executors.values():
                with executor.device.running():
                    executor.start(self.arguments)
                    executor.drain()
                    if not executor.finished:
                        raise stuck_error(list(executor.blocked()))
                    executor.finish()
        else:
            run_devices(executors, exchange, self.arguments)
        for name, executor in executors.items():
            left = {what: n for what, n in executor.left_behind().items() if n}
            if left:
                raise ExecutionError(f"the dataflow executor of {name} left something behind", got=str(left))
        return {place: value for executor in executors.values() for place, value in executor.outputs.items()}


def _device_run(device: str, run: Run) -> DeviceRun:
    """State of one of this process's devices during a run."""
    if not is_cuda(device) or run.finite is not None:
        return DeviceRun(run)
    from ctrlgrad.dataflow.cuda import CudaRun  # the CUDA engine, loaded where it is asked for
    from ctrlgrad.engines.cuda.cupy_library import cupy_library

    return CudaRun(cupy_library(parse_device(device).number), run)


def delay_of(settings: Settings) -> Callable[[Edge], float] | None:
    """Function from an edge to the delay of a message on it, in seconds; None where no message has a delay."""
    draw = random.Random(settings.order)

    def delay(edge: Edge) -> float:
        simulated = edge.sender.startswith("sim:") or edge.receiver.startswith("sim:")
        drawn = 0.0 if settings.delay is None else _drawn(settings.delay, draw)
        return drawn + (settings.latency if simulated else 0.0)

    return delay if settings.latency or settings.delay is not None else None


def _drawn(delay: Callable[[random.Random], float], draw: random.Random) -> float:
    seconds = delay(draw)
    if not isinstance(seconds, int | float) or not 0.0 <= seconds < math.inf:
        raise UserInputError(
            "the setting delay is not usable",
            expected="a function that gives seconds, 0 or more",
            got=f"one that gave {seconds!r}",
        )
    return seconds


def run_devices(executors: Mapping[str, Executor], exchange: Exchange | RankRun, arguments: list[Any]) -> None:
    """A thread per device, until all are done or one fails; one device of this process runs on the calling thread.

    Raises:
        StoppedError: a device of another rank has failed.
    """
    failures: list[BaseException] = []
    ended: list[str] = []
    one_ended = threading.Semaphore(0)

    def give_up() -> None:
        for executor in executors.values():
            executor.stopped = True

    def stop() -> None:
        give_up()
        exchange.stop()

    def work(name: str) -> None:
        STOP.set(executors[name].check_stopped)
        try:
            drive(executors[name], exchange.boxes[name], arguments)
        except StoppedError:
            pass
        except BaseException as error:  # handed to the caller's thread, whatever it is
            failures.append(error)
            stop()
        finally:
            ended.append(name)
            one_ended.release()

    def wait(number: int) -> None:
        # Not Thread.join: interrupted by Ctrl-C, it takes the thread for ended (Python 3.11). And not for ever: a
        # signal that comes just before the wait begins is seen when it ends.
        while len(ended) < number:
            one_ended.acquire(timeout=0.1)

    if isinstance(exchange, RankRun):
        exchange.on_stop.append(give_up)
        exchange.waiting = lambda: _waiting(executors)
    started = 0
    with single_threaded_products(is_required=False), quick_turns():
        if len(executors) == 1:
            for name, executor in executors.items():
                drive(executor, exchange.boxes[name], arguments)
            return
        try:
            for name in executors:
                run = contextvars.copy_context().run
                run(note_caller)
                threading.Thread(target=run, args=(work, name), name=f"ctrlgrad {name}", daemon=True).start()
                started += 1
            wait(started)
        except BaseException as error:
            stop()
            wait(started)
            for name, executor in executors.items():
                for text in executor.stopped_at.notes() if executor.stopped_at else ():
                    error.add_note(f"{name} was {text}")
            raise
    if failures:
        found = next((f for f in failures if not isinstance(f, StuckError)), None)
        raise stuck_error(_waiting(executors)) if found is None else found
    if exchange.is_stopped:
        raise StoppedError


def drive(executor: Executor, transport: Transport, arguments: Sequence[Any]) -> None:
    """Run one device's part to its end, with messages as they come."""
    with executor.device.running():
        executor.start(arguments)
        executor.drain()
        while not executor.finished or executor.outbox.departures:
            executor.check_stopped()
            messages = transport.receive_now() if executor.outbox.departures else transport.receive()
            if not messages:
                # There is nothing to do but to wait for what is to be sent.
                executor.outbox.send_oldest()
            executor.accept_all(messages)
            executor.drain()
        executor.finish()
    transport.done()


def _waiting(executors: Mapping[str, Executor]) -> list[str]:
    return [line for executor in executors.values() for line in executor.blocked()]


# Over ranks.


class _Calls:
    """The calls over ranks of this process: how many there were, and what has come for the next one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.early: list[Arrived] = []


_CALLS = _Calls()


def run_over_ranks(prepared: Prepared, arguments: Sequence[Any], run_local: RunLocal) -> dict[int, Any]:
    """Run this rank's part of a graph, as every rank does; return all outputs, by their position.

    Raises:
        UserInputError: a rank lacks a device; on all ranks.
        ExecutionError: an op has failed on some rank, or the ranks do not run the same; on all ranks.
    """
    partition, over_ranks = prepared.partition, prepared.over_ranks
    assert over_ranks is not None
    if not over_ranks.has_agreed:
        _agree_on_devices(partition)
        over_ranks.has_agreed = True
    world = join().world
    if FIRST_TAG + len(partition.edges) > world.largest_tag:
        raise UserInputError(
            "the graph has more edges between devices than MPI has tags",
            expected=f"at most {world.largest_tag - FIRST_TAG}",
            got=str(len(partition.edges)),
            hint="put larger parts of the graph on each device",
        )

    def run_own(run: RankRun) -> Mapping[int, Any]:
        return run_local(run) if run.boxes else {}

    return _call(_for_arguments(over_ranks.identity, arguments), partition.edges, prepared.plans, run_own)


def _agree_on_devices(partition: Partition) -> None:
    """Find out whether each rank has the GPUs that are its own; a call of all ranks, which one that lacks any fails."""
    if all(parse_device(name).kind == "cpu" for name in partition.parts):
        return

    def check(run: RankRun) -> Mapping[int, Any]:
        for text, part in partition.parts.items():
            name = parse_device(text)
            if name.kind == "cpu" or name.rank != run.rank:
                continue
            local = str(replace(name, rank=None))
            source = next((node.source for node in part.graph.nodes if node.source is not None), None)
            try:
                check_devices([(local, source)])
            except UserInputError as error:
                raise UserInputError(
                    f"rank {run.rank} has no device {local}",
                    source=source,
                    expected=error.expected,
                    got=error.got,
                    hint=error.hint,
                ) from None
        return {}

    _call(hashlib.sha256(repr(sorted(partition.parts)).encode()).digest()[:IDENTITY], (), {}, check)


def _call(identity: bytes, edges: Sequence[Edge], plans: dict[str, DevicePlan], run_local: RunLocal) -> dict[int, Any]:
    """Run this rank's part of a call that all ranks make; all outputs, by their place."""
    joined = join()
    with _CALLS.lock:
        _CALLS.count += 1
        run = RankRun(joined, _CALLS.count, identity, edges, plans)
        early, _CALLS.early = _CALLS.early, []
        outputs: dict[int, Any] = {}
        try:
            for arrived in early:
                run.take(arrived)
            outputs = dict(run_local(run))
        except StoppedError:
            pass  # another rank has failed, or `take` has found something wrong; `end` says which
        except BaseException as error:  # told to all ranks, and raised by `end`
            run.fail(error)
        try:
            return run.end(outputs)
        finally:
            _CALLS.early = run.early


def _for_arguments(identity: bytes, arguments: Sequence[Any]) -> bytes:
    """The digest of a graph together with the arguments' dtypes and shapes."""
    said = [len(x) if isinstance(x, list) else (str(np.asarray(x).dtype), np.shape(x)) for x in arguments]
    return hashlib.sha256(identity + repr(said).encode()).digest()[:IDENTITY]
