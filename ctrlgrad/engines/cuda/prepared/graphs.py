"""Iterations as a CUDA graph: a while node whose body is an iteration of a list.

    words, by the list -> condition -> [ while condition: iteration, condition ]

A branch is an if node for each side, behind a kernel that says which of them runs; between these nodes the list is
captured stretch by stretch. A side that launches nothing is no node: before CUDA 12.8 a node with an empty body never
ends. A loop is a while node, whose condition is set in front of it and at the end of its body. A condition belongs to
the graph, or the body, that its node is in.

The body is captured from the list: what is called, and with which arguments, is the list's. All that moves is in the
words on the card, so a graph is launched again for other blocks as it is. The last launch says whether there is another
iteration: whether it is within the run, and has memory for its rows, and where a loop's end depends on data, whether
its predicate holds. A run is one launch of the driver's, however many iterations it has.

A host that no longer wants the results writes the run's number into a word on the card, which every while node's
condition looks at: so loops end that would not end by themselves, too.

A body is captured on a stream of its own, apart from all other work. The capture mode is relaxed: in the other modes
CUDA refuses calls of any thread that may wait or allocate, and spoils the capture. Such calls happen: cuBLAS loads a
kernel at its first launch (in a branch that no iteration has taken yet, say), and Python's garbage collector may free
memory or an event of another library. Products are given a workspace, since memory that cuBLAS allocates in a capture
would be a node that no while node may hold. When a capture is spoilt, the driver frees the body that it went to, though
the body's node still refers to it. Such a graph is never destroyed: that would free the body again, which ends the
process.
"""

from __future__ import annotations

import ctypes
import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ctrlgrad.engines.cuda.kernel import Access, KernelText, Parameter, Spec
from ctrlgrad.engines.cuda.library import Launcher
from ctrlgrad.engines.cuda.prepared import walker
from ctrlgrad.engines.cuda.prepared.entries import WORD, ListWriter, Words, entries_of, parameters_of
from ctrlgrad.engines.cuda.prepared.model import (
    Branching,
    Item,
    ProductLaunch,
    Register,
    Repeating,
    View,
    all_launches,
    items_in_order,
    lists_in,
)
from ctrlgrad.engines.cuda.reductions import ONE, KernelSpec, of_numbers

# CUDA's version with while nodes, as the driver and the compiler have it.
NEEDED = 12, 4

_P, _U, _N = ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t
# The driver's functions, and the types of their parameters.
FUNCTIONS: Mapping[str, tuple[type, ...]] = {
    "cuCtxGetCurrent": (_P,),
    "cuFuncLoad": (_P,),
    "cuGraphCreate": (_P, _U),
    "cuGraphConditionalHandleCreate": (_P, _P, _P, _U, _U),
    "cuGraphAddNode_v2": (_P, _P, _P, _P, _N, _P),
    "cuStreamBeginCaptureToGraph": (_P, _P, _P, _P, _N, ctypes.c_int),
    "cuStreamGetCaptureInfo_v3": (_P, _P, _P, _P, _P, _P, _P),
    "cuStreamEndCapture": (_P, _P),
    "cuGraphInstantiateWithFlags": (_P, _P, ctypes.c_ulonglong),
    "cuGraphLaunch": (_P, _P),
    "cuGraphDestroy": (_P,),
    "cuGraphExecDestroy": (_P,),
}
# CU_GRAPH_NODE_TYPE_CONDITIONAL, CU_GRAPH_COND_TYPE_IF and _WHILE,
# CU_STREAM_CAPTURE_MODE_RELAXED.
_CONDITIONAL, _IF, _WHILE, _RELAXED = 13, 0, 1, 2
# Error codes of the driver for "out of memory", "not supported" and "cannot be captured"; below, the codes of cuBLAS in
# a capture: CUBLAS_STATUS_ALLOC_FAILED and CUBLAS_STATUS_NOT_SUPPORTED.
_OUT_OF_MEMORY = 2
_REFUSALS = {_OUT_OF_MEMORY: "there is no memory for it", 801: "not supported"}
_REFUSALS |= dict.fromkeys(range(900, 909), "not captured")
# By name what it says of a graph with a node that no body may hold, such as one that allocates.
_OWN_REFUSALS = {"cuGraphInstantiateWithFlags": {1: "it has a node that no while node may hold"}}
_PRODUCT_REFUSALS = (3, 15)


