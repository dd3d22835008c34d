"""Random programs on the engines: each gives what the reference engine gives, which `checks` holds to the plain twin.

The graphs are those of the program, of its gradient, and of the gradient of a scalar of that. A budget, where one is
asked for, becomes less and less until it cannot be met: until then values stay what they are.

By turns a program's second derivative is by forward mode over reverse, and its graphs run again for other sizes, for
several arguments as rows of a vmap, and by several threads at the same time; its pullback is called again, by another
thread and after its budget ended; and it is differentiated with weak zeros and computed with subnormal numbers.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from unittest import mock

import numpy as np
from instruments.comparing import assert_same_bits
from instruments.dataflow_runs import by_line, settings_at_random
from instruments.plan_machine import RunEndedError

import ctrlgrad as cg
from ctrlgrad import dataflow, memory
from ctrlgrad.dataflow import stages
from ctrlgrad.engines import optimised_graph, without_passes
from ctrlgrad.errors import MaximumIterationsError, MemoryBudgetError, TracingError, TypeMismatchError
from ctrlgrad.execution import run_on
from ctrlgrad.ir import Graph, StackType, verify, walk
from ctrlgrad.memory.devices.device import Device
from ctrlgrad.passes import WEIGH, heavy
from random_programs.conditioning import explains, spread
from random_programs.expected import ProgramMismatch, describe, expectation, rounding
from random_programs.program import Program
from random_programs.running import (
    LimitError,
    TooLongError,
    differentiated,
    loss_of,
    plain_run,
    signature,
    traced_function,
)
from random_programs.source import traced_source
from random_programs.variants import (
    ROWS,
    at_the_same_time,
    batch_of,
    is_suitable,
    of_other_sizes,
    refuses_rows,
    with_other_values,
)

TOLERANCE = 1e-10
# One program in so many also runs outside of a function.
AT_ONCE_EVERY = 4
# Further checks in turn, of four programs.
FORWARD, SIZES, IN_ROWS, THREADS = 0, 1, 2, 3
# And of eight programs.
PULLED_BACK, OTHER_OPTIONS = 4, 6
ENGINES_BY_NAME = ("reference", "native", "dataflow")
# "machine" computes the plans of the native engine with NumPy, every access checked.
ENGINES = ("reference", "native", "machine", "dataflow", "cuda")


@dataclass(frozen=True)
class Settings:
    """Ways to run programs: `orders` graphs of each; `checked`: native plans are judged before they run.

    `threads`: the machine computes kernels and products in parts, as several threads would; machine code has threads
    share all nests that can be.
    """

    engine: str = "native"
    orders: int = 2
    checked: bool = True
    budget: bool = False
    threads: bool = False


Runner = Callable[[Settings, Graph, Sequence[Any], random.Random], list[Any]]


def functions(program: Program, *, forward: bool = False) -> tuple[Callable[..., Any], ...]:
    """The program, its gradient, and the gradient of a scalar of that, or `forward` its derivative by that mode."""
    function, wrt = traced_function(program), differentiated(program)

    def loss(*arguments: Any) -> Any:
        return loss_of(program, function(*arguments))

    def slope(*arguments: Any) -> Any:
        return sum(np.sum(np.sin(g)) for g in cg.grad(loss, argnums=wrt)(*arguments))

    def along(*arguments: Any) -> Any:
        def of_point(*point: Any) -> Any:
            merged = list(arguments)
            for i, x in zip(wrt, point, strict=True):
                merged[i] = x
            return cg.grad(loss, argnums=wrt)(*merged)

        point = tuple(arguments[i] for i in wrt)
        return cg.jvp(of_point, point, tuple(np.cos(3.0 * x) for x in point))[1]

    by_forward = forward and not program.is_reverse_only
    return function, cg.grad(loss, argnums=wrt), along if by_forward else cg.grad(slope, argnums=wrt)


def graphs(program: Program, orders: int = 3, *, forward: bool = False) -> Iterator[Graph]:
    """Their graphs, of so many orders."""
    arguments = [a.value for a in program.arguments]
    for traced in functions(program, forward=forward)[:orders]:
        yield verify(cg.function(traced, signature=signature(program)).graph(*arguments), "random program")


def optimised_graphs(program: Program, orders: int = 3) -> Iterator[Graph]:
    """The same as compiling engines take them; none of a program that does nothing or takes too long."""
    try:
        plain_run(program)
    except (TooLongError, LimitError):
        return
    yield from map(optimised_graph, graphs(program, orders))


def judge(program: Program, settings: Settings, seed: int = 0, chosen: Runner | None = None) -> Counter[str]:
    """Comparisons made; `chosen` runs graphs in the place of the engine that the settings name.

    Raises `ProgramMismatch` with the program's source, and `UnsuitableError`.
    """
    run = chosen or RUNNERS[settings.engine]
    expected = expectation(program)
    arguments = [a.value for a in program.arguments]
    compared: Counter[str] = Counter()
    draw = random.Random(seed)
    orders = settings.orders if expected.results is not None else min(settings.orders, 2)
    order = -1
    judged: list[_Reference] = []
    try:
        for order, graph in enumerate(graphs(program, orders, forward=seed % 4 == FORWARD)):
            if expected.results is None:
                _refused(lambda graph=graph: run(settings, graph, arguments, draw))
                compared["the limit of a loop"] += 1
                continue
            reference = _Reference(program, graph, arguments, compared)
            reference.same(run(settings, graph, arguments, draw))
            judged.append(reference)
            compared[f"order {order}"] += 1
            if seed % 4 == SIZES:
                for other in of_other_sizes(program):
                    given = [a.value for a in other.arguments]
                    _Reference(other, graph, given, compared).same(run(settings, graph, given, draw))
                    compared["other sizes"] += 1
            if seed % 4 == THREADS and chosen is None and settings.engine in ENGINES_BY_NAME:
                compared["runs at the same time"] += _at_the_same_time(settings, reference)
            if seed % AT_ONCE_EVERY == 0 and order < 2 and chosen is None and settings.engine in ENGINES_BY_NAME:
                compared[_at_once(settings, order, reference)] += 1
            if settings.budget:
                again = lambda graph=graph: run(settings, graph, arguments, draw)
                device = _DEVICES.get(settings.engine, _processor)
                is_exact = settings.engine in ENGINES_BY_NAME
                compared["budgets"] += _within_less_and_less(reference, again, device, is_exact)
                if settings.engine == "cuda":
                    compared["recorded runs"] += _judged(reference, draw)
        if seed % 8 == PULLED_BACK and len(judged) > 1 and chosen is None and settings.engine in ENGINES_BY_NAME:
            _pulled_back(settings, judged[1])
            compared["pullbacks"] += 1
        if seed % 8 == OTHER_OPTIONS and judged:
            with cg.options(strong_zeros=False, flush_subnormals=False):
                for reference, graph in zip(judged, graphs(program, orders), strict=True):
                    reference.same(run(settings, graph, arguments, draw))
                    compared["other options"] += 1
        if seed % 4 == IN_ROWS and expected.results is not None:
            in_rows(program, lambda graph, given: run(settings, graph, given, draw), orders, seed, compared)
    except Exception as error:
        raise ProgramMismatch(
            f"{settings.engine}, order {order}: {type(error).__name__}: {error}\n\n{describe(program)}"
        ) from error
    return compared


def _refused(run: Callable[[], list[Any]]) -> None:
    try:
        run()
    except MaximumIterationsError:
        return
    raise AssertionError("a loop went on beyond its maximum_iterations without an error")


@dataclass
class _Reference:
    """Results of the reference engine for a graph; they judge the results of other engines."""

    program: Program
    graph: Graph
    arguments: Sequence[Any]
    compared: Counter[str]

    @cached_property
    def results(self) -> list[Any]:
        return run_on("reference", self.graph, self.arguments)

    @cached_property
    def spread(self) -> list[float]:
        return spread(self.graph, self.arguments, self.results)

    def same(self, found: Sequence[Any]) -> None:
        """Relative to each element, or to the largest of an array that holds smaller ones; or as rounding explains."""
        for position, (a, b) in enumerate(zip(found, self.results, strict=True)):
            x, y = np.asarray(a), np.asarray(b)
            try:
                self._near(position, x, y)
            except AssertionError:
                if not explains(self.spread[position], x, y):
                    raise
                self.compared["differences that rounding explains"] += 1

    def _near(self, position: int, x: np.ndarray, y: np.ndarray) -> None:
        assert (x.dtype, x.shape) == (y.dtype, y.shape), (
            f"result {position}: {x.dtype}{x.shape}, not {y.dtype}{y.shape}"
        )
        rounds = max(TOLERANCE, rounding(self.program, x.dtype))
        exact = x.dtype.kind in "biu"
        scale = 1.0 if exact else max(1.0, float(np.max(np.abs(y), initial=0.0)))
        np.testing.assert_allclose(
            x, y, rtol=0.0 if exact else rounds, atol=0.0 if exact else rounds * scale, err_msg=f"result {position}"
        )


def _at_once(settings: Settings, order: int, reference: _Reference) -> str:
    """Outside of a function each construct runs when it is met: its values are known, and so are its sizes.

    So it is not for programs whose carries change their sizes, that index NumPy's arrays by traced integers, or that
    compute with bfloat16, which NumPy's own functions make other dtypes of.
    """
    if "bfloat16" in traced_source(reference.program) or _has_bfloat16(reference.program):
        return "at once: not possible"
    try:
        with cg.options(engine=settings.engine), _checked(settings):
            found = functions(reference.program)[order](*reference.arguments)
    except (TracingError, TypeMismatchError):
        return "at once: not possible"
    reference.same(found)
    return f"at once, order {order}"


def _pulled_back(settings: Settings, gradient: _Reference) -> None:
    """A pullback gives the gradient as often as it is called, by any thread, after the budget of its forward pass."""
    program = gradient.program
    function, wrt = traced_function(program), differentiated(program)
    loss = cg.function(lambda *given: loss_of(program, function(*given)), signature=signature(program))
    with cg.options(engine=settings.engine), _checked(settings):
        with memory.budget(device=None) if settings.budget else nullcontext():
            _, pullback = cg.vjp(loss, *gradient.arguments)
        found = [pullback(1.0), *at_the_same_time(pullback, [1.0, 1.0], 1)]
    for cotangents in found:
        gradient.same([cotangents[position] for position in wrt])


def _has_bfloat16(program: Program) -> bool:
    return any(argument.value.dtype.name == "bfloat16" for argument in program.arguments)


def in_rows(
    program: Program,
    run: Callable[[Graph, Sequence[Any]], Sequence[Any]],
    orders: int,
    seed: int,
    compared: Counter[str],
) -> None:
    """A vmap of the program and of its derivatives gives row by row what the reference engine gives for each row."""
    batch = batch_of(program, seed // 4)
    if batch is None:
        return
    for order, function in enumerate(functions(program, forward=seed % 3 == 0)[:orders]):
        one = cg.function(function, signature=signature(program)).graph(*(a.value for a in program.arguments))
        each = [_Reference(p, one, [a.value for a in p.arguments], compared) for p in batch.programs]
        try:
            found = run(batch.graph(function), batch.arguments)
        except Exception as error:
            if not refuses_rows(error, program):
                raise
            compared["rows: not possible"] += 1
            return
        for k, reference in enumerate(each):
            reference.same([rows[k] for rows in found])
        compared[f"rows, order {order}"] += 1


def _at_the_same_time(settings: Settings, reference: _Reference) -> int:
    """Calls by several threads, of which each has values of its own, do not see each other."""
    program = reference.program
    others = [p for p in (with_other_values(program, k) for k in range(1, ROWS)) if is_suitable(p)]
    each = [_Reference(p, reference.graph, [a.value for a in p.arguments], reference.compared) for p in others]
    each.append(reference)
    for one in each:
        one.results  # noqa: B018  (the reference engine's, before there are threads)
    run = lambda given: run_on(settings.engine, reference.graph, given)
    found = at_the_same_time(run, [one.arguments for one in each], 2)
    for k, results in enumerate(found):
        each[k // 2].same(results)
    return len(found)


def _within_less_and_less(
    reference: _Reference,
    run: Callable[[], list[Any]],
    device: Callable[[], tuple[str, Mapping[str, Device]]],
    is_exact: bool,
) -> int:
    """Number of budgets that could be met. A graph that pushes nothing has no use of one.

    On the processor, results have the bits of the run without a limit.

    `device` gives the name of the device that the engine computes on, and devices that are no standard ones.
    """
    if not any(isinstance(v.type, StackType) for node in walk(reference.graph) for v in node.results):
        return 0
    met = 0
    whole: list[Any] | None = None
    limit: int | None = None
    while limit is None or limit > 0:
        try:
            name, devices = device()
            with memory.budget(device=limit, devices=devices) as session:
                found = run()
                peak = session.manager(name).stats.peak_bytes["device"]
        except MemoryBudgetError:
            break
        if whole is None:
            reference.same(found)
            whole = found
        if is_exact:
            assert_same_bits(found, whole)
        else:
            reference.same(found)
        assert limit is None or peak <= limit, f"{peak} bytes within a budget of {limit}"
        limit = (peak if limit is None else limit) // 3
        met += 1
    return met


def _judged(reference: _Reference, draw: random.Random) -> int:
    from random_programs.schedules import judged_runs

    return judged_runs(reference.graph, reference.arguments, draw, reference.same)


# How each engine runs a graph.


def _reference(settings: Settings, graph: Graph, arguments: Sequence[Any], draw: random.Random) -> list[Any]:
    return run_on("reference", graph, arguments)


def _native(settings: Settings, graph: Graph, arguments: Sequence[Any], draw: random.Random) -> list[Any]:
    with _checked(settings), _shared(settings, draw), all_products_leave() if settings.budget else nullcontext():
        return run_on("native", graph, arguments)


@contextmanager
def all_products_leave() -> Iterator[None]:
    """Context in which every product that can leaves its loop, however small."""
    before, heavy.HEAVY, heavy.WORTH_INSIDE = (heavy.HEAVY, heavy.WORTH_INSIDE), 1, 1
    try:
        with without_passes(WEIGH):
            yield
    finally:
        heavy.HEAVY, heavy.WORTH_INSIDE = before


def _checked(settings: Settings) -> AbstractContextManager[Any]:
    if settings.engine != "native" or not settings.checked:
        return nullcontext()
    from instruments.checked import checked

    return checked()


def _shared(settings: Settings, draw: random.Random) -> AbstractContextManager[Any]:
    if settings.engine != "native" or not settings.threads:
        return nullcontext()
    from instruments.little_work import shared_by

    return shared_by(draw.choice((2, 3, 4, 16)))


def _machine(settings: Settings, graph: Graph, arguments: Sequence[Any], draw: random.Random) -> list[Any]:
    from plan.plans import executed

    threads = random.Random(draw.randrange(1000)) if settings.threads else None
    rows = draw.randint(1, 4)
    try:
        return executed(optimised_graph(graph), arguments, rows_per_block=rows, threads=threads, repeats=True)
    except RunEndedError:
        # As with machine code: the reference engine's error is the one that a user sees, and there must be one.
        run_on("reference", graph, arguments)
        raise


def _dataflow(settings: Settings, graph: Graph, arguments: Sequence[Any], draw: random.Random) -> list[Any]:
    changes = settings_at_random(draw)
    if draw.random() < 0.5:
        # Settings that leave the engine its choice: loops that are a pipeline of devices are divided into stages.
        place = draw.choice((changes["place"], by_line(draw.choice((2, 3)), draw.randrange(1000))))
        changes = {"place": place, "parallel_iterations": changes["parallel_iterations"]}
    # Every pipeline is divided, in chunks of as many iterations as may be in flight: these loops are short.
    with dataflow.settings(**changes), mock.patch.multiple(stages, IN_FLIGHT=1, WORTH=math.inf, CHUNK=1e15):
        return run_on("dataflow", graph, arguments)


def _cuda(settings: Settings, graph: Graph, arguments: Sequence[Any], draw: random.Random) -> list[Any]:
    from instruments.stand_in_runs import LIBRARY, on_stand_in

    return on_stand_in(graph, arguments, draw.choice(("", "f", "biuf")), LIBRARY).results


def _processor() -> tuple[str, Mapping[str, Device]]:
    return "cpu", {}


def _stand_in() -> tuple[str, Mapping[str, Device]]:
    from instruments.stand_in import StandInDevice
    from instruments.stand_in_runs import LIBRARY

    return LIBRARY.name, {LIBRARY.name: StandInDevice()}


# Device of an engine that does not compute on the processor.
_DEVICES = {"cuda": _stand_in}


RUNNERS: dict[str, Runner] = {
    "reference": _reference,
    "native": _native,
    "machine": _machine,
    "dataflow": _dataflow,
    "cuda": _cuda,
}
