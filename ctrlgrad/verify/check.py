"""`check_grads`: the library's derivatives against judges that share no rule with it."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
from typing import Any

import numpy as np

import ctrlgrad as cg
from ctrlgrad import tree
from ctrlgrad.advice import explains_calls
from ctrlgrad.dtypes import dtype_kind, finfo
from ctrlgrad.engines.reference import Run, run_graph
from ctrlgrad.errors import ExecutionError, GradientMismatch, NoForwardRuleError, TypeMismatchError, UserInputError
from ctrlgrad.ir import Graph, Node, StackType, TensorType, is_branch, is_loop, walk
from ctrlgrad.verify.report import GradientReport, Row, advice

# Derivatives of a function of one real variable by central differences, with an estimate of their error.
#
# Central differences at steps h, h/2, h/4, ... are extrapolated to step zero by Richardson's scheme; the entry
# of the tableau whose neighbours agree best is the answer (Ridders, Advances in Engineering Software 4, 1982).
# The error estimate is the larger of that disagreement and of what rounding of the function's values does
# to a difference at the step used.
#
# A program with data-dependent control flow is smooth only as long as its trip counts and branches stay the
# same. A sample therefore comes with its path, and steps that leave the path of the centre are not used. Where no
# steps are left there is no answer, but the reason why.
#
# At a kink on one path (`where`, `maximum`) the differences to the left and to the right have different limits; half
# their distance is told with the answer.


LEVELS = 12
SHRINK = 2.0
# Ratio of the second difference over the step from one level to the next: 1/2 or less for a smooth function, 1 at a
# kink.
_KINK = 0.75


@dataclass(frozen=True)
class Sample:
    """The function at one point, and the control-flow path that it took."""

    value: float
    path: Hashable = None


@dataclass(frozen=True)
class Slope:
    """A derivative. `error` estimates its distance from the truth, `noise` is what rounding does at the largest step.

    `kink` is half the distance of the one-sided derivatives where they differ. `evaluations` counts calls of the
    function; `reason` says why there is no answer, and is empty where there is one.
    """

    value: float
    error: float
    step: float
    noise: float = 0.0
    kink: float = 0.0
    evaluations: int = 0
    reason: str = ""

    @property
    def is_conclusive(self) -> bool:
        """True if the function kept its path and was finite on at least one step."""
        return bool(np.isfinite(self.error))


NOT_FINITE = "the function is not finite nearby"
OTHER_PATH = "every step changes a trip count or a branch"
_NOTHING = Slope(float("nan"), float("inf"), 0.0, reason=OTHER_PATH)


def slope(function: Callable[[float], Sample], first_step: float, rounding: float) -> Slope:
    """The derivative of `function` at zero.

    Args:
        function: gives a sample at a distance from zero.
        first_step: the largest step.
        rounding: the error of one value of the function, as an absolute number.
    """
    centre = function(0.0)
    evaluations = 1
    if not np.isfinite(centre.value):
        return replace(_NOTHING, evaluations=evaluations, reason="the function is not finite here")
    best = _NOTHING
    above: list[float] = []
    bend = 0.0
    for level in range(LEVELS):
        step = first_step / SHRINK**level
        noise = rounding / step
        if noise > best.error:
            # From here on smaller steps only lose digits.
            break
        right, left = function(step), function(-step)
        evaluations += 2
        if not all(s.path == centre.path and np.isfinite(s.value) for s in (right, left)):
            # A larger step that kept the path by chance says nothing about what lies between.
            is_finite = np.isfinite(right.value) and np.isfinite(left.value)
            above, best = [], replace(_NOTHING, reason=OTHER_PATH if is_finite else NOT_FINITE)
            continue
        bend, previous_bend = abs(right.value - 2.0 * centre.value + left.value) / step, bend
        has_kink = bool(above) and bend > max(_KINK * previous_bend, 10.0 * noise)
        row = [(right.value - left.value) / (2.0 * step)]
        factor = 1.0
        for previous in above:
            factor *= SHRINK**2
            row.append((row[-1] * factor - previous) / (factor - 1.0))
            error = max(abs(row[-1] - row[-2]), abs(row[-1] - previous), noise)
            if error < best.error:
                best = Slope(row[-1], float(error), step, kink=bend / 2.0 if has_kink else 0.0)
        above = row
    return replace(best, noise=rounding / first_step, evaluations=evaluations)


# Tolerance between two computations of one derivative.
#
# Without the user's own `rtol` and `atol`, a tolerance is a base for the dtype and order, plus what was
# measured: how far the result moves when the arguments move by their last bit, and the error that finite
# differences estimate of themselves. What was measured counts up to a limit only, so that no error of a
# gradient's leading digits ever passes.


# Exponents of the machine epsilon: float64 gives 1e-9, 9e-8 and 7e-4, float32 1e-4, 8e-4 and 4e-2.
_JAX, _DIFFERENCES, _LIMIT = 0.575, 0.45, 0.2

# Ratio of the allowed error of finite differences to their own error estimate.
ERROR_FACTOR = 10.0


@dataclass(frozen=True)
class Tolerances:
    """`epsilon` is that of the coarsest floating-point dtype in the program; see the module's docstring."""

    epsilon: float
    rtol: float | None
    atol: float | None

    def jax(self, order: int, scale: float, magnitude: float, moved: float) -> float:
        """For an elementwise comparison.

        `scale` is the largest element of the judge's result, `magnitude` that of anything in the problem,
        `moved` how far the result moved when the arguments did by their last bit.
        """
        base: float = self.epsilon**_JAX * 10.0 ** (order - 1)
        return self._total(base, scale, magnitude, 16.0 * moved, 0.0)

    def differences(self, order: int, scale: float, magnitude: float, error: float, noise: float) -> float:
        """For a directional derivative with an estimated `error`; `noise` is what rounding alone does to it."""
        base: float = self.epsilon**_DIFFERENCES * 10.0 ** (order - 1)
        return self._total(base, scale, magnitude, ERROR_FACTOR * error, 100.0 * noise)

    def _total(self, base: float, scale: float, magnitude: float, measured: float, allowed: float) -> float:
        if self.rtol is not None or self.atol is not None:
            return (self.atol or 0.0) + (self.rtol or 0.0) * scale
        limit: float = self.epsilon**_LIMIT * scale + allowed
        return 64.0 * self.epsilon * max(1.0, magnitude) + base * scale + min(measured, limit)


