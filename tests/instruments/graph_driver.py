"""The driver's functions for graphs, as C functions that know what CUDA refuses.

A launch on a stream that captures becomes a node, with its arguments as they are then, and runs when the graph is
launched. Refused are: whatever may wait or take memory while the thread captures (the capture is spoilt by it; CUDA
lets it pass in a relaxed one, but the engine has no need of it), a graph in which a product has taken memory by itself,
another capture on the same stream, and work on a stream that is none. A while node whose body leaves its condition be
would never end, and an if node whose condition nothing has written since it ran would do what it did then: errors here.
So are two mistakes of CUDA's: a node with an empty body does not end (before 12.8), and a graph of which a capture was
spoilt has lost a body and must not be destroyed. Nodes of a graph come one behind the other, as their dependencies have
to say.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.prepared.graphs import FUNCTIONS

CAPTURE_STREAM, CONTEXT = 12, 21
# CUDA's words: not supported; a stream captures, and its capture is spoilt; an argument is wrong.
NOT_SUPPORTED, INVALID, UNSUPPORTED, INVALIDATED = 801, 1, 900, 901
# Value of a condition before the body has written it.
UNWRITTEN = 0xFFFF


@dataclass
class Conditional:
    """A while node, or an if node."""

    handle: int
    default: int
    body: Graph
    is_loop: bool


@dataclass
class Graph:
    """A graph, or the body of a node in it."""

    nodes: list[Callable[[], None] | Conditional] = field(default_factory=list)
    # True if a product takes memory in it.
    allocates: bool = False
    conditions: dict[int, int] = field(default_factory=dict)
    # True if the driver has freed it, with the capture that went to it.
    is_freed: bool = False


@dataclass
class _Node:
    """A node by its number in a graph."""

    graph: Graph
    number: int


@dataclass
class _Capture:
    graph: Graph
    thread: int
    is_spoilt: bool = False


def read(address: int, kind: type[Any]) -> int:
    return int(kind.from_address(address).value)


class Graphs:
    """All graphs of a driver, by their handles; `guarded` makes a function that the driver answers a status with."""

    def __init__(self, guarded: Callable[[Callable[..., int | None]], Callable[..., int]]) -> None:
        self._lock = threading.RLock()
        self._number = 1000
        self._things: dict[int, Any] = {}
        self._captures: dict[int, _Capture] = {}
        # The memory of conditions, and of what the driver answers with.
        self._memory: dict[int, Any] = {}
        # How often each function was called, and how many turns each launch had.
        self.calls: dict[str, int] = dict.fromkeys(FUNCTIONS, 0)
        self.turns: list[int] = []
        # Called at each turn of a while node: the host goes on while a graph runs.
        self.meanwhile: Callable[[], None] = lambda: None
        # How often a graph was destroyed of which a body was freed: CUDA ends the process.
        self.freed_twice = 0
        # A function's name, and what it answers instead of doing anything.
        self.refusals: dict[str, int] = {}
        # Held, since the engine has their addresses.
        self._callbacks = {name: self._function(name, guarded) for name in FUNCTIONS}
        self.addresses: Mapping[str, int] = {
            name: ctypes.cast(function, ctypes.c_void_p).value or 0 for name, function in self._callbacks.items()
        }

    def _function(self, name: str, guarded: Callable[[Callable[..., int | None]], Callable[..., int]]) -> Any:
        method = getattr(self, "_" + name)

        def called(*given: int) -> int | None:
            with self._lock:
                self.calls[name] += 1
            refusal = self.refusals.get(name)
            if refusal is not None and name == "cuStreamEndCapture":
                self._captures[given[0]].is_spoilt = True
            # A capture ends, whatever is said of it.
            found: int | None = method(*given) if refusal is None or name == "cuStreamEndCapture" else None
            return found if refusal is None else refusal

        return ctypes.CFUNCTYPE(ctypes.c_int, *FUNCTIONS[name])(guarded(called))

    @property
    def alive(self) -> int:
        """Graphs and executables that are not destroyed yet, and may be."""
        return sum(isinstance(x, Graph) and not _is_broken(x) for x in self._things.values())

    def _put(self, thing: Any, out: int | None = None) -> int:
        with self._lock:
            self._number += 1
            self._things[self._number] = thing
            if out is not None:
                ctypes.c_uint64.from_address(out).value = self._number
            return self._number

    # Captures.

    def capturing(self, stream: int) -> Graph | None:
        """Capture that work on a stream goes to, if the stream captures."""
        found = self._captures.get(stream)
        return None if found is None else found.graph

    def forbid(self, what: str) -> None:
        """Something that a capture does not allow: it is spoilt, and the call fails."""
        for capture in self._captures.values():
            if capture.thread == threading.get_ident():
                capture.is_spoilt = True
                raise RuntimeError(f"operation not permitted when stream is capturing: {what}")

    def _cuStreamBeginCaptureToGraph(
        self, stream: int, graph: int, dependencies: int, edges: int, count: int, mode: int
    ) -> int | None:
        assert stream == CAPTURE_STREAM, "a capture on a stream that the caller uses"
        # CU_STREAM_CAPTURE_MODE_RELAXED: otherwise loading cuBLAS, or a collection of Python's, would end the capture.
        assert not edges and mode == 2
        if stream in self._captures:
            return INVALID
        self._comes_last(self._things[graph], dependencies, count)
        self._captures[stream] = _Capture(self._things[graph], threading.get_ident())
        return None

    def _comes_last(self, graph: Graph, dependencies: int, count: int) -> None:
        """Nodes that depend on these come after all existing ones."""
        before = [self._things[read(dependencies + 8 * k, ctypes.c_uint64)] for k in range(count)]
        last = [_Node(graph, len(graph.nodes) - 1)] if graph.nodes else []
        assert [(x.graph is graph, x.number) for x in before] == [(True, x.number) for x in last], "nodes side by side"

    def _cuStreamGetCaptureInfo_v3(
        self, stream: int, status: int, number: int, graph: int, nodes: int, edges: int, count: int
    ) -> None:
        assert not (number or graph or edges)
        capture = self._captures[stream]
        its = capture.graph
        there = bool(its.nodes) and not capture.is_spoilt
        ctypes.c_int.from_address(status).value = 1 + capture.is_spoilt
        ctypes.c_uint64.from_address(count).value = there
        if there:
            last = np.array([self._put(_Node(its, len(its.nodes) - 1))], np.uint64)
            self._memory[last.ctypes.data] = last
            ctypes.c_uint64.from_address(nodes).value = last.ctypes.data

    def _cuStreamEndCapture(self, stream: int, out: int) -> int | None:
        capture = self._captures.pop(stream)
        assert capture.thread == threading.get_ident()
        ctypes.c_uint64.from_address(out).value = 0
        capture.graph.is_freed = capture.is_spoilt
        return INVALIDATED if capture.is_spoilt else None

    # Graphs.

    def _cuCtxGetCurrent(self, out: int) -> None:
        ctypes.c_uint64.from_address(out).value = CONTEXT

    def _cuFuncLoad(self, function: int) -> None:
        assert function
        self.forbid("loading")

    def _cuGraphCreate(self, out: int, flags: int) -> None:
        assert not flags
        self._put(Graph(), out)

    def _cuGraphConditionalHandleCreate(self, out: int, graph: int, context: int, default: int, flags: int) -> None:
        assert context == CONTEXT and flags in (0, 1)
        memory = np.zeros(1, np.uint64)
        handle = int(memory.ctypes.data)
        self._memory[handle] = memory
        self._things[graph].conditions[handle] = default if flags else UNWRITTEN
        ctypes.c_uint64.from_address(out).value = handle

    def _cuGraphAddNode_v2(self, out: int, graph: int, before: int, edges: int, count: int, given: int) -> None:
        """The parameters by the places that `cuda.h` gives them."""
        raw = ctypes.string_at(given, 256)
        kind, handle = read(given, ctypes.c_int), read(given + 16, ctypes.c_uint64)
        condition, size = read(given + 24, ctypes.c_int), read(given + 28, ctypes.c_uint)
        assert (kind, size) == (13, 1) and condition in (0, 1) and not edges
        assert read(given + 40, ctypes.c_uint64) == CONTEXT
        assert not any(raw[4:16]) and not any(raw[32:40]) and not any(raw[48:])
        owner = self._things[graph]
        self._comes_last(owner, before, count)
        node = Conditional(handle, owner.conditions[handle], Graph(), bool(condition))
        owner.nodes.append(node)
        bodies = np.array([self._put(node.body)], np.uint64)
        self._memory[bodies.ctypes.data] = bodies
        ctypes.c_uint64.from_address(given + 32).value = bodies.ctypes.data
        self._put(_Node(owner, len(owner.nodes) - 1), out)

    def _cuGraphInstantiateWithFlags(self, out: int, graph: int, flags: int) -> int | None:
        self.forbid("instantiation")
        found: Graph = self._things[graph]
        inside = list(_conditional(found))
        assert not flags and not _is_broken(found)
        for graph_of in (found, *(node.body for node in inside)):
            handles = [node.handle for node in graph_of.nodes if isinstance(node, Conditional)]
            assert sorted(graph_of.conditions) == sorted(handles), "a condition is one node's"
        assert all(node.body.nodes for node in inside), "a node with an empty body never ends"
        if any(node.body.allocates for node in inside):
            return INVALID
        self._put(Graph(list(found.nodes), conditions=dict(found.conditions)), out)
        return None

    def _cuGraphLaunch(self, executable: int, stream: int) -> int | None:
        if stream in self._captures:
            return UNSUPPORTED
        assert stream == 11, "a graph on another stream than its launches"
        graph: Graph = self._things[executable]
        for node in _conditional(graph):
            ctypes.c_uint64.from_address(node.handle).value = node.default
        turns = self._run(graph)
        self.turns += turns
        return None

    def _run(self, graph: Graph) -> list[int]:
        """The turns of its while nodes."""
        turns = []
        for node in graph.nodes:
            if not isinstance(node, Conditional):
                node()
                continue
            turns.append(0)
            condition = ctypes.c_uint64.from_address(node.handle)
            while True:
                value, condition.value = condition.value, UNWRITTEN
                assert value != UNWRITTEN, "a condition that nothing has written"
                if not value:
                    break
                turns[-1] += 1
                if node.is_loop:
                    self.meanwhile()
                self._run(node.body)
                if not node.is_loop:
                    break
        return turns

    def _cuGraphDestroy(self, graph: int) -> None:
        whole = self._things[graph]
        self.freed_twice += _is_broken(whole)
        bodies = [whole, *(node.body for node in _conditional(whole))]

        def is_its(x: object) -> bool:
            found = x.graph if isinstance(x, _Node) else x
            return any(found is body for body in bodies)

        self._things = {number: x for number, x in self._things.items() if not is_its(x)}

    def _cuGraphExecDestroy(self, executable: int) -> None:
        del self._things[executable]

    def is_condition(self, handle: int) -> bool:
        """Return true if a kernel may set it."""
        return handle in self._memory


def _is_broken(graph: Graph) -> bool:
    """Return true if a body is gone."""
    return graph.is_freed or any(node.body.is_freed for node in _conditional(graph))


def _conditional(graph: Graph) -> Iterator[Conditional]:
    """All nodes, those of bodies included."""
    for node in graph.nodes:
        if isinstance(node, Conditional):
            yield node
            yield from _conditional(node.body)


class Handle(threading.local):
    """The handle of products, of which each thread has its own: on which stream they are, and in which workspace."""

    def __init__(self, main: int) -> None:
        self.main = self.stream = main
        self.workspace: Any = None

    @contextmanager
    def on(self, stream: int, workspace: Any) -> Iterator[None]:
        self.stream, self.workspace = stream, workspace
        try:
            yield
        finally:
            self.stream, self.workspace = self.main, None


__all__ = ["CAPTURE_STREAM", "Conditional", "Graph", "Graphs", "Handle"]
