"""Report on a compiling engine's work on a graph, as data and as text, loop by loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

from ctrlgrad.records import record

_MODES = {
    "counted": "its predicate is on the host",
    "read": "its predicate is read before each iteration",
}


@record
class Push:
    """A value that a loop saves, the bytes of a row of it (None where they differ), and why."""

    name: str
    nbytes: int | None
    reason: str
    source: str


@record(frozen=False)
class LoopReport:
    """One loop: "native", "cuda", or "reference" with the reason."""

    name: str
    engine: str
    # Why it is not native.
    reason: str = ""
    # Of a loop on a GPU, how it learns whether it goes on: "counted" or "read".
    mode: str = ""
    # Of a loop on a GPU that has run, how launches are put on its stream: from a list, or one by one and why.
    launching: str = ""
    # Of a native loop: bytes that one iteration pushes besides rows whose sizes differ, where no branch or inner loop
    # pushes more.
    bytes_per_iteration: int = 0
    # A line per fused kernel of an iteration (on a GPU its text), and per matrix product.
    kernels: list[str] = field(default_factory=list)
    products: list[str] = field(default_factory=list)
    pushes: list[Push] = field(default_factory=list)
    # The ops that are no part of a kernel, by where they run: in a native loop "outside, by the reference engine's
    # kernels, as ..."; on a GPU "on the device", "on the host", "through the host, for want of a device kernel".
    ops: dict[str, list[str]] = field(default_factory=dict)
    inner: list[LoopReport] = field(default_factory=list)

    def lines(self, depth: int = 0) -> Iterator[str]:
        indent = "  " * depth
        how = f", {_MODES[self.mode]}" if self.mode else ""
        yield f"{indent}{self.name}: {self.engine}{how}" + (f" ({self.reason})" if self.reason else "")
        if self.launching:
            yield f"{indent}  launched {self.launching}"
        if self.bytes_per_iteration:
            yield f"{indent}  {self.bytes_per_iteration} bytes pushed an iteration"
        for push in self.pushes:
            size = "rows whose sizes differ" if push.nbytes is None else f"{push.nbytes} bytes"
            yield f"{indent}  pushes {push.name}, {size}: {push.reason}{push.source}"
        for text in self.products:
            yield f"{indent}  {text}"
        for where, names in self.ops.items():
            yield f"{indent}  {where}: {', '.join(names)}"
        for text in self.kernels:
            first, *rest = text.split("\n")
            yield f"{indent}  {first}"
            yield from (f"{indent}    {line}" for line in rest)
        for loop in self.inner:
            yield from loop.lines(depth + 1)


@record(frozen=False)
class Report:
    """Result of `explain`: the loops of a graph in their order, and one more `LoopReport` for the nodes outside of
    loops.

    Of a run on a GPU also how often the run asked something of the device: `counts` by the kind of it ("launches" are
    all that put work on the device's stream).
    """

    loops: list[LoopReport]
    outside: LoopReport | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    # A line for each number and array that the function reads besides its arguments: where it is, and when it is read.
    captured: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"one run: {', '.join(f'{n} {kind}' for kind, n in self.counts.items())}"] if self.counts else []
        if self.outside is not None:
            lines += self.outside.lines()
        lines += (line for loop in self.loops for line in loop.lines())
        return "\n".join([*lines, *(["captured:"] if self.captured else []), *(f"  {x}" for x in self.captured)])

    def all_loops(self) -> Iterator[LoopReport]:
        """All loops, with nested ones."""
        pending = list(self.loops)
        while pending:
            loop = pending.pop(0)
            yield loop
            pending = loop.inner + pending
