"""`if` and the conditional expression: both branches are traced, and their variables joined by one `cond` node.

Each branch runs exactly once in Python, in a region of its own. A variable that has the same static value on both sides
keeps it; one that has arrays on both sides becomes a result of the node. If only one side has a value, the other side
yields zeros, and the variable is `Guarded` afterwards: by the predicate, and by the flag that says that the other side
has returned, broken or continued. The return value needs no guard: generated code reads it only after the flag
`do_return` beside it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CellType
from typing import Any

import numpy as np

from ctrlgrad import tree
from ctrlgrad.autograph.values import (
    GetState,
    Guarded,
    SetState,
    Undefined,
    UndefinedReturnValue,
    cells_of,
    decided,
    describe,
    is_array,
    is_flag,
    is_traced,
    leaf_paths,
    plain,
    raised,
    represented,
    same,
    shown,
    state_of,
    tracing,
    truth,
    unchanged,
    where_decided,
    zeros_value,
)
from ctrlgrad.errors import TracingError, TypeMismatchError
from ctrlgrad.frontend.apply import cast, is_weak, joint_type, value_in
from ctrlgrad.frontend.branches import learned_of
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import recorder
from ctrlgrad.frontend.tracer import Traced
from ctrlgrad.ir import BOOL, Builder, TensorType, Type, Value, close
from ctrlgrad.ir.control import emit_branch
from ctrlgrad.ops.arrays import is_total
from ctrlgrad.source import Source, here

# `and`, `or`, `not`, comparison chains, `in`, `is` and `assert`.
#
# On Python values they are Python's own, evaluated as lazily. `a and b` on a traced `a` is a `cond`, so that `b`
# runs only where `a` holds (`i < n and xs[i] > 0`); where `b` can neither fail nor cost much it is a `logical_and`.


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
        # The value of a region, computed in the current trace.
        builder = recorder()
        closed = close([region.finish([y])])
        (value,) = builder.inline(closed.regions[0], closed.captures)
        return FUNCTIONS["logical_" + word](predicate, Tensor(builder, value))
    other = record("left", lambda: (x,), f"`{word}`", source)
    true, false = (region, other) if word == "and" else (other, region)
    (result,) = join_regions(predicate, true, false, (f" the result of `{word}`",), f"`{word}`", source)
    return represented(result)


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
    """Python's `x is y`; an error if a traced tensor is compared with an array or another traced tensor."""
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
    """`x < right() < ...`: each operand is evaluated once, and only if the comparisons before it hold."""
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


_NOT_A_TENSOR = """None is not a tensor: use a number that stands for it (such as numpy.nan or -1), or a bool beside
a value that says whether it is meant"""
_AGREE = "cast with .astype or reshape so that both sides agree; choose Python objects by Python conditions"


def record(name: str, fn: Callable[[], Sequence[Any]], construct: str, source: Source | None) -> Traced:
    """A branch, traced: its result is what its variables hold at its end."""
    with tracing(construct, source):
        return Traced(name, lambda _: fn())


def if_stmt(
    test: Any,
    body: Callable[[], None],
    orelse: Callable[[], None],
    get_state: GetState,
    set_state: SetState,
    names: tuple[str, ...],
    nouts: int,
    assigned: Iterable[str] = (),
    own: tuple[CellType, ...] = (),
) -> None:
    """`if test: body() else: orelse()`; only the first `nouts` variables are known to be used afterwards.

    Enclosing functions that share the remaining variables (`nonlocal`) may use them, so these are joined if possible,
    and have no value otherwise. Further variables that the statement assigns, given by name (`assigned`) or as cells
    (`own`), are not used before or after it.
    """
    test = plain(test)
    if not is_traced(test):
        if test:
            body()
        else:
            orelse()
        return
    get_state, set_state = state_of(get_state, set_state, names)
    source = here()
    predicate = truth(test, "`if`", source)
    known = _known_flags(predicate)
    before = get_state()

    def branch(block: Callable[[], None], side: bool) -> Callable[[], Sequence[Any]]:
        def run() -> Sequence[Any]:
            with decided({value: truth == side for value, truth in known.items()}):
                set_state(tuple(_decided(name, x, known, side) for name, x in zip(names, before, strict=True)))
                block()
                return get_state()

        return run

    try:
        with unchanged("an `if`", source, body, orelse, own=(*own, *cells_of(assigned, body, orelse))):
            regions = (
                record("true_fun", branch(body, True), "`if`", source),
                record("false_fun", branch(orelse, False), "`if`", source),
            )
            set_state(before)
        after = join_regions(predicate, *regions, names, "`if`", source, nouts)
    except BaseException:
        set_state(before)
        raise
    set_state(tuple(after))