def coarsest_epsilon(graph: Graph) -> float:
    """The machine epsilon of the least precise floating-point value in a graph and its regions."""
    values = chain(graph.inputs, graph.outputs, *(node.results for node in walk(graph)))
    dtypes = {v.type.dtype for v in values if isinstance(v.type, TensorType) and dtype_kind(v.type.dtype) in "fc"}
    return max((float(finfo(dtype).eps) for dtype in dtypes), default=float(finfo(np.float64).eps))


# Subject of a check: a user's function as a scalar function of its array leaves, at one point.
#
# A result of any pytree is reduced to a scalar by seeded random cotangents. Further derivatives follow by
# directions: s_0 is that scalar, s_k(x) = <gradient of s_{k-1} at x, v_k>. All functions here take every leaf
# of the arguments, in order; `wrt` names those that are differentiated.


Arrays = tuple[np.ndarray, ...]
Function = Callable[..., Any]
# From a function on leaves to its graph at the subject's point.
Tracer = Callable[[Function], Graph]
# From a scalar function and the positions of its arguments to the function that gives their gradients.
Gradient = Callable[[Function, tuple[int, ...]], Function]
# jvp(function, primals, tangents) -> (value, tangent)
Jvp = Callable[[Function, Sequence[Any], Sequence[Any]], tuple[Any, Any]]

_NUMBERS = (np.ndarray, np.generic, bool, int, float, complex)


