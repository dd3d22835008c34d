"""Python state that a traced function reads, and the check that it has not changed.

`ctrlgrad.function` traces once per signature. `watch(roots)` lists what the function and the functions that it reaches
can read besides their arguments, and holds the values: global and closure variables, defaults, attributes of modules,
classes and objects, elements of lists, dicts and sets, and the numbers of small arrays. `Watched.is_current` compares
them at each call, mostly by identity and in C.

Reached are functions in variables, defaults, bound methods, partials, containers and attributes, to any depth, and
methods of the user's classes. Names are taken from the code: a name that stands in a branch not taken is watched too,
which costs a trace where it changes, and nothing else.

Not noticed: attributes of objects in slots or behind a property, what installed packages and the standard library read,
containers of more than `LONGEST` elements, and what NumPy computed of an array of more than `LARGEST` bytes while the
function was traced. `Watched.lines` names the last two.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from operator import attrgetter, is_, itemgetter
from typing import Any

import numpy as np

from ctrlgrad.frontend.rules import _inside
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir.interning import LARGEST
from ctrlgrad.records import record
from ctrlgrad.source import is_users

# Largest container whose elements are checked.
LONGEST = 64
# Largest number of objects that are checked for one function.
MOST = 10_000

_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic, np.dtype, types.BuiltinFunctionType)
_NUMBERS = (bool, int, float, complex, np.generic)
_contents = attrgetter("cell_contents")
_shape = attrgetter("shape")


@record(frozen=False)
class Watched:
    """Variables, elements and small arrays as they were when a function was traced."""

    # For each dict of variables or attributes: a getter of the entries that are read, and their values.
    spaces: list[tuple[Callable[[Any], Any], Mapping[str, Any], tuple[Any, ...]]] = field(default_factory=list)
    # For a dict of attributes: names that were found further up, in the object's class or in a base class.
    absent: list[tuple[Mapping[str, Any], frozenset[str]]] = field(default_factory=list)
    cells: tuple[types.CellType, ...] = ()
    held: tuple[Any, ...] = ()
    # Each function with defaults: positional defaults and keyword defaults.
    defaults: list[tuple[types.FunctionType, Any, Any]] = field(default_factory=list)
    containers: list[tuple[Any, tuple[Any, ...]]] = field(default_factory=list)
    arrays: list[tuple[np.ndarray, bytes]] = field(default_factory=list)
    # Arrays that are read at each call, as further inputs of the compiled graph, and their shapes.
    inputs: tuple[np.ndarray, ...] = ()
    shapes: tuple[Any, ...] = ()
    # Every number and array that was reached, and every container that is too long, as the user calls them.
    reached: list[tuple[str, Any]] = field(default_factory=list)

    def is_current(self) -> bool:
        """Return true if nothing has changed since the trace."""
        try:
            for get, space, values in self.spaces:
                if not all(map(is_, get(space), values)):
                    return False
            for space, names in self.absent:
                if not space.keys().isdisjoint(names):
                    return False
            if self.cells and not all(map(is_, map(_contents, self.cells), self.held)):
                return False
            for fn, defaults, named in self.defaults:
                if fn.__defaults__ is not defaults or fn.__kwdefaults__ is not named:
                    return False
            for container, elements in self.containers:
                if len(container) != len(elements) or not all(map(is_, _elements(container), elements)):
                    return False
            for array, data in self.arrays:
                if np.ndarray.tobytes(array) != data:
                    return False
            return not self.inputs or tuple(map(_shape, self.inputs)) == self.shapes
        except (KeyError, ValueError, RuntimeError):
            # A variable that is no more, a container that another thread changes.
            return False

    def without_own(self, before: Watched) -> Watched:
        """Without the containers that the function itself has changed while it was traced, as a list of its calls."""
        was = {id(container): elements for container, elements in before.containers}
        self.containers = [
            (x, now)
            for x, now in self.containers
            if len(then := was.get(id(x), now)) == len(now) and all(map(is_, then, now))
        ]
        return self

    def lines(self) -> list[str]:
        """A line about each number and array that was reached: where it is, and when it is read."""
        read = {id(y) for x in self.inputs for y in _bases(x)}
        compared = {id(x) for x, _ in self.arrays}
        lines = []
        for path, x in self.reached:
            path = path or "an object"
            if isinstance(x, _NUMBERS):
                lines.append(f"{path}: {x!r}, compared at each call")
                continue
            if not isinstance(x, np.ndarray):
                lines.append(f"{path}: {len(x)} elements, read when traced")
                continue
            how = "read" if id(x) in read else "compared" if id(x) in compared else ""
            lines.append(f"{path}: {x.dtype}{list(x.shape)}, {how + ' at each call' if how else 'read when traced'}")
        known = {id(x) for _, x in self.reached}
        unknown = [x for x in self.inputs if known.isdisjoint(map(id, _bases(x)))]
        return sorted(lines + [f"an array: {x.dtype}{list(x.shape)}, read at each call" for x in unknown])


def _bases(x: Any) -> Iterator[Any]:
    """An array and the arrays whose memory it views."""
    while x is not None:
        yield x
        x = getattr(x, "base", None)


def _elements(container: Any) -> Any:
    return container.values() if isinstance(container, dict) else container


def watch(roots: Iterable[Any]) -> Watched:
    """Record the state that these functions, and objects that hold functions, can read now."""
    return _Walk(roots).found


def code_in(arguments: Any) -> list[Any]:
    """Functions among the arguments of a call, and the classes of its objects."""
    waiting, found = [arguments], dict[int, Any]()
    while waiting:
        x = waiting.pop()
        if isinstance(x, tuple | list):
            waiting += x
        elif isinstance(x, dict):
            waiting += x.values()
        elif isinstance(x, types.FunctionType | types.MethodType | functools.partial):
            found[id(x)] = x
        elif not isinstance(x, (*_PLAIN, np.ndarray, Tensor)) and id(type(x)) not in found:
            found[id(type(x))] = type(x)
            waiting += getattr(x, "__dict__", {}).values()
    return [*found.values()]


class _Walk:
    """A walk over what functions reach: `waiting` are objects with how the user calls them, "" inside of libraries."""

    def __init__(self, roots: Iterable[Any]) -> None:
        self.found = Watched()
        self.waiting: list[tuple[str, Any]] = [(str(getattr(x, "__name__", type(x).__name__)), x) for x in roots]
        self.seen: dict[int, Any] = {}
        # Names that the code of any function reads; of modules, classes and objects those are watched.
        self.names: set[str] = set()
        self.spaces: list[tuple[str, Mapping[str, Any]]] = []
        self.read: dict[int, set[str]] = {}
        self.by_attribute: set[int] = set()
        # Dicts in which an attribute of an object or a class is looked for, one after the other.
        self.searched: list[list[Mapping[str, Any]]] = []
        self.cells: dict[int, types.CellType] = {}
        while self._walked() or self._attributes_reached():
            pass
        for space, names in ((space, sorted(self.read[id(space)])) for _, space in self.spaces):
            if names:
                # Two names at least, for a tuple.
                get = itemgetter(*names, names[0])
                self.found.spaces.append((get, space, get(space)))
        for *nearer, last in self.searched:
            for i, space in enumerate(nearer):
                further = set().union(*nearer[i + 1 :], last)
                if covered := frozenset(self.names & further - space.keys()):
                    self.found.absent.append((space, covered))
        watched = [(cell, cell.cell_contents) for cell in self.cells.values() if _is_bound(cell)]
        self.found.cells = tuple(cell for cell, _ in watched)
        self.found.held = tuple(x for _, x in watched)

    def _walked(self) -> bool:
        """Look at what waits."""
        did = bool(self.waiting)
        while self.waiting and len(self.seen) < MOST:
            path, x = self.waiting.pop()
            if isinstance(x, _NUMBERS) and path:
                self.found.reached.append((path, x))
            elif not isinstance(x, _PLAIN) and id(x) not in self.seen:
                # Kept, so that no other object gets its number.
                self.seen[id(x)] = x
                self._look(path, x)
        self.waiting.clear()
        return did

    def _attributes_reached(self) -> bool:
        """Have the attributes wait whose names some code reads."""
        for path, space in self.spaces:
            read = self.read[id(space)]
            if id(space) not in self.by_attribute:
                continue
            for name in self.names.intersection(space).difference(read):
                read.add(name)
                self.waiting.append((path and f"{path}.{name}", space[name]))
        return bool(self.waiting)

    def _look(self, path: str, x: Any) -> None:
        match x:
            case types.FunctionType():
                self._function(path, x)
            case types.MethodType():
                self.waiting += [(path, x.__func__), (path, x.__self__)]
            case functools.partial():
                self.waiting += [(path, y) for y in (x.func, *x.args, *x.keywords.values())]
            case np.ndarray():
                self._array(path, x)
            case Tensor():
                pass
            case types.ModuleType():
                if _is_users_module(x.__name__):
                    self._space(path, vars(x))
            case type():
                self._class(path, x)
            case list() | dict() | set():
                self._container(path, x)
            case tuple() | frozenset() if len(x) > LONGEST:
                self.found.reached.append((path, x))
            case tuple() | frozenset():
                self.waiting += [(path and f"{path}[{i}]", y) for i, y in enumerate(x)]
            case staticmethod() | classmethod():
                self.waiting.append((path, x.__func__))
            case property():
                self.waiting.append((path, x.fget))
            case _ if type(x).__module__.partition(".")[0] == "ctrlgrad":
                # Functions that the user gave to a transform, or to a function with a rule.
                self.waiting += [("", y) for y in (*_inside(x), getattr(x, "__wrapped__", None))]
            case _:
                self._object(path, x)

    def _function(self, path: str, fn: types.FunctionType) -> None:
        bound = {name: c for name, c in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True) if _is_bound(c)}
        defaults = (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values())
        self.waiting.append((path, getattr(fn, "__wrapped__", None)))
        if not is_users(fn.__code__.co_filename):
            # A decorator's: looked through for the user's functions.
            self.waiting += [("", x) for x in (*(c.cell_contents for c in bound.values()), *defaults)]
            return
        self.cells.update((id(cell), cell) for cell in bound.values())
        self.waiting += [(f"variable {n} around {fn.__name__}", c.cell_contents) for n, c in bound.items()]
        self.waiting += [(f"default of {fn.__name__}", x) for x in defaults]
        if defaults:
            self.found.defaults.append((fn, fn.__defaults__, fn.__kwdefaults__))
        names = _names(fn.__code__)
        self.names |= names
        space = fn.__globals__
        read = self._read(fn.__module__ or "global", space)
        for name in names.intersection(space).difference(read):
            read.add(name)
            self.waiting.append((f"global {name}", space[name]))

    def _read(self, path: str, space: Mapping[str, Any]) -> set[str]:
        """The names of this dict that are watched."""
        if id(space) not in self.read:
            self.read[id(space)] = set()
            self.spaces.append((path, space))
        return self.read[id(space)]

    def _space(self, path: str, space: Mapping[str, Any]) -> None:
        """Watch the entries of this dict that are read as attributes."""
        self._read(path, space)
        self.by_attribute.add(id(space))

    def _class(self, path: str, cls: type) -> None:
        self.searched.append([vars(kind) for kind in cls.__mro__])
        for kind in cls.__mro__:
            if _is_users_module(kind.__module__):
                self._space(path, vars(kind))
                methods = (types.FunctionType, staticmethod, classmethod, property)
                self.waiting += [(path and f"{path}.{n}", y) for n, y in vars(kind).items() if isinstance(y, methods)]

    def _object(self, path: str, x: Any) -> None:
        # A function that another library has wrapped, as `jax.jit` does.
        self.waiting += [(type(x).__name__, type(x)), (path, getattr(x, "__wrapped__", None) if callable(x) else None)]
        held = getattr(x, "__dict__", None)
        if isinstance(held, dict) and _is_users_module(type(x).__module__):
            self._space(path, held)
            self.searched.append([held, {n: None for kind in type(x).__mro__ for n in vars(kind)}])

    def _container(self, path: str, x: Any) -> None:
        if len(x) > LONGEST:
            self.found.reached.append((path, x))
            return
        elements = tuple(_elements(x))
        self.found.containers.append((x, elements))
        keys = x if isinstance(x, dict) else range(len(x))
        self.waiting += [(path and f"{path}[{k!r}]", y) for k, y in zip(keys, elements, strict=True)]

    def _array(self, path: str, x: np.ndarray) -> None:
        if x.dtype != object:
            self.found.reached.append((path, x))
            if x.nbytes <= LARGEST:
                # A masked array's own method writes to it, which its constant `masked` refuses.
                self.found.arrays.append((x, np.ndarray.tobytes(x)))


def _names(code: types.CodeType) -> set[str]:
    """Names of globals and attributes in the code of a function and of the functions in it."""
    inner = [x for x in code.co_consts if isinstance(x, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _is_bound(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _is_users_module(name: str | None) -> bool:
    if name is None or name.partition(".")[0] in sys.stdlib_module_names:
        return False
    return is_users(getattr(sys.modules.get(name), "__file__", None) or "")
