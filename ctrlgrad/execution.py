"""Run a graph on an engine by its name: the only module that imports every engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from ctrlgrad import memory
from ctrlgrad.dataflow.engine import run_dataflow
from ctrlgrad.dataflow.settings import current_settings, is_one_plan
from ctrlgrad.engines import asks_for_memory, current_without, optimised_graph, refuse_checkpoint
from ctrlgrad.engines.block_kernels import (
    IN_BLOCKS,
    as_lists,
    copies_of,
    handed_out,
    lists_of,
    row_pushes_of,
    rows_in_blocks,
    turns_of_rows,
)
from ctrlgrad.engines.device_array import lies_on_card
from ctrlgrad.engines.exact_errors import error_of, exact_errors, first_forward, with_point
from ctrlgrad.engines.native import llvm
from ctrlgrad.engines.native.engine import patterns_of, plan_of, run, shapes_of
from ctrlgrad.engines.native.refusals import SizesDoNotFit
from ctrlgrad.engines.reference import REFERENCE, FiniteCheck, Run, interpret
from ctrlgrad.engines.reference.interpreter import compile_graph
from ctrlgrad.engines.report import Report
from ctrlgrad.errors import CtrlgradError, IndexOutOfRangeError, NonFiniteError, UserInputError
from ctrlgrad.ir import Graph, StackType, Trait, attributes, walk
from ctrlgrad.ir.caching import Cache
from ctrlgrad.memory.session import current
from ctrlgrad.memory.turns import in_turns
from ctrlgrad.runtime.chunks import in_shorter_chunks
from ctrlgrad.runtime.stack import CPU


def run_on(
    engine: str,
    graph: Graph,
    arguments: Sequence[Any],
    check_nans: bool | Literal["gradients"] = False,
    *,
    failure: Exception | None = None,
    stays_on_card: bool = False,
    donated: frozenset[int] = frozenset(),
) -> list[Any]:
    """Run a graph on an engine and return its outputs. Arguments are arrays, and for stacks lists or `BlockStack`s.

    Under a budget a stack comes back as a `BlockStack` if a memory manager has all of its blocks, else as a list.

    With `stays_on_card` the CUDA engine returns `DeviceArray`s; it may then overwrite the arguments at the `donated`
    positions.
    """
    try:
        if failure is not None:
            return _run_natively(graph, arguments, failure)

        def run() -> list[Any]:
            if engine == "cuda" and not check_nans:
                return _run_on_cuda(graph, arguments, stays_on_card, donated)
            return _run_on(engine, graph, arguments, check_nans)

        return run() if current() is None or donated or _has_effects(graph) else in_shorter_chunks(run)
    except (NonFiniteError, IndexOutOfRangeError) as error:
        # Under a budget the reference engine could exceed it, and donated arguments are gone.
        is_told_again = current() is None and check_nans != "gradients" and not (engine == "cuda" and donated)
        found = _told_again(engine, error, graph, arguments) if is_told_again else error
        if found is error:
            raise
        raise found from error


def _told_again(engine: str, error: CtrlgradError, graph: Graph, arguments: Sequence[Any]) -> CtrlgradError:
    """Run again to complete an error: the point where a NaN appeared, or the first index out of range."""
    arguments = _listed_in_turns(arguments)
    if engine == "cuda" and not all(isinstance(x, np.ndarray | np.generic | list) for x in arguments):
        from ctrlgrad.engines.cuda.cupy_library import cupy_library
        from ctrlgrad.engines.cuda.engine import read_arguments

        arguments = read_arguments(cupy_library(), arguments)
    if isinstance(error, NonFiniteError):
        return with_point(error, graph, arguments)
    if engine == "dataflow" and not any(note.startswith("on rank") for note in error.notes):
        # Iterations and devices overlap there, so a different read may have failed first.
        error = error_of(graph, arguments) or error
    return first_forward(error, graph, arguments) if isinstance(error, IndexOutOfRangeError) else error


def _run_on(engine: str, graph: Graph, arguments: Sequence[Any], check_nans: bool | Literal["gradients"]) -> list[Any]:
    _check_on_host(engine, arguments)
    if engine == "dataflow" and (check_nans or not is_one_plan(graph, current_settings())):
        return run_dataflow(graph, copies_of(arguments), check_nans)
    if current() is None and asks_for_memory(graph):
        with memory.budget():
            return as_lists(_run_on(engine, graph, arguments, check_nans))
    if engine != "reference" and not check_nans:
        return _run_natively(graph, arguments)
    if engine not in ("auto", "native"):
        refuse_checkpoint(graph, f"engine={engine!r}")
    return _interpret(graph, arguments, Run(finite=FiniteCheck(check_nans) if check_nans else None))


def expect(engine: str) -> None:
    """Load LLVM in the background: a graph for this engine will follow."""
    if engine in ("auto", "native"):
        llvm.begin()


def program_of(graph: Graph, arguments: Sequence[Any]) -> Callable[[Sequence[Any]], list[Any]] | None:
    """Return the native program of a graph for arguments of these sizes.

    Pass errors that it raises to `after_failure`. None if the graph asks for memory.
    """
    return None if asks_for_memory(graph) else patterns_of(optimised_graph(graph)).program(arguments)


def after_failure(graph: Graph, arguments: Sequence[Any], error: Exception) -> list[Any]:
    """Finish `run_on` after a failed native run: return the outputs, or raise the error in its final form."""
    return run_on("native", graph, arguments, failure=error)


def _run_natively(graph: Graph, arguments: Sequence[Any], failure: Exception | None = None) -> list[Any]:
    """Run the plan of the whole graph; `failure` is the error of a run that has already happened."""
    found = optimised_graph(graph)
    rows_leave = current() is not None and any(isinstance(v.type, StackType) for v in graph.outputs)
    if rows_leave and any(loop.checkpoint for node in walk(graph) if (loop := attributes.Loop.find(node))):
        # They are computed again after the call, whose caller may change its arrays.
        arguments = [x.copy() if isinstance(x, np.ndarray) else x for x in arguments]
    try:
        with exact_errors(graph, found, arguments, lists_of):
            return handed_out(run(found, arguments, current_without(), failure))
    except SizesDoNotFit as error:
        # The reference engine's kernel raises the error that names the op and its sizes.
        return _interpret(graph, arguments, Run(silent_callbacks=error.callbacks))


def _interpret(graph: Graph, arguments: Sequence[Any], run: Run) -> list[Any]:
    """Run the reference engine's kernels; in a session they count bytes and keep saved values in blocks.

    A call that is refused beside another thread's begins anew alone, as on the native engine.
    """
    session = current()
    all_turns = turns_of_rows(arguments)
    if session is not None and any(node.regions for node in graph.nodes):
        all_turns.add(session.manager(CPU).turns)
    if not all_turns or _runs_once(graph):
        return _interpret_now(graph, arguments, run)
    again = replace(run, iterations=[])
    return in_turns(
        all_turns, lambda: _interpret_now(graph, arguments, run), lambda: _interpret(graph, arguments, again)
    )


_HAS_EFFECTS: Cache[None, bool] = Cache(1)


def _has_effects(graph: Graph) -> bool:
    return _HAS_EFFECTS.get(graph, None, lambda: any(Trait.EFFECT in node.op.traits for node in walk(graph)))


_RUNS_ONCE: Cache[None, bool] = Cache(1)


def _runs_once(graph: Graph) -> bool:
    """True if a graph calls the user's Python, which may wait for another thread, or has effects."""
    return _RUNS_ONCE.get(
        graph, None, lambda: any(attributes.Hook.find(n) or Trait.EFFECT in n.op.traits for n in walk(graph))
    )


