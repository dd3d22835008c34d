"""Iterations as a CUDA graph: a while node whose body is two of them, one by each half of a list.

    words, by the list -> [ while condition: even half, odd half, condition ]

The body is captured from the list: what is called, and with which arguments, is the list's. All that moves is in the
words on the card, so a graph is launched again for other blocks as it is. The last launch of a turn says whether there
is another one: whether two more iterations are within the run, and where a loop's end depends on data, whether its
predicate holds. A run is one launch of the driver's, however many iterations it has.

A body is captured on a stream of its own: nobody else's work comes between. A workspace for products is given, since
what cuBLAS allocates by itself in a capture would be a node that no while node may hold.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping

from ctrlgrad.engines.cuda.arguments import Access
from ctrlgrad.engines.cuda.kernel import KernelText, Parameter
from ctrlgrad.engines.cuda.prepared import walker
from ctrlgrad.engines.cuda.prepared.model import KernelSpec

# Iterations of a turn: a carried array has two buffers, and an iteration writes the one that it does not read.
TURN = 2
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
    "cuStreamEndCapture": (_P, _P),
    "cuGraphInstantiateWithFlags": (_P, _P, ctypes.c_ulonglong),
    "cuGraphLaunch": (_P, _P),
    "cuGraphDestroy": (_P,),
    "cuGraphExecDestroy": (_P,),
}
# CU_GRAPH_COND_ASSIGN_DEFAULT, CU_GRAPH_NODE_TYPE_CONDITIONAL, CU_GRAPH_COND_TYPE_WHILE,
# CU_STREAM_CAPTURE_MODE_THREAD_LOCAL.
_ASSIGN_DEFAULT, _CONDITIONAL, _WHILE, _THREAD_LOCAL = 1, 13, 1, 1
# What the driver says where it has no memory, does not support something, or cannot capture it; of cuBLAS, in a
# capture, CUBLAS_STATUS_ALLOC_FAILED and CUBLAS_STATUS_NOT_SUPPORTED.
_OUT_OF_MEMORY = 2
_REFUSALS = {_OUT_OF_MEMORY: "there is no memory for it", 801: "not supported"}
_REFUSALS |= dict.fromkeys(range(900, 909), "not captured")
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


def condition(asks: bool) -> KernelSpec:
    """The kernel behind a turn: of the counter, the run's iterations and, where it asks for it, the predicate."""
    inputs = [Parameter("int64", "a0"), Parameter("int64", "a1"), *([Parameter("bool", "a2")] * asks)]
    operation = f"o0 = (a0 + int64({TURN}) <= a1){' & a2' * asks};"
    text = KernelText(tuple(inputs), (Parameter("bool", "o0"),), operation)
    return KernelSpec(text, (), (Access(()),) * len(inputs), (Access(None),))


class GraphDriver:
    """The driver's functions for graphs, by their addresses."""

    def __init__(self, addresses: Mapping[str, int]) -> None:
        self._functions = {
            name: ctypes.CFUNCTYPE(ctypes.c_int, *types)(addresses[name]) for name, types in FUNCTIONS.items()
        }

    def status(self, name: str, *given: object) -> int:
        """What a function answers."""
        return int(self._functions[name](*given))

    def call(self, name: str, *given: object) -> None:
        """Raises `Refused` or `GraphFailed`."""
        status = self.status(name, *given)
        if status in _REFUSALS:
            raise Refused(f"{name}: {_REFUSALS[status]} (status {status})", status != _OUT_OF_MEMORY)
        if status:
            raise GraphFailed(status)


class LoopGraph:
    """A graph that was instantiated, as long as this object lives; what runs by then is finished.

    Args:
        record: puts a turn on a stream, with the condition's handle.
        stream: one that nothing else uses.

    Raises `Refused`, `GraphFailed`, or `walker.Failed` where a launch fails for another reason than the capture.
    """

    def __init__(self, driver: GraphDriver, stream: int, record: Callable[[int, int], None]) -> None:
        self._driver = driver
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        driver.call("cuGraphCreate", ctypes.byref(graph), 0)
        try:
            _capture(driver, graph, stream, record)
            driver.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, 0)
        finally:
            driver.status("cuGraphDestroy", graph)
        self._executable = executable
        # At the end of the process the driver may be gone.
        weakref.finalize(self, driver.status, "cuGraphExecDestroy", executable).atexit = False

    def launch(self, stream: int) -> None:
        """At least one turn, and as many as the condition says."""
        self._driver.call("cuGraphLaunch", self._executable, stream)


def _capture(driver: GraphDriver, graph: ctypes.c_void_p, stream: int, record: Callable[[int, int], None]) -> None:
    context, handle, node = ctypes.c_void_p(), ctypes.c_ulonglong(), ctypes.c_void_p()
    driver.call("cuCtxGetCurrent", ctypes.byref(context))
    driver.call("cuGraphConditionalHandleCreate", ctypes.byref(handle), graph, context, 1, _ASSIGN_DEFAULT)
    given = NodeParameters(kind=_CONDITIONAL, handle=handle, condition=_WHILE, size=1, context=context)
    driver.call("cuGraphAddNode_v2", ctypes.byref(node), graph, None, None, 0, ctypes.byref(given))
    body = given.bodies[0]
    driver.call("cuStreamBeginCaptureToGraph", stream, body, None, None, 0, _THREAD_LOCAL)
    ended = ctypes.c_void_p()
    try:
        record(stream, handle.value)
    except walker.Failed as failed:
        status = driver.status("cuStreamEndCapture", stream, ctypes.byref(ended))
        is_product = failed.kind == walker.PRODUCT
        if status not in _REFUSALS and failed.status not in (_PRODUCT_REFUSALS if is_product else _REFUSALS):
            raise
        what = "a product" if is_product else "a kernel"
        raise Refused(f"{what} was not captured (status {failed.status})") from None
    except BaseException:
        driver.status("cuStreamEndCapture", stream, ctypes.byref(ended))
        raise
    driver.call("cuStreamEndCapture", stream, ctypes.byref(ended))


__all__ = [
    "FUNCTIONS",
    "NEEDED",
    "TURN",
    "GraphDriver",
    "GraphFailed",
    "LoopGraph",
    "NodeParameters",
    "Refused",
    "condition",
]
