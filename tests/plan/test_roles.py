"""Every field of a step has a role, and a wrong role is noticed on small programs."""

from __future__ import annotations

import functools
import re
from collections import Counter
from dataclasses import fields, replace
from typing import Any

import pytest
from plan.plans import graph_of, placed
from plan.small_programs import SMALL

from ctrlgrad.engines.native.emit import PlanWriter
from ctrlgrad.plan import effects
from ctrlgrad.plan.checking.steps import Steps
from ctrlgrad.plan.effects import binds, defines, numbers_of, reads, walk, yields
from ctrlgrad.plan.model import ROLES, STEPS, Plan, Value, part, step
from ctrlgrad.plan.printer import _Printer

# The roles of fields whose type holds one of these classes.
HELD = {
    frozenset({"Block"}): ("Runs",),
    frozenset(cls.__name__ for cls in ROLES if cls not in STEPS or cls.__name__ == "Kernel"): ("Parts",),
    frozenset({"Array", "Numbers", "Register", "Size", "Sizes", "Stack", "Value", "View"}): (
        "Reads",
        "Updates",
        "Defines",
        "Binds",
        "Yields",
    ),
}


@functools.cache
def plans() -> list[Plan]:
    found = []
    for program in SMALL.values():
        graph = graph_of(program.fn, *program.arguments, order=program.order, signature=program.signature)
        found.append(placed(graph, program.arguments))
    return found


def judge_types(cls: Any) -> None:
    """Fields that hold values have a role that says so; other fields have none."""
    for role, names in ROLES[cls].items():
        for name in names:
            held = set(re.findall(r"\w+", cls.__annotations__[name].partition("[")[2]))
            kinds = [roles for classes, roles in HELD.items() if held & classes]
            assert role in (kinds[0] if kinds else ("Attribute",)), (cls, name)


def judge(plan: Plan) -> None:
    """Each value is defined at one place, and every value that is read is defined."""
    given = [*plan.arguments, *(r for r, _, _ in plan.sizes), *(a for a, _ in plan.constants)]
    defined = Counter(v for each in given for v in (each if isinstance(each, tuple) else (each,)))
    wanted: set[Value] = set()
    for known in walk(plan.body):
        one: Any = replace(known)  # type: ignore[type-var]  # a copy without cached results
        defined.update([*defines(one), *binds(one)])
        wanted.update([*reads(one), *numbers_of(one), *yields(one)])
    assert max(defined.values()) == 1, defined.most_common(1)
    assert wanted <= set(defined), wanted - set(defined)


def test_values_are_defined_once_and_read_where_they_are() -> None:
    for plan in plans():
        judge(plan)
    assert {type(each) for plan in plans() for each in walk(plan.body)} == set(STEPS)


@pytest.mark.parametrize("cls", ROLES)
def test_every_field_has_a_role(cls: Any) -> None:
    assert sorted(name for names in ROLES[cls].values() for name in names) == sorted(f.name for f in fields(cls))
    judge_types(cls)


# Wrong roles that a field might be given.
OTHERS = {
    "Reads": ("Attribute", "Defines"),
    "Defines": ("Attribute", "Reads"),
    "Binds": ("Attribute", "Reads"),
    **dict.fromkeys(("Updates", "Parts", "Yields"), ("Attribute",)),
}
TOLD = [(cls, role, name) for cls, roles in ROLES.items() for role, names in roles.items() for name in names]


@pytest.mark.parametrize(
    ("cls", "role", "name", "other"),
    [
        pytest.param(*each, other, id=f"{each[0].__name__}.{each[2]}-{other}")
        for each in TOLD
        for other in OTHERS.get(each[1], ())
        if not (other == "Defines" and "Size" in each[0].__annotations__[each[2]])  # a size defines nothing
    ],
)
def test_a_wrong_role_is_noticed(monkeypatch: pytest.MonkeyPatch, cls: type, role: str, name: str, other: str) -> None:
    found, roles = plans(), ROLES[cls]
    left = tuple(each for each in roles[role] if each != name)
    monkeypatch.setattr(effects, "_fields", effects._fields.__wrapped__)
    monkeypatch.setitem(ROLES, cls, roles | {role: left, other: (*roles[other], name)})
    with pytest.raises(AssertionError):
        judge_types(cls)
        for plan in found:
            judge(plan)


@pytest.mark.parametrize("declare", [step, part])
def test_a_field_without_a_role_is_refused(declare: Any) -> None:
    with pytest.raises(TypeError, match=r"Careless\.count: int is no role, expected one of Reads, "):

        @declare
        class Careless:
            count: int


@pytest.mark.parametrize("cls", STEPS)
def test_every_step_has_a_rule_a_text_and_machine_code(cls: Any) -> None:
    """Every step type has a rule in the checker, a text and machine code. Without a rule the checker takes a step
    for one that defines numbers and arrays, and no stacks."""
    assert callable(getattr(PlanWriter, cls.kind))
    assert cls.text or callable(getattr(_Printer, cls.kind))
    plain = not ROLES[cls]["Updates"] and not ROLES[cls]["Runs"] and not ROLES[cls]["Parts"]
    assert plain or cls.kind in ("loop", "branch") or callable(getattr(Steps, f"on_{cls.kind}"))
