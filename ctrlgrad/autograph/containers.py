"""Lists, dicts and sets that traced control flow must leave alone.

A body that is traced runs once in Python however often it runs later, so `rows.append(x)` inside it would
happen once, with a tensor that has no meaning outside. `unchanged` watches what the body's closure holds, puts
back what was changed, and says which variable it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from types import CellType, FunctionType
from typing import Any

from ctrlgrad.errors import TracingError
from ctrlgrad.source import Source

_Container = list[Any] | dict[Any, Any] | set[Any]


class _Snapshot:
    """A container and what it held."""

    def __init__(self, name: str, container: _Container) -> None:
        self.name = name
        self.container = container
        self.before = container.copy()

    def is_intact(self) -> bool:
        now, before = self.container, self.before
        if isinstance(now, dict) and isinstance(before, dict):
            return list(now) == list(before) and all(now[key] is before[key] for key in before)
        if isinstance(now, list) and isinstance(before, list):
            return len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))
        return now == before

    def restore(self) -> None:
        if isinstance(self.container, list):
            self.container[:] = self.before
        else:
            self.container.clear()
            self.container.update(self.before)


def _inside(name: str, value: Any, seen: set[int]) -> Iterator[_Snapshot]:
    """The containers in a value, down to those inside other containers."""
    if isinstance(value, list | dict | set) and id(value) not in seen:
        seen.add(id(value))
        yield _Snapshot(name, value)
    if isinstance(value, list | tuple):
        for x in value:
            if isinstance(x, list | dict | set | tuple):
                yield from _inside(name, x, seen)
    elif isinstance(value, dict):
        for x in value.values():
            if isinstance(x, list | dict | set | tuple):
                yield from _inside(name, x, seen)


class _Variable:
    """A variable of an enclosing function that inner functions share, and what it held."""

    def __init__(self, name: str, cell: CellType) -> None:
        self.name = name
        self.cell = cell
        self.before = cell.cell_contents

    def is_intact(self) -> bool:
        return self.cell.cell_contents is self.before

    def restore(self) -> None:
        self.cell.cell_contents = self.before


def _reachable(functions: Iterable[Any], seen: set[int]) -> Iterator[_Snapshot | _Variable]:
    """Yield the variables and containers that functions share with enclosing code, through functions among them too."""
    for fn in functions:
        if not isinstance(fn, FunctionType) or id(fn) in seen:
            continue
        seen.add(id(fn))
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            if id(cell) not in seen:
                seen.add(id(cell))
                yield _Variable(name, cell)
            yield from _inside(name, value, seen)
            yield from _reachable([value], seen)


def cells_of(names: Iterable[str], *functions: Callable[..., Any]) -> tuple[CellType, ...]:
    """The variables of these names that functions share with the code around them."""
    wanted, found = set(names), []
    for fn in functions:
        closure = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
        found += [cell for name, cell in closure if name in wanted]
    return tuple(found)


@contextmanager
def unchanged(
    construct: str, source: Source | None, *functions: Callable[..., Any], own: Collection[CellType] = ()
) -> Iterator[None]:
    """Refuse changes to what the functions share with the code around them while they are traced.

    When the block ends, the shared variables must hold the same values as before. The statement's `own` variables,
    which only the statement itself assigns and reads, are restored without an error.
    """
    watched = list(_reachable(functions, set()))
    yield
    changed = [x for x in watched if not x.is_intact()]
    for x in changed:
        x.restore()
    changed = [x for x in changed if not (isinstance(x, _Variable) and any(x.cell is cell for cell in own))]
    if not changed:
        return
    first = changed[0]
    if isinstance(first, _Variable):
        raise TracingError(
            f"the variable `{first.name}` is changed by a function called inside {construct} on a traced tensor",
            source=source,
            expected="changes that stand in the loop or branch itself",
            got=f"a function that assigns `{first.name}` as `nonlocal`",
            hint=f"let the function return the new value, and assign it: {first.name} = ...",
        )
    kind = type(first.container).__name__
    raise TracingError(
        f"the {kind} `{first.name}` changes inside {construct} on a traced tensor",
        source=source,
        expected="variables that are assigned anew, holding tensors",
        got=f"a {kind} that is changed in place, which would happen once, while tracing",
        hint="collect rows with ctrlgrad.TensorArray or ctrlgrad.scan, or keep the loop or branch in Python\n"
        "by deciding on a Python value",
    )
