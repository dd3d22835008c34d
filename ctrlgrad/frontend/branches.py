"""`cond`, and what every choice of a branch shares: Python functions traced into the regions of the `cond` op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any

import numpy as np

from ctrlgrad import tree
from ctrlgrad.advice import explains_calls
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import TypeMismatchError, UserInputError
from ctrlgrad.frontend.apply import apply, cast, is_weak, joint_type, result_dtype, tensor_type, type_of, value_in
from ctrlgrad.frontend.array.promote import ensured
from ctrlgrad.frontend.carry import Promotion, advice, has_open_elements, learn_elements, promotion
from ctrlgrad.frontend.checks import check_callable, check_predicate, is_array, same_structure, type_name
from ctrlgrad.frontend.functions import MISSING
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import recorder
from ctrlgrad.frontend.tracer import Traced, in_trace
from ctrlgrad.ir import Builder, Node, TensorType, Value, close
from ctrlgrad.ir.control import emit_branch
from ctrlgrad.source import Source, here
from ctrlgrad.stacks.sizes import Size, origin

# Element types of growing arrays: a branch that writes no element takes the type from another branch.


def of_equal_elements(regions: Sequence[Traced]) -> list[Traced]:
    """The branches, in which a growing array without an element type takes the type from another branch."""
    return [_taught(region, regions) if has_open_elements(region.result) else region for region in regions]


def learned_of(region: Traced, mine: Any, other: Any) -> Any:
    """A value of a branch, whose arrays without an element have those of another branch's value."""
    if mine is other or not has_open_elements(mine):
        return mine
    with region.recording():
        learned = learn_elements(mine, other)
    return mine if learned is None else learned


def _taught(region: Traced, regions: Sequence[Traced]) -> Traced:
    result = region.result
    for other in regions:
        result = learned_of(region, result, other.result)
    return Traced(region.builder.name, lambda _: result, builder=region.builder)


# Branches return arrays of equal sizes. Sizes that are known only at run time are compared in the branch that runs.
#
# Only sizes that follow from the arguments' alone are: the size of what was cut out, joined or collected by data is
# known in its branch alone, and stays unknown in the result.


BRANCHES_DIFFER = "the branches' results differ"
AGREE = "cast with .astype, or reshape so that all branches agree"


def of_equal_sizes(operation: str, regions: Sequence[Traced]) -> list[list[Any]]:
    """The results of each branch, which refuse to be of other sizes than those of the other branches."""
    found = [list(region.leaves) for region in regions]
    producers: list[dict[Value, Node]] | None = None
    for i, leaves in enumerate(zip(*found, strict=True)):
        for axis in _unknown(leaves):
            if producers is None:
                producers = [_producers(region.builder) for region in regions]
            sizes = [_size(known, x, axis) for known, x in zip(producers, leaves, strict=True)]
            for its, own, region in zip(found, sizes, regions, strict=True):
                for size in dict.fromkeys(sizes):
                    if size != own and size is not None and own is not None:
                        with region.recording() as builder:
                            its[i] = ensured(
                                its[i], {axis: _number(builder, size)}, f"{operation}: {BRANCHES_DIFFER}", AGREE
                            )
    return found


def _unknown(leaves: Sequence[Any]) -> list[int]:
    """The axes along which the size of one of the results is unknown."""
    types = [type_of(x) for x in leaves]
    if not all(isinstance(t, TensorType) for t in types):
        return []
    return [axis for axis, ds in enumerate(zip(*(tensor_type(x).shape for x in leaves), strict=True)) if None in ds]


def _producers(builder: Builder | None) -> dict[Value, Node]:
    """The nodes of a graph that is being built, and of those around it."""
    found: dict[Value, Node] = {}
    while builder is not None:
        found.update((v, node) for node in builder.nodes for v in node.results)
        builder = builder.parent
    return found


def _size(producers: Mapping[Value, Node], x: Any, axis: int) -> int | Size | None:
    """The size of a result: a number, that of an argument, or None for one that is computed."""
    known = tensor_type(x).shape[axis]
    if known is None and isinstance(x, Tensor):
        size = origin(producers, Size(x.value, axis))
        known = size.value.tensor.shape[size.axis]
        return known if known is not None else None if size.value in producers else size
    # Also of a NumPy array whose size only counts as unknown: what `unknown_dims` gives outside of a trace.
    return int(np.shape(x)[axis])


