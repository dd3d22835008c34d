"""An index out of range in a gradient, told of the forward read that failed first.

Where nothing needs the value that was read, a gradient has no forward read, only its derivative: a sum into the place
that was read, in a loop that runs backwards. That loop fails at the last bad read. So after such an error the graph
runs again by the reference engine, past all bad sums; the last of them is of the read that came first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ctrlgrad.engines.exact_errors import SILENT
from ctrlgrad.engines.reference import Kernels, Run, interpret
from ctrlgrad.errors import CtrlgradError, IndexOutOfRangeError
from ctrlgrad.ir import Graph, Node, attributes
from ctrlgrad.ops.arrays import fill
from ctrlgrad.records import record
from ctrlgrad.source import Source


@record(frozen=False)
class _Counting(Run):
    """Counts bad sums, and fails at one of them."""

    bad: int = 0
    fails_at: int | None = None


def _additem(node: Node) -> Callable[[list[Any], Run], Any]:
    kernel = SILENT.in_place["additem"](node)

    def counted(values: list[Any], run: Run) -> Any:
        try:
            values[0][fill(attributes.Index.of(node).key, values[2:])]
        except IndexError:
            assert isinstance(run, _Counting)
            run.bad += 1
            if run.bad == run.fails_at:
                raise
            return values[0]
        return kernel(values, run)

    return counted


_PAST = Kernels(
    "reference past sums out of range", SILENT.pure, {**SILENT.in_place, "additem": _additem}, SILENT.control
)


def first_forward(error: IndexOutOfRangeError, graph: Graph, arguments: Sequence[Any]) -> CtrlgradError:
    """The error of the read that failed first, where `error` is of the derivative of one; else `error`."""
    # The error of another rank has its place as text.
    if not isinstance(error.source, Source) or not error.source.of:
        return error
    count = _Counting()
    try:
        interpret(graph, arguments, count, _PAST)
        interpret(graph, arguments, _Counting(fails_at=count.bad), _PAST)
    except IndexOutOfRangeError as found:
        if not count.bad:
            return error
        of = found.source.of[-1]
        found.problem = found.problem.replace("additem:", f"{of}:")
        found.source = replace(found.source, order=found.source.order - 1, of=found.source.of[:-1])
        return found
    except CtrlgradError:
        pass
    return error
