"""`while_loop` and `cond`: Python functions traced into the regions of the two control ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad import tree
from ctrlgrad.errors import ShapeError, TypeMismatchError, UserInputError
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.apply import cast, is_weak, result_dtype, type_of, value_in
from ctrlgrad.frontend.regions import (
    Traced,
    at_once,
    check_callable,
    check_leaves,
    same_structure,
    trace_region,
    type_name,
)
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.tensor_array import TensorArray
from ctrlgrad.ir import BOOL, StackType, TensorType, Type, close, join
from ctrlgrad.source import Source, here


@dataclass(frozen=True)
class LoopOptions:
    """What a loop carries beside its regions; each becomes an attribute of the node."""

    maximum_iterations: int | None = None
    parallel_iterations: int = 32
    swap_memory: bool | None = None
    checkpoint: bool | int | None = None
    name: str | None = None


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
        parallel_iterations: how many iterations the engine "dataflow" may have in flight; the others run one after the
            other. The result does not depend on it.
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

    >>> import ctrlgrad as cg
    >>> halvings = lambda x: cg.while_loop(lambda c: c[1] > 1.0, lambda c: (c[0] + 1, c[1] / 2), (0, x))
    >>> steps, rest = halvings(10.0)
    >>> int(steps), float(rest)
    (4, 0.625)
    """
    options = LoopOptions(maximum_iterations, parallel_iterations, swap_memory, checkpoint, name)
    _check_options(options)
    if trace.current() is None:
        return at_once(lambda: _while(cond_fun, body_fun, init, options, here()))
    return _while(cond_fun, body_fun, init, options, here())


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
    carry = Carry.of("while_loop", init, source)
    while True:
        body = trace_region("body", body_fun, carry.treedef, carry.types, carry.hints, carry.weak)
        better = carry.settle(body)
        if better is None:
            break
        carry = better
    body_graph = body.finish(dtypes=carry.dtypes)
    cond = trace_region("cond", cond_fun, carry.treedef, carry.types, carry.hints, carry.weak)
    check_predicate("while_loop: the result of cond_fun", cond.leaves, source)
    results = emit_while(cond.finish(), body_graph, carry.values(), options, source)
    return tree.unflatten(carry.treedef, carry.rest_weak(results, body.leaves))


def emit_while(cond: Any, body: Any, carry: Sequence[Any], options: LoopOptions, source: Source | None) -> list[Tensor]:
    """Record the loop node; what the regions use from outside become its captures."""
    builder = trace.current()
    assert builder is not None
    closed = close([cond, body])
    attrs = {"captures": len(closed.captures), **vars(options)}
    initial = [value_in(builder, x) for x in carry]
    hints = [v.hint for v in body.inputs]
    values = builder.emit_all(
        "while", [*closed.captures, *initial], attrs, regions=closed.regions, source=source, hints=hints
    )
    return [Tensor(builder, v) for v in values]


def check_predicate(what: str, leaves: Sequence[Any], source: Source | None) -> None:
    """Require one bool scalar."""
    if len(leaves) != 1 or type_of(leaves[0]) != BOOL:
        raise TypeMismatchError(
            f"{what} is not a boolean scalar",
            source=source,
            expected="bool[]",
            got=", ".join(type_name(x) for x in leaves) or "nothing",
            hint="compare, or reduce with numpy.any / numpy.all",
        )


