"""Calls whose code is known: it is found by the types and sizes of the arguments, and nothing else is looked at.

Who calls a small program again and again waits for this, so a call takes few steps. A call that is not known here is
traced, compiled and run as any other, and may then be noted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ctrlgrad import tree
from ctrlgrad.engines import current_without
from ctrlgrad.execution import after_failure, program_of
from ctrlgrad.frontend.concrete import Array
from ctrlgrad.frontend.watched import Watched
from ctrlgrad.ir import Graph, StackType
from ctrlgrad.memory.session import current as session
from ctrlgrad.options import Options, current_options
from ctrlgrad.signature import Static

# Numbers whose type says their dtype.
_NUMBER_TYPES = frozenset([bool, int, float, complex, *(np.dtype(c).type for c in "?bhilqBHILQefdFD")])
# Number of signatures of a function whose code is kept at hand.
MOST_KNOWN = 256

Described = tuple[Any, Sequence[Any]]
Unflatten = Callable[[Sequence[Any]], Any]


class Reads(Protocol):
    """State that a traced function reads besides its arguments."""

    captured: list[np.ndarray]
    watched: Watched


class _Bound:
    """The code of a function for arguments of certain types and sizes."""

    def __init__(
        self,
        graph: Graph,
        unflatten: Unflatten,
        program: Callable[[Sequence[Any]], list[Any]],
        read: Reads,
    ) -> None:
        self.graph, self.unflatten, self.program = graph, unflatten, program
        self.captured, self.watched = read.captured, read.watched

    def __call__(self, leaves: Sequence[Any]) -> Any:
        if self.captured:
            leaves = [*leaves, *self.captured]
        try:
            results = self.program(leaves)
        except Exception as error:
            arrays = [np.asarray(x) for x in leaves]
            results = after_failure(self.graph, arrays, error)
            # The graph may have been compiled again, after an assumption turned out wrong.
            self.program = program_of(self.graph, arrays) or self.program
        return self.unflatten([np.asarray(x) for x in results])


class KnownCalls:
    """The calls of one function whose code is known."""

    def __init__(self) -> None:
        self._bound: dict[Any, _Bound] = {}

    def __len__(self) -> int:
        return len(self._bound)

    def get(self, key: Any) -> _Bound | None:
        return self._bound.get(key)

    def note(self, key: Any, graph: Graph, unflatten: Unflatten, arrays: Sequence[Any], read: Reads) -> None:
        """Remember the code that served this call, for calls that differ in the arrays' values alone.

        `read` says what is no argument of the call: the last of the arrays, and what must be as it was.
        """
        if any(isinstance(v.type, StackType) for v in (*graph.inputs, *graph.outputs)):
            return
        program = program_of(graph, arrays)
        if program is not None:
            if len(self._bound) >= MOST_KNOWN:
                self._bound.clear()
            self._bound[key] = _Bound(graph, unflatten, program, read)


def described(engine: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Described | None:
    """Return a call's key for compiled code, with its arrays and numbers; None if further state decides."""
    options = current_options()
    if engine == "auto":
        engine = options.engine
    if engine not in ("auto", "native") or options.check_nans or session() is not None or current_without():
        return None
    # If each argument is an array or a number, their number determines their tree.
    found = None if kwargs else _described(args, options)
    if found is not None:
        return found
    leaves, treedef = tree.flatten((args, kwargs))
    found = _described(leaves, options)
    return None if found is None else ((treedef, found[0]), found[1])


def _described(leaves: Sequence[Any], options: Options) -> Described | None:
    key: list[Any] = [options.of_traces]
    has_static = False
    for leaf in leaves:
        kind = type(leaf)
        if kind is np.ndarray or kind is Array:
            key += (leaf.dtype, leaf.shape)
        elif kind in (float, complex) and options.default_float != "float64":
            return None
        elif kind in _NUMBER_TYPES and (kind is not int or -(1 << 63) <= leaf < 1 << 63):
            key.append(kind)
        elif kind is Static:
            key.append(leaf)
            has_static = True
        else:
            return None
    return tuple(key), [x for x in leaves if type(x) is not Static] if has_static else leaves
