"""Dataclasses whose classes cost little to make, for modules that define many of them, and short tables.

`@record` is `@dataclass(frozen=True, slots=True)`, and its classes are dataclasses (`fields`, `replace`, patterns). But
`dataclass` writes and compiles the text of up to eight methods for each class, about half a millisecond of every start
of a program. Here an `__init__` is compiled once for all classes of as many fields, which differ in the fields' names,
and the other methods are closures over those names.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import _FIELD, MISSING, Field, FrozenInstanceError, field, fields  # type: ignore[attr-defined]
from operator import attrgetter, ge, gt, le, lt
from types import FunctionType, SimpleNamespace
from typing import Any, NoReturn, TypeVar, dataclass_transform, overload

Class = TypeVar("Class", bound=type)

# Attribute where `dataclasses` looks for a class's fields, and attributes that a class remade with slots gets anew.
_FIELDS_OF = "__dataclass_fields__"
_OF_EACH_CLASS = ("__dict__", "__weakref__")


def pairs(text: str) -> dict[str, str]:
    """A table of words, written `key:value key:value`."""
    return {key: value for key, _, value in (pair.partition(":") for pair in text.split())}


@overload
def record(cls: Class) -> Class: ...
@overload
def record(
    *, eq: bool = True, order: bool = False, kw_only: bool = False, frozen: bool = True
) -> Callable[[Class], Class]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field, Field))
def record(cls: Any = None, *, eq: bool = True, order: bool = False, kw_only: bool = False, frozen: bool = True) -> Any:
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
        return lambda cls: _record(cls, eq, order, kw_only, frozen)
    return _record(cls, eq, order, kw_only, frozen)


def _record(cls: Any, eq: bool, order: bool, kw_only: bool, frozen: bool) -> Any:
    own = vars(cls)
    inherited = {name: f for base in reversed(cls.__mro__[1:-1]) for name, f in getattr(base, _FIELDS_OF, {}).items()}
    given = _fields_given(cls, kw_only)
    found = inherited | given
    methods: dict[str, Any] = {
        "__repr__": _repr,
        "__getstate__": _state,
        "__setstate__": _set_state,
        "__match_args__": tuple(f.name for f in found.values() if f.init and not f.kw_only),
    }
    if frozen:
        methods |= {"__setattr__": _refuse_assignment, "__delattr__": _refuse_deletion}
    if eq:
        methods |= _comparisons(_key([f.name for f in found.values() if f.compare]), frozen)
    if order:
        methods |= _orderings(_key([f.name for f in found.values() if f.compare]))
    kept = {name: value for name, value in own.items() if name not in given and name not in _OF_EACH_CLASS}
    facts = {_FIELDS_OF: found, "__dataclass_params__": SimpleNamespace(frozen=frozen, eq=eq, init=True, repr=True)}
    slots = {"__slots__": tuple(name for name in given if name not in inherited)}
    if own.get("__doc__") is None:
        kept["__doc__"] = f"{cls.__name__}({', '.join(found)})"
    slotted = type(cls)(cls.__name__, cls.__bases__, methods | kept | facts | slots)
    slotted.__qualname__ = cls.__qualname__
    _tell_class(kept.values(), slotted)
    if "__init__" not in own:
        slotted.__init__ = _init(slotted, tuple(found.values()))
    return slotted


def _tell_class(values: Iterable[Any], slotted: Any) -> None:
    """Point the `super()` of a class's methods to the class with slots, which replaces the one they were written in."""
    for value in values:
        if isinstance(value, FunctionType) and "__class__" in value.__code__.co_freevars:
            cells = dict(zip(value.__code__.co_freevars, value.__closure__ or (), strict=True))
            cells["__class__"].cell_contents = slotted


def _fields_given(cls: Any, kw_only: bool) -> dict[str, Field[Any]]:
    """The fields that a class adds to those of its bases, or changes, as `dataclass` describes them."""
    found: dict[str, Field[Any]] = {}
    for name, type in inspect.get_annotations(cls).items():
        if "ClassVar" in str(type):
            continue
        default = cls.__dict__.get(name, MISSING)
        f: Any = default if isinstance(default, Field) else field(default=default)
        if f.default.__class__.__hash__ is None:
            raise ValueError(f"{cls.__name__}.{name}: all objects would share a default that can change")
        f.name, f.type, f._field_type = name, type, _FIELD
        if f.kw_only is MISSING:
            f.kw_only = kw_only
        found[name] = f
    return found


