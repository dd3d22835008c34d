"""`and`, `or`, `not`, comparison chains, `in`, `is` and `assert`.

On Python values they are Python's own, evaluated as lazily. `a and b` on a traced `a` is a `cond`, so that `b`
runs only where `a` holds (`i < n and xs[i] > 0`); where `b` can neither fail nor cost much it is a `logical_and`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ctrlgrad.autograph.branches import join_regions, record
from ctrlgrad.autograph.raising import raised
from ctrlgrad.autograph.truth import is_traced, plain, represented, truth
from ctrlgrad.autograph.values import is_array
from ctrlgrad.errors import TracingError
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import recorder
from ctrlgrad.frontend.tracer import Traced
from ctrlgrad.ir import BOOL, close
from ctrlgrad.ops.traits import is_total
from ctrlgrad.source import here

Thunk = Callable[[], Any]


def not_(x: Any) -> Any:
    """`not x`."""
    x = plain(x)
    return FUNCTIONS["logical_not"](truth(x, "`not`", here())) if is_traced(x) else not x


def and_(left: Thunk, right: Thunk) -> Any:
    """`left() and right()`."""
    given = left()
    x = plain(given)
    return _lazy(x, right, "and") if is_traced(x) else given and right()


def or_(left: Thunk, right: Thunk) -> Any:
    """`left() or right()`."""
    given = left()
    x = plain(given)
    return _lazy(x, right, "or") if is_traced(x) else given or right()


def _lazy(x: Tensor, right: Thunk, word: str) -> Any:
    source = here()
    predicate = truth(x, f"`{word}`", source)
    region = record("right", lambda: (plain(right()),), f"`{word}`", source)
    (y,) = region.result
    if x.type == BOOL and isinstance(y, bool):
        # `x and True` is x; `x and False` is False whatever x is.
        return x if y == (word == "and") else y
    if x.type == BOOL and isinstance(y, Tensor) and y.type == BOOL and all(map(is_total, region.builder.nodes)):
        return FUNCTIONS["logical_" + word](predicate, _inlined(region, y))
    other = record("left", lambda: (x,), f"`{word}`", source)
    true, false = (region, other) if word == "and" else (other, region)
    (result,) = join_regions(predicate, true, false, (f" the result of `{word}`",), f"`{word}`", source)
    return represented(result)


def _inlined(region: Traced, y: Tensor) -> Tensor:
    """The value of a region, computed in the current trace."""
    builder = recorder()
    closed = close([region.finish([y])])
    (value,) = builder.inline(closed.regions[0], closed.captures)
    return Tensor(builder, value)


def contains(item: Any, container: Any) -> Any:
    """`item in container`."""
    if is_traced(container) or (is_traced(item) and isinstance(container, np.ndarray)):
        return FUNCTIONS["any"](FUNCTIONS["equal"](container, item))
    if not isinstance(container, list | tuple | set | frozenset | dict | range):
        return item in container
    if not is_traced(item) and not any(map(is_traced, container)):
        return item in container
    found: Any = False
    for x in container:
        hit: Any = x is item or x == item
        if is_traced(hit):
            hit = truth(hit, "`in`", here())
            found = hit if found is False else FUNCTIONS["logical_or"](found, hit)
        elif hit:
            return True
    return found


def not_contains(item: Any, container: Any) -> Any:
    """`item not in container`."""
    return not_(contains(item, container))


def is_(x: Any, y: Any) -> bool:
    """`x is y`: Python's, but for a traced tensor beside another one or a value that it could have."""
    for a, b in ((x, y), (y, x)):
        if is_traced(a) and is_array(b):
            raise TracingError(
                "`is` on a traced tensor",
                expected="`is` on Python objects: a traced tensor is another object wherever it is computed",
                got=f"{x!r} is {y!r}",
                hint="compare values with ==, take a condition as it is (`if c`, `if not c`), and ask for NaN with\n"
                "numpy.isnan; `x is None` says whether there is a value at all",
            )
    return x is y


def is_not(x: Any, y: Any) -> bool:
    """`x is not y`."""
    return not is_(x, y)


_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
    "Eq": operator.eq,
    "NotEq": operator.ne,
    "Is": is_,
    "IsNot": is_not,
    "In": contains,
    "NotIn": not_contains,
}


def chain(x: Any, comparison: str, right: Thunk, *more: Any) -> Any:
    """`x < right() < ...`: each operand evaluated once, and only if what stands before it holds."""
    y = right()
    result = _COMPARISONS[comparison](x, y)
    return and_(lambda: result, lambda: chain(y, *more)) if more else result


def assert_stmt(test: Any, message: Callable[[], tuple[Any, ...]]) -> None:
    """`assert test, message`."""
    if is_traced(test):
        raise TracingError(
            "an `assert` on a traced tensor",
            expected="a Python value, known while tracing",
            got=repr(test),
            hint="assert on shapes and dtypes, or return the condition and check it outside of the function",
        )
    if not test:
        raise raised(AssertionError(*message()))
