"""Whole graphs in machine code: a plan for each pattern of sizes that a graph meets.

Compiled programs are kept in memory twice, both times a bounded number of them: with their graph, by the pattern of the
arguments' sizes; and machine code by its text, so that a graph that says the same as another one finds that one's code.
Machine code is on disk too (`objects`), for later processes, which make the plan and its text again: the text is the
key. (Plans and optimised graphs on disk saved a later process 15 to 130 ms a function and cost a first one 4 to 12 %.)
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from ctrlgrad import forks
from ctrlgrad.collector import kept_objects, only_new_objects
from ctrlgrad.engines.compiling import compiling
from ctrlgrad.engines.native import frame, library, objects, target
from ctrlgrad.engines.native.emit import PlanWriter
from ctrlgrad.engines.native.refusals import NeedsAnotherPlan
from ctrlgrad.engines.native.runtime import Program
from ctrlgrad.ir import Graph, StackType, TensorType
from ctrlgrad.ir.caching import Cache, Recent
from ctrlgrad.plan import PASSES, planning
from ctrlgrad.plan.arguments import ArgumentShape
from ctrlgrad.plan.model import Assumption, Plan
from ctrlgrad.plan.packing import Panels
from ctrlgrad.plan.placement import place
from ctrlgrad.runtime.stack import BlockStack

# Patterns of sizes of one graph, and functions in machine code, that are kept in memory.
PATTERNS, FUNCTIONS = 16, 1024

# Prefixes of the names of routines of `products/`.
_ROUTINES = (
    "cg_by_vectors", "cg_cholesky", "cg_eigh", "cg_gem", "cg_lu_", "cg_orthonormal", "cg_pack", "cg_parallel",
    "cg_pool", "cg_pivots", "cg_svd", "cg_tile", "cg_times", "cg_transform", "cg_triangular_solve",
)  # fmt: skip

_FUNCTIONS: Recent[str, objects.Loaded] = Recent(FUNCTIONS)


def plan_of(
    graph: Graph,
    shapes: Sequence[ArgumentShape],
    without: Collection[str] = (),
    dropped: frozenset[Assumption] = frozenset(),
) -> Plan:
    """The plan of a graph for this machine, `without` some passes, and with assumptions `dropped`."""
    nbytes = target.host().vector_bytes
    return _checked(planning.plan_of(graph, shapes, _panels, without, dropped, nbytes))


def _checked(plan: Plan) -> Plan:
    """The plan, which the checker has judged where the environment asks for it."""
    if os.environ.get("CTRLGRAD_CHECK_PLANS"):
        from ctrlgrad.plan.checker import check  # a part of every first call, if it stood above

        check(plan)
    return plan


def text_of(plan: Plan) -> tuple[str, list[str]]:
    """The text of a plan's module, and the routines that it calls."""
    machine = target.host()
    writer = PlanWriter(plan)
    if writer.layout.loops:
        text = writer.function("body") + target.flushing(machine, "plan", "body", frame.FLUSHES)
    else:
        text = writer.function("plan")
    return text, library.called(writer.w.declarations)


