"""`to_jax`: a function of this library as one of JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ctrlgrad.advice import explains_calls
from ctrlgrad.dtypes import BFLOAT16, NAMES, dtype_kind
from ctrlgrad.engines import asks_for_memory
from ctrlgrad.errors import TracingError, TypeMismatchError
from ctrlgrad.frontend.apply import cast
from ctrlgrad.frontend.checks import check_function
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.tracer import Leaf
from ctrlgrad.frontend.watched import Watched, code_in, watch
from ctrlgrad.gradients import current_manner
from ctrlgrad.interop.avals import Flat, has_weak_type, has_x64, is_array, static_argument
from ctrlgrad.interop.engine_primitive import JaxProgram, bind
from ctrlgrad.ir import (
    Counting,
    Graph,
    Loop,
    Node,
    StackType,
    TensorType,
    Value,
    attributes,
    is_branch,
    is_call,
    is_loop,
    step_of,
    walk,
)
from ctrlgrad.ir.caching import Recent
from ctrlgrad.ir.control import Carry
from ctrlgrad.ir.op import Use
from ctrlgrad.options import current_options
from ctrlgrad.passes import simplify
from ctrlgrad.verify.jax_translation import TENSOR_OPS, Arrays, Entry, Translator, jax_dtype

# Loops of constant trip count: start, step and end of the counter are constants of the graph.
#
# `CountedLoops` reads a graph from the outside in. Beside the numbers of iterations it finds which integers are known
# to lie where, as the counter of a counted loop and what is computed with it: those below 2^31 are the same in 32
# bits.


class Range(NamedTuple):
    """The least and the greatest that an integer can be."""

    low: int
    high: int

    @property
    def is_small(self) -> bool:
        """True if 32 bits hold the range."""
        return self.low >= -(1 << 31) and self.high < 1 << 31


def _of_corners(fn: Callable[[int, int], int]) -> Callable[[Range, Range], Range]:
    """Make a rule of a function that has its extremes at the ends of ranges."""

    def found(a: Range, b: Range) -> Range:
        corners = [fn(x, y) for x in a for y in b]
        return Range(min(corners), max(corners))

    return found


_ARITHMETIC: dict[str, Callable[[Range, Range], Range]] = {
    "add": _of_corners(lambda x, y: x + y),
    "subtract": _of_corners(lambda x, y: x - y),
    "multiply": _of_corners(lambda x, y: x * y),
    "minimum": _of_corners(min),
    "maximum": _of_corners(max),
}
_MOVES = frozenset(["cast", "reshape", "broadcast_to", "squeeze", "expand_dims", "barrier", "stop_gradient"])


class CountedLoops:
    """The loops of a graph that have a known number of iterations, and the integers that have a known range."""

    def __init__(self, graph: Graph) -> None:
        self.trips: dict[Node, int] = {}
        self.ranges: dict[Value, Range] = {}
        self._read(graph)

    def _read(self, graph: Graph) -> None:
        for node in graph.nodes:
            if is_loop(node):
                self._loop(node)
            elif node.regions:
                # The operands of the regions do not matter: no ranges are known for their inputs.
                for region in node.regions:
                    self._read(region)
            else:
                self._note(node)

    def _note(self, node: Node) -> None:
        name, known = node.op.name, [self._range(v) for v in node.operands]
        found: Range | None = None
        if name == "constant":
            value = attributes.Constant.of(node).value
            if dtype_kind(value.dtype) in "biu" and value.size:
                found = Range(int(value.min()), int(value.max()))
        elif name in _ARITHMETIC and known[0] is not None and known[1] is not None:
            found = _ARITHMETIC[name](known[0], known[1])
        elif name in _MOVES and dtype_kind(node.result.tensor.dtype) in "iu":
            found = known[0]
        if found is not None and _holds(node.result.tensor.dtype, found):
            self.ranges[node.result] = found

    def _range(self, value: Value) -> Range | None:
        if value in self.ranges or not isinstance(value.type, TensorType):
            return self.ranges.get(value)
        dtype = value.type.dtype
        # Integers of at most 32 bits have the range of their dtype.
        return Range(*_limits(dtype)) if dtype_kind(dtype) in "iu" and dtype.itemsize <= 4 else None

    def _loop(self, node: Node) -> None:
        loop = Loop.of(node)
        for capture in loop.captures:
            if capture.outer in self.ranges:
                self.ranges[capture.in_cond] = self.ranges[capture.in_body] = self.ranges[capture.outer]
        for region in (loop.cond, loop.body):
            for inner in region.nodes:
                if inner.op.name == "constant":
                    self._note(inner)
        counting, most = Counting.of(loop, self._number), loop.attrs.maximum_iterations
        trips = None if counting is None else counting.count(self._number)
        if trips is not None and (most is None or trips <= most):
            self.trips[node] = trips
            for carry in loop.carries:
                self._count(loop, carry, trips)
        self._read(loop.cond)
        self._read(loop.body)

    def _number(self, value: Value) -> np.ndarray | None:
        found = self.ranges.get(value)
        is_one = isinstance(value.type, TensorType) and value.type.shape == () and found is not None
        return np.array(found.low) if is_one and found is not None and found.low == found.high else None

    def _count(self, loop: Loop, carry: Carry, trips: int) -> None:
        """Note the range of a carry that counts."""
        start = self.ranges.get(carry.init)
        step = None if start is None else step_of(loop, carry, self._number)
        if start is None or step is None:
            return
        after = [x + k * step for x in start for k in (0, trips)]
        found = Range(min(after), max(after))
        if _holds(carry.in_body.tensor.dtype, found):
            self.ranges |= dict.fromkeys((carry.in_cond, carry.in_body, carry.result), found)


def _holds(dtype: np.dtype, found: Range) -> bool:
    if dtype_kind(dtype) == "b":
        return True
    if dtype_kind(dtype) not in "iu":
        return False
    low, high = _limits(dtype)
    return low <= found.low and found.high <= high


def _limits(dtype: np.dtype) -> tuple[int, int]:
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def pushed_only(graph: Graph) -> bool:
    """True if all stacks of a graph, and of the loops in it, begin empty, are only pushed to, and become arrays.

    Then each is a sequence of arrays of known sizes: every iteration of a loop pushes the same number of rows.
    """
    producers = {value: node for node in graph.nodes for value in node.results}

    def begins(value: Value) -> Value:
        """First version of a stack in the chain of pushes that makes this one."""
        while value in producers and (pushed := producers[value].used_as(Use.PUSH)):
            (value,) = pushed
        return value

    inputs = [v for v in graph.inputs if isinstance(v.type, StackType)]
    for node in graph.nodes:
        name, stacks = node.op.name, [v.type for v in (*node.operands, *node.results) if isinstance(v.type, StackType)]
        if is_loop(node):
            loop = Loop.of(node)
            if any(isinstance(c.outer.type, StackType) for c in loop.captures):
                return False
        elif name == "stack_new":
            if node.operands or not stacks[0].element.is_static:
                return False
        elif name == "stack_to_tensor":
            # An iteration knows only its own rows of a stack that comes from outside.
            if begins(node.operands[0]) in inputs:
                return False
        elif stacks and not node.used_as(Use.PUSH):
            return False
        regions = (Loop.of(node).body,) if is_loop(node) else node.regions
        if not all(pushed_only(region) for region in regions):
            return False
    return [begins(v) for v in graph.outputs if isinstance(v.type, StackType)] == inputs


# A graph as operations of JAX, which JAX compiles, batches and differentiates itself.
#
# This form exists for graphs whose every size is known before they run: every loop runs a known number of times, and
# becomes a `lax.scan`. Its stacks are only pushed to and become arrays, as those of `scan` are: the scan collects the
# rows that an iteration pushes. A user's derivative rule must be kept, so a graph with one takes another way
# (`engine_primitive.py`).


# The judge's table has no entry for them.
_EFFECTS = frozenset(["callback", "watch"])

# JAX differentiates eigenvalues once, and eigenvectors not at all.
_WITHOUT_DERIVATIVES = frozenset(["general_eigenvalues", "general_eigenvectors"])


def obstacle(graph: Graph) -> str | None:
    """Return the first part of a graph without a form in JAX's operations, with the user's line; else None."""
    return next(_obstacles(graph), None)


def _obstacles(graph: Graph) -> Iterator[str]:
    loops = CountedLoops(graph)
    for node in walk(graph):
        where = f" at {node.source}" if node.source else ""
        name = node.op.name
        if is_loop(node):
            if node not in loops.trips:
                yield f"a loop whose iterations the data count{where}"
        elif is_call(node):
            yield f"a function with a derivative rule of its own{where}"
        elif name in _WITHOUT_DERIVATIVES | _EFFECTS or not (name in TENSOR_OPS or name in _STACKS or is_branch(node)):
            yield f"the op {name}{where}"
        for value in node.results:
            t = value.type.element if isinstance(value.type, StackType) else value.type
            known = loops.ranges.get(value)
            if not t.is_static:
                yield f"a size that is known when it runs{where}"
            elif jax_dtype(t.dtype) != t.dtype and (known is None or not known.is_small):
                yield f"values of {t.dtype.name}, while JAX's 64-bit types are off{where}"
    if not pushed_only(graph):
        yield "stacks that are not only pushed to"
    if asks_for_memory(graph):
        yield "a wish for what is done with a loop's saved values"


def _collected(node: Node, sizes: Any, stack: Arrays) -> Any:
    return _rows(stack, TensorType(node.result.tensor.dtype, node.result.tensor.shape[1:]))


# A stack is a tuple of arrays, each of some of its rows.
_STACKS: dict[str, Entry] = {
    "stack_new": lambda node, sizes: (),
    "stack_push": lambda node, sizes, stack, row: (*stack, row[None]),
    "stack_to_tensor": _collected,
}


class _Pure(Translator):
    stacks: ClassVar[dict[str, Entry]] = _STACKS

    def __init__(self, graph: Graph) -> None:
        self.trips = CountedLoops(graph).trips

    def sizes(self, node: Node, operands: Arrays) -> None:
        return None

    def loop(self, node: Node, operands: Arrays) -> Arrays:
        loop, trips = Loop.of(node), self.trips[node]
        captures, start = map(tuple, loop.split(operands))
        types = [carry.init.type for carry in loop.carries]

        def step(carry: Arrays, _: None) -> tuple[Arrays, Arrays]:
            given = iter(carry)
            after = self.run(loop.body, captures + tuple(next(given) if _is_array(t) else () for t in types))
            both = list(zip(after, types, strict=True))
            rows = [_rows(x, t.element) for x, t in both if isinstance(t, StackType)]
            return tuple(x.astype(jax_dtype(t.dtype)) for x, t in both if isinstance(t, TensorType)), tuple(rows)

        arrays = tuple(x for x, t in zip(start, types, strict=True) if _is_array(t))
        last, pushed = map(iter, lax.scan(step, arrays, None, length=trips))
        return tuple(
            next(last) if _is_array(t) else (*x, _flat(next(pushed))) for x, t in zip(start, types, strict=True)
        )

    def branch(self, node: Node, operands: Arrays) -> Arrays:
        selector, *rest = operands
        branches = [lambda *given, region=region: self.run(region, given) for region in node.regions]
        found: Arrays = lax.switch(selector.astype(jnp.int32), branches, *rest)
        return found


def _is_array(t: Any) -> bool:
    return isinstance(t, TensorType)


def _rows(stack: Arrays, element: TensorType) -> Any:
    return jnp.concatenate([jnp.zeros((0, *element.shape), element.dtype), *stack])


def _flat(rows: Any) -> Any:
    """The rows of all iterations, which each has had some of."""
    return rows.reshape(rows.shape[0] * rows.shape[1], *rows.shape[2:])


def run_in_jax(graph: Graph, arguments: Sequence[Any]) -> list[Any]:
    """The results of a graph without obstacles, as JAX's arrays or tracers."""
    given = [lax.convert_element_type(x, v.tensor.dtype) for x, v in zip(arguments, graph.inputs, strict=True)]
    found = _Pure(graph).run(graph, tuple(given))
    return [x.astype(v.tensor.dtype) for x, v in zip(found, graph.outputs, strict=True)]


