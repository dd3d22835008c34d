"""`fori_loop` and `scan`, written on the `while` op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ctrlgrad import tree
from ctrlgrad.errors import ShapeError, TypeMismatchError
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.apply import apply, cast, type_of, value_in
from ctrlgrad.frontend.carry import Carry
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.regions import Traced, check_callable, check_leaves, in_trace
from ctrlgrad.frontend.settling import settle
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.while_loops import LoopOptions, emit_while, recorder
from ctrlgrad.ir import BOOL, INDEX, Builder, Graph, StackType, TensorType, Value
from ctrlgrad.source import Source, here


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[Any, Any], Any], init: Any) -> Any:
    """`for i in range(lower, upper): carry = body_fun(i, carry)`; as `jax.lax.fori_loop`.

    The bounds are integers or traced integer scalars, so the number of iterations may depend on data; `i` is
    int64. Differentiable in both modes whatever the bounds.

    >>> import ctrlgrad as cg
    >>> power = lambda x, n: cg.fori_loop(0, n, lambda i, y: y * x, 1.0)
    >>> float(power(2.0, 10)), float(cg.grad(power)(2.0, 10))
    (1024.0, 5120.0)
    """
    for bound in (lower, upper):
        t = type_of(bound)
        if not isinstance(t, TensorType) or t.rank != 0 or t.dtype.kind not in "iu":
            raise TypeMismatchError(
                "fori_loop: a bound is not an integer scalar",
                source=here(),
                expected="i64[]",
                got=str(t),
                hint="cast a bound with .astype(int), and take one number of an array: n[0]",
            )
    source = here()
    check_callable("fori_loop", "body_fun", body_fun, ("i", "carry"), source)
    lower, upper = cast(lower, np.int64), cast(upper, np.int64)
    return in_trace(lambda: _fori_loop(lower, upper, body_fun, init, source))


def _fori_loop(lower: Any, upper: Any, body_fun: Callable[[Any, Any], Any], init: Any, source: Source | None) -> Any:

    def trace_body(carry: Carry) -> tuple[Any, Traced]:
        # An array whose elements become known has more leaves than before.
        hints = tree.names(tree.flatten((lower, carry.init))[1], "c")
        builder = Builder(trace.current(), "body")
        with trace.recording(builder):
            index = Tensor(builder, builder.input(INDEX, hints[0]))
            state = carry.inputs(builder, hints[1:])
            following = apply("add", [index, np.int64(1)])
            leaves, treedef = tree.flatten(body_fun(index, state))
            check_leaves("fori_loop: the body's result", leaves)
        return following, Traced(builder, leaves, treedef)

    settled = settle(Carry.of("fori_loop", init, source), trace_body, lambda body: body[1])
    carry, (following, next) = settled.carry, settled.body
    if not settled.is_final:
        return carry.guessed(recorder(), next.leaves)
    body = Traced(next.builder, [following, *next.leaves], next.treedef).finish(dtypes=[None, *carry.dtypes])
    start = [lower, *carry.values()]
    _, *results = emit_while(_is_below(body, upper), body, start, LoopOptions(name="fori_loop"), source)
    return tree.unflatten(carry.treedef, carry.rest_weak(results, next.leaves))


def _is_below(body: Graph, upper: Any) -> Graph:
    """The condition of a loop whose first carry is its counter."""
    test = Builder(trace.current(), "cond")
    with trace.recording(test):
        inputs = [test.input(v.type, v.hint) for v in body.inputs]
        predicate = apply("less", [Tensor(test, inputs[0]), upper])
    assert predicate.type == BOOL
    return test.finish([predicate.value])


def scan(f: Callable[[Any, Any], Any], init: Any, xs: Any = None, length: Any = None, reverse: bool = False) -> Any:
    """Carry a state over the rows of `xs` and collect a result per row; as `jax.lax.scan`.

    Args:
        f: takes (carry, x), returns (carry, y). x is a row of every leaf of `xs`.
        init: the first carry.
        xs: a pytree of arrays with the same leading dimension, or None.
        length: the number of iterations; needed when `xs` has no leaves. May be a traced scalar.
        reverse: take the rows from the last to the first; `ys` keep the order of `xs`.

    Returns:
        (carry, ys): the last carry, and y of every iteration along a new leading axis.

    Raises:
        ShapeError: the leading dimensions differ, or there is no length.
        TypeMismatchError: f's carry differs from `init`.

    >>> import numpy as np, ctrlgrad as cg
    >>> total, sums = cg.scan(lambda c, x: (c + x, c + x), 0.0, np.arange(4.0))
    >>> float(total), sums
    (6.0, array([0., 1., 3., 6.]))
    """
    source = here()
    check_callable("scan", "f", f, ("carry", "x"), source)
    return in_trace(lambda: _scan("scan", f, init, xs, length, reverse, source))


def map(f: Callable[[Any], Any], xs: Any) -> Any:
    """Apply `f` to every row of `xs` and stack the results; as `jax.lax.map`.

    >>> import numpy as np, ctrlgrad as cg
    >>> cg.map(lambda x: x * x, np.arange(3.0))
    array([0., 1., 4.])
    """
    source = here()
    check_callable("map", "f", f, ("x",), source)
    return in_trace(lambda: _scan("map", lambda carry, x: (carry, f(x)), None, xs, None, False, source))[1]


# For `TensorArray.gather`, on which this file builds.
FUNCTIONS["__map__"] = map


def foldl(f: Callable[[Any, Any], Any], xs: Any, init: Any) -> Any:
    """`f(...f(f(init, xs[0]), xs[1])..., xs[-1])`: a fold over the rows from the first, as `tf.foldl`.

    >>> import numpy as np, ctrlgrad as cg
    >>> float(cg.foldl(lambda total, x: 10 * total + x, np.array([1.0, 2.0, 3.0]), 0.0))
    123.0
    """
    return _fold("foldl", f, xs, init, reverse=False)


def foldr(f: Callable[[Any, Any], Any], xs: Any, init: Any) -> Any:
    """As `foldl`, from the last row to the first.

    >>> import numpy as np, ctrlgrad as cg
    >>> float(cg.foldr(lambda total, x: 10 * total + x, np.array([1.0, 2.0, 3.0]), 0.0))
    321.0
    """
    return _fold("foldr", f, xs, init, reverse=True)


def _fold(operation: str, f: Callable[[Any, Any], Any], xs: Any, init: Any, reverse: bool) -> Any:
    source = here()
    check_callable(operation, "f", f, ("carry", "x"), source)
    return in_trace(lambda: _scan(operation, lambda carry, x: (f(carry, x), None), init, xs, None, reverse, source))[0]


def _scan(
    operation: str,
    f: Callable[[Any, Any], Any],
    init: Any,
    xs: Any,
    length: Any,
    reverse: bool,
    source: Source | None,
) -> Any:
    rows, rows_treedef = tree.flatten(xs)
    check_leaves(f"{operation}: xs", rows)
    count, static = _length(operation, rows, length, source)

    def trace_step(carry: Carry) -> _Step:
        return _trace_step(f, carry, rows, rows_treedef, count, reverse, source)

    settled = settle(Carry.of(operation, init, source), trace_step, lambda step: step.next)
    carry, step, builder = settled.carry, settled.body, recorder()
    if not settled.is_final:
        guessed = [Tensor(builder, Value(TensorType(s.element.dtype, (static, *s.element.shape)))) for s in step.stacks]
        return carry.guessed(builder, step.next.leaves), tree.unflatten(step.ys_treedef, guessed)
    body_graph, cond_graph = step.finish(carry, count)
    stacks = [
        Tensor(builder, builder.emit("stack_new", (), {"element": t.element}, source=source, hint="ys"))
        for t in step.stacks
    ]
    start = [np.int64(0), *carry.values(), *stacks]
    _, *results = emit_while(cond_graph, body_graph, start, LoopOptions(name=operation), source)
    last = carry.rest_weak(results[: len(carry.leaves)], step.next.leaves)
    collected = results[len(carry.leaves) :]
    ys = [apply("stack_to_tensor", [s], {"size": static}) for s in collected]
    if reverse:
        ys = [apply("flip", [y], {"axes": (0,)}) for y in ys]
    return tree.unflatten(carry.treedef, last), tree.unflatten(step.ys_treedef, ys)


class _Step:
    """The traced body of a scan: counter, carry and one stack per result."""

    def __init__(self, builder: Builder, index: Tensor, next: Traced, ys: list[Any], ys_treedef: tree.TreeDef) -> None:
        self.builder = builder
        self.index = index
        self.next = next
        self.ys = ys
        self.ys_treedef = ys_treedef
        self.stacks = [StackType(t) for t in (type_of(y) for y in ys) if isinstance(t, TensorType)]

    def finish(self, carry: Carry, count: Any) -> tuple[Graph, Graph]:
        builder = self.builder
        with trace.recording(builder):
            following = value_in(builder, apply("add", [self.index, np.int64(1)]))
            new = [x if d is None else cast(x, d) for x, d in zip(self.next.leaves, carry.dtypes, strict=True)]
            outputs = [value_in(builder, x) for x in new]
            pushed = []
            for y, t in zip(self.ys, self.stacks, strict=True):
                stack = builder.input(t, "ys")
                pushed.append(builder.emit("stack_push", [stack, value_in(builder, y)], hint="ys"))
        body = builder.finish([following, *outputs, *pushed])
        return body, _is_below(body, count)


def _trace_step(
    f: Callable[[Any, Any], Any],
    carry: Carry,
    rows: list[Any],
    rows_treedef: tree.TreeDef,
    count: Any,
    reverse: bool,
    source: Source | None,
) -> _Step:
    builder = Builder(trace.current(), "body")
    with trace.recording(builder):
        index = Tensor(builder, builder.input(INDEX, "t"))
        state = carry.inputs(builder, carry.hints)
        row = count - 1 - index if reverse else index
        x = tree.unflatten(rows_treedef, [FUNCTIONS["getitem"](leaf, row) for leaf in rows])
        result = f(state, x)
        if not isinstance(result, tuple) or len(result) != 2:
            raise TypeMismatchError(
                "scan: f does not return a pair",
                source=source,
                expected="(carry, y); y may be None",
                got="None: f ends without `return`" if result is None else type(result).__name__,
                hint="return (carry, None) where there is nothing to collect",
            )
        leaves, treedef = tree.flatten(result[0])
        check_leaves("scan: the carry that f returns", leaves)
        ys, ys_treedef = tree.flatten(result[1])
        check_leaves("scan: the result that f collects", ys)
    return _Step(builder, index, Traced(builder, leaves, treedef), ys, ys_treedef)


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
    known = {t.shape[0] for t in types if isinstance(t, TensorType) and t.shape[0] is not None}
    if length is not None and not isinstance(length, Tensor):
        known.add(int(length))
    if len(known) > 1:
        raise ShapeError(
            f"{operation}: the leading dimensions differ",
            source=source,
            expected="one length for all leaves of xs, and `length` if it is given",
            got=", ".join(str(t) for t in types) + ("" if length is None else f"; length={length}"),
            hint="cut the longer ones, xs[:n], or pad the shorter ones",
        )
    if known:
        (n,) = known
        assert n is not None
        return np.int64(n), n
    if isinstance(length, Tensor):
        return cast(length, np.int64), None
    if not rows:
        raise ShapeError(
            f"{operation}: neither xs nor length is given",
            source=source,
            expected="arrays in xs, or a length",
            got="no arrays and no length",
            hint="pass length=..., or use ctrlgrad.while_loop where the number of iterations is not known",
        )
    return rows[0].shape[0], None
