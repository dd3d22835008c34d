"""The engine "dataflow": from a structured graph to a run on one or more devices of this process.

    lower -> place -> cluster -> partition -> plan      once per graph and settings, kept with the graph
    executors, one per device                           per call

With one device everything runs on the calling thread. With several each has a thread, and products are single-threaded.
A device that fails stops all others; so does Ctrl-C, and the next call starts afresh.
"""

from __future__ import annotations

import contextvars
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ctrlgrad import memory
from ctrlgrad.dataflow.blas_threads import single_threaded_products
from ctrlgrad.dataflow.clusters import cluster
from ctrlgrad.dataflow.devices import check_devices, local_devices
from ctrlgrad.dataflow.executor import Counts, Executor
from ctrlgrad.dataflow.graph import FlatGraph
from ctrlgrad.dataflow.lowering import lower
from ctrlgrad.dataflow.mpi_run import identity_of, names_ranks, on_ranks, run_over_ranks
from ctrlgrad.dataflow.mpi_transport import Run as RankRun
from ctrlgrad.dataflow.partition import Edge, Partition, partition
from ctrlgrad.dataflow.placement import as_written, place
from ctrlgrad.dataflow.plan import DevicePlan, make_plan
from ctrlgrad.dataflow.settings import Settings, current_settings
from ctrlgrad.dataflow.switching import quick_switches
from ctrlgrad.dataflow.transport import Exchange, StoppedError, StuckError, Transport, stuck_error
from ctrlgrad.dataflow.verifier import verify_flat
from ctrlgrad.dataflow.whole_loops import whole_loops
from ctrlgrad.engines import asks_for_memory, kernels_of, register_engine
from ctrlgrad.engines.auto import has_native
from ctrlgrad.engines.block_kernels import as_lists
from ctrlgrad.engines.reference import REFERENCE, FiniteCheck, Kernels, Run
from ctrlgrad.errors import ExecutionError, UserInputError
from ctrlgrad.ir import Graph
from ctrlgrad.source import here


@dataclass(frozen=True)
class Prepared:
    """A graph as it runs for some settings; `identity`, where it runs over ranks, is its digest."""

    partition: Partition
    plans: dict[str, DevicePlan]
    identity: bytes | None


@dataclass
class Outcome:
    """What a run gives beside its outputs: by device, counts and what the kernels counted."""

    counts: dict[str, Counts] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)


def placed(graph: Graph | FlatGraph, settings: Settings) -> FlatGraph:
    """The flat graph with a device on every node; devices that do not exist here are refused."""
    if isinstance(graph, Graph):
        graph = lower(graph, whole_loops(graph)) if settings.loops == "whole" else lower(graph)
    else:
        verify_flat(graph)
    found = place(graph, settings.place or as_written)
    found = on_ranks(found)
    if not names_ranks(str(node.device) for node in found.nodes):
        check_devices(((str(node.device), node.source) for node in found.nodes), local_devices())
    return found


def partitioned(graph: Graph | FlatGraph, settings: Settings) -> Partition:
    """The parts of a graph by device, their ops in clusters."""
    found = placed(graph, settings)
    several = len({node.device for node in found.nodes}) > 1
    return partition(cluster(found, settings.clusters or ("flowing" if several else "whole")))


def prepare(graph: Graph | FlatGraph, settings: Settings) -> Prepared:
    """The plans of a graph, made once for the settings that they depend on."""
    key = f"dataflow {settings.clusters} {settings.loops} {settings.parallel_iterations} {id(settings.place)}"
    if key not in graph.compiled:
        split = partitioned(graph, settings)
        kernels = _kernels(settings)
        plans = {d: make_plan(part, kernels, settings.parallel_iterations) for d, part in split.parts.items()}
        # The function is kept, so that no other one gets its id.
        identity = identity_of(split, settings.parallel_iterations) if names_ranks(plans) else None
        graph.compiled[key] = (Prepared(split, plans, identity), settings.place)
    prepared: Prepared = graph.compiled[key][0]
    return prepared


def _kernels(settings: Settings) -> Kernels:
    return kernels_of("native") if settings.loops == "whole" and has_native() else REFERENCE