@dataclass(frozen=True)
class Subject:
    """The point, and the scalar function of it."""

    leaves: Arrays
    wrt: tuple[int, ...]
    paths: tuple[str, ...]
    scalar: Function
    # Trace a function of the leaves, and one of the leaves and a tangent for each that is differentiated.
    graph: Tracer
    graph_with_tangents: Tracer
    # Trace a function of the leaves for a judge: calls are not dissolved.
    graph_with_calls: Tracer

    def point(self) -> Arrays:
        """The differentiated leaves."""
        return tuple(self.leaves[position] for position in self.wrt)

    def moved(self, shift: Sequence[np.ndarray | None]) -> Arrays:
        """All leaves with a shift added to the differentiated ones, in their own dtypes."""
        leaves = list(self.leaves)
        for position, s in zip(self.wrt, shift, strict=True):
            if s is not None:
                leaves[position] = (leaves[position] + s).astype(leaves[position].dtype)
        return tuple(leaves)

    def random(self, rng: np.random.Generator) -> Arrays:
        """One direction through all differentiated leaves."""
        return tuple(np.asarray(rng.standard_normal(x.shape), x.dtype) for x in self.point())


def subject_of(fn: Function, args: Sequence[Any], trace: Callable[..., Graph], rng: np.random.Generator) -> Subject:
    """The subject of a check of `fn` at `args`; `trace(function, leaves, also, calls)` gives a graph,
    whose inputs are the leaves and once more those at the positions `also`, with its calls or without.

    Leaves that are no arrays or numbers stay what they are. Raises `UserInputError` where there is nothing to
    differentiate and `TypeMismatchError` for complex numbers and TensorArrays among arguments or results.
    """
    if not isinstance(args, tuple | list):
        raise UserInputError(
            "check_grads: the arguments are not a tuple",
            expected="a tuple with one entry per argument of the function",
            got=type(args).__name__,
            hint="for one argument: check_grads(fn, (x,))",
        )
    everything, treedef = tree.flatten(tuple(args))
    kept = [position for position, x in enumerate(everything) if isinstance(x, _NUMBERS) or hasattr(x, "__array__")]
    raw = [everything[position] for position in kept]
    leaves = tuple(np.asarray(x) for x in raw)
    all_paths = tree.paths(treedef)
    paths = tuple(f"args{all_paths[position]}" for position in kept)
    for path, x in zip(paths, leaves, strict=True):
        if dtype_kind(x.dtype) not in "biuf":
            raise TypeMismatchError(
                f"check_grads: {path} cannot be checked",
                expected="an array or number of a float, integer or bool dtype",
                got=f"{x.dtype.name}{list(x.shape)}",
                hint="pass real and imaginary parts as two arguments" if dtype_kind(x.dtype) == "c" else None,
            )
    wrt = tuple(position for position, x in enumerate(leaves) if dtype_kind(x.dtype) == "f" and x.size)
    if not wrt:
        raise UserInputError(
            "check_grads: no argument to differentiate",
            expected="at least one leaf of a float dtype",
            got=", ".join(f"{p}: {x.dtype.name}{list(x.shape)}" for p, x in zip(paths, leaves, strict=True)) or "none",
            hint="pass floats: x.astype(float), or 1.0 in place of 1",
        )

    def flat(*inputs: Any) -> Any:
        merged = list(everything)
        for position, x in zip(kept, inputs, strict=True):
            merged[position] = x
        return tree.leaves(fn(*tree.unflatten(treedef, merged)))

    def graph(function: Function) -> Graph:
        # The leaves as the user gave them: a Python number does not widen what it meets.
        return trace(function, raw)

    def graph_with_tangents(function: Function) -> Graph:
        return trace(function, raw, wrt)

    def graph_with_calls(function: Function) -> Graph:
        return trace(function, raw, calls=True)

    cotangents = _cotangents(graph(flat), leaves, rng)
    scalar = lambda *inputs: _weighted(flat(*inputs), cotangents)
    names = tuple(paths[position] for position in wrt)
    return Subject(leaves, wrt, names, scalar, graph, graph_with_tangents, graph_with_calls)


