"""Dataclasses whose classes cost little to make, for modules that define many of them.

`@record` is `@dataclass(frozen=True, slots=True)`, and its classes are dataclasses (`fields`, `replace`, patterns). But
`dataclass` writes and compiles the text of up to eight methods for each class, about half a millisecond of every start
of a program. Here an `__init__` is compiled once for all classes of as many fields, which differ in the fields' names,
and the other methods are closures over those names.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from types import FunctionType
from typing import Any, NoReturn, TypeVar, dataclass_transform, overload

Class = TypeVar("Class", bound=type)


@overload
def record(cls: Class) -> Class: ...
@overload
def record(*, eq: bool = True, kw_only: bool = False, frozen: bool = True) -> Callable[[Class], Class]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field, Field))
def record(cls: Any = None, *, eq: bool = True, kw_only: bool = False, frozen: bool = True) -> Any:
    """A dataclass with slots, frozen unless told otherwise; with `eq=False` an object equals itself only.

    Fields may have a default or a factory, and the class a `__post_init__`, which sets those with `init=False`.

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
        return lambda cls: _record(cls, eq, kw_only, frozen)
    return _record(cls, eq, kw_only, frozen)


def _record(cls: Any, eq: bool, kw_only: bool, frozen: bool) -> Any:
    own = set(vars(cls))
    slotted = _with_slots(cls, kw_only)
    found = fields(slotted)
    methods: dict[str, Any] = {
        "__init__": _init(slotted, found),
        "__repr__": _repr,
        "__getstate__": _state,
        "__setstate__": _set_state,
    }
    if frozen:
        methods |= {"__setattr__": _refuse_assignment, "__delattr__": _refuse_deletion}
    if eq:
        methods |= _comparisons([f.name for f in found if f.compare], frozen)
    for name, method in methods.items():
        if name not in own:
            setattr(slotted, name, method)
    return slotted


def _with_slots(cls: Any, kw_only: bool) -> Any:
    """The class as a dataclass without methods."""
    types: dict[str, Any] = inspect.get_annotations(cls)
    # `dataclass` looks into annotations that are text for what is no field, and into the signature for what it does not
    # say: both take longer than all the rest.
    cls.__annotations__ = {name: object if _is_of_field(type) else type for name, type in types.items()}
    if cls.__doc__ is None:
        cls.__doc__ = f"{cls.__name__}({', '.join(types)})"
    slotted: Any = dataclass(init=False, repr=False, eq=False, slots=True, kw_only=kw_only)(cls)
    slotted.__annotations__ = types
    for f in fields(slotted):
        if f.type is object:
            f.type = types.get(f.name, f.type)
    return slotted


def _is_of_field(type: Any) -> bool:
    return isinstance(type, str) and not any(word in type for word in ("ClassVar", "InitVar", "KW_ONLY"))


def _init(cls: Any, found: tuple[Field[Any], ...]) -> Any:
    for f in found:
        if not f.init and _default(f) is not MISSING:
            raise TypeError(f"{cls.__name__}.{f.name}: a field that is not given has no default either")
    positional, by_name = [f for f in found if f.init and not f.kw_only], [f for f in found if f.init and f.kw_only]
    ordered = [*positional, *by_name]
    makes = "".join("p" if f.default_factory is MISSING else "f" for f in ordered)
    # The slots' own setters: object.__setattr__ would look for them.
    setters = [getattr(cls, f.name).__set__ for f in ordered]
    pattern = _pattern(makes, len(positional), hasattr(cls, "__post_init__"))
    given = pattern(*setters, *(f.default_factory for f in ordered if f.default_factory is not MISSING))
    code = given.__code__.replace(
        co_varnames=("self", *(f.name for f in ordered)), co_qualname=f"{cls.__qualname__}.__init__"
    )
    defaults = [_default(f) for f in positional]
    while defaults and defaults[0] is MISSING:
        del defaults[0]
    if MISSING in defaults:
        raise TypeError(f"{cls.__name__}: a field without a default follows one that has one")
    init = FunctionType(code, given.__globals__, "__init__", tuple(defaults), given.__closure__)
    init.__kwdefaults__ = {f.name: _default(f) for f in by_name if _default(f) is not MISSING}
    init.__annotations__ = {f.name: f.type for f in ordered} | {"return": None}
    return init


class _Factory:
    """Stands for what a factory makes, as the default of a parameter."""

    def __repr__(self) -> str:
        return "<factory>"


_MADE = _Factory()


def _default(f: Field[Any]) -> Any:
    return f.default if f.default_factory is MISSING else _MADE


@functools.cache
def _pattern(makes: str, positional: int, has_post_init: bool) -> Any:
    """What makes an `__init__` of setters of slots and factories: a letter each for a field with one ("f") or without.

    Its parameters have names of their own, and so many are positional.
    """
    numbers = range(len(makes))
    parameters = ["self", *(f"p{n}" for n in numbers[:positional])]
    if positional < len(makes):
        parameters += ["*", *(f"p{n}" for n in numbers[positional:])]
    body = [f"s{n}(self, {f'f{n}() if p{n} is MADE else ' if makes[n] == 'f' else ''}p{n})" for n in numbers]
    if has_post_init:
        body.append("self.__post_init__()")
    given = [*(f"s{n}" for n in numbers), *(f"f{n}" for n in numbers if makes[n] == "f")]
    names: dict[str, Any] = {"MADE": _MADE}
    inner = f"def __init__({', '.join(parameters)}): {'; '.join(body) or 'pass'}"
    exec(f"def pattern({', '.join(given)}):\n    {inner}\n    return __init__", names)
    return names["pattern"]


def _comparisons(names: list[str], frozen: bool) -> dict[str, Any]:
    key: Callable[[Any], Any] = attrgetter(*names) if names else lambda one: ()

    def __eq__(one: Any, other: Any) -> bool:
        return key(one) == key(other) if other.__class__ is one.__class__ else NotImplemented

    def __hash__(one: Any) -> int:
        return hash(key(one))

    return {"__eq__": __eq__, "__hash__": __hash__ if frozen else None}


def _repr(one: Any) -> str:
    shown = ", ".join(f"{f.name}={getattr(one, f.name)!r}" for f in fields(one) if f.repr)
    return f"{one.__class__.__qualname__}({shown})"


def _refuse_assignment(one: Any, name: str, value: Any) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(one: Any, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


# Copies (`copy.copy`, `copy.deepcopy`): by default a state is set attribute by attribute, which may be refused here.


def _state(one: Any) -> tuple[Any, ...]:
    return tuple(getattr(one, f.name) for f in fields(one))


def _set_state(one: Any, state: tuple[Any, ...]) -> None:
    for f, value in zip(fields(one), state, strict=True):
        object.__setattr__(one, f.name, value)