@functools.cache
def _panels() -> dict[np.dtype, Panels]:
    """Layout of right sides for this machine's products. Plans without products never load it."""
    from ctrlgrad.engines.native.products import pack, real

    found = {}
    for kind in real.reals(target.host()):
        dtype = np.dtype(f"f{kind.bytes}")
        found[dtype] = Panels(kind.columns, pack.SLACK // dtype.itemsize)
    return found


def _routines(symbols: Sequence[str]) -> list[tuple[Any, list[str]]]:
    """The routines that a module calls, with those who have them: a part of the first calls that need some."""
    of_products = [name for name in symbols if name.startswith(_ROUTINES)]
    others = [name for name in symbols if not name.startswith(_ROUTINES)]
    found: list[tuple[Any, list[str]]] = []
    if others:
        found.append((library, others))
    if of_products:
        found.append((_products(), of_products))
    return found


@functools.cache
def _products() -> Any:
    """Library of product routines for this machine."""
    with forks.undivided(), kept_objects():
        from ctrlgrad.engines.native.products import library

    return library


def shapes_of(graph: Graph, arguments: Sequence[Any]) -> tuple[ArgumentShape, ...]:
    """Facts about the arguments that a plan may rely on: known sizes, which unknown sizes are equal, and which are 0 or
    1."""
    names: dict[int, str] = {}

    def named(size: int) -> int | str:
        return size if size < 2 else names.setdefault(size, f"n{len(names)}")

    found = []
    for value, given in zip(graph.inputs, arguments, strict=True):
        if isinstance(value.type, StackType):
            found.append(_stack_shape(value.type, given, named))
        else:
            found.append(
                ArgumentShape(
                    tuple(named(n) if d is None else d for d, n in zip(value.type.shape, np.shape(given), strict=True))
                )
            )
    return tuple(found)


def _stack_shape(type: StackType, given: Any, named: Any) -> ArgumentShape:
    if isinstance(given, BlockStack):
        shape = given.shape
    else:
        shapes = {np.shape(row) for row in given if row is not None}
        if len(shapes) > 1 or (not shapes and not type.element.is_static):
            return ArgumentShape((), True)
        shape = shapes.pop() if shapes else tuple(d or 0 for d in type.element.shape)
    return ArgumentShape(tuple(named(n) if d is None else d for d, n in zip(type.element.shape, shape, strict=True)))


def _level() -> int:
    """For programs that run once, as most tests: the same numbers, compiled sooner and computed later."""
    return target.QUICK if os.environ.get("CTRLGRAD_QUICK_CODE") else target.GOOD


def compiled(plan: Plan) -> Program:
    """Machine code for a plan: from memory, from disk, or compiled now."""
    text, calls = text_of(plan)
    name = hashlib.sha256(f"{_level()} {text}".encode()).hexdigest()

    def load() -> objects.Loaded:
        key = objects.key_of([name], [])
        make = lambda: objects.ObjectCode(("plan",), target.compiled(text, level=_level()))
        # The plan's module takes longest to compile and is begun first.
        objects.prepare(key, make)
        routines = _routines(calls)
        for provider, names in routines:
            provider.prepare(names)
        uses: dict[str, int] = {}
        for provider, names in routines:
            uses |= provider.addresses(names)
        return objects.library(key, make, uses)

    return Program(plan, _FUNCTIONS.get(name, load), lambda loop: compiled(_checked(place(loop))))


class Patterns:
    """The programs of one graph, by the pattern of the arguments' sizes."""

    def __init__(self, graph: Graph, without: frozenset[str] = frozenset()) -> None:
        self.graph, self.without = graph, without
        self.programs: Recent[tuple[tuple[ArgumentShape, ...], frozenset[Assumption]], Program] = Recent(PATTERNS)
        # Assumptions that a run has refuted; no later plan makes them.
        self.dropped: frozenset[Assumption] = frozenset()
        # Of a graph that says all sizes itself: its program, and what was dropped when it was made.
        self.is_static = all(isinstance(v.type, TensorType) and v.type.is_static for v in graph.inputs)
        self.only: tuple[frozenset[Assumption], Program] | None = None

    def program(self, arguments: Sequence[Any]) -> Program:
        """The program for such arguments."""
        only = self.only
        if only is not None and only[0] is self.dropped:
            return only[1]
        shapes, dropped = shapes_of(self.graph, arguments), self.dropped

        def make() -> Program:
            with compiling(self.graph.name), only_new_objects():
                return compiled(plan_of(self.graph, shapes, self.without, dropped))

        found = self.programs.get((shapes, dropped), make)
        if self.is_static:
            self.only = dropped, found
        return found

    def drop(self, found: NeedsAnotherPlan) -> None:
        """Make no more plans that take for granted what turned out not to be so."""
        self.dropped |= {found.assumption}

    def run(self, arguments: Sequence[Any], failure: Exception | None = None) -> list[Any]:
        """The outputs for such arguments; `failure` is what a run has raised already."""
        silent_callbacks = 0
        while True:
            try:
                if failure is not None:
                    raise failure
                return self.program(arguments)(arguments, silent_callbacks)
            except NeedsAnotherPlan as found:
                failure, silent_callbacks = None, found.callbacks
                self.drop(found)


_PLANS: Cache[frozenset[str], Patterns] = Cache(4)


def patterns_of(graph: Graph, without: frozenset[str] = frozenset()) -> Patterns:
    """Compiled programs of a graph, `without` some passes over plans; names of passes over graphs are ignored."""
    left_out = without & frozenset(PASSES)
    return _PLANS.get(graph, left_out, lambda: Patterns(graph, left_out))


def run(
    graph: Graph, arguments: Sequence[Any], without: frozenset[str] = frozenset(), failure: Exception | None = None
) -> list[Any]:
    """The outputs of a graph; `failure` is what a run has raised already. Raises `SizesDoNotFit`."""
    return patterns_of(graph, without).run(arguments, failure)