def _cotangents(graph: Graph, leaves: Arrays, rng: np.random.Generator) -> list[np.ndarray | None]:
    """A seeded random weight for each element of each float result; None for the other results."""
    for value in graph.outputs:
        if isinstance(value.type, StackType) or dtype_kind(value.type.dtype) == "c":
            raise TypeMismatchError(
                "check_grads: a result cannot be checked",
                expected="arrays of float, integer or bool dtypes",
                got=str(value.type),
                hint="return array.stack()" if isinstance(value.type, StackType) else "return real and imaginary parts",
                source=None,
            )
    outputs = [np.asarray(x) for x in run_graph(graph, leaves)]
    if not any(dtype_kind(x.dtype) == "f" for x in outputs):
        raise UserInputError(
            "check_grads: no result to differentiate",
            expected="at least one result of a float dtype",
            got=", ".join(f"{x.dtype.name}{list(x.shape)}" for x in outputs) or "none",
        )
    if len(outputs) == 1 and outputs[0].shape == ():
        return [np.ones((), outputs[0].dtype)]
    return [np.asarray(rng.standard_normal(x.shape), x.dtype) if dtype_kind(x.dtype) == "f" else None for x in outputs]


def _weighted(results: Sequence[Any], weights: Sequence[Any]) -> Any:
    """The sum of all elements times their weights; results without a weight do not count."""
    total: Any = None
    for result, weight in zip(results, weights, strict=True):
        if weight is not None:
            term = result if np.shape(weight) == () and weight == 1 else (result * weight).sum()
            total = term if total is None else total + term
    return total


def by_reverse(gradient: Gradient, function: Function, wrt: tuple[int, ...], direction: Arrays) -> Function:
    """x -> <gradient of `function` at x, direction>, the gradient by reverse mode."""
    return lambda *inputs: _weighted(gradient(function, wrt)(*inputs), direction)


def by_forward(jvp: Jvp, function: Function, wrt: tuple[int, ...], direction: Sequence[Any]) -> Function:
    """The same number by forward mode."""
    along = by_forward_along_inputs(jvp, function, wrt)
    return lambda *inputs: along(*inputs, *direction)


def by_forward_along_inputs(jvp: Jvp, function: Function, wrt: tuple[int, ...]) -> Function:
    """The same number, the direction's arrays as further arguments."""

    def along(*inputs: Any) -> Any:
        leaves, direction = inputs[: -len(wrt)], inputs[-len(wrt) :]

        def of_point(*point: Any) -> Any:
            merged = list(leaves)
            for position, x in zip(wrt, point, strict=True):
                merged[position] = x
            return function(*merged)

        return jvp(of_point, [leaves[position] for position in wrt], list(direction))[1]

    return along


def sample(graph: Graph, leaves: Sequence[np.ndarray]) -> Sample:
    """The scalar that a graph gives, with the control-flow path it took."""
    (value,), path = outputs_and_path(graph, leaves)
    return Sample(float(value), path)


def outputs_and_path(graph: Graph, leaves: Sequence[np.ndarray]) -> tuple[list[np.ndarray], Hashable]:
    """Return a graph's outputs, and a hash of its control-flow path: every branch and every trip count."""
    path = 0

    def observer(node: Node, operands: Sequence[Any]) -> None:
        nonlocal path
        if is_branch(node):
            path = hash((path, id(node), int(operands[0])))
        elif is_loop(node):
            path = hash((path, id(node)))

    run = Run(observer=observer)
    outputs = [np.asarray(x) for x in run_graph(graph, leaves, run)]
    trips = tuple((id(node), trips, run.counters.iterations[node]) for node, trips in run.counters.trips.items())
    return outputs, (path, trips)


MODES = ("rev", "fwd")
JUDGES = ("finite_differences", "jax")
DIRECTIONS = 2