def _number(builder: Builder, size: int | Size) -> Any:
    return size if isinstance(size, int) else apply("dim", [Tensor(builder, size.value)], {"axis": size.axis})


@explains_calls
def cond(
    pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any, operand: Any = MISSING
) -> Any:
    """`true_fun(*operands)` if `pred` else `false_fun(*operands)`; as `jax.lax.cond`. Only the taken branch runs.

    Args:
        pred: a scalar: a bool, or a number, which counts as true where it is not zero.
        true_fun, false_fun: return the same pytree, dtypes and shapes. They may also use outer tensors.
        operands: pytrees, passed to both.
        operand: one operand, by keyword.

    Raises:
        TypeMismatchError: `pred` is no scalar, or the branches' results differ.

    >>> f = lambda x: cg.cond(x > 0, lambda x: x * x, lambda x: -x, x)
    >>> float(cg.grad(f)(3.0)), float(cg.grad(f)(-3.0))
    (6.0, -1.0)
    """
    source = here()
    if operand is not MISSING:
        if operands:
            raise TypeMismatchError(
                "cond: operands are given both by position and as operand=",
                source=source,
                expected="cond(pred, true_fun, false_fun, *operands)",
                got=f"{len(operands)} by position, and operand=",
                hint="pass all of them by position",
            )
        operands = (operand,)
    pred = truth_of(pred)
    check_predicate("cond: the predicate", [pred], source)
    names = ("false_fun", "true_fun")
    return branch("cond", pred, (false_fun, true_fun), names, operands, source)


def truth_of(pred: Any) -> Any:
    """A predicate as a bool, where it is a number."""
    try:
        t = type_of(pred)
    except (TypeError, ValueError):
        return pred
    if isinstance(t, TensorType) and t.rank == 0 and dtype_kind(t.dtype) in "iufc":
        return apply("not_equal", [pred, cast(0, t.dtype)])
    return pred


def branch(
    operation: str,
    selector: Any,
    functions: Sequence[Callable[..., Any]],
    names: Sequence[str],
    operands: Sequence[Any],
    source: Source | None,
) -> Any:
    """Record a `cond` node over any number of branches."""
    return in_trace(lambda: _branch(operation, selector, functions, names, operands, source))


def _branch(
    operation: str,
    selector: Any,
    functions: Sequence[Callable[..., Any]],
    names: Sequence[str],
    operands: Sequence[Any],
    source: Source | None,
) -> Any:
    builder = recorder()
    for name, fn in zip(names, functions, strict=True):
        check_callable(operation, name, fn, [f"operand {i}" for i in range(len(operands))], source)

    def traced(name: str, fn: Callable[..., Any]) -> Traced:
        return Traced(name, lambda _: fn(*operands), what=f"{operation}: the result of {name}")

    regions = of_equal_elements([traced(name, fn) for name, fn in zip(names, functions, strict=True)])
    first = regions[0]
    for name, region in zip(names, regions, strict=True):
        labels = (f"the result of {names[0]}", f"the result of {name}")
        same_structure(operation, source, labels, (first.leaves, first.treedef), (region.leaves, region.treedef))
    dtypes = _join_branches(operation, names, regions, source)
    results = of_equal_sizes(operation, regions)
    closed = close([region.finish(its, dtypes) for region, its in zip(regions, results, strict=True)])
    hints = tree.names(first.treedef, "r")
    values = emit_branch(builder, value_in(builder, selector), closed, source=source, hints=hints)
    weak = [all(map(is_weak, leaves)) for leaves in zip(*(region.leaves for region in regions), strict=True)]
    return tree.unflatten(first.treedef, [Tensor(builder, v, w) for v, w in zip(values, weak, strict=True)])


def _join_branches(
    operation: str, names: Sequence[str], regions: Sequence[Traced], source: Source | None
) -> list[np.dtype | None]:
    """The dtype of each result; an error that lists, path by path, what each branch returns where they differ."""
    dtypes: list[np.dtype | None] = []
    wrong = []
    promotions: list[Promotion | None] = []
    for path, *leaves in zip(tree.paths(regions[0].treedef), *(r.leaves for r in regions), strict=True):
        are_arrays = all(isinstance(type_of(x), TensorType) for x in leaves)
        dtypes.append(result_dtype(*leaves) if are_arrays else None)
        if joint_type(leaves) is None:
            described = ", ".join(f"{name} returns {type_name(x)}" for name, x in zip(names, leaves, strict=True))
            wrong.append(f"result{path}: {described}")
            found = _promotions(names, leaves)
            wrong += [f"  in {name}: {x.text}" for name, x in found.items()]
            promotions += found.values()
    if wrong:
        raise TypeMismatchError(
            f"{operation}: {BRANCHES_DIFFER}",
            source=source,
            expected="the same dtypes and shapes from every branch, path by path",
            got="\n".join(wrong),
            hint=advice(promotions, AGREE),
        )
    return dtypes


