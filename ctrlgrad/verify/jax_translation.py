"""A forward graph as a JAX function, so that JAX's own derivatives can judge ours.

JAX cannot differentiate a `while_loop` in reverse. Two forms that it can:

- `scan`: a loop is a `lax.scan` over as many steps as the recorded run took at most; each step runs the body
  under `lax.cond` where the loop is still going and keeps the carry where it has ended, so an ended loop
  computes nothing (and leaks no NaN into a gradient). Branches are `lax.switch`, stacks are buffers. The whole
  is compiled.
- `unrolled`: JAX runs op by op on concrete numbers, and Python's own `while` and `if` follow them. It takes
  programs whose sizes differ from iteration to iteration, which no scan can hold, and is slow.

`translate` chooses the first where it exists, and says in `Translation.form` what it chose. This path shares
no derivative rule with the library: it reads the forward graph alone.
"""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ctrlgrad.errors import UserInputError
from ctrlgrad.ir import Call, Graph, Loop, Node, StackType, Value, attributes, is_branch, is_call, is_loop
from ctrlgrad.ir.flow import begins
from ctrlgrad.verify.jax_ops import TENSOR_OPS, Entry, _elementwise
from ctrlgrad.verify.jax_stacks import BOUNDED, LISTS, NotStaticError
from ctrlgrad.verify.originals import original_of, originals
from ctrlgrad.verify.recording import Recording, Sizes, choice, record, sizes_of

# Translation of ops on complex numbers, orders, matrices and spectra: further entries of `jax_ops.TENSOR_OPS`.
#
# `nonzero` has no entry: the number of its results depends on data, and JAX needs it before it starts.


_FIRST = frozenset(TENSOR_OPS)


def _argsort(node: Node, sizes: Sizes | None, x: Any) -> Any:
    order = jnp.argsort(
        x, axis=attributes.Axis.of(node).axis, descending=attributes.Order.of(node).descending, stable=True
    )
    return order.astype(jnp.int64)


def _top_k(node: Node, sizes: Sizes | None, x: Any) -> Any:
    axis, count = attributes.Axis.of(node).axis, attributes.Selection.of(node).count
    places = lax.top_k(jnp.moveaxis(x, axis, -1), count)[1]
    return jnp.moveaxis(places, -1, axis).astype(jnp.int64)


def _searchsorted(node: Node, sizes: Sizes | None, row: Any, values: Any) -> Any:
    return jnp.searchsorted(row, values, side=attributes.Search.of(node).side).astype(jnp.int64)


def _solve(a: Any, b: Any) -> Any:
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return jnp.linalg.solve(*(jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b)))


def _triangular_solve(node: Node, sizes: Sizes | None, a: Any, b: Any) -> Any:
    given = attributes.Triangle.of(node)
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b))
    return lax.linalg.triangular_solve(a, b, left_side=True, lower=given.lower, unit_diagonal=given.unit_diagonal)


def _singular_vectors(a: Any) -> Any:
    u, _, vh = jnp.linalg.svd(a, full_matrices=False)
    return jnp.concatenate([u, jnp.conj(jnp.swapaxes(vh, -1, -2))], axis=-2)


def _adjugate(a: Any) -> Any:
    return jnp.linalg.det(a)[..., None, None] * jnp.linalg.inv(a)


def _pinv(a: Any, rtol: Any) -> Any:
    # JAX's own takes a bound that is known while it traces.
    u, s, vh = jnp.linalg.svd(a, full_matrices=False)
    counts = s > jnp.asarray(rtol)[..., None] * s[..., :1]
    inverse = jnp.where(counts, 1 / jnp.where(counts, s, 1), 0)
    return (jnp.conj(jnp.swapaxes(vh, -1, -2)) * inverse[..., None, :]) @ jnp.conj(jnp.swapaxes(u, -1, -2))


def _fft(node: Node, sizes: Sizes | None, x: Any) -> Any:
    if attributes.Transform.of(node).inverse:
        return jnp.fft.ifft(x, axis=attributes.Axis.of(node).axis, norm="forward")
    return jnp.fft.fft(x, axis=attributes.Axis.of(node).axis)


def _rfft(node: Node, sizes: Sizes | None, x: Any) -> Any:
    return jnp.fft.rfft(x, axis=attributes.Axis.of(node).axis)


def _irfft(node: Node, sizes: Sizes | None, z: Any) -> Any:
    given = attributes.RealTransform.of(node)
    return jnp.fft.irfft(z, given.size, given.axis, norm="forward")


