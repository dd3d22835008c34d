"""Interning of graphs: traces that differ in constants alone share one graph, and so its compiled code.

A transform that is applied to values, and a loop outside of a function, are traced at each call. Their graphs differ in
the arrays and numbers that the user's Python held at that time. `shared` finds the graph of an earlier call that
differs in constants alone, and turns constants into inputs: large ones at once, small ones once their values have
changed. So a rebound number compiles one more graph, and no further one; a literal stays a constant. If a transform
inlines such a graph into the trace around it, the values become constants that vary there, and then inputs.
"""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import types
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import field, fields, is_dataclass, replace
from typing import Any

import numpy as np
import optree

from ctrlgrad import forks
from ctrlgrad.ir import attributes
from ctrlgrad.ir.caching import Cache, Recent
from ctrlgrad.ir.control import Branch, Capture, Loop, view
from ctrlgrad.ir.graph import Graph, Node, Value
from ctrlgrad.ir.op import OPS
from ctrlgrad.ir.types import StackType, TensorType, Type
from ctrlgrad.records import record
from ctrlgrad.source import Source

# Python functions in a graph, compared by their code and captures: each trace creates new function objects.
#
# Two functions are alike if they have one code, and what they close over is the same object or an equal number, text
# or type. One that assigns to a variable around it, or closes over a list that each trace makes anew, is like itself
# alone.


FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_NUMBERS = (float, complex, np.generic)
_EQUAL = (bool, int, str, bytes, np.dtype, TensorType, StackType, Source, optree.PyTreeSpec, types.CodeType)


class Alike:
    """A function as a key: equal to functions that do the same now."""

    __slots__ = ("fn",)

    def __init__(self, fn: Any) -> None:
        self.fn = fn

    def __hash__(self) -> int:
        fn = self.fn
        while isinstance(fn, functools.partial | types.MethodType):
            fn = fn.func if isinstance(fn, functools.partial) else fn.__func__
        return hash(getattr(fn, "__code__", None))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Alike) and _alike(self.fn, other.fn)


def _alike(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, types.MethodType):
        return a.__self__ is b.__self__ and _alike(a.__func__, b.__func__)
    if isinstance(a, functools.partial):
        return all(map(_alike, (a.func, a.args, _items(a.keywords)), (b.func, b.args, _items(b.keywords))))
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_alike, a, b))
    if isinstance(a, types.FunctionType):
        return (
            a.__code__ is b.__code__
            and a.__globals__ is b.__globals__
            and not (a.__dict__ or b.__dict__ or _assigns_around(a.__code__))
            and all(map(_alike, _held(a), _held(b)))
        )
    if isinstance(a, _NUMBERS):
        return repr(a) == repr(b)
    return isinstance(a, _EQUAL) and a == b


def _items(keywords: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted(keywords.items()))


def _held(fn: types.FunctionType) -> tuple[Any, ...]:
    """Defaults, and what the variables around a function hold; an empty one is like no other."""
    try:
        cells = tuple(cell.cell_contents for cell in fn.__closure__ or ())
    except ValueError:
        return (object(),)
    return fn.__defaults__, _items(fn.__kwdefaults__ or {}), cells


@functools.lru_cache(maxsize=1024)
def _assigns_around(code: types.CodeType) -> bool:
    """Return true if a function, or one inside it, assigns to a variable around it."""
    around = set(code.co_freevars)
    stores = (i for i in dis.get_instructions(code) if i.opname in ("STORE_DEREF", "DELETE_DEREF"))
    return any(i.argval in around for i in stores) or any(
        isinstance(x, types.CodeType) and _assigns_around(x) and around.intersection(x.co_freevars)
        for x in code.co_consts
    )


# Digest of a graph's meaning, by which equal graphs and regions are found. Two graphs with one digest have the same
# ops, operands, attributes, constants, types, names and regions. Their places in the user's code may differ.


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


# Largest constant, in bytes, that is compared with its former value; a larger one is always an input.
LARGEST = 4096
# Graphs that are kept, and their values together. A graph holds its compiled code: measured 0.12 MB for the gradient of
# 10 operations and 1.15 MB for 100, about 4 KB for each value, so all graphs hold at most about 0.5 GB. They are let go
# by age, not with the user's function: a function is often made anew at each call (a lambda in a loop), and is found by
# its code, which the code around it holds.
MOST, MOST_VALUES = 1024, 1 << 17


@record(frozen=False)
class _Family:
    """Graphs that differ in constants alone: the constants by their position, and the graph with some as inputs."""

    # Count of the graph's values, those of its regions included.
    values: int = 0
    constants: dict[int, bytes] = field(default_factory=dict)
    graph: Graph | None = None
    lock: Any = field(default_factory=forks.lock)


_FAMILIES: Recent[Hashable, _Family] = Recent(MOST, MOST_VALUES, lambda family: family.values)


def forget() -> None:
    """Let go of all graphs that later traces would find, and of what was compiled of them."""
    _FAMILIES.clear()


def lift_constants(graph: Graph) -> tuple[Graph, list[np.ndarray]]:
    """The graph with its constants as further inputs (those in regions stay), and their values."""
    lifted = [node for node in graph.nodes if node.op.name == "constant"]
    nodes = tuple(node for node in graph.nodes if node.op.name != "constant")
    inputs = (*graph.inputs, *(node.result for node in lifted))
    return Graph(inputs, nodes, graph.outputs, graph.name), [attributes.Constant.of(node).value for node in lifted]