@dataclass
class Carry:
    """The carry of a loop while its body is traced: initial leaves, and the types they have settled on.

    Two things may be learned from the body, after which it is traced once more: the dtype of a leaf that
    was given as a Python number, and the element of a `TensorArray` that was made without one.
    """

    operation: str
    init: Any
    source: Source | None
    leaves: list[Any]
    treedef: tree.TreeDef
    dtypes: list[Any]

    @staticmethod
    def of(operation: str, init: Any, source: Source | None) -> Carry:
        leaves, treedef = tree.flatten(init)
        check_leaves(f"{operation}: the initial carry", leaves)
        dtypes = [None if isinstance(type_of(x), StackType) else type_of(x).dtype for x in leaves]  # type: ignore[union-attr]
        return Carry(operation, init, source, leaves, treedef, dtypes)

    @property
    def types(self) -> list[Type]:
        return [
            t if isinstance(t, StackType) else TensorType(d, t.shape)
            for t, d in zip(map(type_of, self.leaves), self.dtypes, strict=True)
        ]

    @property
    def hints(self) -> list[str]:
        return tree.names(self.treedef, "c")

    @property
    def weak(self) -> list[bool]:
        """Which leaves stand for Python numbers whose dtype the body has not settled."""
        return [
            is_weak(x) and isinstance(t := type_of(x), TensorType) and t.dtype == d
            for x, d in zip(self.leaves, self.dtypes, strict=True)
        ]

    def rest_weak(self, results: Sequence[Tensor], following: Sequence[Any]) -> list[Tensor]:
        """The loop's results; one stays a Python number where the carry starts as one and is followed by one."""
        return [
            Tensor(x.builder, x.value, weak and is_weak(y))
            for x, weak, y in zip(results, self.weak, following, strict=True)
        ]

    def values(self) -> list[Any]:
        """The initial leaves in the settled dtypes."""
        return [x if d is None else cast(x, d) for x, d in zip(self.leaves, self.dtypes, strict=True)]

    def settle(self, body: Traced) -> Carry | None:
        """A carry to trace the body with again, or None when the result fits; an error when it cannot."""
        learned = _learn_elements(self.init, tree.unflatten(body.treedef, body.leaves))
        if learned is not None:
            return Carry.of(self.operation, learned, self.source)
        labels = ("the carry", "the body's result")
        same_structure(self.operation, self.source, labels, (self.leaves, self.treedef), (body.leaves, body.treedef))
        dtypes = list(self.dtypes)
        wrong = []
        for position, (x, y, path) in enumerate(zip(self.leaves, body.leaves, tree.paths(self.treedef), strict=True)):
            declared, given = self.types[position], type_of(y)
            if isinstance(declared, TensorType) and isinstance(given, TensorType) and declared.dtype != given.dtype:
                if is_weak(x) and result_dtype(x, y) == given.dtype:
                    dtypes[position] = given.dtype
                    continue
                if is_weak(y) and result_dtype(x, y) == declared.dtype:
                    given = TensorType(declared.dtype, given.shape)
            if not declared.accepts(given):
                wrong.append(f"carry{path}: starts as {declared}, the body returns {type_name(y)}")
        if wrong:
            raise TypeMismatchError(
                f"{self.operation}: the body's result differs from the carry",
                source=self.source,
                expected="the carry's dtypes and shapes, path by path",
                got="\n".join(wrong),
                hint="cast with .astype, or give the initial value the dtype and shape that the body returns;\n"
                "where a size changes from iteration to iteration, start from ctrlgrad.unknown_dims(x, axis)",
            )
        if dtypes == self.dtypes:
            return None
        return Carry(self.operation, self.init, self.source, self.leaves, self.treedef, dtypes)


def _learn_elements(init: Any, result: Any) -> Any:
    """`init` with every open TensorArray given the element it has in `result`; None if none is learned."""

    def is_array(x: Any) -> bool:
        return isinstance(x, TensorArray)

    before, treedef = tree.flatten(init, is_leaf=is_array)
    after, result_treedef = tree.flatten(result, is_leaf=is_array)
    if treedef != result_treedef:
        return None
    learned = False
    for position, (x, y) in enumerate(zip(before, after, strict=True)):
        if is_array(x) and is_array(y) and x.element is None and y.element is not None:
            before[position] = x.with_element(y.element)
            learned = True
    return tree.unflatten(treedef, before) if learned else None


def unknown_dims(x: Any, axes: int | Sequence[int] = 0) -> Any:
    """The same tensor, the sizes of some axes counted as unknown: for a carry whose shape changes in the loop.

    >>> import numpy as np, ctrlgrad as cg, ctrlgrad.numpy as cnp
    >>> def doubled(x):
    ...     grow = lambda c: (c[0] + 1, cnp.concat([c[1], 2 * c[1]]))
    ...     return cg.while_loop(lambda c: c[0] < 2, grow, (0, cg.unknown_dims(x)))[1]
    >>> cg.function(doubled)(np.array([1.0, 3.0]))
    array([ 1.,  3.,  2.,  6.,  2.,  6.,  4., 12.])

    Args:
        x: a tensor or an array.
        axes: one axis or several; negative ones count from the end.

    Outside a trace, x itself.
    """
    builder = trace.current()
    if builder is None:
        return x
    t = type_of(x)
    wanted = (axes,) if isinstance(axes, int) else tuple(axes)
    if not isinstance(t, TensorType) or any(not -t.rank <= axis < t.rank for axis in wanted):
        raise ShapeError(
            "unknown_dims: an axis does not exist",
            source=here(),
            expected=f"axes of {t}",
            got=str(axes),
            hint="axes count from 0 or, negative, from the end",
        )
    places = tuple(sorted({axis % t.rank for axis in wanted}))
    value = builder.emit("forget_sizes", [value_in(builder, x)], {"axes": places}, source=here())
    return Tensor(builder, value)