_MATRICES: dict[str, Entry] = {
    "solve": _elementwise(_solve),
    "triangular_solve": _triangular_solve,
    "cholesky": _elementwise(lambda a: jnp.linalg.cholesky(a, symmetrize_input=False)),
    "det": _elementwise(jnp.linalg.det),
    "adjugate": _elementwise(_adjugate),
    "logabsdet": _elementwise(lambda a: jnp.linalg.slogdet(a)[1]),
    "det_sign": _elementwise(lambda a: jnp.linalg.slogdet(a)[0]),
    "orthonormal": _elementwise(lambda a: jnp.linalg.qr(a)[0]),
    "eigenvalues": _elementwise(lambda a: jnp.linalg.eigh(a, symmetrize_input=False)[0]),
    "eigenvectors": _elementwise(lambda a: jnp.linalg.eigh(a, symmetrize_input=False)[1]),
    "general_eigenvalues": _elementwise(jnp.linalg.eigvals),
    "general_eigenvectors": _elementwise(lambda a: jnp.linalg.eig(a)[1]),
    "singular_values": _elementwise(lambda a: jnp.linalg.svd(a, full_matrices=False)[1]),
    "singular_vectors": _elementwise(_singular_vectors),
    "pinv": _elementwise(_pinv),
}

TENSOR_OPS |= _MATRICES
TENSOR_OPS |= {
    "argsort": _argsort,
    "top_k": _top_k,
    "searchsorted": _searchsorted,
    "fft": _fft,
    "rfft": _rfft,
    "irfft": _irfft,
}

# The ops that this file adds.
ADDED = frozenset(TENSOR_OPS) - _FIRST

# In `jax` itself since JAX 0.8.
_enable_x64: Any = (jax if hasattr(jax, "enable_x64") else importlib.import_module("jax.experimental")).enable_x64

_LEVEL = "xla_backend_optimization_level"
_UNKNOWN_OPTION = "No such compile option"


def _quick() -> dict[str, Any]:
    """Options for programs that run once or twice: compiling them is the larger part of the time.

    Level 0 would be quicker still, and gives NaN for some gradients of loops (jaxlib 0.10.2). Where `XLA_FLAGS` names a
    level, it is that one.
    """
    quick: dict[str, Any] = {"xla_llvm_disable_expensive_passes": True}
    return quick if _LEVEL in os.environ.get("XLA_FLAGS", "") else {_LEVEL: 1, **quick}


Form = Literal["scan", "unrolled"]
Arrays = tuple[Any, ...]


def x64(on: bool = True) -> AbstractContextManager[Any]:
    """64-bit types in JAX for a block, or none; the user's own setting stays as it is."""
    return _enable_x64(on)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Translation:
    """A JAX function of a graph's inputs, valid for all arguments on the path of those it was made for."""

    graph: Graph
    form: Form
    recording: Recording
    function: Callable[..., Arrays]

    def settings(self) -> AbstractContextManager[Any]:
        """JAX's setting for its calls: 64-bit types, unless a JAX function that it calls was traced without them."""
        return x64(all(original.x64 for original in originals(self.graph)))

    def __call__(self, *arguments: Any) -> tuple[np.ndarray, ...]:
        """The outputs as NumPy arrays."""
        with self.settings():
            given = [jax.device_put(np.asarray(x)) for x in arguments]
            return tuple(np.asarray(x) for x in self.run(self.function, *given))

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call `function`, which is this translation's or a derivative of it: compiled, or op by op if unrolled."""
        config: Any = jax.config
        if self.form == "unrolled" or config.jax_disable_jit:
            return function(*arguments)
        lowered = jax.jit(function).lower(*arguments)
        try:
            return lowered.compile(compiler_options=_quick())(*arguments)
        except jax.errors.JaxRuntimeError as error:
            # Versions of XLA differ in their options.
            if _UNKNOWN_OPTION not in str(error):
                raise
            return lowered.compile()(*arguments)


def translate(graph: Graph, arguments: Sequence[Any], form: Form | None = None) -> Translation:
    """Translate a graph for given arguments, by the form asked for or, if None, by `scan` where it exists.

    Raises `UserInputError` where a graph takes or returns a stack, or has no `scan` form and that was asked for.
    """
    for value in (*graph.inputs, *graph.outputs):
        if isinstance(value.type, StackType):
            raise UserInputError(
                "check against JAX: a TensorArray is an argument or a result of the function",
                got=str(value.type),
                hint="return array.stack() instead, and make TensorArrays inside the function",
            )
    arguments = [np.asarray(x) for x in arguments]
    recording = record(graph, arguments)
    if form == "unrolled":
        return Translation(graph, "unrolled", recording, _Unrolled().function(graph))
    # Compiled as a whole: JAX then walks the graph once, and not again for each derivative.
    function = jax.jit(_Scan(recording).function(graph))
    found = Translation(graph, "scan", recording, function)
    try:
        with found.settings():
            jax.eval_shape(function, *arguments)
    except NotStaticError as error:
        if form == "scan":
            raise UserInputError(
                "check against JAX: the program has no form with fixed sizes", got=str(error), hint='form="unrolled"'
            ) from error
        return Translation(graph, "unrolled", recording, _Unrolled().function(graph))
    return found