class NodeParameters(ctypes.Structure):
    """`CUgraphNodeParams` with `CUDA_CONDITIONAL_NODE_PARAMS`."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("reserved", ctypes.c_int * 3),
        ("handle", ctypes.c_ulonglong),
        ("condition", ctypes.c_int),
        ("size", ctypes.c_uint),
        ("bodies", ctypes.POINTER(ctypes.c_void_p)),
        ("context", ctypes.c_void_p),
        ("padding", ctypes.c_longlong * 25),
        ("reserved_too", ctypes.c_longlong),
    )


class Refused(Exception):
    """Why there is no graph: the list does the same. `is_lasting`: another attempt would fail too."""

    def __init__(self, reason: str, is_lasting: bool = True) -> None:
        super().__init__(reason)
        self.is_lasting = is_lasting


class GraphFailed(Exception):
    """A function of the driver has failed, with this status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


_CONDITION = Access(is_number=True)


def choice(numbers: Sequence[int]) -> KernelSpec:
    """The kernel that sets conditions by a number on the card: each where it is that one of these, unless the run is
    stopped."""
    inputs = tuple(Parameter("int64", f"a{k}") for k in range(3))
    outputs = tuple(Parameter("bool", f"o{k}") for k in range(len(numbers)))
    operation = "\n".join(f"o{k} = (a0 == int64({number})) & (a1 != a2);" for k, number in enumerate(numbers))
    return of_numbers(KernelText(inputs, outputs, operation), *[Access()] * 3, *[_CONDITION] * len(numbers))


@dataclass(frozen=True)
class Part:
    """Launches, and the bodies of conditional nodes behind them, none of them empty.

    Attributes:
        put: puts the launches on a stream; it is given the handles of the conditions that they set, one for each body.
        is_loop: true if the nodes are while nodes: the launches set the condition again at the end of the body.
    """

    put: Callable[[int, Sequence[int]], None]
    bodies: tuple[tuple[Part, ...], ...] = ()
    is_loop: bool = False


class GraphDriver:
    """The driver's functions for graphs, by their addresses."""

    def __init__(self, addresses: Mapping[str, int]) -> None:
        self._functions = {
            name: ctypes.CFUNCTYPE(ctypes.c_int, *types)(addresses[name]) for name, types in FUNCTIONS.items()
        }

    def status(self, name: str, *given: object) -> int:
        """Call a driver function and return its status."""
        return int(self._functions[name](*given))

    def call(self, name: str, *given: object) -> None:
        """Raises `Refused` or `GraphFailed`."""
        self.judge(name, self.status(name, *given))

    @staticmethod
    def judge(name: str, status: int) -> None:
        """Raises `Refused` or `GraphFailed` where that is what a function has answered."""
        refusals = _REFUSALS | _OWN_REFUSALS.get(name, {})
        if status in refusals:
            raise Refused(f"{name}: {refusals[status]} (status {status})", status != _OUT_OF_MEMORY)
        if status:
            raise GraphFailed(status)


