"""Launch lists are judged without data: each read finds the value that it wants, and mistakes of the compiler do not
pass (`instruments.launch_lists`)."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from instruments.launch_lists import judge
from instruments.stand_in_runs import on_stand_in
from instruments.tables import in_turn
from programs import PROGRAMS, Program
from random_programs.engines import Settings
from random_programs.engines import judge as judge_program
from random_programs.expected import UnsuitableError
from random_programs.generate import generate

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.cuda.prepared import body as bodies_module
from ctrlgrad.engines.cuda.prepared import loops, ops, placement, runner
from ctrlgrad.engines.cuda.prepared.body import _Side
from ctrlgrad.engines.cuda.prepared.entries import ListWriter
from ctrlgrad.engines.cuda.prepared.launches import Launches
from ctrlgrad.engines.cuda.prepared.model import Branching, PreparedBody, Repeating, View
from ctrlgrad.engines.cuda.prepared.reading import Reading
from ctrlgrad.ir import Graph
from ctrlgrad.plan.checking.memory import PlanError

# Programs whose lists are judged.
RANDOM_PROGRAMS = int(os.environ.get("CTRLGRAD_CUDA_RANDOM_PROGRAMS", "8"))
X = np.linspace(-0.5, 1.0, 9).reshape(3, 3)


@pytest.fixture
def bodies(monkeypatch: pytest.MonkeyPatch) -> list[PreparedBody]:
    """All bodies that are prepared."""
    found: list[PreparedBody] = []
    prepared = runner.prepared

    def noted(*args: Any) -> PreparedBody:
        found.append(prepared(*args))
        return found[-1]

    monkeypatch.setattr(runner, "prepared", noted)
    return found


@in_turn("program, order", PROGRAMS, [1, 2])
def test_corpus(program: Program, order: int, bodies: list[PreparedBody]) -> None:
    """With numbers on the host, and on the device: branches and trip counts are drawn then."""
    for kinds in ("", "biuf")[order - 1 :]:
        on_stand_in(program.graph(order), program.leaves, kinds)
    for body in bodies:
        for seed in range(3):
            judge(body, 3, seed)


def test_random_programs(bodies: list[PreparedBody]) -> None:
    def there(settings: Settings, graph: Graph, arguments: Sequence[Any], _: random.Random) -> list[Any]:
        return on_stand_in(graph, arguments, "biuf").results

    for number in range(300, 300 + RANDOM_PROGRAMS):
        with suppress(UnsuitableError):
            judge_program(generate(number), Settings(orders=2), chosen=there)
    assert sum(judge(body, 3, seed) for body in bodies for seed in range(4)) > 100


def branching(x: Any) -> Any:
    """An array that only one side updates, and rows of both sides."""

    def step(i: Any, c: Any) -> Any:
        y, z = c
        y, z = cg.cond(
            cnp.sum(y) > 1.0, lambda: (y.at[0].set(cnp.sin(z[1])), z * 0.9), lambda: (y * 0.5, cnp.tanh(z @ y))
        )
        return y + 0.1 * z, z

    return cg.fori_loop(0, 6, step, (x, x + 1.0))


def nested(x: Any) -> Any:
    """Inner loops that end by data and by count; carries change places, and one is updated in place."""

    def step(i: Any, c: Any) -> Any:
        y, z = c
        y = y.at[0].set(z[1]) * y
        w = cnp.cos(z)
        y, z = cg.fori_loop(0, 3, lambda j, d: (cnp.tanh(d[1] @ w @ d[0]), d[0]), (y, z))
        y, z = cg.while_loop(
            lambda d: cnp.sum(d[0]) < 3.0, lambda d: (d[0].at[1].add(cnp.cos(d[1][0]) + 1.0), d[1] * 0.9), (y, z)
        )
        return z, y - cnp.mean(y)

    return cg.fori_loop(0, 5, step, (x, x + 1.0))


def loss(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: sum(cnp.sum(cnp.sin(y)) for y in fn(x))


def prepare(bodies: list[PreparedBody]) -> Iterator[PreparedBody]:
    """The bodies of two programs and of their gradients. A mistake may also fail where it runs."""
    for fn in (branching, nested):
        for function in (fn, cg.grad(loss(fn))):
            with suppress(Exception):
                on_stand_in(cg.function(function).graph(X), [X], "f")
    yield from bodies


def test_lists_with_branches_and_loops_inside_are_right(bodies: list[PreparedBody]) -> None:
    compared = [judge(body, 4, seed) for body in prepare(bodies) for seed in range(8)]
    assert len(bodies) >= 4 and sum(compared) > 2000
    items = [item for body in bodies for item in placement.items_in_order(body.items)]
    assert any(isinstance(x, Branching) for x in items) and any(isinstance(x, Repeating) for x in items)


# Mistakes.


def slot_off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    row_of = ops._carried_row

    def wrong(*args: Any) -> View:
        row = row_of(*args)
        return replace(row, offset=row.offset + row.size * row.dtype.itemsize)

    monkeypatch.setattr(ops, "_carried_row", wrong)


def temporary_off_by_one_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = bodies_module.placed

    def wrong(*args: Any) -> placement.Placement:
        found = placed(*args)
        number = max(n for n, place in enumerate(found.places) if place is not None and place[1] >= 16)
        source, offset = found.places[number] or (None, 0)
        places = [*found.places]
        places[number] = source, offset - 16  # type: ignore[assignment]
        return replace(found, places=tuple(places))

    monkeypatch.setattr(bodies_module, "placed", wrong)


def buffer_reused_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_meet", lambda a, b: a[0] < b[1] and b[0] < a[1])


def buffer_reused_in_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_keep_in_loops", lambda spans, items: None)


def carry_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops._Listed, "_may_be_in", lambda *_: True)


def carry_copied_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """What two carries exchange is not copied first."""
    monkeypatch.setattr(Launches, "copy", lambda self, x, shape=None: x)


def update_of_a_value_that_is_read_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reading, "_is_read_later", lambda *_: False)


def side_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    place = ListWriter.place
    monkeypatch.setattr(ListWriter, "place", lambda self, view, side: place(self, view, 0))


def counter_on_the_wrong_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts before the rows of a pass, not behind them."""
    advance = Launches.advance

    def wrong(self: Launches, *args: Any) -> None:
        items = [*self.items]
        self.items[:] = []
        advance(self, *args)
        self.items += items

    monkeypatch.setattr(Launches, "advance", wrong)


def counter_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A side that pushes does not count its passes."""
    monkeypatch.setattr(bodies_module, "_count", lambda side, stacks: None)


def result_taken_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """An array from outside of a branch becomes the result of a side."""
    monkeypatch.setattr(_Side, "is_own", lambda self, source: source not in self.taken)


MISTAKES = [
    slot_off_by_one,
    temporary_off_by_one_slot,
    buffer_reused_early,
    buffer_reused_in_a_loop,
    carry_overwritten,
    carry_copied_too_late,
    update_of_a_value_that_is_read_later,
    side_is_ignored,
    counter_on_the_wrong_side,
    counter_forgotten,
    result_taken_twice,
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda f: f.__name__)
def test_mistakes_are_found(
    mistake: Callable[[pytest.MonkeyPatch], None], bodies: list[PreparedBody], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    with pytest.raises(PlanError):
        for body in prepare(bodies):
            for seed in range(8):
                judge(body, 4, seed)
