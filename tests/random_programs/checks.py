"""Properties of random programs, and their judges.

Of every program:

- The engine gives what the plain twin gives, with every intermediate result of its declared type.
- Every graph that is made passes the verifier.
- The first derivative: reverse and forward mode agree with each other, and with finite differences.
- The second derivative along a direction, by one of four modes in turn (reverse over reverse, forward over reverse,
  reverse over forward, forward over forward), agrees with finite differences of the first one by forward mode. Where
  these say nothing (the program cuts gradients, or takes another path at every step), it agrees with the next mode.

Of one program in `Rotation.all_every` (8) besides: all four modes agree with each other, and the graphs of the program
and of its first derivative have the same text when they are traced again.

Of one program in `Rotation.jax_every` (8 in the tests, 1 for `python -m tests.random_programs`) besides: the first and
second derivative agree with JAX.

The scalar that is differentiated is a weighted sum of the sines of all results. Where a float is compared, the twin
notes how nearly: programs that decide within `expected.MARGIN` are not judged, since rounding could turn the decision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

import ctrlgrad as cg
from ctrlgrad.engines.reference import Run, run_graph
from ctrlgrad.errors import MaximumIterationsError
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.apply import value_in
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir import Graph, verify
from ctrlgrad.verify.check import Sample, Slope, sample, slope
from ctrlgrad.verify.jax_judge import confirmed
from ctrlgrad.verify.jax_translation import NotInJaxError, translate, x64
from random_programs.expected import ERRORS, ProgramMismatch, describe, expectation, rounding
from random_programs.program import Program
from random_programs.running import (
    differentiated,
    loss_of,
    signature,
    traced_function,
)

# Relative to the largest element of what is compared, or to one where all are smaller.
TWIN, MODES, JAX_FIRST, JAX_SECOND, DIFFERENCES = 1e-11, 1e-9, 1e-8, 1e-7, 1e-5

SECOND = ("reverse over reverse", "forward over reverse", "reverse over forward", "forward over forward")

Arrays = tuple[np.ndarray, ...]
# How JAX runs loops; auto: by a scan where the program has that form.
JaxForm = Literal["auto", "scan", "unrolled"]


def tells(judged: Slope) -> bool:
    """Return true if a finite difference is meaningful: its error is smaller than its value.

    A chaotic program varies within every step that rounding allows; its derivatives are still exact.
    """
    return judged.is_conclusive and judged.error <= 1e-3 * max(1.0, abs(judged.value))


@dataclass(frozen=True)
class Share:
    """The judges of one program: by which modes its second derivative is made, whether it is traced again, and JAX."""

    second: tuple[str, ...] = SECOND
    retraced: bool = True
    jax: JaxForm | None = None


@dataclass(frozen=True)
class Rotation:
    """Judges in turn: one in so many programs has all modes, and one in so many JAX (0: none)."""

    all_every: int = 8
    jax_every: int = 0
    jax_form: JaxForm = "auto"

    def share(self, number: int) -> Share:
        """The judges of the program of that number."""
        whole = number % self.all_every == 0
        by_jax = self.jax_every > 0 and number % self.jax_every == 0
        second = SECOND if whole else (SECOND[number % len(SECOND)],)
        return Share(second, whole, self.jax_form if by_jax else None)

    def everything(self) -> Share:
        """All judges there are: those of a program that failed, while it is shrunk."""
        return Share(jax=self.jax_form if self.jax_every else None)


@dataclass(frozen=True)
class Verdict:
    """Names of the comparisons made, and the number of iterations of the program."""

    compared: Counter[str]
    iterations: int


def examine(program: Program, share: Share = Share(), *, seed: int = 0) -> Verdict:
    """Judge a program.

    Raises `ProgramMismatch` with the program's source, and `UnsuitableError`.
    """
    expected = expectation(program)
    judged = _Judged(program, seed)
    try:
        if expected.results is None:
            judged.refusal()
            return Verdict(judged.compared, 0)
        judged.value(expected.results)
        if share.retraced:
            judged.retrace()
        judged.first_derivative()
        judged.second_derivative(share.second)
        if share.jax is not None:
            judged.jax(share.jax, SECOND[0] if program.is_reverse_only else share.second[0])
    except ProgramMismatch as mismatch:
        raise ProgramMismatch(f"{mismatch}\n\n{describe(program)}") from None
    except ERRORS as error:
        raise ProgramMismatch(f"{type(error).__name__}: {error}\n\n{describe(program)}") from error
    return Verdict(judged.compared, expected.iterations)


@dataclass
class _Judged:
    """One program with its graphs, each traced when it is first needed."""

    program: Program
    seed: int

    def __post_init__(self) -> None:
        self.fn = traced_function(self.program)
        self.arguments: Arrays = tuple(a.value for a in self.program.arguments)
        self.wrt = differentiated(self.program)
        self.signature = signature(self.program)
        rng = np.random.default_rng(self.seed)
        self.direction: Arrays = tuple(np.asarray(rng.standard_normal(x.shape)) for x in self.point)
        self.compared: Counter[str] = Counter()
        self.found_second: dict[str, list[np.ndarray]] = {}

    @property
    def point(self) -> Arrays:
        return tuple(self.arguments[i] for i in self.wrt)

    def trace(self, function: Callable[..., Any], name: str) -> Graph:
        """A function's graph, verified."""
        traced: Graph = cg.function(function, signature=self.signature, name=name).graph(*self.arguments)
        self.compared["the verifier"] += 1
        return verify(traced, name)

    def run(self, graph: Graph) -> list[np.ndarray]:
        return [np.asarray(x) for x in run_graph(graph, self.arguments, Run(check_types=True))]

    def traced_loss(self, *arguments: Any) -> Any:
        """A scalar in which every float of the results counts."""
        return loss_of(self.program, self.replayed(self.forward_graph)(*arguments))

    def replayed(self, graph: Graph) -> Callable[..., Any]:
        """A function that records a graph into the trace around it.

        To trace the program's Python once for each derivative would be most of the time.
        """

        def function(*arguments: Any) -> Any:
            builder = trace.current()
            assert builder is not None
            values = builder.inline(graph, [value_in(builder, x) for x in arguments])
            return tuple(Tensor(builder, v) for v in values)

        return function

    def scalar(self, graph: Graph) -> Callable[..., Any]:
        """The same for a graph with one result."""
        function = self.replayed(graph)
        return lambda *arguments: function(*arguments)[0]

    def along(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The derivative of a function along the direction, by forward mode."""

        def tangent(*arguments: Any) -> Any:
            def of_point(*point: Any) -> Any:
                merged = list(arguments)
                for i, x in zip(self.wrt, point, strict=True):
                    merged[i] = x
                return function(*merged)

            directions = tuple(map(self.as_declared, self.wrt, self.direction))
            return cg.jvp(of_point, tuple(arguments[i] for i in self.wrt), directions)[1]

        return tangent

    def as_declared(self, position: int, direction: np.ndarray) -> Any:
        """A direction whose sizes are as unknown as those of its argument."""
        axes = [axis for axis, d in enumerate(self.program.arguments[position].spec[0]) if d is None]
        return cg.unknown_dims(direction, axes) if axes else direction

    # Graphs.

    @cached_property
    def forward_graph(self) -> Graph:
        return self.trace(self.fn, "program")

    @cached_property
    def loss_graph(self) -> Graph:
        return self.trace(self.traced_loss, "loss")

    @cached_property
    def gradient_graph(self) -> Graph:
        return self.trace(cg.grad(self.scalar(self.loss_graph), argnums=self.wrt), "gradient")

    @cached_property
    def slope_graph(self) -> Graph:
        """The derivative of the loss along the direction: by forward mode where there is one."""
        if self.program.is_reverse_only:
            return self.trace(self.slope_by_reverse, "slope")
        return self.trace(self.along(self.scalar(self.loss_graph)), "slope")

    def second_graph(self, name: str) -> Graph:
        """The Hessian times the direction, by two modes; by forward over forward a scalar."""
        if name == "forward over forward":
            function = self.along(self.scalar(self.slope_graph))
        elif name == "forward over reverse":
            function = self.along(self.replayed(self.gradient_graph))
        elif name == "reverse over forward":
            function = cg.grad(self.scalar(self.slope_graph), argnums=self.wrt)
        else:
            function = cg.grad(self.slope_by_reverse, argnums=self.wrt)
        return self.trace(function, name.replace(" ", "_"))

    def slope_by_reverse(self, *arguments: Any) -> Any:
        """The derivative of the loss along the direction, by reverse mode."""
        gradient = self.replayed(self.gradient_graph)(*arguments)
        return sum(np.sum(g * v) for g, v in zip(gradient, self.direction, strict=True))

    # Judgements.

    def refusal(self) -> None:
        """A loop that goes on beyond its limit is refused, whether its results are used or not."""
        for graph in (self.forward_graph, self.gradient_graph):
            try:
                self.run(graph)
            except MaximumIterationsError:
                self.compared["the limit of a loop"] += 1
            else:
                raise ProgramMismatch(f"{graph.name}: a loop went on beyond its maximum_iterations without an error")

    def value(self, expected: Sequence[Any]) -> None:
        """The engine against the plain twin."""
        found = self.run(self.forward_graph)
        for position, (a, b) in enumerate(zip(found, expected, strict=True)):
            self.same("the plain twin", f"result {position}", a, np.asarray(b), TWIN)
            if a.dtype != np.asarray(b).dtype:
                raise ProgramMismatch(f"result {position}: dtype {a.dtype}, the plain twin's is {np.asarray(b).dtype}")

    def retrace(self) -> None:
        """Graphs are the same when they are traced again."""
        again = _Judged(self.program, self.seed)
        for name, one, other in (
            ("program", self.forward_graph, again.forward_graph),
            ("gradient", self.gradient_graph, again.gradient_graph),
            ("slope", self.slope_graph, again.slope_graph),
        ):
            if str(one) != str(other):
                raise ProgramMismatch(f"the text of the graph of {name} differs when it is traced again")
        self.compared["text"] += 1

    @cached_property
    def found_gradient(self) -> list[np.ndarray]:
        return self.run(self.gradient_graph)

    def dot(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """The product with the direction."""
        return np.asarray(sum(float(np.sum(a * v)) for a, v in zip(arrays, self.direction, strict=True)))

    def first_derivative(self) -> None:
        """Reverse and forward mode against each other and against finite differences."""
        for g, x in zip(self.found_gradient, self.point, strict=True):
            if g.shape != x.shape or g.dtype != x.dtype:
                raise ProgramMismatch(f"the gradient of {x.dtype}{x.shape} is {g.dtype}{g.shape}")
        if not self.program.is_reverse_only:
            (forward,) = self.run(self.slope_graph)
            self.same("forward mode", "reverse mode", self.dot(self.found_gradient), forward, MODES)
        self.finite_differences("first derivative", self.loss_graph, self.dot(self.found_gradient))

    def second(self, name: str) -> list[np.ndarray]:
        """The second derivative by two modes: the Hessian times the direction, or as `second_along`."""
        if name not in self.found_second:
            self.found_second[name] = self.run(self.second_graph(name))
            self.compared[name] += 1
        return self.found_second[name]

    def second_along(self, name: str) -> np.ndarray:
        """The second derivative along the direction, a scalar."""
        found = self.second(name)
        return found[0] if name == "forward over forward" else self.dot(found)

    def second_derivative(self, modes: Sequence[str]) -> None:
        """The first mode against finite differences and all other modes, or the next one where there is no judge."""
        if self.program.is_reverse_only:
            modes = SECOND[:1]
        first, *others = modes
        judged = self.finite_differences("second derivative", self.slope_graph, self.second_along(first))
        if not others and not judged and not self.program.is_reverse_only:
            others = [SECOND[(SECOND.index(first) + 1) % len(SECOND)]]
        for other in others:
            if "forward over forward" in (first, other):
                self.same(other, first, self.second_along(first), self.second_along(other), MODES)
            else:
                self.all_same(other, first, self.second(first), self.second(other), MODES)

    def finite_differences(self, name: str, graph: Graph, found: np.ndarray) -> bool:
        """A derivative along the direction against differences of a scalar graph; False where they say nothing."""
        if self.program.cuts or self.program.coarse or not self.point:
            return False
        length = float(np.sqrt(sum(np.sum(v * v) for v in self.direction)))
        if not length:
            return False
        judged = slope(partial(self.sample, graph), 0.05 / length, 1e-14)
        if not tells(judged):
            return False
        self.compared["finite differences"] += 1
        tolerance = DIFFERENCES * max(1.0, abs(float(found))) + 10.0 * judged.error
        if not abs(judged.value - float(found)) <= tolerance:
            raise ProgramMismatch(f"{name}: {float(found)!r}, by finite differences {judged}")
        return True

    def sample(self, graph: Graph, step: float) -> Sample:
        """A scalar graph's value at a distance along the direction."""
        arguments = list(self.arguments)
        for i, v in zip(self.wrt, self.direction, strict=True):
            arguments[i] = np.asarray(arguments[i] + step * v)
        return sample(graph, arguments)

    def jax(self, form: JaxForm, name: str) -> None:
        """The gradient, and its derivative along the direction as two modes give it."""
        try:
            translation = translate(self.loss_graph, self.arguments, None if form == "auto" else form)
        except NotInJaxError:
            self.compared["jax: an op has no form"] += 1
            return

        def scalar(point: tuple[Any, ...]) -> Any:
            arguments: list[Any] = list(self.arguments)
            for i, x in zip(self.wrt, point, strict=True):
                arguments[i] = x
            return translation.function(*arguments)[0]

        def ask() -> list[list[np.ndarray]]:
            with x64():
                point, direction = (tuple(map(jnp.asarray, arrays)) for arrays in (self.point, self.direction))
                found = translation.run(lambda x: jax.jvp(jax.grad(scalar), (x,), (direction,)), point)
            return [[np.asarray(x) for x in arrays] for arrays in found]

        def mismatch(found: list[list[np.ndarray]]) -> ProgramMismatch | None:
            gradient, second = found
            judge = "JAX, second derivative"
            try:
                self.all_same("JAX, first derivative", "gradient", self.found_gradient, gradient, JAX_FIRST)
                if name == "forward over forward":
                    self.same(judge, name, self.second_along(name), self.dot(second), JAX_SECOND)
                else:
                    self.all_same(judge, name, self.second(name), second, JAX_SECOND)
            except ProgramMismatch as error:
                return error
            return None

        found, note = confirmed(ask, lambda found: mismatch(found) is None)
        if note:
            self.compared[note] += 1
        elif error := mismatch(found):
            raise error
        self.compared[f"jax {translation.form}"] += 1

    def all_same(self, judge: str, what: str, found: Sequence[Any], expected: Sequence[Any], tolerance: float) -> None:
        """Compare arrays one by one, relative to the largest element of all."""
        scale = max((float(np.max(np.abs(x))) for x in expected if np.size(x)), default=0.0)
        for a, b in zip(found, expected, strict=True):
            self.same(judge, what, np.asarray(a), np.asarray(b), tolerance, scale)

    def same(
        self, judge: str, what: str, found: np.ndarray, expected: np.ndarray, tolerance: float, scale: float = 0.0
    ) -> None:
        """Compare; what is not finite is never right, since every value of a program is."""
        self.compared[judge] += 1
        if found.shape != expected.shape:
            raise ProgramMismatch(f"{what}: shape {found.shape}; by {judge}: {expected.shape}")
        if not found.size:
            return
        wide = np.complex128 if found.dtype.kind == "c" else np.float64
        a, b = np.asarray(found, wide), np.asarray(expected, wide)
        allowed = max(tolerance, rounding(self.program, found.dtype)) * max(1.0, scale, float(np.max(np.abs(b))))
        if not (np.all(np.isfinite(a)) and np.max(np.abs(a - b)) <= allowed):
            raise ProgramMismatch(f"{what}: {found!r}\nby {judge}: {expected!r}\nallowed difference: {allowed:.2e}")