class LoopGraph:
    """A graph that was instantiated, as long as this object lives; what runs by then is finished.

    Args:
        stream: one that nothing else uses.
        parts: what it launches.

    Raises `Refused`, `GraphFailed`, or `walker.Failed` where a launch fails for another reason than the capture.
    """

    def __init__(self, driver: GraphDriver, stream: int, parts: Sequence[Part]) -> None:
        self._driver = driver
        graph, executable, context = (ctypes.c_void_p() for _ in range(3))
        driver.call("cuCtxGetCurrent", ctypes.byref(context))
        driver.call("cuGraphCreate", ctypes.byref(graph), 0)
        writer = _Writer(driver, context, stream)
        try:
            writer.write(graph, parts)
            driver.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, 0)
        finally:
            if not writer.is_spoilt:
                driver.status("cuGraphDestroy", graph)
        self._executable = executable
        # At the end of the process the driver may be gone.
        weakref.finalize(self, driver.status, "cuGraphExecDestroy", executable).atexit = False

    def launch(self, stream: int) -> None:
        """At least one iteration, and as many as the condition says."""
        self._driver.call("cuGraphLaunch", self._executable, stream)


@dataclass(frozen=True)
class _Node:
    """A conditional node, and the graph of its body."""

    node: ctypes.c_void_p
    body: ctypes.c_void_p


class _Writer:
    """Writes nodes into a graph and the bodies of its nodes, each behind the one before.

    `is_spoilt`: the driver has freed a body of it.
    """

    def __init__(self, driver: GraphDriver, context: ctypes.c_void_p, stream: int) -> None:
        self._driver, self._context, self._stream = driver, context, stream
        self.is_spoilt = False

    def handle(self, graph: ctypes.c_void_p) -> int:
        """Of a new condition of a node in a graph."""
        handle = ctypes.c_ulonglong()
        self._driver.call("cuGraphConditionalHandleCreate", ctypes.byref(handle), graph, self._context, 0, 0)
        return handle.value

    def node(self, graph: ctypes.c_void_p, before: Sequence[int], condition: int, handle: int) -> _Node:
        """Add a conditional node that depends on the nodes `before`."""
        node, earlier = ctypes.c_void_p(), _array(before)
        given = NodeParameters(kind=_CONDITIONAL, handle=handle, condition=condition, size=1, context=self._context)
        count = len(before)
        self._driver.call("cuGraphAddNode_v2", ctypes.byref(node), graph, earlier, None, count, ctypes.byref(given))
        return _Node(node, ctypes.c_void_p(given.bodies[0]))

    def write(self, graph: ctypes.c_void_p, parts: Sequence[Part]) -> None:
        before: list[int] = []
        puts: list[Callable[[int], None]] = []
        for part in parts:
            handles = [self.handle(graph) for _ in part.bodies]
            put = partial(_with_conditions, part.put, handles)
            puts.append(put)
            if part.bodies:
                before = self._captured(graph, before, puts)
                puts = []
            for handle, body in zip(handles, part.bodies, strict=True):
                found = self.node(graph, before, _WHILE if part.is_loop else _IF, handle)
                self.write(found.body, (*body, Part(partial(_without_conditions, put))) if part.is_loop else body)
                before = [found.node.value or 0]
        if puts:
            self._captured(graph, before, puts)

    def _captured(
        self, graph: ctypes.c_void_p, before: Sequence[int], puts: Sequence[Callable[[int], None]]
    ) -> list[int]:
        """Have what is put on the stream behind these nodes; the nodes that what follows is behind."""
        driver, stream = self._driver, self._stream
        earlier = _array(before)
        driver.call("cuStreamBeginCaptureToGraph", stream, graph, earlier, None, len(before), _RELAXED)
        try:
            for put in puts:
                put(stream)
            last = self._last()
        except walker.Failed as failed:
            status = self._ended()
            is_product = failed.kind == walker.PRODUCT
            if status not in _REFUSALS and failed.status not in (_PRODUCT_REFUSALS if is_product else _REFUSALS):
                raise
            what = "a product" if is_product else "a kernel"
            raise Refused(f"{what} was not captured (status {failed.status})") from None
        except BaseException:
            self._ended()
            raise
        driver.judge("cuStreamEndCapture", self._ended())
        return last

    def _ended(self) -> int:
        """End the capture and return the driver's status."""
        status = self._driver.status("cuStreamEndCapture", self._stream, ctypes.byref(ctypes.c_void_p()))
        self.is_spoilt |= bool(status)
        return status

    def _last(self) -> list[int]:
        """The nodes that the next one of the capture would be behind."""
        status, nodes, count = ctypes.c_int(), ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_size_t()
        given = ctypes.byref(status), None, None, ctypes.byref(nodes), None, ctypes.byref(count)
        self._driver.call("cuStreamGetCaptureInfo_v3", self._stream, *given)
        return [nodes[k] or 0 for k in range(count.value)]