# Number of signatures of a function whose programs are kept.
SIGNATURES = 256


@explains_calls
def to_jax(fn: Callable[..., Any]) -> JaxFunction:
    """A function of this library as one of JAX: `jit`, `grad`, `vmap`, `jvp`, `hessian` and `lax.scan` take it.

    It is traced once for each structure, dtypes and shapes of the arguments, and again where a variable or an array of
    at most 4,096 bytes that it reads has changed (see `function`). A graph whose loops, if there are any, run
    a known number of times becomes operations of JAX. Any other becomes one primitive of JAX that this library's engine
    runs, with rules for batches and for both modes, at any order and within each other: a `while_loop` is
    differentiated in reverse. The backward pass runs the forward pass again, so that nothing whose size depends on data
    passes through JAX. `to_jax(fn).explain(*args)` says which of the two it is, and why. `to_jax(from_jax(f))` is `f`
    with loops that `jax.grad` takes.

    Args:
        fn: takes and returns pytrees of JAX's. Arrays and floats among the arguments are traced, those of floats
            of 8 bits as float32; Python integers, booleans, strings and functions reach it as they are. It
            should be pure. What it needs of a trace of JAX must be among the arguments.

    Returns:
        A function of the same arguments. Its results are JAX's arrays, strongly typed, of the dtypes that `fn` gives
        them (Python numbers and JAX's weakly typed arrays give way in promotions); while JAX's 64-bit types are off,
        arguments and results are of 32 bits, whatever `fn` computes with.

    Raises (when called):
        TypeMismatchError: an argument of a dtype that is not supported, or one that is no array and has no hash.
        TracingError: the size of a result depends on data, or `fn` uses a value of a trace of JAX around it.

    Under `jax.jit` the primitive is a call of this library's machine code, without Python's lock where the run needs no
    Python (on the processor, by the native engine; otherwise a call of Python from compiled code). Errors of the run
    come as JAX's own, with the text of ours. The engine is the one that `ctrlgrad.options` names when `fn` is traced;
    options and budgets of the block around a compiled call do not reach it, those that `fn` itself asks for do
    (`ctrlgrad.checkpoint`).

    >>> import jax, ctrlgrad as cg
    >>> @cg.to_jax
    ... def root(a):
    ...     step = lambda x: 0.5 * (x + a / x)
    ...     return cg.while_loop(lambda x: abs(x * x - a) > 1e-5, step, a)
    >>> print(f"{jax.jit(jax.grad(root))(4.0):.4f} {jax.hessian(root)(4.0):.4f}")
    0.2500 -0.0312
    >>> root.explain(4.0).form
    'one primitive'
    """
    check_function("to_jax", fn)
    return JaxFunction(fn)


