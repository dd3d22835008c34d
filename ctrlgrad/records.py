"""Frozen dataclasses whose classes cost little to make, for modules that define many of them.

`@record` is `@dataclass(frozen=True, slots=True)`, and its classes are dataclasses (`fields`, `replace`, patterns). But
`dataclass` writes and compiles the text of six methods for each class, about half a millisecond of every start of a
program; here `__init__` alone is text, and the other methods are closures over the names of the fields.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import Any, NoReturn, TypeVar, dataclass_transform, overload

Class = TypeVar("Class", bound=type)


@overload
def record(cls: Class) -> Class: ...
@overload
def record(*, eq: bool = True, kw_only: bool = False) -> Callable[[Class], Class]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field, Field))
def record(cls: Any = None, *, eq: bool = True, kw_only: bool = False) -> Any:
    """A frozen dataclass with slots; with `eq=False` an object equals itself only.

    Fields may have a default (no factory), and the class a `__post_init__`.

    >>> @record
    ... class Point:
    ...     x: float
    ...     y: float = 0.0
    >>> Point(1.0)
    Point(x=1.0, y=0.0)
    >>> Point(1.0) == Point(1.0, 0.0)
    True
    """
    if cls is None:
        return lambda cls: _record(cls, eq, kw_only)
    return _record(cls, eq, kw_only)


def _record(cls: Any, eq: bool, kw_only: bool) -> Any:
    own = set(vars(cls))
    slotted = dataclass(init=False, repr=False, eq=False, slots=True, kw_only=kw_only)(cls)
    found = fields(slotted)
    methods: dict[str, Any] = {
        "__init__": _init(slotted, found),
        "__repr__": _repr,
        "__setattr__": _refuse_assignment,
        "__delattr__": _refuse_deletion,
        **_copying(slotted, [f.name for f in found]),
    }
    if eq:
        methods |= _comparisons([f.name for f in found if f.compare])
    for name, method in methods.items():
        if name not in own:
            setattr(slotted, name, method)
    return slotted


def _init(cls: Any, found: tuple[Field[Any], ...]) -> Any:
    names: dict[str, Any] = {}
    positional, by_name, body = ["self"], ["*"], []
    for f in found:
        if not f.init or f.default_factory is not MISSING:
            raise TypeError(f"{cls.__name__}.{f.name}: fields of a record have no factory, and are all given")
        names[f"set_{f.name}"] = getattr(cls, f.name).__set__  # the slot's: object.__setattr__ would look for it
        body.append(f"set_{f.name}(self, {f.name})")
        parameter = f.name
        if f.default is not MISSING:
            names[f"default_{f.name}"] = f.default
            parameter += f"=default_{f.name}"
        (by_name if f.kw_only else positional).append(parameter)
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join(positional + (by_name if len(by_name) > 1 else []))
    exec(f"def __init__({parameters}): {'; '.join(body) or 'pass'}", names)
    return names["__init__"]


def _comparisons(names: list[str]) -> dict[str, Any]:
    key: Callable[[Any], Any] = attrgetter(*names) if names else lambda one: ()

    def __eq__(one: Any, other: Any) -> bool:
        return key(one) == key(other) if other.__class__ is one.__class__ else NotImplemented

    def __hash__(one: Any) -> int:
        return hash(key(one))

    return {"__eq__": __eq__, "__hash__": __hash__}


def _repr(one: Any) -> str:
    shown = ", ".join(f"{f.name}={getattr(one, f.name)!r}" for f in fields(one) if f.repr)
    return f"{one.__class__.__qualname__}({shown})"


def _refuse_assignment(one: Any, name: str, value: Any) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(one: Any, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


# Copies (`copy.copy`, `copy.deepcopy`): by default a state is set attribute by attribute, which is refused here.


def _copying(cls: Any, names: list[str]) -> dict[str, Any]:
    get: Callable[[Any], Any] = attrgetter(*names) if names else lambda one: ()
    # Of one name it gives the value, not a tuple of values.
    state: Callable[[Any], Any] = (lambda one: (get(one),)) if len(names) == 1 else get
    setters = [getattr(cls, name).__set__ for name in names]

    def __getstate__(one: Any) -> tuple[Any, ...]:
        found: tuple[Any, ...] = state(one)
        return found

    def __setstate__(one: Any, state: tuple[Any, ...]) -> None:
        for put, value in zip(setters, state, strict=True):
            put(one, value)

    return {"__getstate__": __getstate__, "__setstate__": __setstate__}
