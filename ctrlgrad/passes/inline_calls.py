"""Calls dissolved: what was kept whole for its derivative's sake is put in place before a graph runs.

In: any graph. Out: no `call` node anywhere, or none of the given kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ctrlgrad.ir import Builder, Call, Graph, Node, Value, is_call, rewrite, walk
from ctrlgrad.ir.caching import Cache
from ctrlgrad.ops.control import KINDS


def inline_calls(
    graph: Graph, kinds: Collection[str] = KINDS, kept: Callable[[Call], bool] = lambda call: False
) -> Graph:
    """The graph with every call of these kinds replaced by its function, except for those that are `kept`."""

    def visit(node: Node, builder: Builder) -> Sequence[Value] | None:
        call = Call.of(node) if is_call(node) else None
        if call is None or call.kind not in kinds or kept(call):
            return None
        return builder.inline(call.function, call.operands)

    return rewrite(graph, visit)


_WITHOUT_CALLS: Cache[None, Graph] = Cache(1)


def without_calls(graph: Graph) -> Graph:
    """What an engine runs of a graph that was not simplified: made once, however often it runs."""
    return _WITHOUT_CALLS.get(graph, None, lambda: inline_calls(graph) if any(map(is_call, walk(graph))) else graph)