@dataclass(frozen=True)
class Explanation:
    """Form of a function in JAX, for arguments of one signature; `reason` explains why it is not pure JAX."""

    form: Literal["pure JAX", "one primitive"]
    reason: str | None

    def __str__(self) -> str:
        return self.form if self.reason is None else f"{self.form}: it has {self.reason}"


@dataclass(eq=False)
class _Signature:
    """A function for arguments of one signature."""

    flat: Flat
    program: JaxProgram
    graph: Graph
    explanation: Explanation
    watched: Watched

    def __call__(self, arrays: Sequence[Any]) -> Any:
        found = run_in_jax(self.graph, arrays) if self.explanation.reason is None else bind(self.program, *arrays)
        return self.flat.unflatten(found)


class JaxFunction:
    """A function of this library for JAX; made by `ctrlgrad.to_jax`."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.name = str(getattr(fn, "__name__", type(fn).__name__))
        self._signatures: Recent[Any, _Signature] = Recent(SIGNATURES)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<{self.name} for JAX>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        signature, arrays = self._signature(args, kwargs)
        return signature(arrays)

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """Explain the form that the function has in JAX for these arguments."""
        return self._signature(args, kwargs)[0].explanation

    def _signature(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[_Signature, list[Any]]:
        leaves, treedef = jax.tree_util.tree_flatten((args, kwargs))
        kinds = tuple(map(self._kind, leaves))
        key = (treedef, kinds, has_x64(), current_options().engine, current_manner())
        signature = self._signatures.get(key, lambda: self._traced(treedef, kinds))
        if not signature.watched.is_current():
            self._signatures.forget(key)
            signature = self._signatures.get(key, lambda: self._traced(treedef, kinds))
        return signature, [_array(x, kind) for x, kind in zip(leaves, kinds, strict=True) if isinstance(kind, Leaf)]

    def _traced(self, treedef: Any, kinds: tuple[Any, ...]) -> _Signature:
        before = watch([self.fn, *code_in(kinds)])
        flat = Flat(self.fn, treedef, kinds, _narrow)
        inputs: list[Leaf] = flat.arrays
        types: list[Any] = [leaf.type for leaf in inputs]

        def fn(*tensors: Any) -> list[Any]:
            return flat(*(Tensor(x.builder, x.value, leaf.weak) for x, leaf in zip(tensors, inputs, strict=True)))

        try:
            program = JaxProgram.traced(self.name, fn, types, current_options().engine)
        except (jax.errors.JAXTypeError, TracingError) as error:
            cause = error if isinstance(error, jax.errors.JAXTypeError) else error.__cause__
            if not isinstance(cause, jax.errors.JAXTypeError):
                raise
            raise TracingError(
                f"to_jax: {self.name} uses a value of a trace of JAX that is not among its arguments",
                expected="arrays, or values that are passed as arguments",
                got=str(cause).splitlines()[0],
                hint="give the function one more argument, and pass the value; jax.numpy takes no tensor of this"
                " library: read functions that are written with it by ctrlgrad.from_jax",
            ) from error
        graph = simplify(program.graph)
        reason = obstacle(graph)
        explanation = Explanation("pure JAX" if reason is None else "one primitive", reason)
        return _Signature(flat, program, graph, explanation, watch([self.fn, *code_in(kinds)]).without_own(before))

    def _kind(self, x: Any) -> Any:
        """Entry of a call's signature for an argument: its type, weak as in JAX, or the value itself."""
        if isinstance(x, float | complex) and not isinstance(x, np.generic):
            return Leaf(TensorType(jax.dtypes.canonicalize_dtype(type(x))), True)
        if isinstance(x, Tensor):
            raise TracingError(
                f"to_jax: {self.name} is called on a traced tensor of this library",
                expected="JAX's arrays and tracers, NumPy's arrays, numbers",
                got=repr(x),
                hint="call the function itself there, or read the JAX program around it by ctrlgrad.from_jax",
            )
        if not is_array(x):
            return static_argument(f"to_jax: {self.name}", x)
        if _is_short(x):
            return Leaf(TensorType(np.dtype(np.float32), x.shape), has_weak_type(x))
        if getattr(x.dtype, "name", "") not in NAMES:
            is_key = jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)
            raise TypeMismatchError(
                f"to_jax: {self.name} is called on an array of a dtype that is not supported",
                expected=", ".join(NAMES),
                got=f"{x.dtype}",
                hint="pass jax.random.key_data(key)" if is_key else "cast it to float32 before, x.astype(jnp.float32)",
            )
        return Leaf(TensorType(jax.dtypes.canonicalize_dtype(x.dtype), x.shape), has_weak_type(x))


def _array(x: Any, kind: Leaf) -> Any:
    if _is_short(x):
        x = jnp.asarray(x).astype(kind.type.dtype)  # type: ignore[union-attr]
    # Of NumPy's array a copy, which stays as it is where JAX keeps it.
    return x if isinstance(x, jax.Array) else np.array(x, kind.type.dtype)  # type: ignore[union-attr]


def _is_short(x: Any) -> bool:
    """Return true if an argument is an array of 8-bit floats, which graphs do not hold."""
    dtype: Any = getattr(x, "dtype", None)
    is_other = getattr(dtype, "kind", "") == "V" and dtype != BFLOAT16
    return is_other and bool(jnp.issubdtype(dtype, jnp.floating))


def _narrow(x: Any) -> Any:
    """A result in the dtype that JAX has for it."""
    if isinstance(x, jax.Array):
        x = np.asarray(x)
    return cast(x, jax.dtypes.canonicalize_dtype(x.dtype if hasattr(x, "dtype") else type(x)))
