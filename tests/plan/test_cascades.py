"""Which reductions become cascades: those of what nobody else reads, row by row, of rows that have columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.plan import cascades, liveness
from ctrlgrad.plan.checker import check
from ctrlgrad.plan.checking.memory import PlanError
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.model import Cascade, Kernel, Plan
from tests.plan.plans import graph_of, placed, unplaced

RNG = np.random.default_rng(0)
MATRIX, POINTS, WEIGHTS = RNG.normal(size=(30, 4)), RNG.normal(size=(3, 4)), RNG.normal(size=30)
Body = Callable[[Any, Any, Any], Any]


def looped(body: Body) -> Callable[..., Any]:
    """A sum over points of what a body makes of distances, weights, and what it has so far."""

    def program(matrix: Any, points: Any, weights: Any) -> Any:
        def step(t: Any, s: Any) -> Any:
            return body(cnp.sum((matrix - points[t]) ** 2, axis=1), weights, s)

        return cg.fori_loop(0, points.shape[0], step, 0.0)

    return program


def plan_of(program: Callable[..., Any], without: tuple[str, ...] = ()) -> Plan:
    arguments = [MATRIX, POINTS, WEIGHTS]
    return unplaced(graph_of(program, *arguments), arguments, without=without)


def cascades_of(plan: Plan) -> list[Cascade]:
    return [step for step in walk(plan.body) if isinstance(step, Cascade)]


JOINED: dict[str, tuple[Body, tuple[str, ...]]] = {
    "positions": (lambda d, w, s: s + cnp.argmin(d), ("argmin",)),
    "mapped": (lambda d, w, s: s + cnp.sum(cnp.sqrt(d) * 2.0), ("dot",)),
    "beside another array": (lambda d, w, s: s + cnp.max(d * w), ("max",)),
    "with a number": (lambda d, w, s: s + cnp.min(d - s), ("min",)),
    "two": (
        lambda d, w, s: s + (cnp.sum(cnp.exp(-d), keepdims=True) * cnp.max(d, keepdims=True))[0],
        ("sum", "max"),
    ),
}


@pytest.mark.parametrize("name", JOINED)
def test_what_only_reduces_the_rows_is_one_with_what_makes_them(name: str) -> None:
    body, hows = JOINED[name]
    (found,) = cascades_of(plan_of(looped(body)))
    assert found.first.space == (*found.second.space, found.first.space[-1])
    assert tuple(write.how for write in found.second.writes) == hows


APART: dict[str, Callable[..., Any]] = {
    "needed elsewhere": looped(lambda d, w, s: s + cnp.argmin(d) + cnp.sum(d[:3])),
    "backwards": looped(lambda d, w, s: s + cnp.sum(d[::-1] * w)),
    "two at a time": looped(lambda d, w, s: s + cnp.sum(d[1:] * d[:-1])),
    "gathered": looped(lambda d, w, s: s + cnp.sum(d[(w * 7.0).astype("int64") % 30])),
    "backwards beside forwards": looped(lambda d, w, s: s + cnp.sum(d * d[::-1])),
    "not reduced": lambda m, p, w: cg.fori_loop(0, 3, lambda t, s: s + cnp.sqrt(cnp.sum((m - p[t]) ** 2, axis=1)), w),
    "outside of loops": lambda m, p, w: cnp.argmin(cnp.sum((m - p[0]) ** 2, axis=1)),
}


@pytest.mark.parametrize("name", APART)
def test_others_stay_apart(name: str) -> None:
    assert not cascades_of(plan_of(APART[name]))


def test_without_the_pass_there_are_none() -> None:
    assert not cascades_of(plan_of(looped(JOINED["positions"][0]), without=("cascade",)))


def test_all_else_stays() -> None:
    """As many kernels, and the same ones."""
    for body, _ in JOINED.values():
        plan, before = plan_of(looped(body)), plan_of(looped(body), without=("cascade",))
        mine = [kernel for step in cascades_of(plan) for kernel in (step.first, step.second)]
        mine += [step for step in walk(plan.body) if isinstance(step, Kernel)]
        theirs = [step for step in walk(before.body) if isinstance(step, Kernel)]
        assert Counter(k.space for k in mine) == Counter(k.space for k in theirs)


Mutation = Callable[[pytest.MonkeyPatch], None]


def rows_are_read_anywhere(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cascades, "reads_as_made", lambda rows, second: True)


def nobody_else_reads_rows(patch: pytest.MonkeyPatch) -> None:
    def count(plan: Plan) -> Counter[Any]:
        """As if each array were read by one kernel alone."""
        found: Counter[Any] = Counter()
        for step in walk(plan.body):
            if isinstance(step, Kernel):
                found.update({o.view.array: 1 for o in step.operands})
        return Counter(dict.fromkeys(found, 1))

    patch.setattr(cascades, "count_reads", count)


def what_the_second_kernel_reads_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    right = liveness.deep_reads
    patch.setattr(liveness, "deep_reads", lambda step: right(step.first if isinstance(step, Cascade) else step))


def weighted(matrix: Any, points: Any, weights: Any) -> Any:
    """By weights that only the second kernel reads, and that are of the size of the rows."""
    wide, many = np.ones((30, 40)), np.ones(40)

    def step(t: Any, s: Any) -> Any:
        return cnp.sum(cnp.sum((matrix - points[t]) ** 2, axis=1) * (wide @ (many * s)))

    return cg.fori_loop(0, points.shape[0], step, 1.0)


MUTANTS: list[tuple[Mutation, Callable[..., Any]]] = [
    (rows_are_read_anywhere, APART["backwards"]),
    (rows_are_read_anywhere, APART["backwards beside forwards"]),
    (nobody_else_reads_rows, APART["needed elsewhere"]),
    (what_the_second_kernel_reads_is_forgotten, weighted),
]


@pytest.mark.parametrize(("mutation", "program"), MUTANTS)
def test_a_mutant_is_caught(monkeypatch: pytest.MonkeyPatch, mutation: Mutation, program: Callable[..., Any]) -> None:
    graph, arguments = graph_of(program, MATRIX, POINTS, WEIGHTS), [MATRIX, POINTS, WEIGHTS]
    check(placed(graph, arguments))
    mutation(monkeypatch)
    mutated = placed(graph, arguments)
    assert cascades_of(mutated)
    with pytest.raises(PlanError):
        check(mutated)
