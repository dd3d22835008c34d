"""The devices of this process in one call: a thread each, from the first step to the last message."""

from __future__ import annotations

import contextvars
import math
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ctrlgrad.dataflow.blas_threads import single_threaded_products
from ctrlgrad.dataflow.executor import Executor
from ctrlgrad.dataflow.mpi_transport import Run as RankRun
from ctrlgrad.dataflow.partition import Edge
from ctrlgrad.dataflow.settings import Settings
from ctrlgrad.dataflow.switching import quick_switches
from ctrlgrad.dataflow.transport import Exchange, StoppedError, StuckError, Transport, stuck_error
from ctrlgrad.errors import UserInputError


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
            raise stuck_error(executor.waiting())
        executor.finish()


def run_together(executors: Mapping[str, Executor], exchange: Exchange | RankRun, arguments: list[Any]) -> None:
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
    with single_threaded_products(is_required=False), quick_switches():
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
                for text in executor.stopped_at.loops() if executor.stopped_at else ():
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
            messages = transport.take_arrived() if executor.departures else transport.receive()
            if not messages:
                # There is nothing to do but to wait for what is to be sent.
                executor.hand_over()
            executor.accept_all(messages)
            executor.drain()
        executor.finish()
    transport.done()


def _waiting(executors: Mapping[str, Executor]) -> list[str]:
    return [line for executor in executors.values() for line in executor.waiting()]


__all__ = ["delay_of", "drive", "run_alone", "run_together"]
