"""Values that functions close over: saved when a function is stored for a later call, restored when it is called.

A rule is traced when a derivative is asked for, after the function that made it has gone on or returned. Two things are
noted when the call is recorded. Traced values that the rule can reach become operands of the call; otherwise they would
not be available later. The variables that the rule closes over are saved with their values: Python binds them late, so
rules made in a loop would all see the values of the last iteration.

The search follows variables, defaults, bound arguments and objects, elements of containers and attributes, to any
depth. It does not look into modules, classes and global variables.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any

import numpy as np

from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.records import record

_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.ndarray, np.generic, np.dtype, type, types.ModuleType)
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)


@record
class ClosedOver:
    """The traced values that some functions reach, and their variables with what they hold."""

    tensors: tuple[Tensor, ...]
    variables: tuple[tuple[types.CellType, Any], ...]

    @contextmanager
    def as_noted(self) -> Iterator[None]:
        """The variables as they were; what the block itself assigns to them stays."""
        before = [(cell, noted, _content(cell)) for cell, noted in self.variables]
        changed = [(cell, noted, now) for cell, noted, now in before if now is not noted]
        for cell, noted, _ in changed:
            cell.cell_contents = noted
        try:
            yield
        finally:
            for cell, noted, now in changed:
                if _content(cell) is noted:
                    cell.cell_contents = now


# Content of a variable that has no value yet.
_EMPTY = object()


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY


def closed_over(roots: Iterable[Any]) -> ClosedOver:
    """Return the tensors and variables that these functions, or objects that hold functions, reach now."""
    tensors: list[Tensor] = []
    variables: list[tuple[types.CellType, Any]] = []
    waiting, seen = list(roots), dict[int, Any]()
    while waiting:
        x = waiting.pop()
        if isinstance(x, _PLAIN) or id(x) in seen:
            continue
        # Kept, so that no other object gets its number.
        seen[id(x)] = x
        if isinstance(x, Tensor):
            tensors.append(x)
            continue
        if isinstance(x, types.CellType):
            held = _content(x)
            if held is not _EMPTY:
                variables.append((x, held))
                waiting.append(held)
            continue
        waiting += _inside(x)
    return ClosedOver(tuple(tensors), tuple(variables))


def _inside(x: Any) -> list[Any]:
    """Return the objects that an object refers to."""
    if isinstance(x, types.FunctionType):
        return [*(x.__closure__ or ()), *(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values(), *vars(x).values()]
    if isinstance(x, types.MethodType):
        return [x.__self__, x.__func__]
    if isinstance(x, functools.partial):
        return [x.func, *x.args, *x.keywords.values()]
    if isinstance(x, Mapping):
        return list(x.values()) if isinstance(x, dict | types.MappingProxyType) else []
    if isinstance(x, list | tuple | AbstractSet):
        return list(x)
    slots = [s for kind in type(x).__mro__ for s in _names(kind.__dict__.get("__slots__", ()))]
    held = [*getattr(x, "__dict__", {}).values(), *(getattr(x, s, None) for s in slots)]
    if type(x).__module__.partition(".")[0] == "ctrlgrad":
        # Of this library's own objects the functions and values that the user gave them, not graphs and plans.
        return [y for y in held if isinstance(y, (*_FUNCTIONS, Tensor, list, tuple))]
    return held


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(s for s in slots if s not in ("__dict__", "__weakref__"))
