"""Values that each step of a plan reads, updates and defines, by the roles of its fields (`model`)."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np

from ctrlgrad.plan.model import ROLES, Array, Block, Loop, Plan, Register, Stack, Step, Value, View
from ctrlgrad.plan.sizes import Size

INDEX = np.dtype(np.int64)
Found = TypeVar("Found")


def _once(find: Callable[[Step], Found]) -> Callable[[Step], Found]:
    """The function, which each step keeps the result of: every stage asks for it, some of them at every depth."""
    slot: Any = vars(Step)[f"_{find.__name__}"]
    known, keep = slot.__get__, slot.__set__

    def found(step: Step) -> Found:
        try:
            return known(step)  # type: ignore[no-any-return]
        except AttributeError:
            keep(step, result := find(step))
            return result

    return found


@functools.cache
def _fields(cls: type, *roles: str) -> tuple[tuple[str, Any], ...]:
    """Fields of a class that hold values of these roles: each with None, or with such fields of its parts."""
    types = {f.name: str(f.type) for f in dataclasses.fields(cls)}
    found: list[tuple[str, Any]] = [(n, None) for role in roles for n in ROLES[cls][role] if "Size" not in types[n]]
    for name in ROLES[cls]["Parts"]:
        (part,) = (each for each in ROLES if re.search(rf"\b{each.__name__}\b", types[name]))
        if inner := _fields(part, *roles):
            found.append((name, inner))
    return tuple(found)


def _collect(item: Any, *roles: str) -> list[Value]:
    """The values in a step's, or a part's, fields of these roles, and in such fields of its parts."""
    found: list[Value] = []
    _scan(item, _fields(item.__class__, *roles), found)
    return found


def _scan(item: object, names: tuple[tuple[str, Any], ...], found: list[Value]) -> None:
    for name, inner in names:
        held = getattr(item, name)
        if inner is None:
            _add(held, found)
        else:
            for each in held if held.__class__ is tuple else (held,):
                _scan(each, inner, found)


def _add(item: object, found: list[Value]) -> None:
    cls = item.__class__
    if cls is View:
        found.append(item.array)  # type: ignore[attr-defined]
    elif cls is Array or cls is Register or cls is Stack:
        found.append(item)  # type: ignore[arg-type]
    elif cls is tuple:
        for each in item:  # type: ignore[attr-defined]
            _add(each, found)


@_once
def defines(step: Step) -> tuple[Value, ...]:
    """Values that a step defines for the steps after it."""
    return tuple(_collect(step, "Defines"))


@_once
def reads(step: Step) -> tuple[Array | Stack, ...]:
    """The arrays and stacks that a step reads itself; not what the blocks inside it do."""
    found = [v for v in _collect(step, "Reads", "Updates") if not isinstance(v, Register)]
    parts = ROLES[step.__class__]["Parts"]
    if parts and isinstance(getattr(step, parts[0]), Step):  # One of two kernels reads what the other one defines.
        found = [v for v in found if v not in defines(step)]
    return tuple(found)


@_once
def updates(step: Any) -> tuple[tuple[Value, Value], ...]:
    """Pairs of a value and the one that the step makes it of, in the same memory where it may."""
    return tuple(_updates(step, _fields(step.__class__, "Updates")))


def _updates(item: object, names: tuple[tuple[str, Any], ...]) -> Iterator[tuple[Value, Value]]:
    for name, inner in names:
        before = getattr(item, name)
        if inner is not None:
            for each in before if before.__class__ is tuple else (before,):
                yield from _updates(each, inner)
        elif before is not None:
            yield _collect(item, "Defines")[0], before


def binds(step: Step) -> list[Value]:
    """Values that a step defines for the blocks inside it."""
    return _collect(step, "Binds") if ROLES[step.__class__]["Runs"] else []


def yields(step: Step) -> list[Value]:
    """Values that the blocks inside a step end with."""
    return _collect(step, "Yields") if ROLES[step.__class__]["Runs"] else []


@_once
def numbers_of(step: Step) -> tuple[Register, ...]:
    """The registers that a step reads itself, those in the sizes of what it reads and defines too."""
    found: dict[Register, None] = {}
    _numbers(step, found)
    defined = {value.name for value in defines(step) if isinstance(value, Register)}
    return tuple(register for register in found if register.name not in defined)


def _numbers(item: object, found: dict[Register, None]) -> None:
    if isinstance(item, Register):
        found[item] = None
    elif isinstance(item, Size):
        found.update(dict.fromkeys(Register(name, INDEX) for name in item.names))
    elif isinstance(item, tuple):
        for each in item:
            _numbers(each, found)
    elif isinstance(item, View):
        _numbers((item.array, item.offset, item.shape, item.strides), found)
    elif isinstance(item, Array):
        _numbers(item.shape, found)
    elif item.__class__ in ROLES:
        for role in ("Reads", "Updates", "Defines", "Parts"):
            for name in ROLES[item.__class__][role]:
                _numbers(getattr(item, name), found)


def blocks_of(step: Step) -> tuple[Block, ...]:
    """The blocks inside a step."""
    found: tuple[Block, ...] = ()
    for name in ROLES[step.__class__]["Runs"]:
        held = getattr(step, name)
        found += held if isinstance(held, tuple) else (held,)
    return found


def with_blocks(step: Any, change: Callable[[Block], Block]) -> Any:
    """The step with its blocks changed, one after the other; itself, if it has none."""
    names = ROLES[step.__class__]["Runs"]
    if not names:
        return step
    held = {name: getattr(step, name) for name in names}
    new = {name: tuple(map(change, b)) if isinstance(b, tuple) else change(b) for name, b in held.items()}
    return dataclasses.replace(step, **new)


@_once
def deep_reads(step: Step) -> frozenset[Array | Stack]:
    """All arrays and stacks that a step needs from before it, by the blocks inside it too."""
    blocks = blocks_of(step)
    if not blocks:
        return frozenset(reads(step))
    steps = [each for block in blocks for each in block.steps]
    found = {v for v in yields(step) if not isinstance(v, Register)}.union(*map(deep_reads, steps))
    return frozenset(reads(step)).union(found.difference(binds(step), *map(defines, steps)))


def walk(block: Block) -> Iterator[Step]:
    """Every step, those inside a step right after it."""
    for step in block.steps:
        yield step
        for inner in blocks_of(step):
            yield from walk(inner)


def defined_inside(loop: Loop) -> set[object]:
    """The arrays and stacks that a loop makes, and the names of its registers."""
    values = [v for step in walk(Block((loop,))) for v in (*defines(step), *binds(step))]
    return {v.name if isinstance(v, Register) else v for v in values}


def count_reads(plan: Plan) -> Counter[Array]:
    """Number of reads of each array, by steps, at ends of blocks and as a result."""
    counts: Counter[Array] = Counter(v for v in plan.results if isinstance(v, Array))
    for step in walk(plan.body):
        counts.update(v for v in reads(step) if isinstance(v, Array))
        counts.update(v for v in yields(step) if isinstance(v, Array))
    return counts


def names_of(sizes: Iterable[Size]) -> set[str]:
    """The registers that sizes are made of."""
    return {name for size in sizes for name in size.names}