def run_dataflow(graph: Graph, arguments: Sequence[Any], check_nans: bool = False) -> list[Any]:
    """The outputs of a structured graph, run as the current settings say."""
    if memory.current() is not None:
        raise UserInputError(
            "memory: the dataflow engine keeps every saved value where it is, whatever the budget",
            source=here(),
            expected="the native engine, for budgets and profiles",
            got="engine='dataflow'",
            hint="use engine='native', or call outside of ctrlgrad.memory.budget",
        )
    if asks_for_memory(graph):
        raise UserInputError(
            "while_loop: the dataflow engine keeps every saved value where it is",
            source=here(),
            expected="the native engine, for swap_memory and checkpoint",
            got="engine='dataflow'",
            hint="use engine='native', or leave the option out",
        )
    return run_prepared(prepare(graph, current_settings()), arguments, current_settings(), check_nans=check_nans)


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
    check_nans: bool = False,
    outcome: Outcome | None = None,
) -> list[Any]:
    """Run plans; `outcome` is filled with what was counted."""
    outcome = outcome or Outcome()
    devices = _Devices(prepared, list(arguments), settings, check_nans, outcome)
    if prepared.identity is not None:
        over = (prepared.partition, prepared.plans, settings, prepared.identity)
        outputs = run_over_ranks(*over, arguments, lambda run: devices.run(sorted(run.boxes), run))
    else:
        names = sorted(prepared.plans)
        exchange = Exchange(names, prepared.partition.edges, _delay(settings)) if len(names) > 1 else None
        outputs = devices.run(names, exchange)
    return as_lists([outputs[i] for i in range(len(outputs))])


@dataclass(frozen=True)
class _Devices:
    """The devices of this process in one call."""

    prepared: Prepared
    arguments: list[Any]
    settings: Settings
    check_nans: bool
    outcome: Outcome

    def run(self, names: Sequence[str], exchange: Exchange | RankRun | None) -> dict[int, Any]:
        """Run devices to their end; the outputs that they have, by place."""
        settings, outcome = self.settings, self.outcome
        executors: dict[str, Executor] = {}
        for number, name in enumerate(names):
            run = Run(finite=FiniteCheck() if self.check_nans else None)
            order = None if settings.order is None else random.Random(settings.order + 1000 * number)
            sender = None if exchange is None else exchange.boxes[name]
            executors[name] = Executor(self.prepared.plans[name], run, sender, order, settings.recorder)
            outcome.runs[name], outcome.counts[name] = run, executors[name].counts
        if exchange is None:
            for executor in executors.values():
                executor.start(self.arguments)
                executor.drain()
                if not executor.finished:
                    raise _stuck(executors)
        else:
            _run_together(executors, exchange, self.arguments)
        for name, executor in executors.items():
            left = {what: n for what, n in executor.left_behind().items() if n}
            if left:
                raise ExecutionError(f"the dataflow executor of {name} left something behind", got=str(left))
        return {place: value for executor in executors.values() for place, value in executor.outputs.items()}


def _delay(settings: Settings) -> Callable[[Edge], float] | None:
    draw = random.Random(settings.order)

    def delay(edge: Edge) -> float:
        simulated = edge.sender.startswith("sim:") or edge.receiver.startswith("sim:")
        drawn = 0.0 if settings.delay is None else settings.delay(draw)
        return drawn + (settings.latency if simulated else 0.0)

    return delay if settings.latency or settings.delay is not None else None


def _run_together(executors: dict[str, Executor], exchange: Exchange | RankRun, arguments: list[Any]) -> None:
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
    with single_threaded_products(), quick_switches():
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
        except BaseException:
            stop()
            wait(started)
            raise
    if failures:
        found = next((f for f in failures if not isinstance(f, StuckError)), None)
        raise _stuck(executors) if found is None else found
    if exchange.is_stopped:
        raise StoppedError


def drive(executor: Executor, transport: Transport, arguments: Sequence[Any]) -> None:
    """Run one device's part to its end, with messages as they come."""
    executor.start(arguments)
    executor.drain()
    while not executor.finished:
        messages = transport.receive()
        messages.reverse()
        while messages:
            executor.accept(messages.pop())
        executor.drain()
    transport.done()


def _stuck(executors: dict[str, Executor]) -> ExecutionError:
    return stuck_error(_waiting(executors))


def _waiting(executors: dict[str, Executor]) -> list[str]:
    return [line for executor in executors.values() for line in executor.waiting()]


register_engine("dataflow", run_dataflow)

__all__ = [
    "Outcome",
    "Prepared",
    "drive",
    "partitioned",
    "placed",
    "prepare",
    "run_dataflow",
    "run_flat",
    "run_prepared",
]
