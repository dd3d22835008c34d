"""`fori_loop` and `scan`, written on the `while` op."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ctrlgrad import tree
from ctrlgrad.advice import explains_calls
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import ShapeError, TypeMismatchError, UnknownSizeError, UserInputError
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.apply import Unsized, apply, cast, result_dtype, tensor_type, type_of, value_in
from ctrlgrad.frontend.array.manipulation import concatenate, flip, reshape, stack
from ctrlgrad.frontend.array.promote import axis_of, dim, ensured, operand, size_argument, sliced
from ctrlgrad.frontend.carry import Carry, settle
from ctrlgrad.frontend.checks import check_callable, check_leaves, check_predicate, same_structure
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import recorder
from ctrlgrad.frontend.tracer import Leaf, Traced, in_trace
from ctrlgrad.ir import (
    INDEX,
    Builder,
    Counting,
    Graph,
    Loop,
    Node,
    StackType,
    TensorType,
    Trait,
    Use,
    Value,
    attributes,
    close,
    definitions,
    is_loop,
)
from ctrlgrad.ir.control import emit_loop
from ctrlgrad.ops import term
from ctrlgrad.records import record
from ctrlgrad.source import Source, here
from ctrlgrad.stacks.sizes import Cut, Size, origin, told

# `while_loop`: two Python functions traced into the regions of the `while` op.


@explains_calls
def while_loop(
    cond_fun: Callable[[Any], Any],
    body_fun: Callable[[Any], Any],
    init: Any,
    *,
    maximum_iterations: int | None = None,
    parallel_iterations: int | None = None,
    swap_memory: bool | None = None,
    checkpoint: bool | int | None = None,
    name: str | None = None,
) -> Any:
    """Repeat `carry = body_fun(carry)` as long as `cond_fun(carry)` is true; as `jax.lax.while_loop`.

    Args:
        cond_fun: takes the carry, returns a bool scalar.
        body_fun: takes the carry, returns the next one: the same pytree, dtypes and shapes.
        init: the first carry, a pytree of arrays, numbers and tensors. A Python number takes the dtype that
            the body gives it.
        maximum_iterations: an error if the condition still holds after so many iterations.
        parallel_iterations: the most iterations that the engine "dataflow" may have in flight; None leaves the number
            to it. The other engines run one iteration at a time. The result does not depend on it.
        swap_memory: what is done with saved values that a budget (`ctrlgrad.memory.budget`) has no room for: True to
            copy them to slower memory, False to keep them, come what may; None leaves it to the memory manager.
        checkpoint: True to compute the values of a chunk of iterations again from the state at its start, instead of
            saving them; a number to keep at most so many of these states, and go back to an earlier one where one is
            missing. None leaves it to the memory manager, False rules it out.
        name: how errors and profiles call the loop.

    Returns:
        The last carry: `init` itself if the condition is false at once.

    Raises:
        TypeMismatchError: the condition is no bool scalar, or the body's result differs from the carry.
        MaximumIterationsError: at run time.

    >>> halve = lambda c: (c[0] + 1, c[1] / 2)
    >>> halvings = lambda x: cg.while_loop(lambda c: c[1] > 1.0, halve, (0, x))
    >>> steps, rest = halvings(10.0)
    >>> int(steps), float(rest)
    (4, 0.625)
    """
    options = attributes.Loop(
        maximum_iterations=maximum_iterations,
        parallel_iterations=parallel_iterations,
        swap_memory=swap_memory,
        checkpoint=checkpoint,
        name=name,
    )
    _check_options(options)
    source = here()
    return in_trace(lambda: _while(cond_fun, body_fun, init, options, source))


def _check_options(options: attributes.Loop) -> None:
    limits = {
        "maximum_iterations": (options.maximum_iterations, 0),
        "parallel_iterations": (options.parallel_iterations, 1),
    }
    for label, (value, least) in limits.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least):
            raise UserInputError(
                f"while_loop: {label} is not usable",
                expected=f"an int of {least} or more",
                got=repr(value),
                hint=f"leave {label} out, or pass a number of iterations that is known when the program is written",
            )
    _check_memory_options(options)


def _check_memory_options(options: attributes.Loop) -> None:
    kinds = (
        ("swap_memory", options.swap_memory, isinstance(options.swap_memory, bool | None), "True, False or None"),
        (
            "checkpoint",
            options.checkpoint,
            isinstance(options.checkpoint, bool | None)
            or (isinstance(options.checkpoint, int) and options.checkpoint > 0),
            "True, False, None or the number of states to keep",
        ),
    )
    for label, value, is_usable, expected in kinds:
        if not is_usable:
            raise UserInputError(
                f"while_loop: {label} is not usable",
                expected=expected,
                got=repr(value),
                hint=f"leave {label} out to have the memory manager choose",
            )
    if options.swap_memory and options.checkpoint:
        raise UserInputError(
            "while_loop: swap_memory and checkpoint are two ways to do without the same memory",
            expected="one of them",
            got=f"swap_memory=True, checkpoint={options.checkpoint!r}",
            hint="leave both out to have the memory manager choose for each chunk",
        )


def _while(
    cond_fun: Callable[[Any], Any],
    body_fun: Callable[[Any], Any],
    init: Any,
    options: attributes.Loop,
    source: Source | None,
) -> Any:
    check_callable("while_loop", "cond_fun", cond_fun, ("carry",), source)
    check_callable("while_loop", "body_fun", body_fun, ("carry",), source)

    def region(name: str, fn: Callable[[Any], Any], carry: Carry, what: str) -> Traced:
        return Traced(name, lambda state: fn(tree.unflatten(carry.treedef, state)), carry.entry(), what=what)

    settled = settle(
        Carry.of("while_loop", init, source),
        lambda carry: region("body", body_fun, carry, "while_loop: the body's result"),
    )
    carry, body = settled.carry, settled.body
    if not settled.is_final:
        return carry.guessed(recorder(), body.leaves)
    body_graph = body.finish(dtypes=carry.dtypes)
    tested = "while_loop: the result of cond_fun"
    cond = region("cond", cond_fun, carry, tested)
    check_predicate(tested, cond.leaves, source)
    results = emit_while(cond.finish(), body_graph, carry.values(), options, source)
    return tree.unflatten(carry.treedef, carry.rest_weak(results, body.leaves))


def emit_while(
    cond: Any, body: Any, carry: Sequence[Any], options: attributes.Loop, source: Source | None
) -> list[Tensor]:
    """Record the loop node; what the regions use from outside become its captures."""
    builder = recorder()
    closed = close([cond, body])
    inits = [value_in(builder, x) for x in carry]
    hints = [v.hint for v in body.inputs]
    values = emit_loop(builder, closed, inits, options, source=source, hints=hints)
    return [Tensor(builder, v) for v in values]


@explains_calls
def unknown_dims(x: Any, axes: int | Sequence[int] = 0) -> Any:
    """The same tensor, the sizes of some axes counted as unknown: for a carry whose shape changes in the loop.

    >>> def doubled(x):
    ...     grow = lambda c: (c[0] + 1, cnp.concat([c[1], 2 * c[1]]))
    ...     return cg.while_loop(lambda c: c[0] < 2, grow, (0, cg.unknown_dims(x)))[1]
    >>> cg.function(doubled)(np.array([1.0, 3.0]))
    array([ 1.,  3.,  2.,  6.,  2.,  6.,  4., 12.])

    Args:
        x: a tensor or an array.
        axes: one axis or several; negative ones count from the end.

    Outside a trace, x itself as loops take it: a NumPy array that remembers these axes.
    """
    t = type_of(x)
    wanted = (axes,) if isinstance(axes, int) else tuple(axes)
    (t,) = term.tensors("unknown_dims", [t])
    places = tuple(sorted({term.axes("unknown_dims", [axis], t.rank)[0] for axis in wanted}))
    builder = trace.current()
    if builder is None:
        return Unsized.of(x, places)
    value = builder.emit("forget_sizes", [value_in(builder, x)], {"axes": places}, source=here())
    return Tensor(builder, value)


# Sizes of a collected row in the first iteration, computed before the loop.
#
# A loop that never runs collects nothing, and its empty result still has a shape: where a size of a row is unknown
# until run time, it follows from the sizes of what the loop starts with. Sizes pass through the ops of the body as in
# `ctrlgrad.stacks.sizes`; beyond that, operands of an elementwise op are broadcast, and an op that is told a size is
# told it here too.


@record
class RowSizes:
    """`starts` is what the inputs of a loop's body are at the first iteration, `producers` the nodes of the body; other
    values are those of the traces around it."""

    builder: Builder
    producers: Mapping[Value, Node]
    starts: Mapping[Value, Any]

    def of(self, row: Value) -> list[Any]:
        """The unknown sizes of a row, in order; none where one of them is known in the loop alone."""
        sizes = [self._size(Size(row, axis)) for axis, d in enumerate(row.tensor.shape) if d is None]
        return [] if any(n is None for n in sizes) else sizes

    def _size(self, size: Size) -> Any:
        size = origin(self.producers, size)
        value, axis = size.value, size.axis
        known = value.tensor.shape[axis]
        if known is not None:
            return np.int64(known)
        node = self.producers.get(value)
        if node is None:
            return apply("dim", [self._outside(value)], {"axis": axis})
        if Trait.ELEMENTWISE in node.op.traits:
            # The broadcast size, along an axis that is counted from the end.
            back = axis - value.tensor.rank
            ranks = [(v, v.tensor.rank) for v in node.operands]
            operands = [self._size(Size(v, rank + back)) for v, rank in ranks if rank >= -back]
            if any(n is None for n in operands):
                return None
            found = operands[0]
            for n in operands[1:]:
                found = apply("where", [apply("equal", [found, np.int64(1)]), n, found])
            return found
        if node.op.name == "stack_to_tensor" and axis == 0:
            return self._collected(node.operands[0])
        if node.op.name == "concat":
            parts = [self._size(Size(v, axis)) for v in node.operands]
            return (
                None if any(n is None for n in parts) else functools.reduce(functools.partial(_computed, "add"), parts)
            )
        cut = Cut.find(node, axis)
        if cut is not None:
            # Of a slice: negative bounds count from the end, and no bound leaves the array.
            whole = self._size(cut.of)
            bounds = (0 if cut.start is None else cut.start, whole if cut.stop is None else cut.stop)
            start, stop = (self._number(x) if isinstance(x, Value) else x for x in bounds)
            if whole is None or start is None or stop is None:
                return None
            return _computed("maximum", _computed("subtract", _place(stop, whole), _place(start, whole)), 0)
        number = told(node, axis)
        if number is None:
            # Sizes of a stack's rows that an op receives as operands are the last unknown sizes of its result.
            sizes, from_end = node.used_as(Use.SIZE), value.tensor.shape[axis:].count(None)
            number = sizes[-from_end] if from_end <= len(sizes) else None
        return None if number is None else self._number(number)

    def _collected(self, stack: Value) -> Any:
        """Number of rows that an inner loop collects, one per iteration: the loop's bound; None if it is not known."""
        node = self.producers.get(stack)
        if node is None or not is_loop(node):
            return None
        loop = Loop.of(node)
        carry = loop.carries[node.results.index(stack)]
        start, push = self.producers.get(carry.init), definitions(loop.body).get(carry.next)
        is_one_each = push is not None and push.op.has_use(Use.PUSH) and push.operands[0] is carry.in_body
        counting = Counting.of(loop, self._constant)
        if start is None or start.op.name != "stack_new" or start.operands or not is_one_each or counting is None:
            return None
        if (counting.step, counting.beyond) != (1, 0) or self._constant(counting.carry.init) != 0:
            return None
        bound = counting.bound
        count = np.int64(bound) if isinstance(bound, np.ndarray) else self._number(bound)
        return None if count is None else apply("maximum", [count, np.int64(0)])

    def _constant(self, value: Value) -> np.ndarray | None:
        node = self.producers.get(value)
        constant = None if node is None else attributes.Constant.find(node)
        return None if constant is None else constant.value

    def _number(self, value: Value) -> Any:
        """A size that an op of the body is told."""
        node = self.producers.get(value)
        if node is None:
            return self._outside(value)
        if node.op.name == "constant":
            return attributes.Constant.of(node).value
        if node.op.name == "dim":
            return self._size(Size(node.operands[0], attributes.Axis.of(node).axis))
        if Trait.ELEMENTWISE not in node.op.traits:
            return None
        operands = [self._number(v) for v in node.operands]
        return None if any(n is None for n in operands) else apply(node.op.name, operands, node.attrs.given())

    def _outside(self, value: Value) -> Any:
        return self.starts[value] if value in self.starts else Tensor(self.builder, value)


