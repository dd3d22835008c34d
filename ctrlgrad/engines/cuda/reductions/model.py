"""Data of reductions: their texts, specifications and launches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ctrlgrad.engines.cuda.arguments import Access
from ctrlgrad.engines.cuda.elementary_functions import definitions
from ctrlgrad.engines.cuda.functions import preamble
from ctrlgrad.engines.cuda.kernel import KernelText, Parameter

POSITION = Parameter("int64", "position")
"""The input of an element's text that is its number along the reduced axes."""


@dataclass(frozen=True)
class Result:
    """Result of a reduction: a number of a dtype, made of one state, or of two for a complex number."""

    dtype: str
    states: tuple[int, ...]


@dataclass(frozen=True)
class ReductionText:
    """Reductions of one space over the same axes.

    `element` computes for one element: its first outputs are stored at once, and the remaining ones are the
    element's states. `combination` makes of states x0, x1, ... and those of later elements, y0, y1, ..., the states
    of all, r0, r1, ...; `starts` are the states of no element. Without states nothing is reduced.
    """

    element: KernelText
    combination: KernelText
    starts: tuple[str, ...]
    results: tuple[Result, ...]

    @property
    def states(self) -> tuple[Parameter, ...]:
        return self.combination.outputs

    @property
    def inputs(self) -> tuple[Parameter, ...]:
        """Inputs that are read from memory, or passed."""
        return tuple(p for p in self.element.inputs if p != POSITION)

    @property
    def stored(self) -> tuple[Parameter, ...]:
        """Outputs that are stored for each element."""
        return self.element.outputs[: len(self.element.outputs) - len(self.states)]

    @property
    def written(self) -> tuple[Parameter, ...]:
        """Outputs that are written for all elements together."""
        return tuple(Parameter(result.dtype, f"q{k}") for k, result in enumerate(self.results))

    @property
    def before(self) -> tuple[Parameter, ...]:
        """The states of all before a part, where a scan's blocks share a row."""
        return tuple(Parameter(state.dtype, f"s{k}") for k, state in enumerate(self.states))

    @property
    def partial(self) -> ReductionText:
        """The same, of which the states are written."""
        results = tuple(Result(state.dtype, (k,)) for k, state in enumerate(self.states))
        return ReductionText(self.element, self.combination, self.starts, results)

    @property
    def of_states(self) -> ReductionText:
        """The reduction of what `partial` has written."""
        inputs = tuple(Parameter(state.dtype, f"a{k}") for k, state in enumerate(self.states))
        outputs = tuple(Parameter(state.dtype, f"e{k}") for k, state in enumerate(self.states))
        text = "\n".join(f"e{k} = a{k};" for k in range(len(self.states)))
        return ReductionText(KernelText(inputs, outputs, text), self.combination, self.starts, self.results)

    @property
    def preamble(self) -> str:
        """Definitions of the functions that its text calls."""
        written = " ".join(map(str, (self.element, self.combination, *self.written)))
        return preamble(written) + definitions((*self.element.functions, *self.combination.functions))

    def __str__(self) -> str:
        starts = ", ".join(f"{state.name} = {start}" for state, start in zip(self.states, self.starts, strict=True))
        results = ", ".join(map(str, self.written))
        return f"{self.element}\nreduced from {starts} to ({results}) by\n{self.combination.operation}"


def without_reductions(text: KernelText) -> ReductionText:
    """An elementwise kernel."""
    return ReductionText(text, KernelText((), (), ""), (), ())


@dataclass(frozen=True)
class ReductionSpec:
    """A kernel: the text, how many axes stay and are reduced, and who goes through which elements.

    `lanes` threads of a block share the elements of one result. Neighbours among them are neighbouring elements where
    `is_inner`, else neighbouring results. The accesses are those of the parameters. A scan writes at each element what
    is reduced of those up to it; where it `continues`, each part of a row begins with the states of all up to it.
    """

    text: ReductionText
    kept: int
    reduced: int
    lanes: int
    is_inner: bool
    accesses: tuple[Access, ...]
    is_scan: bool = False
    continues: bool = False

    @property
    def is_moving(self) -> bool:
        """Return true if it reads the iteration counter and words."""
        return any(access.is_moving for access in self.accesses)

    @property
    def reads(self) -> tuple[Parameter, ...]:
        """The parameters that are read."""
        return (*self.text.inputs, *(self.text.before if self.continues else ()))

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Parameters that are read, then those that are written."""
        return (*self.reads, *self.text.stored, *self.text.written)

    @property
    def by_part(self) -> tuple[Parameter, ...]:
        """Parameters whose arrays have the shape [part, result], contiguous; the other arrays have the elements'
        sizes."""
        return self.text.before if self.is_scan else self.text.written

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of the parameters behind the arrays, int64 each: see `kernel_text`."""
        sizes = [f"n{axis}" for axis in range(self.kept + self.reduced)]
        strided = [
            p.name
            for p, access in zip(self.parameters, self.accesses, strict=True)
            if access.strides is not None and p not in self.by_part
        ]
        strides = [f"t_{name}_{axis}" for name in strided for axis in range(self.kept + self.reduced)]
        return ("results", "count", "span", *sizes, *strides)


@dataclass(frozen=True)
class ReductionLaunch:
    """One launch: arguments in the order of the accesses, then numbers."""

    spec: ReductionSpec
    arguments: tuple[Any, ...]
    numbers: tuple[int, ...]
    blocks: int