@explains_calls
def check_grads(
    fn: Callable[..., Any],
    args: Sequence[Any],
    *,
    order: int = 1,
    modes: Sequence[str] = ("rev",),
    against: Sequence[str] = JUDGES,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
) -> GradientReport:
    """Compare the derivatives of `fn` at `args` with finite differences and with JAX.

    Args:
        fn: a function of arrays and pytrees of arrays, which returns a pytree of arrays of any shape. Results
            that are not scalar are weighted by random cotangents.
        args: its arguments. Every leaf of a float dtype is differentiated; Python numbers count as arrays.
        order: the highest order of derivatives. Order k is the gradient of order k - 1 along a random direction.
        modes: "rev" for reverse mode, "fwd" for forward mode; above order 1 also every combination of them.
        against: "finite_differences" (the reference engine, central differences in the arguments' dtype along
            random directions) and "jax" (the forward graph as a JAX function, differentiated by JAX; a function that
            `from_jax` has made is the JAX function itself there, called directly or within `fn`, unless JAX refuses to
            differentiate it). Where jitted JAX disagrees, JAX without jit decides; the row says so.
        rtol, atol: the tolerance, `atol + rtol * scale`. By default it follows the coarsest dtype of the
            program, the order, and the conditioning measured at `args`; the report says what it was.
        seed: of the random cotangents and directions.

    Returns:
        The report: a row for each argument leaf, order, mode and judge. `print` shows it as a table. A row where the
        judge could not judge counts neither way, and is in `not_judged`: finite differences have nothing to say where
        every step changes a trip count or a branch, at a kink, where the function is not finite, and where their own
        estimate of their error is too large; JAX where its own derivative is NaN, it has no form of an op
        (`pure_callback`), or JAX is not installed; and no judge has anything to say of a mode that a custom rule lacks.

    Raises:
        GradientMismatch: a derivative disagrees with a judge, or none could be judged; the message holds the table.
        UserInputError: nothing to differentiate, an unknown mode or judge, JAX is the only judge and not installed, or
            it fails otherwise than by refusing a derivative.

    >>> def f(x):
    ...     grow = lambda y: 1.5 * y + np.sin(y)
    ...     return cg.while_loop(lambda y: np.sum(y * y) < 100.0, grow, x)
    >>> x = np.array([0.3, 0.5])
    >>> cg.check_grads(f, (x,), order=2, against=("finite_differences",)).ok
    True
    """
    jvp = getattr(cg, "jvp", None)
    report = compare(
        fn, args, gradient=cg.grad, jvp=jvp, order=order, modes=modes, against=against, rtol=rtol, atol=atol, seed=seed
    )
    if not report.ok:
        raise GradientMismatch(f"check_grads: {report.summary}\n{report}", hint="\n".join(advice(report)))
    return report


def compare(
    fn: Function,
    args: Sequence[Any],
    *,
    gradient: Gradient,
    jvp: Jvp | None = None,
    order: int = 1,
    modes: Sequence[str] = ("rev",),
    against: Sequence[str] = JUDGES,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
) -> GradientReport:
    """As `check_grads`, for derivatives by any `gradient` and `jvp`; returns the report whatever it says."""
    if isinstance(order, bool) or not isinstance(order, int) or order < 1:
        raise UserInputError("check_grads: order", expected="an int of 1 or more", got=repr(order))
    for label, given, known in (("modes", modes, MODES), ("against", against, JUDGES)):
        if isinstance(given, str) or not given or any(name not in known for name in given):
            expected = f"one or more of {', '.join(known)}"
            raise UserInputError(f"check_grads: {label}", expected=expected, got=repr(given))
    if "fwd" in modes and jvp is None:
        raise UserInputError("check_grads: there is no forward mode to check", got=repr(tuple(modes)), hint='("rev",)')
    rng = np.random.default_rng(seed)
    subject = subject_of(fn, args, _tracer(fn), rng)
    directions = [subject.random(rng) for _ in range(order)]
    graph = subject.graph(subject.scalar)
    tolerances = Tolerances(coarsest_epsilon(graph), rtol, atol)
    check = _Check(subject, gradient, jvp, directions, tolerances, rng)
    if "jax" in against and "finite_differences" in against and importlib.util.find_spec("jax") is None:
        note = 'JAX is not installed: pip install -e ".[jax]"'
        check.rows.append(Row("value", 0, "", "jax", float("nan"), 0.0, 0.0, note, is_judged=False))
    elif "jax" in against:
        check.use_jax(graph)
    for k in range(1, order + 1):
        for applied in product(modes, repeat=k):
            check.derivative(applied, differences="finite_differences" in against)
    return GradientReport(tuple(check.rows))


