"""Records are frozen dataclasses with slots, in all that the package and its users do with them."""

from __future__ import annotations

import copy
import dataclasses

import pytest

from ctrlgrad.records import record


@record
class Point:
    x: float
    y: float = 0.0


@record(kw_only=True)
class Named(Point):
    name: str
    hidden: list[int] = dataclasses.field(default=None, compare=False, repr=False)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name.strip())


@record(eq=False)
class Step:
    parts: tuple[Point, ...]


def test_records_compare_and_hash_by_their_fields() -> None:
    assert Point(1.0) == Point(1.0, 0.0) != Point(1.0, 2.0)
    assert len({Point(1.0), Point(1.0, 0.0), Point(2.0)}) == 2
    # A field that does not count, another class, and an object that only equals itself.
    assert Named(x=1.0, name="a", hidden=[1]) == Named(x=1.0, name=" a ", hidden=[2])
    assert Named(x=1.0, name="a") != Point(1.0)
    step = Step(())
    assert step == step != Step(()) and len({step, Step(())}) == 2


def test_records_are_frozen_and_have_slots() -> None:
    point = Point(1.0)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        point.x = 2.0  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
        del point.x
    assert not hasattr(point, "__dict__")


def test_records_are_dataclasses() -> None:
    named = Named(x=1.0, name="a")
    assert [f.name for f in dataclasses.fields(named)] == ["x", "y", "name", "hidden"]
    assert dataclasses.replace(named, y=3.0) == Named(x=1.0, y=3.0, name="a")
    assert repr(named) == "Named(x=1.0, y=0.0, name='a')"
    match Point(1.0, 2.0):
        case Point(x, y):
            assert (x, y) == (1.0, 2.0)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        Point()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional argument"):
        Named(1.0, 2.0, "a")  # type: ignore[call-arg, misc]


def test_records_are_copied() -> None:
    named = Named(x=1.0, name="a", hidden=[1])
    for again in (copy.copy(named), copy.deepcopy(named)):
        assert again == named and again.hidden == [1] and type(again) is Named


def test_a_field_with_a_factory_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Many\.items: fields of a record have no factory"):

        @record
        class Many:
            items: list[int] = dataclasses.field(default_factory=list)
