"""Branches and functions."""

from __future__ import annotations

import functools

import numpy as np

from python_programs.case import case

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


@case((1.2, 0.4), (1.2, -0.4), (-1.2, 0.4))
def value_chosen_inside_of_a_branch(x, y):
    if x > 0:
        if y > 1.0:
            factor = np.cos(x)
        elif y > 0:
            factor = np.sin(x)
        else:
            factor = y
        z = factor * x
    else:
        z = y
    return z * z