def _place(bound: Any, size: Any) -> Any:
    """Place of a slice's bound in an array: a negative bound counts from the end, and the result is clipped."""
    counted = _computed("where", _computed("less", bound, 0), _computed("add", bound, size), bound)
    return _computed("minimum", _computed("maximum", counted, 0), size)


def _computed(op: str, *sizes: Any) -> Any:
    return apply(op, [np.int64(n) if isinstance(n, int) else n for n in sizes])


_LENGTHS_DIFFER = "the leading dimensions differ"
_EQUAL_LENGTHS = "cut the longer ones, xs[:n], or pad the shorter ones"


@explains_calls
def fori_loop(
    lower: Any, upper: Any, body_fun: Callable[[Any, Any], Any], init_val: Any, *, unroll: int | bool | None = None
) -> Any:
    """`for i in range(lower, upper): carry = body_fun(i, carry)`; as `jax.lax.fori_loop`.

    The bounds are integers or traced integer scalars, so the number of iterations may depend on data; `i` is
    int64, or of the bounds' dtype where one is a float. Differentiable in both modes whatever the bounds. `unroll` is
    accepted for JAX's sake and changes nothing: a compiled loop has no cost per iteration that unrolling would save.

    >>> power = lambda x, n: cg.fori_loop(0, n, lambda i, y: y * x, 1.0)
    >>> float(power(2.0, 10)), float(cg.grad(power)(2.0, 10))
    (1024.0, 5120.0)
    """
    for bound in (lower, upper):
        t = type_of(bound)
        if not isinstance(t, TensorType) or t.rank != 0 or dtype_kind(t.dtype) not in "iuf":
            raise TypeMismatchError(
                "fori_loop: a bound is not a real scalar",
                expected="i64[]",
                got=str(t),
                hint="cast a bound with .astype(int), and take one number of an array: n[0]",
            )
    source = here()
    check_callable("fori_loop", "body_fun", body_fun, ("i", "carry"), source)
    _check_unroll("fori_loop", unroll)
    dtype = result_dtype(lower, upper)
    dtype = np.dtype(np.int64) if dtype_kind(dtype) in "iu" else dtype
    lower, upper = cast(lower, dtype), cast(upper, dtype)
    return in_trace(lambda: _fori_loop(lower, upper, body_fun, init_val, source))