def _with_conditions(put: Callable[[int, Sequence[int]], None], handles: Sequence[int], stream: int) -> None:
    put(stream, handles)


def _without_conditions(put: Callable[[int], None], stream: int, handles: Sequence[int]) -> None:
    put(stream)


def _array(nodes: Sequence[int]) -> ctypes.Array[ctypes.c_void_p] | None:
    return (ctypes.c_void_p * len(nodes))(*nodes) if nodes else None


class Capture:
    """A list whose addresses are set.

    Args:
        walk: goes through the entries from one on to another one, on a stream.
        stopped: the address of the number of a run that is stopped.
    """

    def __init__(
        self,
        writer: ListWriter,
        walk: Callable[[int, int, int], None],
        launcher: Launcher,
        stopped: int,
    ) -> None:
        self.body, self.list = writer.body, writer.list
        self._writer, self._walk, self._launcher, self._stopped = writer, walk, launcher, stopped

    @property
    def kernels(self) -> list[Spec]:
        """Kernels that may not have been called before: those of conditions, and of the lists inside."""
        sides = {_numbers(item) for item in items_in_order((self.body.loop,)) if lists_in(item)}
        specs: list[Spec] = list(map(choice, sorted(sides - {()})))
        inside = [launch for item in self.body.items for its in lists_in(item) for launch in all_launches(its)]
        specs += [launch.spec for launch in inside if not isinstance(launch, ProductLaunch)]
        return list(dict.fromkeys(specs))

    def parts(self) -> list[Part]:
        """The iterations of a run."""
        return self._parts((self.body.loop,), self._writer.first)

    def _parts(self, items: Sequence[Item], start: int) -> list[Part]:
        """Items as they are captured, by the entries from one on."""
        parts: list[Part] = []
        for has_lists, group in itertools.groupby(items, lambda item: bool(lists_in(item))):
            for item in group if has_lists else ():
                inside, bodies = start + 2, []
                for its in lists_in(item):
                    bodies.append(tuple(self._parts(its, inside)))
                    inside += entries_of(its) + 1
                if numbers := _numbers(item):
                    assert isinstance(item, Repeating | Branching)
                    is_loop = isinstance(item, Repeating)
                    put = partial(self._choose, item.goes_on if isinstance(item, Repeating) else item.chosen, numbers)
                    parts.append(Part(put, tuple(bodies[k - is_loop] for k in numbers), is_loop))
                start = inside
            count = 0 if has_lists else entries_of(list(group))
            if count:
                parts.append(Part(partial(_without_conditions, partial(self._walk, start, start + count))))
                start += count
        return parts

    def _choose(self, number: View, numbers: Sequence[int], stream: int, handles: Sequence[int]) -> None:
        """Set conditions by a number on the card, unless this run is the one that is stopped."""
        given = [self.list.now(self._writer.place(x)) for x in (number, self.body.word(Register("run")))]
        spec, words = choice(numbers), Words()
        signed = [int(np.uint64(handle).astype(np.int64)) for handle in handles]
        kind, arguments = self._writer.kernel(
            words, spec, parameters_of(words, [*given, self._stopped, *signed, *ONE]), 1
        )
        entry = words.add(kind)
        words.inner(arguments)
        made = words.made()
        walker.run(made.address + WORD * entry, 0, 1, self._launcher.functions, stream)


def _numbers(item: Item) -> tuple[int, ...]:
    """Numbers at which an item's lists are gone through, if they launch anything."""
    if isinstance(item, Repeating):
        return (1,)
    return tuple(k for k, side in enumerate(lists_in(item)) if all_launches(side))
