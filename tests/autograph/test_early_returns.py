# ruff: noqa: B007, RET504, RET505 (the shapes of functions are the point)
"""Variables beside early returns, breaks and continues: set on all paths that go on, they may be used there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
from ctrlgrad.errors import TracingError


def else_beside_a_return(x):
    if x > 0:
        return x
    else:
        y = x * 2
    return y + 1


def a_loop_that_returns_first(x):
    i = 0
    while i < 5:
        if x > 10:
            return x
        y = x * 2
        x = y
        i = i + 1
    return x


def set_beside_nested_returns(x):
    if x > 0:
        if x > 2:
            return x * 3
        else:
            y = x + 1
        w = y * y
    else:
        w = x
        y = x
    return w + y


def else_beside_a_return_in_a_loop(x):
    for i in range(4):
        if x > 5:
            return x
        else:
            y = x * 2
        x = y + 1
    return x


def a_return_last(x):
    if x > 0:
        y = x
    else:
        return x * 5
    for i in range(3):
        y = y * x
    return y


def beside_break_and_continue(x):
    t = 0.0
    for i in range(4):
        if x > 50:
            break
        if x > 5:
            y = x * 2
        else:
            x = x + 1
            continue
        t = t + y
        x = x * 2
    return t + x


def a_return_from_two_loops(x):
    for i in range(3):
        for j in range(3):
            y = x * j
            if y > 6:
                return y
            x = x + y
    z = x
    return z


def beside_a_return_from_a_loop(x):
    s = 0.0
    for i in range(4):
        if x > 0:
            if x > 8:
                return s * x
            w = x + 1
        else:
            w = -x
        x = x + w
        s = s + w
    return s


def beside_a_break_in_a_while(x):
    s = 0.0
    while x < 50:
        if x < 1:
            if x < -5:
                break
            k = x * x
        else:
            k = 2.0
        x = x + k + 1
        s = s + k
    return s + x


def beside_a_return_with_finally(x):
    if x > 0:
        try:
            if x > 2:
                return x
            w = x + 1
        finally:
            z = 3.0
    else:
        w = x
        z = 1.0
    return w * z


def used_where_it_is_set(x):
    p = x > 1
    if p:
        y = x * 3
    s = x
    if p:
        s = s + y
    return s


def used_after_a_return(x):
    p = x > 1
    if p:
        y = x * 3
    else:
        z = x * 5
    if not p:
        return z
    for i in range(3):
        y = y * x
    return y


def an_inner_function(x):
    def h(a):
        if a > 5:
            return a * a
        b = a + 1
        if b > 3:
            return b
        c = b * a
        return c + b

    if x > 0:
        y = h(x)
    else:
        return x
    if y > 10:
        return y + 1
    return y * 2


def changed_by_a_loop_where_it_is_set(x):
    p = x > 1
    if p:
        y = x * 3
    s = x
    if p:
        while y < 100:
            y = y * x
        s = s + y
    return s


SHAPES = [
    changed_by_a_loop_where_it_is_set,
    else_beside_a_return,
    a_loop_that_returns_first,
    set_beside_nested_returns,
    else_beside_a_return_in_a_loop,
    a_return_last,
    beside_break_and_continue,
    a_return_from_two_loops,
    beside_a_return_from_a_loop,
    beside_a_break_in_a_while,
    beside_a_return_with_finally,
    used_where_it_is_set,
    used_after_a_return,
    an_inner_function,
]


@pytest.mark.parametrize("x", [-9.0, -4.0, 1.3, 2.6, 20.0])
@pytest.mark.parametrize("fn", SHAPES, ids=lambda fn: fn.__name__)
def test_variables_set_on_all_continuing_paths_are_used(fn: Callable[[Any], Any], x: float) -> None:
    traced = cg.function(fn, autograph=True)
    np.testing.assert_allclose(traced(x), fn(x), rtol=1e-14)
    assert len(traced.graph(x).nodes) > 0
    cg.check_grads(traced, (x,))


# Functions that Python refuses for some arguments, and functions whose result only a run decides.


def asked_again(x):
    p = x > 1
    if p:
        y = x * 3
    if x > 1:
        x = x + y
    return x


def set_for_some_that_go_on(x):
    if x > 0:
        if x > 2:
            w = x
        if x > 5:
            return x * 2
    else:
        w = -x
    return w


def set_in_another_iteration(x):
    for i in range(3):
        if x > 3:
            w = x
            continue
        x = x * w
    return x


def deleted_before_a_break(x):
    w = 1.0
    for i in range(3):
        if x > 3:
            del w
            break
        x = x * 2
    return x * w


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (asked_again, "y"),
        (set_for_some_that_go_on, "w"),
        (set_in_another_iteration, "w"),
        (deleted_before_a_break, "w"),
    ],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_variables_that_may_have_no_value_are_refused(fn: Callable[[Any], Any], name: str) -> None:
    with pytest.raises(TracingError, match=f"the variable `{name}` may have no value here") as caught:
        cg.function(fn, autograph=True)(2.0)
    assert "test_early_returns.py" in str(caught.value.source)
    assert "is set in only one branch of the `if`" in str(caught.value.got)
