"""What a compiling engine does with a graph, as data and as text: which loops it compiled, and why not the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ctrlgrad.engines.block_kernels import as_lists
from ctrlgrad.engines.pushes import describe
from ctrlgrad.engines.reference import Run, interpret
from ctrlgrad.engines.reference.control_kernels import InterpretedLoop, loop_name
from ctrlgrad.engines.reference.interpreter import Program
from ctrlgrad.ir import Graph, Node

_MODES = {
    "counted": "its predicate is on the host",
    "masked": "its predicate is read once a chunk of masked iterations",
    "read": "its predicate is read before each iteration",
}


@dataclass(frozen=True)
class Push:
    """A value that a loop saves in each iteration, and why."""

    name: str
    nbytes: int
    reason: str
    source: str


@dataclass
class LoopReport:
    """One loop: "native", "cuda", or "reference" with the reason."""

    name: str
    engine: str
    # Why it is not native; of a loop on a GPU that reads its predicate before each iteration, why that is so.
    reason: str = ""
    # Of a loop on a GPU, how it learns whether it goes on: "counted", "masked" or "read".
    mode: str = ""
    # Iterations of a chunk at most, and bytes that one iteration pushes.
    chunk: int = 0
    bytes_per_iteration: int = 0
    # A line per fused loop and matrix product of an iteration (on a GPU the text of each kernel), and per product that
    # is batched over a chunk.
    kernels: list[str] = field(default_factory=list)
    batched: list[str] = field(default_factory=list)
    pushes: list[Push] = field(default_factory=list)
    # On a GPU: the ops that are no part of a kernel, by where they run: "on the device", "on the host", "through the
    # host, for want of a device kernel".
    ops: dict[str, list[str]] = field(default_factory=dict)
    inner: list[LoopReport] = field(default_factory=list)

    def lines(self, depth: int = 0) -> Iterator[str]:
        indent = "  " * depth
        how = f", {_MODES[self.mode]}" if self.mode else ""
        yield f"{indent}{self.name}: {self.engine}{how}" + (f" ({self.reason})" if self.reason else "")
        if self.engine == "native":
            pushed = f"{self.bytes_per_iteration} bytes pushed an iteration"
            yield f"{indent}  up to {self.chunk} iterations a chunk, {pushed}"
        for push in self.pushes:
            yield f"{indent}  pushes {push.name}, {push.nbytes} bytes: {push.reason}{push.source}"
        for text in self.batched:
            yield f"{indent}  once a chunk: {text}"
        for where, names in self.ops.items():
            yield f"{indent}  {where}: {', '.join(names)}"
        for text in self.kernels:
            first, *rest = text.split("\n")
            yield f"{indent}  {first}"
            yield from (f"{indent}    {line}" for line in rest)
        for loop in self.inner:
            yield from loop.lines(depth + 1)


@dataclass
class Report:
    """What `explain` found: the loops of a graph in their order.

    Of a run on a GPU also what is done outside of loops, as one `LoopReport` of the graph's name, and how often the run
    asked something of the device: `counts` by the kind of it ("launches" are all that put work on the device's stream).
    """

    loops: list[LoopReport]
    outside: LoopReport | None = None
    counts: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"one run: {', '.join(f'{n} {kind}' for kind, n in self.counts.items())}"] if self.counts else []
        if self.outside is not None:
            lines += self.outside.lines()
        elif not self.loops:
            lines.append("no loops: every op runs on the reference engine")
        return "\n".join([*lines, *(line for loop in self.loops for line in loop.lines())])

    def all_loops(self) -> Iterator[LoopReport]:
        """Every loop, those inside others too."""
        pending = list(self.loops)
        while pending:
            loop = pending.pop(0)
            yield loop
            pending = loop.inner + pending


def explain(graph: Graph, arguments: Sequence[Any]) -> Report:
    """Run an optimised graph on the native engine and say what was done with its loops."""
    from ctrlgrad.engines.native.engine import NATIVE

    as_lists(interpret(graph, arguments, Run(), NATIVE))
    program = graph.compiled[NATIVE.name]
    assert isinstance(program, Program)
    return Report(list(_loops(program)))


def _loops(program: Program) -> Iterator[LoopReport]:
    from ctrlgrad.engines.native.engine import CompiledLoop

    for step in program.steps:
        kernel: Any = step.effect
        if isinstance(kernel, CompiledLoop):
            yield _loop(step.node, kernel.native.plans.values(), kernel.interpreted)
        else:
            for inner in getattr(kernel, "programs", ()):
                yield from _loops(inner)


def _loop(node: Node, plans: Any, interpreted: InterpretedLoop) -> LoopReport:
    found = list(plans)
    native = [p for p in found if not isinstance(p, str)]
    if not native:
        reason = next((p for p in found if isinstance(p, str)), "it never ran")
        report = LoopReport(loop_name(node), "reference", reason)
        if "chunks_of" in node.attrs:
            report.engine, report.reason = "chunks", f"a loop over chunks of {node.attrs['chunks_of']} iterations"
            report.batched = [_batched(n) for n in node.regions[1].nodes if n.op.name in ("matmul", "sum")]
        report.inner = [*_loops(interpreted.cond), *_loops(interpreted.body)]
        return report
    plan = native[0]
    notes = list(plan.program.notes)
    report = LoopReport(
        loop_name(node), "native", chunk=plan.chunk, bytes_per_iteration=plan.bytes_per_iteration, kernels=notes
    )
    for use in plan.program.stacks:
        if use.pushes:
            nbytes = use.pushes * plan.row_bytes(use)
            pushed = describe(node, use.position)
            report.pushes.append(Push(pushed.name, nbytes, pushed.reason, pushed.source))
    return report


def _batched(node: Node) -> str:
    if node.op.name == "sum":
        return f"sum of {node.operands[0].tensor} to {node.result.tensor}"
    a, b = (v.tensor for v in node.operands)
    return f"matrix product {a} @ {b}"


__all__ = ["LoopReport", "Push", "Report", "explain"]