def if_exp(test: Any, when_true: Callable[[], Any], when_false: Callable[[], Any], text: str) -> Any:
    """`when_true() if test else when_false()`."""
    test = plain(test)
    if not is_traced(test):
        return when_true() if test else when_false()
    source = here()
    predicate = truth(test, f"`... if {text} else ...`", source)
    with unchanged("a conditional expression", source, when_true, when_false):
        regions = (
            record("true_fun", lambda: (plain(when_true()),), "conditional expression", source),
            record("false_fun", lambda: (plain(when_false()),), "conditional expression", source),
        )
    name = " the result of the conditional expression"
    (result,) = join_regions(predicate, *regions, (name,), f"`... if {text} else ...`", source)
    return represented(result)


def _known_flags(predicate: Tensor) -> dict[Value, bool]:
    """Truth of bool values under a true predicate: the predicate itself, and the value that it negates."""
    known = {predicate.value: True}
    builder = recorder()
    if builder.nodes and builder.nodes[-1].op.name == "logical_not" and builder.nodes[-1].result is predicate.value:
        known[builder.nodes[-1].operands[0]] = False
    return known


def _decided(name: str, x: Any, known: dict[Value, bool], side: bool) -> Any:
    """Value of a flag in the branch for `side`; a bool if the flag is the predicate itself."""
    if is_flag(name) and isinstance(x, Tensor) and x.value in known:
        return known[x.value] == side
    return where_decided(x)


@dataclass
class _Joined:
    """A variable after the branches: static leaves, and `None` with a type where the node gives the leaf."""

    treedef: tree.TreeDef
    static: list[Any]
    types: list[Type | None]
    weak: list[bool]
    sides: tuple[list[Any] | None, list[Any] | None]  # None: zeros take the place of the value
    reason: str | None = None  # why there may be no value after all


def join_regions(
    predicate: Tensor,
    when_true: Traced,
    when_false: Traced,
    names: Sequence[str],
    construct: str,
    source: Source | None,
    needed: int | None = None,
) -> list[Any]:
    """Record the `cond` node over two traced branches; returns what each variable holds after it.

    Variables beyond the first `needed` that do not fit together are `Undefined`, not an error.
    """
    known = _known_flags(predicate)
    results: list[Any] = []
    sides = [
        (learned_of(when_true, a, b), learned_of(when_false, b, a))
        for a, b in zip(when_true.result, when_false.result, strict=True)
    ]
    for position, (name, (a, b)) in enumerate(zip(names, sides, strict=True)):
        if a is True and b is False:
            results.append(predicate)
        elif a is False and b is True:
            results.append(FUNCTIONS["logical_not"](predicate))
        else:
            try:
                is_needed = needed is None or position < needed
                results.append(_join(name, a, b, construct, source, is_needed))
            except TypeMismatchError:
                if is_needed:
                    raise
                where = f" at {source}" if source else ""
                results.append(Undefined(name, f"differs between the branches of the {construct}{where}"))
    joined = [r for r in results if isinstance(r, _Joined)]
    builder = recorder()
    graphs = [
        region.finish(x for r in joined for x in _outputs(region.builder, r, side))
        for side, region in ((1, when_false), (0, when_true))
    ]
    values: list[Value] = []
    if any(graph.nodes or graph.outputs for graph in graphs):
        closed = close(graphs)
        hints = [
            _hint(name) for name, r in zip(names, results, strict=True) if isinstance(r, _Joined) for t in r.types if t
        ]
        selector = value_in(builder, predicate)
        values = list(emit_branch(builder, selector, closed, source=source, hints=hints))
    after = [_assemble(builder, r, values) if isinstance(r, _Joined) else r for r in results]
    flags = [(x, *sides[i]) for i, x in enumerate(after) if is_flag(names[i]) and isinstance(x, Tensor)]
    return [
        Guarded(names[i], r.reason, after[i], _conditions(*sides[i], known, flags))
        if isinstance(r, _Joined) and r.reason is not None
        else after[i]
        for i, r in enumerate(results)
    ]


