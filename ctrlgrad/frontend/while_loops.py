"""`while_loop`: two Python functions traced into the regions of the `while` op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from ctrlgrad import tree
from ctrlgrad.errors import ShapeError, UserInputError
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.apply import type_of, value_in
from ctrlgrad.frontend.calling import explains_calls
from ctrlgrad.frontend.carry import Carry
from ctrlgrad.frontend.checks import check_callable, check_predicate
from ctrlgrad.frontend.settling import settle
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import recorder
from ctrlgrad.frontend.tracer import Traced, in_trace
from ctrlgrad.frontend.unsized import Unsized
from ctrlgrad.ir import TensorType, attributes, close
from ctrlgrad.ir.control import emit_loop
from ctrlgrad.records import record
from ctrlgrad.source import Source, here


@record
class LoopOptions:
    """Options of a loop beside its regions; each becomes an attribute of the node."""

    maximum_iterations: int | None = None
    parallel_iterations: int = 32
    swap_memory: bool | None = None
    checkpoint: bool | int | None = None
    name: str | None = None


@explains_calls
def while_loop(
    cond_fun: Callable[[Any], Any],
    body_fun: Callable[[Any], Any],
    init: Any,
    *,
    maximum_iterations: int | None = None,
    parallel_iterations: int = 32,
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
        parallel_iterations: number of iterations that the engine "dataflow" may have in flight; the other engines run
            one iteration at a time. The result does not depend on it.
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

    >>> halvings = lambda x: cg.while_loop(lambda c: c[1] > 1.0, lambda c: (c[0] + 1, c[1] / 2), (0, x))
    >>> steps, rest = halvings(10.0)
    >>> int(steps), float(rest)
    (4, 0.625)
    """
    options = LoopOptions(maximum_iterations, parallel_iterations, swap_memory, checkpoint, name)
    _check_options(options)
    source = here()
    return in_trace(lambda: _while(cond_fun, body_fun, init, options, source))


def _check_options(options: LoopOptions) -> None:
    limits = {
        "maximum_iterations": (options.maximum_iterations, 0),
        "parallel_iterations": (options.parallel_iterations, 1),
    }
    for label, (value, least) in limits.items():
        if value is not None and (not isinstance(value, int | np.integer) or value < least):
            raise UserInputError(
                f"while_loop: {label} is not usable",
                source=here(),
                expected=f"an int of {least} or more",
                got=repr(value),
                hint=f"leave {label} out, or pass a number of iterations that is known when the program is written",
            )
    _check_memory_options(options)


def _check_memory_options(options: LoopOptions) -> None:
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
                source=here(),
                expected=expected,
                got=repr(value),
                hint=f"leave {label} out to have the memory manager choose",
            )
    if options.swap_memory and options.checkpoint:
        raise UserInputError(
            "while_loop: swap_memory and checkpoint are two ways to do without the same memory",
            source=here(),
            expected="one of them",
            got=f"swap_memory=True, checkpoint={options.checkpoint!r}",
            hint="leave both out to have the memory manager choose for each chunk",
        )


def _while(
    cond_fun: Callable[[Any], Any],
    body_fun: Callable[[Any], Any],
    init: Any,
    options: LoopOptions,
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


def emit_while(cond: Any, body: Any, carry: Sequence[Any], options: LoopOptions, source: Source | None) -> list[Tensor]:
    """Record the loop node; what the regions use from outside become its captures."""
    builder = recorder()
    closed = close([cond, body])
    inits = [value_in(builder, x) for x in carry]
    hints = [v.hint for v in body.inputs]
    asked = {f.name: getattr(options, f.name) for f in fields(options)}
    values = emit_loop(builder, closed, inits, attributes.Loop(**asked), source=source, hints=hints)
    return [Tensor(builder, v) for v in values]


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
    if not isinstance(t, TensorType) or any(not -t.rank <= axis < t.rank for axis in wanted):
        raise ShapeError(
            "unknown_dims: an axis does not exist",
            expected=f"axes of {t}",
            got=str(axes),
            hint="axes count from 0 or, negative, from the end",
        )
    places = tuple(sorted({axis % t.rank for axis in wanted}))
    builder = trace.current()
    if builder is None:
        return Unsized.of(x, places)
    value = builder.emit("forget_sizes", [value_in(builder, x)], {"axes": places}, source=here())
    return Tensor(builder, value)
