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
from ctrlgrad.engines.cuda.prepared import ops, placement, runner
from ctrlgrad.engines.cuda.prepared.model import (
    Become,
    Branching,
    CannotPrepare,
    Carried,
    CarriedArray,
    Fixed,
    PreparedBody,
    Repeating,
    View,
    items_in_order,
)
from ctrlgrad.engines.cuda.prepared.placement import Sharing
from ctrlgrad.engines.cuda.prepared.reading import Launches
from ctrlgrad.ir import Graph
from ctrlgrad.plan.checking.memory import PlanError

# Programs whose lists are judged.
RANDOM_PROGRAMS = int(os.environ.get("CTRLGRAD_CUDA_RANDOM_PROGRAMS", "8"))
X = np.linspace(-0.5, 1.0, 9).reshape(3, 3)


@pytest.fixture
def bodies(monkeypatch: pytest.MonkeyPatch) -> list[PreparedBody]:
    """All bodies that are prepared. They are judged and do not run: a wrong list may never end."""
    found: list[PreparedBody] = []
    prepared = runner.prepared

    def noted(*args: Any) -> PreparedBody:
        found.append(prepared(*args))
        raise CannotPrepare("it is judged")

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
        u, z = cg.cond(
            cnp.sum(y) > 1.0, lambda: (y.at[0].set(cnp.sin(z[1])), z * 0.9), lambda: (y * 0.5, cnp.tanh(z @ y))
        )
        return y * u + 0.1 * z, z

    return cg.fori_loop(0, 6, step, (x, x + 1.0))


def nested(x: Any) -> Any:
    """Inner loops that end by data and by count; carries change places, and one is updated in place."""

    def step(i: Any, c: Any) -> Any:
        y, z = c
        y = y.at[0].set(z[1]) * y
        w = cnp.cos(z)
        y, z = cg.fori_loop(0, 3, lambda j, d: (cnp.tanh(d[1] @ w.at[0].set(d[0][0]) @ d[0]), d[0]), (y, z))
        y = cg.fori_loop(0, 2, lambda j, d: z @ d, y)
        y, z = cg.while_loop(
            lambda d: cnp.sum(d[0]) < 3.0, lambda d: (d[0].at[1].add(cnp.cos(d[1][0]) + 1.0), d[1] * 0.9), (y, z)
        )
        return z, y - cnp.mean(y)

    return cg.fori_loop(0, 5, step, (x, x + 1.0))


def pushing(x: Any) -> Any:
    """Rows that are read behind a branch and a loop which push more on the same stack."""

    def step(i: Any, c: Any) -> Any:
        y, rows = c
        z = cnp.sin(y) * 1.1
        rows = rows.push(z)
        w, rows = cg.cond(
            cnp.sum(y) > 1.0, lambda z, rows: (z * 0.3, rows.push(z * 2.0)), lambda z, rows: (z @ z, rows), z, rows
        )
        u, rows = cg.while_loop(lambda d: cnp.sum(d[0]) > 0.5, lambda d: (d[0] * 0.5, d[1].push(d[0])), (z, rows))
        return z * 0.5 + w - u, rows

    y, rows = cg.fori_loop(0, 5, step, (x, cg.TensorArray(np.float64, None, (3, 3))))
    return y, rows.stack()


