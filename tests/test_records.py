"""Records are dataclasses with slots, frozen unless told otherwise, in all that is done with them."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import typing

import numpy as np
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


@record(frozen=False)
class Basket:
    """Some."""

    name: str
    items: list[int] = dataclasses.field(default_factory=list)
    kinds: typing.ClassVar[int] = 3


def test_records_that_are_not_frozen_change_and_have_no_hash() -> None:
    one, other = Basket("a"), Basket("a")
    one.items.append(1)
    assert (one.items, other.items, Basket("a", [2]).items) == ([1], [], [2])
    other.items = [1]
    assert one == other and not hasattr(one, "__dict__") and copy.deepcopy(one) == one
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_fields_keep_their_types_and_classes_what_is_no_field() -> None:
    assert {f.name: f.type for f in dataclasses.fields(Basket)} == {"name": "str", "items": "list[int]"}
    assert Basket.kinds == 3 and Basket.__annotations__["name"] == "str"
    assert (Point.__doc__, Basket.__doc__) == ("Point(x, y)", "Some.")
    assert (
        str(inspect.signature(Named))
        == "(x: 'float', y: 'float' = 0.0, *, name: 'str', hidden: 'list[int]' = None) -> None"
    )


def test_a_field_that_is_not_given_is_set_later() -> None:
    @record(frozen=False)
    class Pair:
        first: int
        both: int = dataclasses.field(init=False)

        def __post_init__(self) -> None:
            self.both = 2 * self.first

    assert Pair(3).both == 6
    with pytest.raises(TypeError, match="positional argument"):
        Pair(3, 4)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Many\.items: a field that is not given has no default either"):

        @record
        class Many:
            items: int = dataclasses.field(init=False, default=1)


def test_a_field_without_a_default_behind_one_that_has_one_is_refused() -> None:
    with pytest.raises(TypeError, match="without a default"):

        @record
        class Many:
            first: int = 1
            second: int  # type: ignore[misc]


@record
class Sized(Point):
    z: float = 0.0

    def moved(self) -> Point:
        return dataclasses.replace(self, x=self.x + self.z)


@record
class Doubled(Sized):
    def moved(self) -> Point:
        return dataclasses.replace(super().moved(), y=2.0)


def test_methods_of_records_call_those_of_their_bases() -> None:
    assert Doubled(1.0, z=3.0).moved() == Doubled(4.0, 2.0, 3.0)
    assert Doubled.moved.__qualname__ == "Doubled.moved" and Doubled.__slots__ == ()  # type: ignore[attr-defined]


def test_a_record_equals_itself_whatever_it_holds() -> None:
    @record
    class Held:
        value: object

    for value in (float("nan"), np.ones(3)):
        assert (Held(value) == Held(value)) is True


def test_records_are_ordered_where_they_are_told_to_be() -> None:
    @record(order=True)
    class Range:
        first: int
        last: int
        name: str = dataclasses.field(default="", compare=False)

    one, two, three = Range(1, 5, "z"), Range(2, 3, "y"), Range(2, 4, "x")
    assert sorted([three, one, two]) == [one, two, three]
    assert one < two <= two < three > two >= one and not two < Range(2, 3, "z")
    with pytest.raises(TypeError, match="not supported between"):
        sorted([one, 3])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="not supported between"):
        sorted([Point(1.0), Point(2.0)])  # type: ignore[type-var]


def test_a_default_that_can_change_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Many\.items: all objects would share"):

        @record
        class Many:
            items: list[int] = []  # noqa: RUF012


def test_records_say_of_themselves_what_dataclasses_do() -> None:
    def parts(order: bool, frozen: bool) -> list[type]:
        class Part:
            x: int
            y: float = 2.0
            kinds: typing.ClassVar[int] = 3

        other = type("Part", (), dict(vars(Part)))
        made = dataclasses.dataclass(frozen=frozen, order=order, slots=True)(other)
        return [record(frozen=frozen, order=order)(Part), made]

    for order in (True, False):
        for frozen in (True, False):
            ours, theirs = parts(order, frozen)
            assert [str(f) for f in dataclasses.fields(ours)] == [str(f) for f in dataclasses.fields(theirs)]
            assert ours.__match_args__ == theirs.__match_args__  # type: ignore[attr-defined]
            assert ours.__slots__ == theirs.__slots__  # type: ignore[attr-defined]
            for name in ("__lt__", "__hash__", "__setattr__", "__eq__"):
                same = [getattr(one, name) is getattr(object, name) for one in (ours, theirs)]
                assert same[0] == same[1], name
            assert (ours.__hash__ is None) == (theirs.__hash__ is None)
            assert dataclasses.asdict(ours(1)) == dataclasses.asdict(theirs(1)) == {"x": 1, "y": 2.0}
            with pytest.raises(TypeError, match="cannot inherit"):

                @dataclasses.dataclass(frozen=not frozen)
                class _(ours):  # type: ignore[misc, valid-type]
                    z: int = 0
