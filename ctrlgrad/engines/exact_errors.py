"""Errors told as a reader of the user's program expects them: after an error the plain graph runs again.

It runs by the reference engine, up to where it fails. Values are immutable, so it runs from the same arguments;
callbacks have been called and are not called again. There are three such errors: that of a loop which a pass has
distributed, an index out of range in a gradient, and a derivative that is not finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from ctrlgrad.engines.reference import REFERENCE, FiniteCheck, Kernels, Run, interpret
from ctrlgrad.engines.reference.finite import Culprit
from ctrlgrad.errors import CtrlgradError, ExecutionError, IndexOutOfRangeError, NonFiniteError
from ctrlgrad.ir import Graph, Node, attributes, walk
from ctrlgrad.memory.session import current
from ctrlgrad.ops.arrays import fill
from ctrlgrad.records import record
from ctrlgrad.source import Source

SILENT = Kernels(
    "reference without callbacks",
    REFERENCE.pure,
    {**REFERENCE.in_place, "callback": lambda node: lambda values, run: ()},
    REFERENCE.control,
)


# A loop over chunks reads rows of batches and writes rows after the chunk. It fails if and only if the plain loop does,
# but may name another index, size or iteration, and where several iterations would fail, another one of them.


@contextmanager
def exact_errors(
    graph: Graph, optimised: Graph, arguments: Sequence[Any], on_host: Callable[[Sequence[Any]], Sequence[Any]] = list
) -> Iterator[None]:
    """Raise the error of `graph` where running `optimised` fails, if loops were distributed.

    `on_host` gives the arguments as NumPy arrays, where they may lie on a device.
    """
    try:
        yield
    except ExecutionError as error:
        # Under a budget the reference engine could need more memory than there is.
        is_told_again = _is_distributed(optimised) and current() is None
        found = error_of(graph, on_host(arguments)) if is_told_again else None
        if found is None:
            raise
        raise found from error


def _is_distributed(graph: Graph) -> bool:
    return any((loop := attributes.Loop.find(node)) and loop.chunks_of is not None for node in walk(graph))


def error_of(graph: Graph, arguments: Sequence[Any]) -> CtrlgradError | None:
    """The error of a graph by the reference engine; None where it runs to its end."""
    try:
        interpret(graph, arguments, Run(), SILENT)
    except CtrlgradError as error:
        return error
    except Exception:
        return None
    return None


# An index out of range in a gradient, told of the forward read that failed first.
#
# Where nothing needs the value that was read, a gradient has no forward read, only its derivative: a sum into the place
# that was read, in a loop that runs backwards. That loop fails at the last bad read. So after such an error the graph
# runs again by the reference engine, past all bad sums; the last of them is of the read that came first.


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


# At which value an op's derivative is not finite: said for the errors of `check_nans`.
#
# A backward node has what its rule saved, which is not always the op's operand. So after such an error the graph runs
# once more, by the reference engine and without its callbacks, and is looked at where the op itself runs, forwards or
# computed again: at the same line, in the same iterations. Where several such ops stand there and have different
# values, or the op's value is needed nowhere, none is named. What the failing node itself was given is told in any
# case.


def with_point(error: NonFiniteError, graph: Graph, arguments: Sequence[Any]) -> NonFiniteError:
    """The error, or the one that the reference engine finds, with the value at which an op has no finite derivative."""
    check = FiniteCheck()
    try:
        interpret(graph, arguments, Run(finite=check), SILENT)
    except NonFiniteError as found:
        assert check.culprit is not None
        seen = _Seen(check.culprit)
        seen.run.observer = seen
        interpret(graph, arguments, seen.run, SILENT)
        if len(seen.points) == 1:
            found.problem += f" at {seen.points.pop()}"
        if seen.given:
            found.got = f"{check.culprit.node.op.name}({seen.given}); operands {found.got}"
        return found
    except CtrlgradError:
        pass
    return error


class _Seen:
    """Looks in at every node of a run: what the culprit was given, and the op that it is a derivative of."""

    def __init__(self, culprit: Culprit) -> None:
        self.culprit = culprit
        self.run = Run()
        self.points: set[str] = set()
        self.given = ""

    def __call__(self, node: Node, operands: Sequence[Any]) -> None:
        culprit, source, here = self.culprit, self.culprit.node.source, node.source
        if tuple(self.run.iterations) != culprit.iterations:
            return
        if node is culprit.node:
            self.given = self._text(operands)
        if source is None or here is None or not source.of or node.op.name != source.of[-1]:
            return
        if (here.file, here.line, here.function, here.of) == (
            source.file,
            source.line,
            source.function,
            source.of[:-1],
        ):
            self.points.add(self._text(operands))

    def _text(self, operands: Sequence[Any]) -> str:
        return ", ".join(_shown(x, self.culprit.element) for x in operands)


def _shown(x: Any, element: tuple[int, ...]) -> str:
    """An operand's element by the place in the result; an array that does not broadcast to it by its type."""
    if isinstance(x, list):
        return "a stack"
    shape, rest = np.shape(x), element[len(element) - np.ndim(x) :]
    if len(shape) > len(element) or any(n != 1 and i >= n for n, i in zip(shape, rest, strict=True)):
        return f"{x.dtype.name}{list(shape)}"
    return f"{np.asarray(x)[tuple(0 if n == 1 else i for n, i in zip(shape, rest, strict=True))]:g}"