class Translator(ABC):
    """Runs a graph's nodes on JAX values; the subclasses say what control flow, stacks and sizes are."""

    stacks: ClassVar[dict[str, Callable[..., Any]]]

    def function(self, graph: Graph) -> Callable[..., Arrays]:
        return lambda *arguments: self.run(graph, tuple(jnp.asarray(x) for x in arguments))

    def run(self, graph: Graph, arguments: Arrays) -> Arrays:
        values: dict[Value, Any] = dict(zip(graph.inputs, arguments, strict=True))
        for node in graph.nodes:
            results = self.node(node, tuple(values[v] for v in node.operands))
            values.update(zip(node.results, results, strict=True))
        return tuple(values[v] for v in graph.outputs)

    def node(self, node: Node, operands: Arrays) -> Arrays:
        if is_loop(node):
            return self.loop(node, operands)
        if is_branch(node):
            return self.branch(node, operands)
        if is_call(node):
            # Of the calls, those alone are left that keep a JAX function.
            original = original_of(Call.of(node))
            assert original is not None
            return tuple(original.function(*operands))
        entry = TENSOR_OPS.get(node.op.name) or self.stacks[node.op.name]
        results = entry(node, self.sizes(node, operands), *operands)
        return results if len(node.results) != 1 else (results,)

    @abstractmethod
    def loop(self, node: Node, operands: Arrays) -> Arrays: ...

    @abstractmethod
    def branch(self, node: Node, operands: Arrays) -> Arrays: ...

    @abstractmethod
    def sizes(self, node: Node, operands: Arrays) -> Sizes | None: ...


class _Scan(Translator):
    stacks = BOUNDED

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def sizes(self, node: Node, operands: Arrays) -> Sizes | None:
        if begins(node):
            return self.room(node.result)
        sizes = self.recording.sizes.get(node, ())
        if sizes is None:
            raise NotStaticError(f"{node.op.name}{_at(node)} has another size at each execution")
        return sizes or None

    def room(self, stack: Value) -> Sizes:
        shape = self.recording.element_shape[stack]
        if shape is None:
            raise NotStaticError(f"the elements of a {stack.type} differ in shape")
        return (self.recording.capacity[stack], *shape)

    def loop(self, node: Node, operands: Arrays) -> Arrays:
        loop = Loop.of(node)
        captures, start = map(tuple, loop.split(operands))
        trips = self.recording.trips(node)
        if trips == 0:
            return start

        def advance(carry: Arrays) -> Arrays:
            after = self.run(loop.body, captures + carry)
            _same_shapes(f"the carry of the loop{_at(node)}", carry, after)
            return after

        def going(carry: Arrays) -> Any:
            return self.run(loop.cond, captures + carry)[0]

        def step(state: tuple[Arrays, Any], _: None) -> tuple[tuple[Arrays, Any], None]:
            carry, alive = state

            def proceed(carry: Arrays) -> tuple[Arrays, Any]:
                after = advance(carry)
                return after, going(after)

            return lax.cond(alive, proceed, lambda carry: (carry, jnp.asarray(False)), carry), None

        if self.recording.always_takes_all_trips(node):
            # No execution ends before another: the mask would always be true.
            return lax.scan(lambda carry, _: (advance(carry), None), start, None, length=trips)[0]
        return lax.scan(step, (start, going(start)), None, length=trips)[0][0]

    def branch(self, node: Node, operands: Arrays) -> Arrays:
        selector, *rest = operands
        executed = sorted(self.recording.branches.get(node, ()))
        assert executed, "a node that never ran stands in a loop or branch that is not translated"
        if len(executed) == 1:
            return self.run(node.regions[executed[0]], tuple(rest))
        first: list[Arrays] = []

        def function(region: Graph) -> Callable[..., Arrays]:
            def call(*arguments: Any) -> Arrays:
                results = self.run(region, arguments)
                _same_shapes(f"the results of the branch{_at(node)}", first[0] if first else results, results)
                first.append(results)
                return results

            return call

        # A branch that the recorded run never took is not translated: its place is held by one that it took.
        chosen = [number if number in executed else executed[0] for number in range(len(node.regions))]
        functions = {number: function(node.regions[number]) for number in executed}
        result: Arrays = lax.switch(selector.astype(jnp.int32), [functions[number] for number in chosen], *rest)
        return result


class _Unrolled(Translator):
    stacks = LISTS

    def sizes(self, node: Node, operands: Arrays) -> Sizes | None:
        return sizes_of(node, operands)

    def loop(self, node: Node, operands: Arrays) -> Arrays:
        loop = Loop.of(node)
        captures, carry = map(tuple, loop.split(operands))
        while bool(self.run(loop.cond, captures + carry)[0]):
            carry = self.run(loop.body, captures + carry)
        return carry

    def branch(self, node: Node, operands: Arrays) -> Arrays:
        selector, *rest = operands
        return self.run(node.regions[choice(node, selector)], tuple(rest))


def _same_shapes(what: str, before: Arrays, after: Arrays) -> None:
    one, other = ([jnp.shape(x) for x in jax.tree.leaves(values)] for values in (before, after))
    if one != other:
        raise NotStaticError(f"{what} changes its shapes from {one} to {other}")


def _at(node: Node) -> str:
    return f" at {node.source}" if node.source else ""