def _tracer(fn: Function) -> Callable[..., Graph]:
    """Return the tracer of functions of the leaves, with the unknown dimensions of `fn`'s signature, if it has one."""
    declared = getattr(fn, "signature", None)
    signature = None if declared is None else tree.leaves(tuple(declared))

    def trace(function: Function, leaves: Sequence[Any], also: Sequence[int] = (), calls: bool = False) -> Graph:
        specs = None if signature is None else [*signature, *(signature[position] for position in also)]
        arguments = [*leaves, *(np.asarray(leaves[position]) for position in also)]
        traced = cg.function(function, signature=specs)
        graph: Graph = traced.graph_with_calls(*arguments) if calls else traced.graph(*arguments)
        return graph

    return trace


@dataclass
class _Check:
    """One run of `compare`: what is checked, and the rows so far."""

    subject: Subject
    gradient: Gradient
    jvp: Jvp | None
    directions: list[Arrays]
    tolerances: Tolerances
    rng: np.random.Generator
    rows: list[Row] = field(default_factory=list)
    judge: Any = None
    confirmed: Any = None
    # Graphs of s_0, s_1, ... by the modes that give them.
    scalars: dict[tuple[str, ...], Graph] = field(default_factory=dict)

    def use_jax(self, graph: Graph) -> None:
        """Translate the scalar function, but for what was read from JAX, and compare its value."""
        try:
            importlib.import_module("jax")
        except ImportError as error:
            raise UserInputError(
                "check_grads: JAX is not installed", hint='pip install -e ".[jax]", or against=("finite_differences",)'
            ) from error
        judge = importlib.import_module("ctrlgrad.verify.jax_judge")
        with judge.originals_kept():
            with_calls = self.subject.graph_with_calls(self.subject.scalar)
        try:
            self.judge = judge.JaxJudge(with_calls, self.subject.leaves, self.subject.wrt)
        except judge.NotInJaxError as error:
            self.rows.append(Row("value", 0, "", "jax", float("nan"), 0.0, 0.0, str(error), is_judged=False))
            return
        self.confirmed = judge.confirmed
        (value,), (moved,) = self.evaluated(graph)
        self.elementwise("value", 0, "", value, lambda judged: judged.value, moved)

    def jax(self, order: int) -> Any:
        return self.judge.derivatives(self.directions[:-1])[order - 1]

    def derivative(self, chain: tuple[str, ...], differences: bool) -> None:
        """Check one derivative: `chain` names the modes from the innermost to the outermost."""
        *inner, mode = chain
        function = self.subject.scalar
        for name, direction in zip(inner, self.directions, strict=False):
            function = self.along(name, function, direction)
        label = " over ".join(reversed(chain))
        try:
            if differences and tuple(inner) not in self.scalars:
                self.scalars[tuple(inner)] = self.subject.graph(function)
            scalar = self.scalars.get(tuple(inner))
            if mode == "rev":
                self.reverse(function, len(chain), label, scalar)
            else:
                self.forward(function, len(chain), label, scalar)
        except NoForwardRuleError as error:
            for path in self.subject.paths:
                row = Row(path, len(chain), label, "none", float("nan"), 0.0, 0.0, error.problem, is_judged=False)
                self.rows.append(row)

    def along(self, mode: str, function: Function, direction: Sequence[Any]) -> Function:
        if mode == "rev":
            return by_reverse(self.gradient, function, self.subject.wrt, tuple(direction))
        assert self.jvp is not None
        return by_forward(self.jvp, function, self.subject.wrt, direction)

    def reverse(self, function: Function, order: int, label: str, scalar: Graph | None) -> None:
        """Every element against JAX; with the graph of the function, every leaf along random directions against finite
        differences of it."""
        graph = self.subject.graph(self.gradient(function, self.subject.wrt))
        gradient, moved = self.evaluated(graph)
        if self.judge is not None:
            for leaf, (path, g, m) in enumerate(zip(self.subject.paths, gradient, moved, strict=True)):
                self.elementwise(path, order, label, g, _gradient_of(leaf), m)
        if scalar is not None:
            magnitude = max(map(_largest, gradient))
            for leaf, g in enumerate(gradient):
                g = g.astype(np.float64)
                size = float(np.linalg.norm(g[np.isfinite(g)])) / np.sqrt(g.size)
                pairs = [(_inner_product(g, d), self.difference(scalar, leaf, d)) for d in self.unit_directions(leaf)]
                self.along_directions(leaf, order, label, pairs, size, magnitude)

    def forward(self, function: Function, order: int, label: str, scalar: Graph | None) -> None:
        """Every leaf along random directions, against each judge: finite differences with the function's graph."""
        assert self.jvp is not None
        graph = self.subject.graph_with_tangents(by_forward_along_inputs(self.jvp, function, self.subject.wrt))
        for leaf in range(len(self.subject.wrt)):
            found, moved, pairs, directions = [], 0.0, [], list(self.unit_directions(leaf))
            for d in directions:
                tangent = [d if other == leaf else np.zeros_like(x) for other, x in enumerate(self.subject.point())]
                (output,), (distance,) = self.evaluated(graph, tangent)
                value, moved = float(output), max(moved, distance)
                found.append(value)
                if scalar is not None:
                    pairs.append((value, self.difference(scalar, leaf, d)))
            if self.judge is not None:

                def along(judged: Any, leaf: int = leaf, directions: list[np.ndarray] = directions) -> np.ndarray:
                    return np.array([_inner_product(judged.gradient[leaf], d) for d in directions])

                self.elementwise(self.subject.paths[leaf], order, label, np.array(found), along, moved)
            if scalar is not None:
                size = _largest(np.array([s.value for _, s in pairs]))
                self.along_directions(leaf, order, label, pairs, size, size)

    def elementwise(
        self, path: str, order: int, label: str, found: np.ndarray, pick: Callable[[Any], np.ndarray], moved: float
    ) -> None:
        """A row for an array against what `pick` finds in JAX's derivative; JAX is asked again without jit where that
        differs."""

        def ask() -> Row:
            judged = self.jax(max(order, 1))
            magnitude = max(map(_largest, (judged.value, *judged.gradient)))
            return self.against_jax(path, order, label, found, pick(judged), moved, magnitude)

        row, note = self.confirmed(ask, lambda row: row.ok or not row.is_judged)
        self.rows.append(replace(row, note=note) if note else row)

    def against_jax(
        self, path: str, order: int, label: str, found: np.ndarray, expected: np.ndarray, moved: float, magnitude: float
    ) -> Row:
        """A row for an array against JAX's; elements of which JAX's own derivative is NaN are not judged."""
        judge = self.judge.name
        scale = _largest(expected)
        if found.shape != expected.shape or found.dtype != expected.dtype:
            note = f"{found.dtype.name}{list(found.shape)}, not {expected.dtype.name}{list(expected.shape)}"
            return Row(path, order, label, judge, float("nan"), scale, 0.0, note)
        tolerance = self.tolerances.jax(order, scale, magnitude, moved)
        unknown = np.isnan(expected)
        with np.errstate(invalid="ignore"):
            errors = np.where(found == expected, 0.0, np.abs(found - expected))  # the same infinity has no difference
        if unknown.all():
            note = "JAX's own result is NaN"
            return Row(path, order, label, judge, float("nan"), scale, tolerance, note, is_judged=False)
        note = f"JAX's own result is NaN in {unknown.sum()} of {unknown.size} elements" if unknown.any() else ""
        return Row(path, order, label, judge, float(np.max(errors[~unknown])), scale, tolerance, note)

    def along_directions(
        self, leaf: int, order: int, label: str, pairs: list[tuple[float, Slope]], size: float, magnitude: float
    ) -> None:
        """A row for directional derivatives against finite differences: that of the worst that was judged."""
        rows = [self.against_slope(leaf, order, label, found, slope, size, magnitude) for found, slope in pairs]
        self.rows.append(max(rows, key=_badness))

    def against_slope(
        self, leaf: int, order: int, label: str, found: float, judged: Slope, size: float, magnitude: float
    ) -> Row:
        """A row for one directional derivative.

        It is not judged where there is no slope, nor where it differs from the slope by no more than the slope may
        itself be wrong: by its own estimate, or because the function has a kink there. An agreement says nothing either
        where the estimate is as large as the derivatives.
        """
        tolerance = self.tolerances.differences(order, size, magnitude, judged.error, judged.noise)
        error = abs(found - judged.value)
        doubt = ERROR_FACTOR * judged.error
        note = judged.reason
        if judged.is_conclusive and error <= doubt and (error > tolerance or doubt > 0.1 * max(size, magnitude, 1.0)):
            note = f"the differences are uncertain by {doubt:.1e}"
        elif judged.kink and tolerance < error <= judged.kink + doubt:
            note = f"a kink: one-sided derivatives {2.0 * judged.kink:.1e} apart"
        path = self.subject.paths[leaf]
        return Row(path, order, label, "finite differences", error, size, tolerance, note, is_judged=not note)

    def difference(self, graph: Graph, leaf: int, direction: np.ndarray) -> Slope:
        """The slope of a scalar graph along a direction of one leaf."""
        x = self.subject.point()[leaf]
        # Between moving each element by a share of its size and moving the leaf as a whole by that share.
        step = 0.1 * max(float(np.sqrt(np.mean(np.square(x, dtype=np.float64)))), 0.1) * x.size**0.25

        def at(distance: float) -> Sample:
            shift = [distance * direction if other == leaf else None for other in range(len(self.subject.wrt))]
            try:
                return sample(graph, self.subject.moved(shift))
            except ExecutionError:
                # Out of the function's domain, for instance an index out of range there.
                return Sample(float("nan"))

        (centre,), (moved,) = self.evaluated(graph)
        return slope(at, step, max(4.0 * self.tolerances.epsilon * abs(float(centre)), 2.0 * moved))

    def unit_directions(self, leaf: int) -> Iterator[np.ndarray]:
        x = self.subject.point()[leaf]
        for _ in range(DIRECTIONS if x.size > 1 else 1):
            direction = self.rng.standard_normal(x.shape)
            yield np.asarray(direction / np.linalg.norm(direction), x.dtype)

    def evaluated(self, graph: Graph, tangent: Sequence[np.ndarray] = ()) -> tuple[list[np.ndarray], list[float]]:
        """Return a graph's outputs, and the change of each when the arguments change in their last bit.

        The change counts as zero if it is unknown: the last bit changes the path, or leaves the function's domain.
        """
        results, path = outputs_and_path(graph, [*self.subject.leaves, *tangent])
        try:
            moved, moved_path = outputs_and_path(graph, [*self.last_bit(), *tangent])
        except ExecutionError:
            return results, [0.0] * len(results)
        if moved_path != path:
            return results, [0.0] * len(results)
        return results, [_distance(m, x) for m, x in zip(moved, results, strict=True)]

    def last_bit(self) -> Arrays:
        """The arguments, each differentiated element moved by its last bit up or down."""
        rng = np.random.default_rng(len(self.subject.wrt))
        signs = (np.sign(rng.standard_normal(x.shape)) for x in self.subject.point())
        return self.subject.moved(
            [np.asarray(s * np.spacing(np.abs(x)), x.dtype) for s, x in zip(signs, self.subject.point(), strict=True)]
        )


def _gradient_of(leaf: int) -> Callable[[Any], np.ndarray]:
    return lambda judged: np.asarray(judged.gradient[leaf])


def _largest(x: np.ndarray) -> float:
    """The largest magnitude among the finite elements; 0 if no element is finite."""
    return float(np.max(np.abs(x), where=np.isfinite(x), initial=0.0))


def _inner_product(g: np.ndarray, direction: np.ndarray) -> float:
    with np.errstate(invalid="ignore"):  # of infinities of both signs
        return float(np.sum(g * direction))


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    """The largest finite difference of any element; 0 for other shapes, since sizes may depend on values."""
    with np.errstate(invalid="ignore"):
        return _largest(a - b) if a.shape == b.shape else 0.0


def _badness(row: Row) -> float:
    """Rank of a row, the worst being the highest: an unjudged row is the lowest, NaN the highest."""
    if not row.is_judged:
        return -1.0
    ratio = row.absolute / row.tolerance if row.tolerance else row.absolute
    return float("inf") if np.isnan(ratio) else ratio