def _interpret_now(graph: Graph, arguments: Sequence[Any], run: Run) -> list[Any]:
    if current() is None:
        return interpret(graph, lists_of(arguments), run, REFERENCE)
    if run.is_watched:
        # Checks and observers look at every row, so rows stay where they are.
        return as_lists(interpret(graph, lists_of(arguments), run, IN_BLOCKS))
    given = copies_of(arguments)
    with rows_in_blocks(lambda: row_pushes_of(graph)):
        found = interpret(graph, given, run, IN_BLOCKS)
        # A single op leaves no blocks: a TensorArray outside of a trace would have one for each row.
        return handed_out(found) if any(node.regions for node in graph.nodes) else as_lists(found)


def rows_of(stack: Any) -> list[Any]:
    """The rows of a stack as a list, read in turns under the budgets that they lie in."""
    if isinstance(stack, list):
        return stack

    def read() -> list[Any]:
        # A copy: another thread may read the stack itself.
        rows: list[Any] = stack.copy().rows()
        return rows

    return in_turns(turns_of_rows([stack]), read, read)


def _listed_in_turns(arguments: Sequence[Any]) -> list[Any]:
    """Arguments with stacks as lists of rows, which are read in turns under the budgets that they lie in."""

    def read() -> list[Any]:
        return lists_of(arguments)

    return in_turns(turns_of_rows(arguments), read, read)