def _conditions(
    a: Any, b: Any, known: dict[Value, bool], flags: Sequence[tuple[Tensor, Any, Any]]
) -> frozenset[tuple[Value, bool]]:
    """Conditions, any of which implies that a variable has a value after a branch with these two sides."""
    found = set()
    if isinstance(a, Undefined) != isinstance(b, Undefined):
        side = isinstance(b, Undefined)
        found = {(value, truth == side) for value, truth in known.items()}
    for flag, in_a, in_b in flags:
        found |= {(flag.value, truth) for truth in (False, True) if _has(a, in_a, truth) and _has(b, in_b, truth)}
    return frozenset(found)


def _has(x: Any, flag: Any, truth: bool) -> bool:
    """True if a side whose flag equals `truth` leaves the variable with a value."""
    if isinstance(flag, bool | np.bool_):
        return bool(flag) != truth or not isinstance(x, Undefined)
    return not isinstance(x, Undefined) or (isinstance(x, Guarded) and (flag.value, truth) in x.conditions)


def _outputs(builder: Builder, joined: _Joined, side: int) -> Iterator[Any]:
    leaves = joined.sides[side]
    for position, t in enumerate(joined.types):
        if t is None:
            continue
        if leaves is None:
            yield Tensor(builder, zeros_value(builder, t))
        else:
            x = leaves[position]
            yield cast(x, t.dtype) if isinstance(t, TensorType) else x


def _assemble(builder: Builder, joined: _Joined, values: list[Value]) -> Any:
    """The variable with the node's results, taken from the front of `values`, at its leaves."""
    leaves = [
        static if t is None else Tensor(builder, values.pop(0), weak)
        for static, t, weak in zip(joined.static, joined.types, joined.weak, strict=True)
    ]
    return tree.unflatten(joined.treedef, leaves)


def _hint(name: str) -> str | None:
    return name if name.isidentifier() and not is_flag(name) else None


def _join(name: str, a: Any, b: Any, construct: str, source: Source | None, is_needed: bool) -> Any:
    """Join a variable's values after two branches: a static value, `Undefined`, or a `_Joined`."""
    if a is b:
        return a
    reason = None
    if isinstance(a, Undefined) or isinstance(b, Undefined):
        without = a if isinstance(a, Undefined) else b
        both = isinstance(a, Undefined) and isinstance(b, Undefined)
        if both and a.reason is None and b.reason is None:
            return a
        where = f" at {source}" if source else ""
        reason = without.reason or f"is set in only one branch of the {construct}{where}"
        a, b = (x.value if isinstance(x, Guarded) else x for x in (a, b))
        if not is_needed or (isinstance(a, Undefined) and isinstance(b, Undefined)):
            return Undefined(name, reason)
    absent_a, absent_b = (isinstance(x, UndefinedReturnValue | Undefined) for x in (a, b))
    if absent_a and absent_b:
        return a
    leaves_a, treedef = tree.flatten(b if absent_a else a)
    leaves_b, treedef_b = tree.flatten(a if absent_b else b)
    if treedef != treedef_b:
        if reason is not None:
            return Undefined(name, reason)
        raise _differ(name, a, b, construct, source)
    joined = _Joined(treedef, [], [], [], (None if absent_a else leaves_a, None if absent_b else leaves_b), reason)
    wrong = []
    for path, x, y in zip(leaf_paths(name, treedef), leaves_a, leaves_b, strict=True):
        arrays = is_array(x) and is_array(y)
        is_static = same(x, y) and not (arrays and (absent_a or absent_b))
        t = joint_type([x, y]) if arrays and not is_static else None
        if t is None and not is_static:
            wrong.append(path)
        joined.static.append(x)
        joined.types.append(t)
        joined.weak.append(is_weak(x) and is_weak(y))
    if wrong and reason is not None:
        return Undefined(name, reason)
    if wrong:
        raise _differ(name, a, b, construct, source, wrong)
    return joined


def _differ(
    name: str, a: Any, b: Any, construct: str, source: Source | None, paths: Sequence[str] = ()
) -> TypeMismatchError:
    where = f" (at {', '.join(paths)})" if paths and list(paths) != [name] else ""
    return TypeMismatchError(
        f"autograph: {shown(name)} differs between the branches of {construct} on a traced tensor{where}",
        source=source,
        expected="the same structure, dtypes and shapes on both sides, and the same Python objects",
        got=f"true: {describe(a)}\nfalse: {describe(b)}",
        hint=_NOT_A_TENSOR if a is None or b is None else _AGREE,
    )