def _fori_loop(lower: Any, upper: Any, body_fun: Callable[[Any, Any], Any], init: Any, source: Source | None) -> Any:

    def trace_body(carry: Carry) -> Traced:
        # An array whose elements become known has more leaves than before.
        hints = tree.names(tree.flatten((lower, carry.init))[1], "c")

        def body(inputs: list[Tensor]) -> Any:
            index, *state = inputs
            following = apply("add", [index, index.dtype.type(1)])
            return following, body_fun(index, tree.unflatten(carry.treedef, state))

        inputs = [Leaf(type_of(lower), hint=hints[0]), *carry.entry(hints[1:])]
        return Traced("body", body, inputs, what="fori_loop: the body's result")

    settled = settle(Carry.of("fori_loop", init, source), trace_body, lambda body: body.result[1])
    carry, body = settled.carry, settled.body
    following = body.leaves[1:]
    if not settled.is_final:
        return carry.guessed(recorder(), following)
    graph = body.finish(dtypes=[None, *carry.dtypes])
    start = [lower, *carry.values()]
    _, *results = emit_while(_is_below(graph, upper), graph, start, attributes.Loop(name="fori_loop"), source)
    return tree.unflatten(carry.treedef, carry.rest_weak(results, following))


def _is_below(body: Graph, upper: Any) -> Graph:
    """The condition of a loop whose first carry is its counter."""
    inputs = [Leaf(v.type, hint=v.hint) for v in body.inputs]
    return Traced("cond", lambda carry: apply("less", [carry[0], upper]), inputs).finish()


