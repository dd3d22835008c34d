"""Digest of a graph's meaning, by which equal graphs and regions are found.

Two graphs with one digest have the same ops, operands, attributes, constants, types, names and regions. Their places in
the user's code may differ.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from ctrlgrad.ir.caching import Cache
from ctrlgrad.ir.graph import Graph, Value
from ctrlgrad.ir.types import StackType, TensorType, Type


def fingerprint(graph: Graph) -> str | None:
    """The digest of a graph; None where it holds what only this process knows, as a Python function.

    >>> from ctrlgrad.ir.builder import Builder
    >>> graph = Builder(name="nothing").finish([])
    >>> fingerprint(graph) == fingerprint(graph)
    True
    """
    return _FINGERPRINTS.get(graph, None, lambda: _made(graph))


_FINGERPRINTS: Cache[None, str | None] = Cache(1)


def _made(graph: Graph) -> str | None:
    parts: list[str] = []
    try:
        _graph(graph, parts)
    except _Unknown:
        return None
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class _Unknown(Exception):
    """A value that cannot be told by its text."""


def _graph(graph: Graph, parts: list[str]) -> None:
    numbers: dict[Value, int] = {}

    def defined(values: tuple[Value, ...]) -> str:
        for value in values:
            numbers[value] = len(numbers)
        return ", ".join(f"{_type(v.type)} {v.hint!r}" for v in values)

    def read(values: tuple[Value, ...]) -> str:
        return ",".join(str(numbers[v]) for v in values)

    parts.append(f"graph {graph.name!r} ({defined(graph.inputs)}) {{")
    for node in graph.nodes:
        parts.append(f"{node.op.name}({read(node.operands)}) {_text(node.attrs)} {len(node.regions)}")
        for region in node.regions:
            _graph(region, parts)
        parts.append(defined(node.results))
    parts.append(f"}} {read(graph.outputs)}")


def _type(type: Type) -> str:
    if isinstance(type, StackType):
        return f"stack of {_type(type.element)}"
    return f"{type.dtype.str}{type.shape}"


def _text(value: Any) -> str:
    """A text that two values share only if they are the same."""
    if value is None or value is Ellipsis or isinstance(value, bool | int | float | complex | str | bytes):
        # Numbers of subclasses, as NumPy's, say their type.
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, TensorType | StackType):
        return _type(value)
    if isinstance(value, np.dtype):
        return f"dtype {value.str}"
    if isinstance(value, np.ndarray | np.generic):
        array = np.ascontiguousarray(value)
        return f"{array.dtype.str}{array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__} {value.name}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__}({', '.join(map(_text, value))})"
    if isinstance(value, slice):
        return f"slice({_text(value.start)}, {_text(value.stop)}, {_text(value.step)})"
    if isinstance(value, frozenset):
        return f"set({', '.join(sorted(map(_text, value)))})"
    if isinstance(value, Mapping):
        return f"mapping({', '.join(f'{_text(k)}: {_text(v)}' for k, v in value.items())})"
    if is_dataclass(value) and not isinstance(value, type):
        told = ", ".join(f"{f.name}={_text(getattr(value, f.name))}" for f in fields(value))
        return f"{type(value).__module__}.{type(value).__qualname__}({told})"
    raise _Unknown
