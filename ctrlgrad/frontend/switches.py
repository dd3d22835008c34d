"""`switch` and `case`: branches chosen by an index or by the first condition that holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import Any

import numpy as np

from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import TypeMismatchError, UserInputError
from ctrlgrad.frontend.apply import cast, type_of
from ctrlgrad.frontend.branches import branch, cond
from ctrlgrad.frontend.checks import check_predicate, is_array, type_name
from ctrlgrad.frontend.functions import MISSING
from ctrlgrad.ir import TensorType
from ctrlgrad.source import here


def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any, operand: Any = MISSING) -> Any:
    """`branches[index](*operands)`, the index clamped to the range; as `jax.lax.switch`. Only that branch runs.

    Args:
        index: an integer scalar.
        branches: functions that return the same pytree, dtypes and shapes.
        operand: one operand, by keyword.

    >>> f = lambda x, i: cg.switch(i, [lambda x: x, lambda x: x * x, lambda x: x * x * x], x)
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


def case(pairs: Sequence[tuple[Any, Callable[[], Any]]], default: Callable[[], Any] | None = None) -> Any:
    """The result of the first function whose condition is true, else of `default`; as `tf.case`.

    Args:
        pairs: (bool scalar, function without arguments), tried in order.
        default: called when no condition holds; without it the last function is.

    >>> sign = lambda x: cg.case([(x > 0, lambda: 1.0), (x < 0, lambda: -1.0)], default=lambda: 0.0)
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
    for position, (condition, _) in enumerate(pairs):
        check_predicate(f"case: condition {position}", [condition], source)
    first, *rest = pairs
    if not rest:
        return cond(first[0], first[1], default) if default is not None else first[1]()
    return cond(first[0], first[1], lambda: case(rest, default))