def _check_unroll(operation: str, unroll: Any) -> None:
    """Refuse what JAX refuses: a number of iterations is not negative."""
    if unroll is not None and (not isinstance(unroll, int | np.integer) or unroll < 0):
        raise UserInputError(
            f"{operation}: unroll is not a number of iterations",
            expected="an integer of 0 or more, or a boolean",
            got=repr(unroll),
            hint="leave it out: a compiled loop gains nothing by it",
        )


@explains_calls
def scan(
    f: Callable[[Any, Any], Any],
    init: Any,
    xs: Any = None,
    length: Any = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> Any:
    """Carry a state over the rows of `xs` and collect a result per row; as `jax.lax.scan`.

    Args:
        f: takes (carry, x), returns (carry, y). x is a row of every leaf of `xs`.
        init: the first carry.
        xs: a pytree of arrays with the same leading dimension, or None.
        length: the number of iterations; needed when `xs` has no leaves. May be a traced scalar.
        reverse: take the rows from the last to the first; `ys` keep the order of `xs`.
        unroll: accepted for JAX's sake; it changes nothing.

    Returns:
        (carry, ys): the last carry, and y of every iteration along a new leading axis.

    Raises:
        ShapeError: the leading dimensions differ, or there is no length.
        TypeMismatchError: f's carry differs from `init`.

    >>> total, sums = cg.scan(lambda c, x: (c + x, c + x), 0.0, np.arange(4.0))
    >>> float(total), sums
    (6.0, array([0., 1., 3., 6.]))
    """
    source = here()
    _check_unroll("scan", unroll)
    check_callable("scan", "f", f, ("carry", "x"), source)
    return in_trace(lambda: _scan("scan", f, init, xs, length, reverse, source))


@explains_calls
def map(f: Callable[[Any], Any], xs: Any, *, batch_size: int | None = None) -> Any:
    """Apply `f` to every row of `xs` and stack the results; as `jax.lax.map`.

    `batch_size` is accepted for JAX's sake: how many rows are computed at once is for the engine to say.

    >>> cg.map(lambda x: x * x, np.arange(3.0))
    array([0., 1., 4.])
    """
    source = here()
    check_callable("map", "f", f, ("x",), source)
    if batch_size is not None:
        size_argument("map", "batch_size", batch_size, least=1)
    return in_trace(lambda: _scan("map", lambda carry, x: (carry, f(x)), None, xs, None, False, source))[1]


@explains_calls
def foldl(f: Callable[[Any, Any], Any], xs: Any, init: Any) -> Any:
    """`f(...f(f(init, xs[0]), xs[1])..., xs[-1])`: a fold over the rows from the first, as `tf.foldl`.

    >>> float(cg.foldl(lambda total, x: 10 * total + x, np.array([1.0, 2.0, 3.0]), 0.0))
    123.0
    """
    return _fold("foldl", f, xs, init, reverse=False)


@explains_calls
def foldr(f: Callable[[Any, Any], Any], xs: Any, init: Any) -> Any:
    """As `foldl`, from the last row to the first.

    >>> float(cg.foldr(lambda total, x: 10 * total + x, np.array([1.0, 2.0, 3.0]), 0.0))
    321.0
    """
    return _fold("foldr", f, xs, init, reverse=True)


def _fold(operation: str, f: Callable[[Any, Any], Any], xs: Any, init: Any, reverse: bool) -> Any:
    source = here()
    check_callable(operation, "f", f, ("carry", "x"), source)
    return in_trace(lambda: _scan(operation, lambda carry, x: (f(carry, x), None), init, xs, None, reverse, source))[0]


def _scan(
    operation: str, f: Callable[[Any, Any], Any], init: Any, xs: Any, length: Any, reverse: bool, source: Source | None
) -> Any:
    rows, rows_treedef = tree.flatten(xs)
    check_leaves(f"{operation}: xs", rows)
    count, static = _length(operation, rows, length, source)
    rows, count = _of_length(operation, rows, count, static)

    def trace_step(carry: Carry) -> Traced:
        def step(inputs: list[Tensor]) -> Any:
            index, *state = inputs
            row = count - 1 - index if reverse else index
            x = tree.unflatten(rows_treedef, [FUNCTIONS["getitem"](leaf, row) for leaf in rows])
            result = f(tree.unflatten(carry.treedef, state), x)
            if not isinstance(result, tuple) or len(result) != 2:
                raise TypeMismatchError(
                    "scan: f does not return a pair",
                    source=source,
                    expected="(carry, y); y may be None",
                    got="None: f ends without `return`" if result is None else type(result).__name__,
                    hint="return (carry, None) where there is nothing to collect",
                )
            check_leaves("scan: the carry that f returns", tree.leaves(result[0]))
            check_leaves("scan: the result that f collects", tree.leaves(result[1]))
            return result

        return Traced("body", step, [Leaf(INDEX, hint="t"), *carry.entry()])

    settled = settle(Carry.of(operation, init, source), trace_step, lambda step: step.result[0])
    carry, step, builder = settled.carry, settled.body, recorder()
    following = tree.leaves(step.result[0])
    ys, ys_treedef = tree.flatten(step.result[1])
    elements = [t for t in [type_of(y) for y in ys] if isinstance(t, TensorType)]
    if not settled.is_final:
        guessed = [Tensor(builder, Value(TensorType(t.dtype, (static, *t.shape)))) for t in elements]
        return carry.guessed(builder, following), tree.unflatten(ys_treedef, guessed)
    body = step.finish(_collecting(step, carry, following, ys, elements))
    stacks = [
        Tensor(builder, builder.emit("stack_new", (), {"element": t}, source=source, hint="ys")) for t in elements
    ]
    start = [np.int64(0), *carry.values(), *stacks]
    _, *results = emit_while(_is_below(body, count), body, start, attributes.Loop(name=operation), source)
    last = carry.rest_weak(results[: len(carry.leaves)], following)
    producers = definitions(body)
    sizes = RowSizes(builder, producers, dict(zip(body.inputs, start, strict=True)))
    pushed = [producers[v].operands[1] for v in body.outputs[1 + len(carry.leaves) :]]
    # A length that is given when it runs may be another one than the rows'.
    certain = None if isinstance(length, Tensor) else static
    collected = [
        _counted(operation, apply("stack_to_tensor", [s, *sizes.of(row)], {"size": certain}), static)
        for s, row in zip(results[len(carry.leaves) :], pushed, strict=True)
    ]
    if reverse:
        collected = [apply("flip", [y], {"axes": (0,)}) for y in collected]
    return tree.unflatten(carry.treedef, last), tree.unflatten(ys_treedef, collected)


def _collecting(
    step: Traced, carry: Carry, following: Sequence[Any], ys: Sequence[Any], elements: Sequence[TensorType]
) -> Iterator[Any]:
    """Yield the outputs of a scan's body: the counter, the carry, and for each result a stack with this row pushed."""
    yield apply("add", [step.inputs[0], np.int64(1)])
    yield from [x if d is None else cast(x, d) for x, d in zip(following, carry.dtypes, strict=True)]
    for y, t in zip(ys, elements, strict=True):
        stack, builder = step.input(Leaf(StackType(t), hint="ys")), step.builder
        pushed = builder.emit("stack_push", [stack.value, value_in(builder, y)], hint="ys")
        yield Tensor(builder, pushed)


def _length(operation: str, rows: list[Any], length: Any, source: Source | None) -> tuple[Any, int | None]:
    """The number of iterations as a value, and as an int where it is known."""
    types = [type_of(x) for x in rows]
    if any(not isinstance(t, TensorType) or t.rank == 0 for t in types):
        raise ShapeError(
            f"{operation}: a leaf of xs has no rows",
            source=source,
            expected="arrays of rank 1 or more",
            got=", ".join(str(t) for t in types),
            hint="what is the same for all iterations belongs in the carry, or is used by f from outside",
        )
    if length is not None and not (isinstance(length, Tensor) or _is_length(length)):
        raise ShapeError(
            f"{operation}: length is no number of iterations",
            source=source,
            expected="an int of 0 or more, or a traced integer",
            got=repr(length),
            hint="leave it out where xs says how many there are",
        )
    known = {t.shape[0] for t in types if isinstance(t, TensorType) and t.shape[0] is not None}
    if length is not None and not isinstance(length, Tensor):
        known.add(int(length))
    if len(known) > 1:
        raise ShapeError(
            f"{operation}: {_LENGTHS_DIFFER}",
            source=source,
            expected="one length for all leaves of xs, and `length` if it is given",
            got=", ".join(str(t) for t in types) + ("" if length is None else f"; length={length}"),
            hint=_EQUAL_LENGTHS,
        )
    static = next(iter(known), None)
    if isinstance(length, Tensor):
        return cast(length, np.int64), static
    if static is not None:
        return np.int64(static), static
    if not rows:
        raise ShapeError(
            f"{operation}: neither xs nor length is given",
            source=source,
            expected="arrays in xs, or a length",
            got="no arrays and no length",
            hint="pass length=..., or use ctrlgrad.while_loop where the number of iterations is not known",
        )
    return None, None


def _is_length(length: Any) -> bool:
    is_integer = isinstance(length, int | np.integer) or (isinstance(length, np.ndarray) and length.dtype.kind in "iu")
    return is_integer and np.ndim(length) == 0 and length >= 0


def _of_length(operation: str, rows: list[Any], count: Any, static: int | None) -> tuple[list[Any], Any]:
    """The leaves, which must have as many rows as there are iterations, and that number.

    Unknown numbers are compared in the run, each with that of the leaf before; one that is known is compared as if it
    were not. The last one is the number of iterations: so none is left out, whichever leaves the results or their
    derivatives need.
    """
    if static is not None and not isinstance(count, Tensor):
        if all(tensor_type(x).shape[0] is not None for x in rows):
            return rows, count
        rows, count = [apply("forget_sizes", [_counted(operation, x, static)], {"axes": (0,)}) for x in rows], None
    compared = []
    for x in rows:
        compared.append(_counted(operation, x, count))
        size = compared[-1].shape[0]
        count = size if isinstance(size, Tensor) else count
    return compared, count


def _counted(operation: str, x: Any, length: Any) -> Any:
    """Rows, which must be as many as this; None for any number."""
    return x if length is None else ensured(x, {0: length}, f"{operation}: {_LENGTHS_DIFFER}", _EQUAL_LENGTHS)


# `associative_scan`: prefix results of an associative function in a logarithmic number of steps.


@explains_calls
def associative_scan(fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0) -> Any:
    """`fn(...fn(fn(x[0], x[1]), x[2])..., x[i])` for every i; as `jax.lax.associative_scan`.

    Neighbours are joined first, then the pairs, so that `fn`, which takes whole arrays of elements, is traced for
    about 2 log2(n) of them. Source: Blelloch, "Prefix sums and their applications" (1990).

    Args:
        fn: takes two pytrees like `elems`, with the same number of elements along the axis, and returns one. It is
            associative.
        elems: a pytree of arrays of one known size along the axis.
        reverse: from the last element to the first.
        axis: along which the elements lie.

    Raises:
        ShapeError: the sizes along the axis differ, or are not known.

    >>> cg.associative_scan(lambda a, b: a * b, np.array([1.0, 2.0, 3.0, 4.0]))
    array([ 1.,  2.,  6., 24.])
    """
    source = here()
    check_callable("associative_scan", "fn", fn, ("a", "b"), source)
    leaves, treedef = tree.flatten(elems)
    check_leaves("associative_scan: elems", leaves)
    arrays = [operand("associative_scan", x) for x in leaves]
    axes = [axis_of("associative_scan", axis, x.ndim) for x in arrays]
    sizes = {dim(x, a) if isinstance(dim(x, a), int) else None for x, a in zip(arrays, axes, strict=True)}
    if len(sizes) > 1 or None in sizes:
        raise UnknownSizeError(
            "associative_scan: the elements have no one known size along the axis",
            source=source,
            expected="arrays of one size, known when the function is traced",
            got=", ".join(str(type_of(x)) for x in arrays),
            hint="use ctrlgrad.scan where the number of elements is data",
        )

    def combine(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
        found, found_treedef = tree.flatten(fn(tree.unflatten(treedef, a), tree.unflatten(treedef, b)))
        labels = ("the elements", "the function's result")
        same_structure("associative_scan", source, labels, (list(a), treedef), (found, found_treedef))
        for x, y, axis in zip(a, found, axes, strict=True):
            if type_of(x) != type_of(y):
                raise TypeMismatchError(
                    "associative_scan: the function's result differs from the elements",
                    source=source,
                    expected=f"{type_of(x)}, with the elements along axis {axis}",
                    got=str(type_of(y)),
                    hint="the function takes many elements at once, along the axis: "
                    "ctrlgrad.vmap makes it of one for two",
                )
        return found

    def scanned() -> Any:
        turned = [flip(x, a) for x, a in zip(arrays, axes, strict=True)] if reverse else arrays
        found = _prefixes(combine, turned, axes) if sizes else []
        return tree.unflatten(treedef, [flip(x, a) for x, a in zip(found, axes, strict=True)] if reverse else found)

    return in_trace(scanned)


Combine = Callable[[Sequence[Any], Sequence[Any]], list[Any]]


def _prefixes(combine: Combine, elems: Sequence[Any], axes: Sequence[int]) -> list[Any]:
    size = dim(elems[0], axes[0])
    if size < 2:
        return list(elems)
    # The results at odd places are those of the pairs; one more element gives those at even places.
    odd = _prefixes(
        combine, combine(_every_second(elems, axes, 0, size - 1), _every_second(elems, axes, 1, size)), axes
    )
    before = odd if size % 2 else _part(odd, axes, 0, size // 2 - 1)
    rest = _every_second(elems, axes, 2, size)
    even = combine(before, rest) if size > 2 else []
    first = _part(elems, axes, 0, 1)
    even = [concatenate([a, b], axis) for a, b, axis in zip(first, even, axes, strict=True)] if even else first
    return [_interleaved(a, b, axis) for a, b, axis in zip(even, odd, axes, strict=True)]


def _part(xs: Sequence[Any], axes: Sequence[int], start: int, stop: int) -> list[Any]:
    return [sliced(x, axis, start, stop) for x, axis in zip(xs, axes, strict=True)]


def _every_second(xs: Sequence[Any], axes: Sequence[int], start: int, stop: int) -> list[Any]:
    return [FUNCTIONS["getitem"](x, (*[slice(None)] * a, slice(start, stop, 2))) for x, a in zip(xs, axes, strict=True)]


def _interleaved(even: Any, odd: Any, axis: int) -> Any:
    """even[0], odd[0], even[1], ...; there may be one more of the even ones."""
    count = dim(odd, axis)
    pairs = stack([sliced(even, axis, 0, count), odd], axis + 1)
    joined = reshape(pairs, (*pairs.shape[:axis], 2 * count, *pairs.shape[axis + 2 :]))
    return joined if dim(even, axis) == count else concatenate([joined, sliced(even, axis, count, count + 1)], axis)