def shared(graph: Graph, *, differentiated: bool = False) -> tuple[Graph, list[np.ndarray]]:
    """A graph that says the same, from the same lines of the user's code, and the values of its further inputs.

    The graph has no calls. The first call's graph serves later ones that differ in constants alone. Derivatives depend
    on the constants that are not finite (`gradients/strong_zeros.py`), so these are equal in graphs to differentiate.
    """
    constants: list[attributes.Constant] = []
    numbers: dict[Value, int] = {}
    try:
        key = _key(graph, numbers, constants)
        wild = frozenset(i for i, x in enumerate(constants) if differentiated and not x.is_finite)
        family = _FAMILIES.get((key, wild), lambda: _Family(len(numbers)))
    except TypeError:
        # An attribute that cannot be a key.
        return graph, []
    with family.lock:
        if family.graph is None:
            kept = (i for i, x in enumerate(constants) if x.value.nbytes <= LARGEST and not x.varies)
            family.constants = {i: constants[i].value.tobytes() for i in kept}
        changed = [i for i, held in family.constants.items() if constants[i].value.tobytes() != held]
        for i in changed:
            del family.constants[i]
        if changed or family.graph is None:
            family.graph = _lifted(graph, frozenset(range(len(constants))) - family.constants.keys(), wild)
        return family.graph, [x.value for i, x in enumerate(constants) if i not in family.constants]


def _lifted(graph: Graph, positions: frozenset[int], wild: frozenset[int]) -> Graph:
    """The graph with the constants at these positions, counted in the order of `_key`, as its last inputs.

    `wild`: positions of constants that are not finite.
    """
    if not positions:
        return graph
    nodes, free = _without(graph, iter(range(1 << 62)), positions, wild)
    return Graph((*graph.inputs, *(free[i] for i in sorted(free))), nodes, graph.outputs, graph.name)


def _without(
    graph: Graph, position: Iterator[int], positions: frozenset[int], wild: frozenset[int]
) -> tuple[tuple[Node, ...], dict[int, Value]]:
    """The nodes of a graph without those constants, and the values that are free in it then, by position."""
    nodes: list[Node] = []
    free: dict[int, Value] = {}
    for node in graph.nodes:
        if node.op.name == "constant" and (i := next(position)) in positions:
            if i not in wild:
                free[i] = node.result
                continue
            # Inputs count as finite where zeros are to stop a NaN: a barrier says that this one is not.
            free[i] = Value(node.result.type, node.result.hint)
            barrier = attributes.Barrier(name=attributes.NOT_FINITE)
            node = Node(OPS["barrier"], (free[i],), node.results, barrier, (), node.source)
        if node.regions:
            inside = [_without(region, position, positions, wild) for region in node.regions]
            outer = {i: Value(v.type, v.hint) for _, found in inside for i, v in found.items()}
            if outer:
                node = _capturing(node, inside, outer)
                free.update(outer)
        nodes.append(node)
    return tuple(nodes), free


def _capturing(
    node: Node, inside: Sequence[tuple[tuple[Node, ...], dict[int, Value]]], outer: Mapping[int, Value]
) -> Node:
    """A loop or a branch with these nodes in its regions, which capture the values of `outer`."""
    entering = [[found.get(i, Value(v.type, v.hint)) for i, v in outer.items()] for _, found in inside]
    match view(node):
        case Loop() as loop:
            added = [Capture(v, *inner) for v, *inner in zip(outer.values(), *entering, strict=True)]
            cond, body = (nodes for nodes, _ in inside)
            return loop.rebuilt(captures=(*loop.captures, *added), cond=cond, body=body).node
        case Branch() as branch:
            graphs = tuple(
                Graph((*old.inputs, *new), nodes, old.outputs, old.name)
                for old, new, (nodes, _) in zip(branch.branches, entering, inside, strict=True)
            )
            return replace(branch, operands=(*branch.operands, *outer.values()), branches=graphs).node
        case _:
            raise AssertionError(f"{node} owns regions, and is neither a loop nor a branch")


def _key(graph: Graph, numbers: dict[Value, int], constants: list[attributes.Constant]) -> Hashable:
    """Everything that a graph says but the values of its constants, which are appended to `constants`."""
    for value in graph.inputs:
        numbers[value] = len(numbers)
    nodes = []
    for node in graph.nodes:
        for value in node.results:
            numbers[value] = len(numbers)
        if isinstance(node.attrs, attributes.Constant):
            constants.append(node.attrs)
            given: Any = node.attrs.varies
        else:
            given = tuple((name, _attribute(value)) for name, value in node.attrs.given().items())
        nodes.append(
            (
                node.op.name,
                tuple(numbers[v] for v in node.operands),
                tuple((v.type, v.hint) for v in node.results),
                given,
                tuple(_key(region, numbers, constants) for region in node.regions),
                node.source,
            )
        )
    inputs = tuple((v.type, v.hint) for v in graph.inputs)
    return graph.name, inputs, tuple(nodes), tuple(numbers[v] for v in graph.outputs)


def _attribute(value: Any) -> Hashable:
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        return array.dtype, array.shape, hashlib.blake2b(array.tobytes(), digest_size=16).digest()
    if isinstance(value, tuple | list):
        return tuple(map(_attribute, value))
    if isinstance(value, slice):
        return "slice", *map(_attribute, (value.start, value.stop, value.step))
    if isinstance(value, FUNCTIONS):
        return Alike(value)
    # 1, 1.0 and True are equal, and not the same.
    return type(value), value
