"""The checker finds mistakes put into the code generator, each a change of one decision, in programs that show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

pytest.importorskip("numba")

from native.memory_judge import Met, judge, loops_of
from native.test_overwriting import MATRIX, READERS, rows_read, rows_written

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.native import regions
from ctrlgrad.engines.native.frames import Frame, Group
from ctrlgrad.engines.native.groups import GroupWriter
from ctrlgrad.engines.native.layout import Ref
from ctrlgrad.engines.native.memory_check import MemoryTraceError
from ctrlgrad.engines.native.regions import RegionWriter
from ctrlgrad.engines.native.rules import indexing
from ctrlgrad.ir import Value


def _history(body: Callable[[Any, Any, Any], Any]) -> Callable[[Any], Any]:
    """Three iterations of a body that takes a matrix, and rows to push on."""

    def function(m: Any) -> Any:
        rows = cg.TensorArray("float64", element_shape=(3, 3))
        m, rows = cg.fori_loop(0, 3, lambda i, s: body(i, *s), (m, rows))
        return m, rows.stack()

    return function


def _elementwise_first(reader: str) -> Callable[[Any], Any]:
    def body(t: Any, carry: Any) -> Any:
        c, out = carry
        new = c * 0.5 + 1
        return new, READERS[reader](t, out, c, new)

    return lambda m: cg.fori_loop(0, 3, body, (m[0], m))


def _updated_after_its_push(i: Any, m: Any, rows: Any) -> Any:
    y = m * 2
    rows = rows.push(y)
    return cnp.at(y)[0].set(7.0), rows


def _read_after_its_push(i: Any, m: Any, rows: Any) -> Any:
    rows = rows.push(m * 2)
    return rows.read(i) * 0.5, rows


def _updated_beside_a_reader(i: Any, carry: Any) -> Any:
    a, b = carry
    return cnp.at(a)[i].set(0.0), b + a


def _part_that_is_updated(i: Any, c: Any) -> Any:
    y = c[:1] * 2
    return cnp.concat([y, c[1:] * 3]) + cnp.at(y)[0].set(1.0)


SHOWN: dict[str, Callable[[Any], Any]] = {
    **{name: _elementwise_first(name) for name in READERS},
    "rows that are written": lambda m: rows_written(m[0]),
    "rows whose cotangents are added up": cg.grad(lambda m: cnp.sum(rows_read(m, m[0]) ** 2)),
    "a scan that keeps its carry": lambda m: cg.scan(lambda c, q: (cnp.at(c)[0].add(q), c), m, m)[1],
    "a scan that keeps its carry, differentiated": cg.grad(
        lambda x: cnp.sum(cg.scan(lambda c, q: (cnp.at(c)[0].add(q[1]), c), x, cnp.stack([x, x]))[1] ** 2)
    ),
    "a history of an elementwise carry": lambda m: cg.scan(lambda c, q: (c * q, c), m, m)[1],
    "sines": lambda m: cg.fori_loop(0, 3, lambda i, c: cnp.sin(c) * 3.0, m),
    "a product with the transpose": lambda m: cg.fori_loop(0, 3, lambda i, c: c * c.T, m),
    "two carries": lambda m: cg.fori_loop(0, 3, lambda i, s: (s[1] * 0.5, s[0] + 1), (m, m + 1)),
    "a matrix product": lambda m: cg.fori_loop(0, 3, lambda i, c: c @ m, m),
    "an update that something else reads": lambda m: cg.fori_loop(0, 3, _updated_beside_a_reader, (m, m)),
    "an update by the array itself": lambda m: cg.fori_loop(0, 3, lambda i, c: cnp.at(c)[...].set(c.T), m),
    "a row that is updated": _history(_updated_after_its_push),
    "a row that is read": _history(_read_after_its_push),
    "parts": lambda m: cg.fori_loop(0, 3, _part_that_is_updated, m),
    "an inner loop": lambda m: cg.fori_loop(0, 3, lambda i, c: cg.fori_loop(0, 2, lambda j, d: d @ c, c) * 0.5, m),
}


@cache
def shown(name: str) -> list[Met]:
    return loops_of(cg.function(SHOWN[name]).graph(MATRIX), [MATRIX])


@pytest.mark.parametrize("name", SHOWN)
def test_right_code(name: str) -> None:
    assert judge(shown(name))


def counted_when_their_turn_comes(patch: pytest.MonkeyPatch) -> None:
    """A node counts as having read its operands before its code is written."""

    def run(self: RegionWriter, frame: Frame) -> None:
        for node in frame.graph.nodes:
            frame.remaining.subtract(node.operands)
            self.visit(node)
        self.flush()

    def others_read(self: GroupWriter, base: str, mine: Counter[Value]) -> bool:
        items, remaining = self.frame.items, self.frame.remaining
        if any(r.base == base for g in self.frame.groups for r in g.reads):
            return True
        return any(isinstance(item, Ref) and item.base == base and remaining[v] > 0 for v, item in items.items())

    patch.setattr(RegionWriter, "run", run)
    patch.setattr(RegionWriter, "has_read", lambda self, node: None)
    patch.setattr(RegionWriter, "others_read", others_read)


def nobody_else_reads(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RegionWriter, "others_read", lambda self, base, mine: False)


def updated_in_place_always(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(indexing, "_updatable", lambda e, node, x: e.ref(x))


def values_of_an_update_are_not_copied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RegionWriter, "copied", lambda self, source: source)


def in_place_though_it_may_run_twice(patch: pytest.MonkeyPatch) -> None:
    place = GroupWriter._place_in_group

    def placed(self: GroupWriter, value: Value, group: Group) -> Ref:
        return place(self, value, replace(group, limits=[]))

    patch.setattr(RegionWriter, "_place_in_group", placed)


def in_place_though_read_as_another_view(patch: pytest.MonkeyPatch) -> None:
    place = GroupWriter._place_in_group

    def placed(self: GroupWriter, value: Value, group: Group) -> Ref:
        return place(self, value, replace(group, reads={}))

    patch.setattr(RegionWriter, "_place_in_group", placed)


def arrays_of_carries_are_not_swapped(patch: pytest.MonkeyPatch) -> None:
    region = RegionWriter.carried_region
    patch.setattr(RegionWriter, "carried_region", lambda self, *given: region(self, *given) and [])


def the_next_carry_goes_over_the_present_one(patch: pytest.MonkeyPatch) -> None:
    region = RegionWriter.carried_region

    def carried(self: RegionWriter, body: Any, items: Any, captures: Any, current: Any, _: Any, *given: Any) -> Any:
        return region(self, body, items, captures, current, current, *given)

    patch.setattr(RegionWriter, "carried_region", carried)


def carries_in_a_stack_are_overwritten(patch: pytest.MonkeyPatch) -> None:
    region = RegionWriter.carried_region
    patch.setattr(RegionWriter, "carried_region", lambda self, *given: region(self, *given[:6]))


def rows_are_updated(patch: pytest.MonkeyPatch) -> None:
    place = GroupWriter.place

    def placed(self: GroupWriter, value: Value) -> Ref:
        found = place(self, value)
        self.frame.own.add(value)
        return found

    patch.setattr(RegionWriter, "place", placed)


def rows_are_written_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(regions, "touched_later", lambda graph: set())


def parts_lie_one_over_the_other(patch: pytest.MonkeyPatch) -> None:
    part = RegionWriter.part
    patch.setattr(RegionWriter, "part", lambda self, concat, whole, position: part(self, concat, whole, 0))


# What the mistake of counting too early showed in at first: all of it has to be found.
LATE_READERS = {
    *("set", "add", "scatter rows", "scatter elements", "gather", "take", "take_along_axis", "cond", "switch"),
    *("inner loop that captures", "inner loop that carries", "linalg.solve", "TensorArray.unstack"),
    *("rows that are written", "rows whose cotangents are added up", "a scan that keeps its carry, differentiated"),
}

MUTANTS = [
    counted_when_their_turn_comes,
    nobody_else_reads,
    updated_in_place_always,
    values_of_an_update_are_not_copied,
    in_place_though_it_may_run_twice,
    in_place_though_read_as_another_view,
    arrays_of_carries_are_not_swapped,
    the_next_carry_goes_over_the_present_one,
    carries_in_a_stack_are_overwritten,
    rows_are_updated,
    rows_are_written_late,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_checker_finds(mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SHOWN:
        shown(name)
    mutant(monkeypatch)
    found = [name for name in SHOWN if _is_found(name)]
    assert found
    if mutant is counted_when_their_turn_comes:
        assert set(found) >= LATE_READERS


def _is_found(name: str) -> bool:
    try:
        judge(shown(name))
    except MemoryTraceError:
        return True
    return False