def loss(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: sum(cnp.sum(cnp.sin(y)) for y in fn(x))


def prepare(bodies: list[PreparedBody]) -> Iterator[PreparedBody]:
    """The bodies of three programs and of their gradients. A mistake may also fail where it prepares one."""
    for fn in (branching, nested, pushing):
        for function in (fn, cg.grad(loss(fn))):
            with suppress(AssertionError, KeyError, IndexError):
                on_stand_in(cg.function(function).graph(X), [X], "f")
    yield from bodies


def test_lists_with_branches_and_loops_inside_are_right(bodies: list[PreparedBody]) -> None:
    compared = [judge(body, 4, seed) for body in prepare(bodies) for seed in range(8)]
    assert len(bodies) >= 4 and sum(compared) > 2000
    items = [item for body in bodies for item in items_in_order(body.items)]
    assert any(isinstance(x, Branching) for x in items) and any(isinstance(x, Repeating) for x in items)


def test_a_carry_that_is_read_later_is_not_updated_in_place() -> None:
    """The carry has the value of the next iteration, too."""
    dtype = np.dtype(np.float64)
    for stays in (True, False):
        launches, before = Launches(), View(Carried(0), dtype, (4,), (8,))
        updated = launches.updated(before)
        launches.copied(Fixed(dtype, dtype.type(1)), updated)
        if not stays:
            launches.become(updated, before)
        found = Sharing(launches.items, launches.buffers, [CarriedArray(dtype, (4,))]).memory_of(updated.source)
        assert found == (updated if stays else before).source


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
        places = [*found.places]
        for number, place in enumerate(places):
            if place is not None and place[1] >= 16:
                places[number] = place[0], place[1] - 16
                break
        return replace(found, places=tuple(places))

    monkeypatch.setattr(bodies_module, "placed", wrong)


def buffer_reused_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_meet", lambda a, b: a[0] < b[1] and b[0] < a[1])


def buffer_reused_in_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_keep_in_loops", lambda spans, items: None)


def carry_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """An iteration's value is written where a product reads the value before it."""
    monkeypatch.setattr(placement, "_is_in_place", lambda *_: True)


def copy_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that lies elsewhere than the carry does not come there."""
    become = Launches.become

    def wrong(self: Launches, value: Any, target: View) -> None:
        become(self, value, target)
        if isinstance(self.items[-1], Become):
            self.items[-1] = replace(self.items[-1], copy=())

    monkeypatch.setattr(Launches, "become", wrong)


def update_of_a_value_that_is_read_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sharing, "_gone_through", lambda self, items, has, names: names)


def update_of_a_value_that_the_next_pass_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    once = lambda self, item, has, names: self._gone_through(item.items, has, names)
    monkeypatch.setattr(Sharing, "_after_passes", once)


def carry_of_the_iteration_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A carry and its new value share memory, whatever still reads the old one."""
    decide = Sharing._decide

    def wrong(self: Sharing, item: Any) -> None:
        names = self._all(item.before.source) | self._all(item.after.source)
        if sum(isinstance(name, Carried) for name in names) == 1:
            self._names |= dict.fromkeys(names, names)
        else:
            decide(self, item)

    monkeypatch.setattr(Sharing, "_decide", wrong)


def counter_on_the_wrong_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counter of rows is incremented before the rows of a pass, not behind them."""
    move = Launches.move

    def wrong(self: Launches, *args: Any) -> None:
        items = [*self.items]
        self.items[:] = []
        move(self, *args)
        self.items += items

    monkeypatch.setattr(Launches, "move", wrong)


def counter_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A side that pushes does not count its passes."""
    monkeypatch.setattr(bodies_module, "_count", lambda side, stacks: None)


def row_read_behind_its_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value is read in its row after the counter of rows has moved."""
    monkeypatch.setattr(bodies_module, "_keep_rows", lambda reading, step: None)


def update_of_a_value_that_is_read_behind_the_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sharing, "_after_sides", lambda self, item, has, names: has)


MISTAKES = [
    slot_off_by_one,
    temporary_off_by_one_slot,
    buffer_reused_early,
    buffer_reused_in_a_loop,
    carry_overwritten,
    copy_left_out,
    update_of_a_value_that_is_read_later,
    carry_of_the_iteration_before,
    counter_on_the_wrong_side,
    counter_forgotten,
    row_read_behind_its_counter,
    update_of_a_value_that_the_next_pass_reads,
    update_of_a_value_that_is_read_behind_the_branch,
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
