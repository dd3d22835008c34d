"""The engine "dataflow": a call from start to end, on one or more devices.

With one device everything runs on the calling thread. With several each has a thread and a mailbox, and products are
single-threaded. A device that fails stops all others; so does Ctrl-C, and the next call starts afresh.
"""

from __future__ import annotations

import contextvars
import heapq
import itertools
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from ctrlgrad import memory
from ctrlgrad.dataflow.devices import DeviceRun, HostRun, parse_device, quick_turns, single_threaded_products
from ctrlgrad.dataflow.executor import Executor
from ctrlgrad.dataflow.frames import Counts, Dead, Tag
from ctrlgrad.dataflow.graph import FlatGraph
from ctrlgrad.dataflow.messages import Message, StoppedError, StuckError, Transport, stuck_error
from ctrlgrad.dataflow.mpi_run import run_over_ranks
from ctrlgrad.dataflow.mpi_transport import Run as RankRun
from ctrlgrad.dataflow.partition import Edge
from ctrlgrad.dataflow.settings import Prepared, Settings, current_settings, is_cuda, prepare
from ctrlgrad.engines import asks_for_memory, refuse_checkpoint
from ctrlgrad.engines.block_kernels import as_lists
from ctrlgrad.engines.reference import FiniteCheck, Run
from ctrlgrad.engines.row_blocks import rows_in_blocks
from ctrlgrad.errors import ExecutionError, UserInputError
from ctrlgrad.ir import Graph


@dataclass
class Outcome:
    """What a run gives beside its outputs: by device, counts, what the kernels counted, and what it computed with."""

    counts: dict[str, Counts] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    devices: dict[str, DeviceRun] = field(default_factory=dict)


def run_dataflow(graph: Graph, arguments: Sequence[Any], check_nans: bool = False) -> list[Any]:
    """The outputs of a structured graph, run as the current settings say."""
    if asks_for_memory(graph):
        refuse_checkpoint(graph, "engine='dataflow'")
        if memory.current() is None:
            with memory.budget():
                return run_dataflow(graph, arguments, check_nans)
    return run_prepared(prepare(graph, current_settings(), check_nans), arguments, current_settings())


def run_flat(graph: FlatGraph, arguments: Sequence[Any]) -> list[Any]:
    """The outputs of a flat graph for the given arrays (and lists, for stacks), run as the current settings say.

    Raises:
        VerificationError: the graph breaks a rule of `ctrlgrad.dataflow.verifier`.
        UserInputError: a node is on a device that does not exist.
        ExecutionError: an op fails, an output is dead, or the run cannot go on; the error says where.

    >>> import numpy as np, ctrlgrad as cg
    >>> from ctrlgrad.dataflow import lower, run_flat
    >>> flat = lower(cg.function(lambda n: cg.while_loop(lambda i: i < n, lambda i: i + 3, 0)).graph(3))
    >>> print(run_flat(flat, [np.int64(7)])[0])
    9
    """
    return run_prepared(prepare(graph, current_settings()), arguments, current_settings())


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
        if prepared.identity is not None:
            _refuse_latency(settings)
            over = (prepared.partition, prepared.plans, prepared.identity)
            outputs = run_over_ranks(*over, arguments, lambda run: devices.run(sorted(run.boxes), run))
        else:
            names = sorted(prepared.plans)
            exchange = Exchange(names, prepared.partition.edges, delay_of(settings)) if len(names) > 1 else None
            outputs = devices.run(names, exchange)
        return as_lists([outputs[i] for i in range(len(outputs))])


def _refuse_latency(settings: Settings) -> None:
    if settings.latency or settings.delay is not None:
        raise UserInputError(
            "simulated latencies are for devices of one process",
            expected="no latency and no delay in ctrlgrad.dataflow.settings, for a graph over ranks",
            got=" and ".join(name for name in ("latency", "delay") if getattr(settings, name)),
            hint="leave them out, or use devices without /rank:R/: sim:N of one process stands for a far machine",
        )


@contextmanager
def _noted(prepared: Prepared, settings: Settings) -> Iterator[None]:
    """In a session: it records the run, and pushed rows go into its blocks; with `check_nans` they stay, and count."""
    session = memory.current()
    if session is None or not prepared.row_pushes:
        yield
        return
    rows = rows_in_blocks(lambda: prepared.row_pushes, keeps_axes=settings.loops != "whole")
    with session.manager().running("the dataflow graph"), nullcontext() if prepared.check_nans else rows:
        yield


@dataclass(frozen=True)
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
            run = Run(finite=FiniteCheck() if self.prepared.check_nans else None)
            order = None if settings.order is None else random.Random(settings.order + 1000 * number)
            transport = None if exchange is None else exchange.boxes[name]
            device = _device_run(name, run)
            executors[name] = Executor(self.prepared.plans[name], device, transport, order, settings.recorder)
            outcome.runs[name], outcome.counts[name], outcome.devices[name] = run, executors[name].counts, device
        if exchange is None:
            for executor in executors.values():
                run_alone(executor, self.arguments)
        else:
            run_devices(executors, exchange, self.arguments)
        for name, executor in executors.items():
            left = {what: n for what, n in executor.left_behind().items() if n}
            if left:
                raise ExecutionError(f"the dataflow executor of {name} left something behind", got=str(left))
        return {place: value for executor in executors.values() for place, value in executor.outputs.items()}


def _device_run(device: str, run: Run) -> DeviceRun:
    """What a device of this process computes with."""
    if not is_cuda(device) or run.finite is not None:
        return HostRun(run)
    from ctrlgrad.dataflow.cuda import CudaRun  # the CUDA engine, loaded where it is asked for
    from ctrlgrad.engines.cuda.devices import library_of

    return CudaRun(library_of(parse_device(device).number), run)


# The devices of this process: a mailbox and a thread each.


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


def delay_of(settings: Settings) -> Callable[[Edge], float] | None:
    """How many seconds a message on an edge takes; None where none takes any."""
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


def run_alone(executor: Executor, arguments: Sequence[Any]) -> None:
    """Run the only device there is to its end, on the calling thread."""
    with executor.device.running():
        executor.start(arguments)
        executor.drain()
        if not executor.finished:
            raise stuck_error(list(executor.blocked()))
        executor.finish()


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
        while not executor.finished or executor.departures:
            if executor.stopped:
                raise StoppedError
            messages = transport.receive_now() if executor.departures else transport.receive()
            if not messages:
                # There is nothing to do but to wait for what is to be sent.
                executor.send_oldest()
            executor.accept_all(messages)
            executor.drain()
        executor.finish()
    transport.done()


def _waiting(executors: Mapping[str, Executor]) -> list[str]:
    return [line for executor in executors.values() for line in executor.blocked()]


__all__ = ["Exchange", "Mailbox", "Outcome", "run_dataflow", "run_flat", "run_prepared"]
