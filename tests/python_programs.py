# ruff: noqa: B905, SIM108, SIM113 (plain code as users write it is the point)
"""Small functions in plain Python and NumPy: nothing here knows ctrlgrad. Each runs as it is, and traced.

Arguments of float dtype are differentiated; values stay away from kinks and from changes of a trip count.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    """A function and one set of arguments for it."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    number: int

    def __repr__(self) -> str:
        return f"{getattr(self.fn, '__name__', 'object').strip('<>')}-{self.number}"


CASES: list[Case] = []


def case(*argument_lists: tuple[Any, ...]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function with lists of arguments; a decorator."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        CASES.extend(Case(fn, args, number) for number, args in enumerate(argument_lists))
        return fn

    return register


ROWS = np.array([[0.3, -0.2], [1.1, 0.4], [-0.7, 0.9], [2.1, -1.3]])


# while


@case((20.0,), (0.5,))
def branches_in_while(x):
    n = 0
    while x > 1.0:
        if x > 5:
            x = x / 3
        elif x > 3:
            x = x / 2.5
        else:
            x = x * 0.5
        n += 1
    return x * n + x


@case((2.0,), (7.0,))
def newton(a):
    """Newton's iteration for the square root."""
    x = a
    while abs(x * x - a) > 1e-14 * a:
        x = 0.5 * (x + a / x)
    return x


@case((2.0, 3.0))
def bisection(target, high):
    low = 0.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        if middle**3 < target:
            low = middle
        else:
            high = middle
    return low * target


@case((27, 1.5), (1, 1.5))
def collatz(n, x):
    steps = 0
    while n != 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps = steps + 1
    return steps * x * x


@case((10.0,))
def while_true_with_return(x):
    while True:
        x = x * 0.5
        if x < 1:
            return x * x


@case((10.0,))
def while_true_with_break(x):
    n = 0
    while True:
        x = x * 0.5
        n += 1
        if x < 1:
            break
    return x * x + n


@case((10.0, 0.3))
def break_and_return(x, y):
    while True:
        x = x * 0.5
        if x < 0.2:
            return y
        if x * y < 0.4:
            break
    return x * y


@case((0.7, 5), (0.7, 0))
def python_condition_then_traced(x, n):
    k = 0
    while k < 3 and x < 4:
        x = x * 1.7
        k += 1
    while n > 0:
        n -= 1
        x = np.sin(x) + x
    return x


@case((3.0, 0.4), (0.1, 0.4))
def while_else(x, y):
    n = 0
    while x > 0.5:
        x = x - y
        n += 1
        if n > 10:
            break
    else:
        y = y * 2
    return x * y


@case((3.0, 2.9), (3.0, 0.1))
def while_with_continue_and_break(x, limit):
    total = x * 0.0
    n = 0
    while n < 10:
        n += 1
        if n % 3 == 0:
            continue
        total = total + np.sin(x * n)
        if total > limit:
            break
        total = total * 1.1
    return total


# Early return


@case((1.5,), (-1.5,), (0.1,))
def early_returns(x):
    if x > 1:
        return x * x
    if x < -1:
        return -x
    y = np.sin(x)
    return y * 3.0


@case((1.5, 1.0), (1.5, -1.0), (-1.5, 1.0), (-1.5, -1.0))
def return_in_nested_branches(x, y):
    if x > 0:
        if y > 0:
            return x * y
        x = x * 2
    elif y > 0:
        return y**3
    return x + y * x


@case((ROWS, 1.0), (ROWS, 100.0))
def return_from_loop(rows, limit):
    total = 0.0
    for row in rows:
        total = total + row[0]
        if total > limit:
            return total * row[1]
    return -total


@case((ROWS, 0.9), (ROWS, 100.0))
def return_from_nested_loop(rows, limit):
    for row in rows:
        product = 1.0
        for x in row:
            product = product * x
            if product > limit * 0.3:
                return product * 2.0, 1.0
    return np.sum(rows), 0.0


@case((ROWS, 0.5), (ROWS, 100.0))
def return_pair_from_loop(rows, limit):
    k = 0
    for row in rows:
        if row[0] > limit:
            return {"row": row, "index": k}
        k += 1
    return {"row": np.zeros(2), "index": -1}


# for


@case((1.3, 5), (1.3, 0))
def for_over_traced_range(x, n):
    y = 1.0
    for i in range(n):
        y = y * x + i
    return y


@case((1.3, 2, 9), (1.3, 9, 2))
def for_over_range_with_start_and_step(x, low, high):
    y = x
    for i in range(low, high, 3):
        y = y * x + i
    for i in range(high, low, -2):
        y = np.sin(y) * i
    return y


@case((1.3,))
def for_over_python_range(x):
    y = 1.0
    names = ["a", "b", "c"]
    for i in range(3):
        if names[i] == "b":
            continue
        y = y * x + i
    return y


@case((ROWS,), (ROWS[:1],))
def for_over_rows(rows):
    total = np.zeros(2)
    for row in rows:
        if row[0] > 0:
            total = total + row * row
        else:
            total = total * row[1]
    return total


@case((ROWS,))
def nested_for(rows):
    total = 0.0
    for row in rows:
        inner = 0.0
        for x in row:
            if x < 0:
                continue
            inner = inner + x * x
        total = total * 0.5 + np.exp(-inner)
    return total


@case((ROWS, 3), (ROWS, 0))
def data_dependent_inner_count(rows, n):
    total = 0.0
    for i in range(n):
        x = rows[i, 0]
        for _ in range(i + 1):
            x = np.sin(x) + 0.1
        total = total + x
    return total


@case((ROWS, np.array([0.1, 0.2, 0.3, 0.4])))
def for_over_enumerate_and_zip(rows, weights):
    total = 0.0
    for i, (row, w) in enumerate(zip(rows, weights)):
        total = total + w * np.sum(row) * i
    for i, row in enumerate(rows, 2):
        total = total + row[0] * i
    for w, row in zip(weights, reversed(rows)):
        total = total + w * row[1] ** 2
    for k, w in zip(range(10), weights):
        total = total + w**2 * k
    return total


@case((0.9, 2), (0.9, 9))
def for_range_with_break(x, digits):
    for _ in range(20):
        step = 0.5 * np.sin(x)
        x = x - step
        if step < 0.5**digits:
            break
    return x


@case((0.9, 0.3), (0.9, 100.0))
def for_list_with_break(x, limit):
    for layer in [np.sin, np.tanh, np.exp, np.cos]:
        x = layer(x) * 1.1
        if x > limit * 2:
            break
    return x


@case((ROWS, 0.5), (ROWS, 9.0))
def for_else(rows, limit):
    found = 0.0
    for row in rows:
        if row[0] > limit:
            found = row[1]
            break
    else:
        found = limit * 2
    return found * found


@case((ROWS, 4), (ROWS, 2))
def loop_variable_defined_before(rows, n):
    row = rows[0]
    for i in range(n):
        row = rows[i] + 0.1 * row
    return row


# if


@case((1.2, 0.4), (-1.2, 0.4))
def different_variables_in_branches(x, y):
    if x > 0:
        a = x * y
        b = a + 1
        c = b * 2
    else:
        a = y
        b = x * x
        c = a - b
    return a * b * c


@case((1.2, True), (1.2, False), (-1.2, True), (-1.2, False))
def python_and_traced_flags(x, python_flag):
    y = x
    if python_flag and x > 0:
        y = y * 2
    if x > 0 and python_flag:
        y = y + x * x
    if not python_flag or not x > 0:
        y = y * 3
    if x > 5 or python_flag:
        y = y - 1
    return y * y


@case((1.2, 0.4, 0.1), (-1.2, 0.4, 0.1), (1.2, -0.4, 3.0), (0.3, 0.4, 0.5))
def conditional_expressions(x, y, z):
    a = x * x if x > 0 else y
    b = (x if y > 0 else z) if z < 1 else x * z
    c = 1.0 if x > y > z else 2.0
    d = a and b
    return a * b * c + d


@case((1.2, 0.4, 0.1), (-1.2, 0.4, 0.1), (1.2, -0.4, 3.0), (0.3, 0.4, 0.5))
def and_or_not(x, y, z):
    total = 0.0
    if x > 0 and y > 0:
        total = total + x
    if x > 1 or (y > 0 and not z > 0.2):
        total = total + y * x
    if not (x > 0 or y > 0) and z > 0:
        total = total + z
    if 0 < x < 1 <= 10 * z:
        total = total + x * y * z
    return total + x * z


@case((3, 1.5), (4, 1.5))
def membership(n, x):
    if n in (1, 3, 5):
        return x * x
    if n not in [2, 6]:
        x = x * 3
    return x


@case((np.array([0.3, 1.0, 2.0]), 5), (np.array([0.3, 1.0, 2.0]), 2))
def short_circuit_guards_an_index(xs, n):
    i = 0
    while i < 3 and xs[i] < 1.5 and i < n:
        i += 1
    return np.sum(xs) * i


@case((2.0,))
def truth_of_numbers(x):
    n = 3
    total = x + 1.0
    while n:
        n -= 1
        if x:
            total = total * 1.5
    return total


# Functions


def _helper(x):
    if x > 1:
        return np.sin(x)
    return x * 3


@case((1.5,), (0.5,))
def calls_helpers(x):
    inner = lambda v: v * 2 if v > 1 else v / 3

    def clipped(v, low=0.6, *, high=2.0):
        if v < low:
            return low * v
        while v > high:
            v = v - 0.5
        return v

    return _helper(x) + inner(x) * clipped(x) + clipped(x * 2, high=1.1)


@case((1.2, 5), (1.2, 0))
def recursion_on_python_ints(x, n):
    def power(x, n):
        if n == 0:
            return 1.0
        half = power(x, n // 2)
        return half * half * x if n % 2 else half * half

    y = power(x, 5)
    return y if y > 2 else x * n


def _make_adder(offset):
    def add(x):
        if x > offset:
            return x + offset
        return x * offset

    return add


case((1.2,), (3.4,))(_make_adder(2.0))


class Model:
    """Methods, attributes that change, and a call operator."""

    def __init__(self, weight):
        self.weight = weight

    def step(self, x):
        return x * self.weight if x < 2 else x - self.weight

    def __call__(self, x):
        while x < 1.9:
            x = self.step(x)
        return x


@case((0.4, 1.3), (3.0, 1.3))
def methods_and_objects(x, w):
    model = Model(w)
    return model(x) + model.step(x)


@case((0.7, 4), (0.7, 0))
def attributes_change(x, n):
    model = Model(x)
    state = {"h": x, "c": 1.0}
    for i in range(n):
        model.weight = model.weight * x + i
        state["h"] = np.tanh(state["h"] + state["c"])
        if state["h"] > 0.8:
            state["c"] = state["c"] * 0.5
    return model.weight + state["h"] * state["c"]


@case((0.7, 4), (-0.7, 4))
def tuples_and_swaps(x, n):
    pair = (x, 1.0)
    a, b = 0.0, 1.0
    for _ in range(n):
        a, b = b, a + b * x
        pair = (pair[1] * x, pair[0] + 0.1)
    if x > 0:
        pair = (pair[1], pair[0])
    return a, b, pair


@case((0.7,), (2.0,))
def partial_and_map(x):
    scaled = functools.partial(_scaled, factor=3.0)
    total = 0.0
    for y in map(_helper, [x, x + 1]):
        total = total + y
    return total + scaled(x)


def _scaled(x, factor):
    return x * factor if x > 1 else x / factor


@case((0.7, 1.7), (-0.7, 1.7))
def builtins(x, y):
    total = min(x, y) * max(x, 0.2, y) + abs(x) + sum([x, y])
    if all([x > 0, y > 0]) and any([x > 1, y > 1]):
        total = total * 2
    return total + float(x) * int(y * 2)


@case((1.2, np.array([1, 0, 2])))
def rebinds_inside_try(x, kinds):
    y = x
    for kind in kinds:
        try:
            if kind == 1:
                y = y * x
            elif kind == 2:
                y = y + 2 * x
        finally:
            z = y * 2
            y = z - y
    return y


@case((1.2,), (-0.3,))
def comprehensions_stay_python(x):
    rows = [x * k for k in range(4) if k != 2]
    total = 0.0
    for row in rows:
        total = total + (row if row > 0 else row * row)
    return total


@case((2.2, 0.3))
def nonlocal_state(x, y):
    count = 0.0

    def bump(v):
        nonlocal count
        if v > 1:
            count = count + v
        return v * 0.5

    for _ in range(3):
        x = bump(x)
    return x * count * y