def cond(pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any) -> Any:
    """`true_fun(*operands)` if `pred` else `false_fun(*operands)`; as `jax.lax.cond`. Only the taken branch runs.

    Args:
        pred: a bool scalar.
        true_fun, false_fun: return the same pytree, dtypes and shapes. They may also use outer tensors.
        operands: pytrees, passed to both.

    Raises:
        TypeMismatchError: `pred` is no bool scalar, or the branches' results differ.

    >>> import ctrlgrad as cg
    >>> f = lambda x: cg.cond(x > 0, lambda x: x * x, lambda x: -x, x)
    >>> float(cg.grad(f)(3.0)), float(cg.grad(f)(-3.0))
    (6.0, -1.0)
    """
    source = here()
    check_predicate("cond: the predicate", [pred], source)
    names = ("false_fun", "true_fun")
    return branch("cond", pred, (false_fun, true_fun), names, operands, source)


def branch(
    operation: str,
    selector: Any,
    functions: Sequence[Callable[..., Any]],
    names: Sequence[str],
    operands: Sequence[Any],
    source: Source | None,
) -> Any:
    """Record a `cond` node over any number of branches."""
    if trace.current() is None:
        return at_once(lambda: _branch(operation, selector, functions, names, operands, source))
    return _branch(operation, selector, functions, names, operands, source)


def _branch(
    operation: str,
    selector: Any,
    functions: Sequence[Callable[..., Any]],
    names: Sequence[str],
    operands: Sequence[Any],
    source: Source | None,
) -> Any:
    builder = trace.current()
    assert builder is not None
    for name, fn in zip(names, functions, strict=True):
        check_callable(operation, name, fn, [f"operand {i}" for i in range(len(operands))], source)
    _, empty = tree.flatten(())
    regions = [
        trace_region(name, lambda _, fn=fn: fn(*operands), empty, (), ())
        for name, fn in zip(names, functions, strict=True)
    ]
    first = regions[0]
    for name, region in zip(names, regions, strict=True):
        labels = (f"the result of {names[0]}", f"the result of {name}")
        same_structure(operation, source, labels, (first.leaves, first.treedef), (region.leaves, region.treedef))
    dtypes = _join_branches(operation, names, regions, source)
    closed = close([region.finish(dtypes=dtypes) for region in regions])
    hints = tree.names(first.treedef, "r")
    values = builder.emit_all(
        "cond", [value_in(builder, selector), *closed.captures], regions=closed.regions, source=source, hints=hints
    )
    weak = [all(map(is_weak, leaves)) for leaves in zip(*(region.leaves for region in regions), strict=True)]
    return tree.unflatten(first.treedef, [Tensor(builder, v, w) for v, w in zip(values, weak, strict=True)])


def _join_branches(
    operation: str, names: Sequence[str], regions: Sequence[Traced], source: Source | None
) -> list[np.dtype | None]:
    """The dtype of each result; an error that lists, path by path, what each branch returns where they differ."""
    dtypes: list[np.dtype | None] = []
    wrong = []
    for path, *leaves in zip(tree.paths(regions[0].treedef), *(r.leaves for r in regions), strict=True):
        types = [type_of(x) for x in leaves]
        dtype = None
        if all(isinstance(t, TensorType) for t in types):
            strong = {
                t.dtype for x, t in zip(leaves, types, strict=True) if not is_weak(x) and isinstance(t, TensorType)
            }
            dtype = result_dtype(*leaves)
            if len(strong) <= 1 and (not strong or dtype in strong):
                types = [TensorType(dtype, t.shape) for t in types if isinstance(t, TensorType)]
        dtypes.append(dtype)
        joined: Type | None = types[0]
        for t in types[1:]:
            joined = None if joined is None or not _same_known_dims(joined, t) else join(joined, t)
        if joined is None:
            described = ", ".join(f"{name} returns {type_name(x)}" for name, x in zip(names, leaves, strict=True))
            wrong.append(f"result{path}: {described}")
    if wrong:
        raise TypeMismatchError(
            f"{operation}: the branches' results differ",
            source=source,
            expected="the same dtypes and shapes from every branch, path by path",
            got="\n".join(wrong),
            hint="cast with .astype, or reshape so that all branches agree",
        )
    return dtypes


def _same_known_dims(a: Type, b: Type) -> bool:
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        return a.rank == b.rank and all(m is None or n is None or m == n for m, n in zip(a.shape, b.shape, strict=True))
    return True
