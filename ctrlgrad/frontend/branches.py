"""`cond`, and what every choice of a branch shares: Python functions traced into the regions of the `cond` op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctrlgrad import tree
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.frontend.apply import apply, cast, is_weak, result_dtype, type_of, value_in
from ctrlgrad.frontend.branch_elements import of_equal_elements
from ctrlgrad.frontend.branch_sizes import AGREE, BRANCHES_DIFFER, of_equal_sizes
from ctrlgrad.frontend.calling import explains_calls
from ctrlgrad.frontend.checks import check_callable, check_predicate, same_structure, type_name
from ctrlgrad.frontend.functions import MISSING
from ctrlgrad.frontend.promotions import Promotion, advice, promotion
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import recorder
from ctrlgrad.frontend.tracer import Traced, in_trace
from ctrlgrad.ir import TensorType, Type, close, join
from ctrlgrad.ir.control import emit_branch
from ctrlgrad.source import Source, here


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

    >>> import ctrlgrad as cg
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
    """Which branches return a dtype that holds the others', and how they come to it."""
    dtypes = [t.dtype if isinstance(t, TensorType) else None for t in map(type_of, leaves)]
    widest = result_dtype(*leaves) if None not in dtypes else None
    found = {}
    for name, x, dtype in zip(names, leaves, dtypes, strict=True):
        narrower = next((d for d in dtypes if d is not None and d != dtype), None)
        how = promotion(x, narrower) if narrower is not None and dtype == widest else None
        if how is not None:
            found[name] = how
    return found


def _same_known_dims(a: Type, b: Type) -> bool:
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        return a.rank == b.rank and all(m is None or n is None or m == n for m, n in zip(a.shape, b.shape, strict=True))
    return True