def kernel_of(graph: Graph) -> Callable[[list[Any]], Sequence[Any]]:
    """Kernel of the reference engine for a graph without loops: a function from arrays to results."""
    program = compile_graph(graph, REFERENCE)
    if len(program.steps) != 1:
        run = Run()
        return lambda arrays: program([*arrays], run)
    (step,) = program.steps
    kernel, is_pure = step.kernel, step.is_pure
    if step.result is None:
        return lambda arrays: kernel(*arrays) if is_pure else kernel([*arrays], Run())
    return lambda arrays: (kernel(*arrays) if is_pure else kernel([*arrays], Run()),)


def _check_on_host(engine: str, arguments: Sequence[Any]) -> None:
    for position, x in enumerate(arguments):
        if lies_on_card(x):
            raise UserInputError(
                f"array {position} lies on a GPU, and engine={engine!r} computes on the processor",
                expected="NumPy arrays, or engine='cuda'",
                got=type(x).__name__,
                hint="use cg.options(engine='cuda'), or pass numpy.asarray(array), or array.get() of CuPy's",
            )


def _run_on_cuda(graph: Graph, arguments: Sequence[Any], stays_on_card: bool, donated: frozenset[int]) -> list[Any]:
    arguments = _listed_in_turns(arguments)
    from ctrlgrad.engines.cuda.cupy_library import cupy_library
    from ctrlgrad.engines.cuda.engine import Handover, read_arguments, run_on_device

    if current() is None and asks_for_memory(graph):
        with memory.budget():
            return _run_on_cuda(graph, arguments, stays_on_card, donated)
    library, distributed = cupy_library(), optimised_graph(graph, is_for_gpu=True)
    handover = Handover(stays_on_card, donated)
    if donated:
        # Donated arguments are gone, so no second run can find the exact error.
        return run_on_device(library, distributed, arguments, handover)
    with exact_errors(graph, distributed, arguments, lambda given: read_arguments(library, given)):
        return run_on_device(library, distributed, arguments, handover)


def explain_on(engine: str, graph: Graph, arguments: Sequence[Any]) -> Report:
    """Run a graph on the CUDA engine, or for any other name on the native one, and return a report."""
    if engine == "cuda":
        from ctrlgrad.engines.cuda import engine as report
        from ctrlgrad.engines.cuda.cupy_library import cupy_library

        return report.explain_on(cupy_library(), optimised_graph(graph, is_for_gpu=True), arguments)
    from ctrlgrad.engines.native.report import explain

    _check_on_host("native", arguments)
    try:
        return explain(optimised_graph(graph), arguments, current_without())
    except SizesDoNotFit as found:
        _interpret(graph, arguments, Run(silent_callbacks=found.callbacks))
        raise


def plan_text(graph: Graph, arguments: Sequence[Any]) -> str:
    """Plan of the native engine for a graph, for arguments of these sizes."""
    from ctrlgrad.plan.printer import format_plan

    found = optimised_graph(graph)
    return format_plan(plan_of(found, shapes_of(found, arguments), current_without()))