def _promotions(names: Sequence[str], leaves: Sequence[Any]) -> dict[str, Promotion]:
    """Return, by name, the branches that return the widest dtype, with the op that promoted each."""
    dtypes = [t.dtype if isinstance(t, TensorType) else None for t in map(type_of, leaves)]
    widest = result_dtype(*leaves) if None not in dtypes else None
    found = {}
    for name, x, dtype in zip(names, leaves, dtypes, strict=True):
        narrower = next((d for d in dtypes if d is not None and d != dtype), None)
        how = promotion(x, narrower) if narrower is not None and dtype == widest else None
        if how is not None:
            found[name] = how
    return found


# `switch` and `case`: branches chosen by an index or by the first condition that holds.


@explains_calls
def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any, operand: Any = MISSING) -> Any:
    """`branches[index](*operands)`, the index clamped to the range; as `jax.lax.switch`. Only that branch runs.

    Args:
        index: an integer scalar.
        branches: functions that return the same pytree, dtypes and shapes.
        operand: one operand, by keyword.

    >>> powers = [lambda x: x, lambda x: x * x, lambda x: x * x * x]
    >>> f = lambda x, i: cg.switch(i, powers, x)
    >>> float(cg.grad(f)(3.0, 2)), float(f(2.0, 7))
    (27.0, 8.0)
    """
    source = here()
    operands = operands if operand is MISSING else (*operands, operand)
    if not isinstance(branches, Sequence) or not branches:
        raise UserInputError(
            "switch: there are no branches" if isinstance(branches, Sequence) else "switch: the branches are no list",
            source=source,
            expected="a list of at least one function",
            got=f"{type(branches).__name__}" + (f" of {len(branches)}" if isinstance(branches, Sized) else ""),
            hint="pass a list of functions, one per index",
        )
    t = type_of(index) if is_array(index) else None
    if not isinstance(t, TensorType) or t.rank != 0 or dtype_kind(t.dtype) not in "iu":
        raise TypeMismatchError(
            "switch: the index is not an integer scalar",
            source=source,
            expected="i64[]",
            got=type_name(index) if is_array(index) else f"{type(index).__name__}: {index!r}",
            hint="cast it with .astype(int); ctrlgrad.cond takes a boolean",
        )
    names = [f"branch {i}" for i in range(len(branches))]
    return branch("switch", cast(index, np.int64), tuple(branches), names, operands, source)


@explains_calls
def case(pairs: Sequence[tuple[Any, Callable[[], Any]]], default: Callable[[], Any] | None = None) -> Any:
    """The result of the first function whose condition is true, else of `default`; as `tf.case`.

    Args:
        pairs: (bool scalar, function without arguments), tried in order.
        default: called when no condition holds; without it the last function is.

    >>> def sign(x):
    ...     pairs = [(x > 0, lambda: 1.0), (x < 0, lambda: -1.0)]
    ...     return cg.case(pairs, default=lambda: 0.0)
    >>> [float(sign(x)) for x in (3.0, -2.0, 0.0)]
    [1.0, -1.0, 0.0]
    """
    source = here()
    if not pairs:
        raise UserInputError(
            "case: there are no pairs",
            source=source,
            expected="at least one (condition, function)",
            got=repr(pairs),
            hint="pass a list of pairs, tried in order",
        )
    for position, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeMismatchError(
                f"case: entry {position} is not a pair",
                source=source,
                expected="(condition, function)",
                got=type(pair).__name__,
                hint="case([(x > 0, lambda: a), (x < 0, lambda: b)], default=lambda: c)",
            )
    for position, (condition, fn) in enumerate(pairs):
        check_predicate(f"case: condition {position}", [condition], source)
        check_callable("case", f"the function of entry {position}", fn, (), source)
    if default is not None:
        check_callable("case", "default", default, (), source)
    first, *rest = pairs
    if not rest:
        return cond(first[0], first[1], default) if default is not None else first[1]()
    return cond(first[0], first[1], lambda: case(rest, default))
