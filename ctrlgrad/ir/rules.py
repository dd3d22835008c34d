"""Interface of user rules: the graphs that differentiation or batching of a `call` asks for, made lazily."""

from __future__ import annotations

from typing import Protocol

from ctrlgrad.ir.graph import Graph
from ctrlgrad.records import record

# Of arguments, captures not among them, or of results; in order.
Positions = tuple[int, ...]


@record
class Answer:
    """A graph of a rule, over the operands of its call first.

    It takes the tangents of the arguments at `given`, last, and yields, last, those of the results at `found`; of a
    backward function, the cotangents of the results at `given`, and those of the arguments at `found`.
    """

    graph: Graph
    given: Positions
    found: Positions


class Forward(Protocol):
    """The derivative of a call as its user gives it: graphs that are made when they are asked for.

    `perturbed` are the arguments that are differentiated. Where the rule has no `symbolic_zeros`, its graphs are the
    same for all: they take zeros.
    """

    @property
    def label(self) -> str:
        """Name of the rule in errors."""

    @property
    def symbolic_zeros(self) -> bool: ...

    def push(self, perturbed: Positions) -> Answer | None:
        """(captures, arguments, tangents) to (results, tangents); None where there is no rule for forward mode.

        The results are those of the rule, which take the place of the call's.
        """


class Reverse(Forward, Protocol):
    """One for reverse mode; `seeded` are the results that have a cotangent."""

    def forward(self, perturbed: Positions) -> Graph:
        """(captures, arguments) to (results, residuals)."""

    def backward(self, perturbed: Positions, seeded: Positions) -> Answer:
        """(captures, residuals, cotangents) to cotangents."""


class Batching(Protocol):
    """Batching rule of a call, given by the user."""

    def rows(self, size: int | None, mapped: Positions) -> Answer:
        """(captures, arguments) to results, where the arguments at `mapped` have so many rows along axis 0; the results
        at `found` have rows then. None: how many rows only a run tells."""


class Derivative(Protocol):
    """Derivative of a function that is taken at the call, along seeds: tangents or cotangents."""

    @property
    def wrt(self) -> Positions:
        """The arguments that are differentiated."""

    @property
    def shared(self) -> int:
        """The number of results, the first ones, that do not depend on the seeds."""

    def graph(self, function: Graph, captures: int) -> Graph:
        """(captures, arguments, seeds) to results for one function of the call, or for one with rows."""

    def with_rows(self, size: int | None, seeds_alone: bool) -> Derivative:
        """The rule of the call with rows: of the function and the seeds, or of the seeds alone."""
