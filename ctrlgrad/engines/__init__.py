"""Engines run graphs. They are interchangeable: the reference engine says what a graph means.

`ctrlgrad.execution`, above all of them, runs a graph on the engine of a name. In reading order:

    reference                  the definition of what a graph means, in NumPy
    native, cuda               plans in machine code, and graphs on a GPU
    block_kernels              stacks of interpreted code in a memory session
    device_array               arrays on a GPU that outlive a run
    exact_errors               errors in terms of the user's program, by a second run of the plain graph
    report                     `explain`: the work of a compiling engine, loop by loop
    precision                  subnormal numbers, rounding on a GPU
    sizes_of_a_run             check of a run's sizes
    compiling                  observers of compilation
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar

from ctrlgrad.advice import check_choice
from ctrlgrad.blocks import holding
from ctrlgrad.collector import only_new_objects
from ctrlgrad.engines.report import Report
from ctrlgrad.errors import UserInputError
from ctrlgrad.ir import Graph, attributes, walk
from ctrlgrad.ir.caching import Cache
from ctrlgrad.ir.control import loop_name
from ctrlgrad.ir.interning import fingerprint
from ctrlgrad.passes import OPTIMISATIONS, WEIGH, optimise
from ctrlgrad.plan import PASSES as PLAN_PASSES
from ctrlgrad.runtime.chunks import chunk_bytes

ENGINES = ("auto", "cuda", "dataflow", "native", "reference")

# By the passes that are left out, and the bytes of a chunk.
_OPTIMISED: Cache[tuple[frozenset[str], int], Graph] = Cache(8)
# By their fingerprints: mostly chunks of any size make the same graph, and what is compiled of one serves all budgets.
_DIFFERENT: Cache[str, Graph] = Cache(8)
_ASKS_FOR_MEMORY: Cache[None, bool] = Cache(1)


def asks_for_memory(graph: Graph) -> bool:
    """Return true if the user has set the swapping or the checkpoints of a loop's saved values."""

    def look() -> bool:
        loops = filter(None, map(attributes.Loop.find, walk(graph)))
        return any(x.swap_memory or x.checkpoint is not None for x in loops)

    return _ASKS_FOR_MEMORY.get(graph, None, look)


def refuse_checkpoint(graph: Graph, got: str) -> None:
    """Refuse `checkpoint` on a loop, for an engine that runs no chunk again."""
    node = next((n for n in walk(graph) if (loop := attributes.Loop.find(n)) and loop.checkpoint), None)
    if node is not None:
        raise UserInputError(
            f"{loop_name(node)}: checkpoint={attributes.Loop.of(node).checkpoint!r} cannot be kept to: only loops in "
            "machine code are run again",
            source=node.source,
            expected="the native engine, for checkpoint",
            got=got,
            hint="use engine='native', or swap_memory=True in place of checkpoint",
        )


def optimised_graph(graph: Graph, is_for_gpu: bool = False) -> Graph:
    """The graph as compiling engines run it in this session, made once. Only loops gain by the passes."""
    if not any(node.regions for node in graph.nodes):
        return graph
    without = current_without().difference(PLAN_PASSES) | ({WEIGH} if is_for_gpu else set())
    nbytes = chunk_bytes()

    def make() -> Graph:
        with only_new_objects():
            found = optimise(graph, without, nbytes)
            digest = fingerprint(found)
        return found if digest is None else _DIFFERENT.get(graph, digest, lambda: found)

    return _OPTIMISED.get(graph, (without, nbytes), make)


_WITHOUT: ContextVar[frozenset[str]] = ContextVar("passes that are left out", default=frozenset())


def current_without() -> frozenset[str]:
    """The names of the passes that are left out."""
    return _WITHOUT.get()


def without_passes(*names: str) -> AbstractContextManager[None]:
    """Leave passes out of what compiling engines do to graphs and plans, for a block of code."""
    known = {name for name, _ in OPTIMISATIONS} | set(PLAN_PASSES) | {WEIGH}
    for name in names:
        check_choice("ctrlgrad", "pass", name, sorted(known))
    return holding(_WITHOUT, _WITHOUT.get() | set(names))


__all__ = [
    "ENGINES", "Report", "asks_for_memory", "current_without", "optimised_graph", "refuse_checkpoint",
    "without_passes",
]  # fmt: skip