def _init(cls: Any, found: tuple[Field[Any], ...]) -> Any:
    for f in found:
        if not f.init and _default(f) is not MISSING:
            raise TypeError(f"{cls.__name__}.{f.name}: a field that is not given has no default either")
    positional, by_name = [f for f in found if f.init and not f.kw_only], [f for f in found if f.init and f.kw_only]
    ordered = [*positional, *by_name]
    makes = "".join("p" if f.default_factory is MISSING else "f" for f in ordered)
    # Where assignments are refused, the slots' own setters: object.__setattr__ would look for them.
    is_refused = cls.__setattr__ is not object.__setattr__
    setters = [getattr(cls, f.name).__set__ for f in ordered] if is_refused else []
    pattern = _pattern(makes, len(positional), hasattr(cls, "__post_init__"), is_refused)
    given = pattern(*setters, *(f.default_factory for f in ordered if f.default_factory is not MISSING))
    names = {f"a{n}": f.name for n, f in enumerate(ordered)}
    code = given.__code__.replace(
        co_varnames=("self", *names.values()),
        co_names=tuple(names.get(name, name) for name in given.__code__.co_names),
        co_qualname=f"{cls.__qualname__}.__init__",
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
    """Placeholder for a factory's result, as the default of a parameter."""

    def __repr__(self) -> str:
        return "<factory>"


_MADE = _Factory()


def _default(f: Field[Any]) -> Any:
    return f.default if f.default_factory is MISSING else _MADE


@functools.cache
def _pattern(makes: str, positional: int, has_post_init: bool, is_refused: bool) -> Any:
    """Make the pattern of an `__init__`, a function of the factories, and of the fields' setters if a plain assignment
    `is_refused`.

    `makes` has a letter for each field, "f" for one with a factory. The parameters of the `__init__` have names of
    their own; the first `positional` ones are positional.
    """
    numbers = range(len(makes))
    parameters = ["self", *(f"p{n}" for n in numbers[:positional])]
    if positional < len(makes):
        parameters += ["*", *(f"p{n}" for n in numbers[positional:])]
    made = [f"f{n}() if p{n} is MADE else p{n}" if makes[n] == "f" else f"p{n}" for n in numbers]
    body = [f"s{n}(self, {made[n]})" if is_refused else f"self.a{n} = {made[n]}" for n in numbers]
    if has_post_init:
        body.append("self.__post_init__()")
    given = [*(f"s{n}" for n in numbers if is_refused), *(f"f{n}" for n in numbers if makes[n] == "f")]
    names: dict[str, Any] = {"MADE": _MADE}
    inner = f"def __init__({', '.join(parameters)}): {'; '.join(body) or 'pass'}"
    # Compiled under this file's name, so that errors are not placed at a line of it.
    text = f"def pattern({', '.join(given)}):\n    {inner}\n    return __init__"
    exec(compile(text, __file__, "exec"), names)
    return names["pattern"]


def _key(names: list[str]) -> Callable[[Any], Any]:
    """Key by which objects are compared: the values of their fields."""
    if len(names) == 1:
        (name,) = names
        # As a tuple, which compares what it holds by identity first: an array, or NaN.
        return lambda one: (getattr(one, name),)
    return attrgetter(*names) if names else lambda one: ()


def _comparisons(key: Callable[[Any], Any], frozen: bool) -> dict[str, Any]:
    def __eq__(one: Any, other: Any) -> bool:
        return key(one) == key(other) if other.__class__ is one.__class__ else NotImplemented

    def __hash__(one: Any) -> int:
        return hash(key(one))

    return {"__eq__": __eq__, "__hash__": __hash__ if frozen else None}


def _orderings(key: Callable[[Any], Any]) -> dict[str, Any]:
    def by(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
        return lambda one, other: compare(key(one), key(other)) if other.__class__ is one.__class__ else NotImplemented

    return {"__lt__": by(lt), "__le__": by(le), "__gt__": by(gt), "__ge__": by(ge)}


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
