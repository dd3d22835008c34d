# ruff: noqa: B905, SIM108, SIM113 (plain code as users write it is the point)
"""Loops, and returns out of them."""

from __future__ import annotations

import numpy as np

from python_programs.case import ROWS, case

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


# Variables of an iteration, which branches inside of it alone assign.


@case((0.9, 3), (0.9, 0))
def value_chosen_in_each_iteration(x, n):
    for i in range(n):
        if i < 1:
            step = np.sin(x)
        else:
            step = x * 0.5
        x = x + step
    return x


@case((0.43,), (3.0,))
def value_chosen_in_a_while(x):
    """The name stood for something else before."""
    step = x * 3.0
    total = step
    while x < 2.0:
        if x < 1.0:
            step = 0.3
        elif x < 1.5:
            step = 0.4 * x
        else:
            step = 1.0
        x = x + step
    return x * total


@case((0.9, 3, 2), (0.9, 2, 0))
def values_chosen_in_nested_loops(x, n, m):
    for i in range(n):
        for j in range(m):
            if j < i:
                factor = 0.5
            else:
                factor = x
            x = np.sin(x * factor) + 0.1
        if x > 0.8:
            rest = x - 0.8
        else:
            rest = 0.0
        x = x - rest * 0.5
    return x


@case((0.9, 2.0), (0.9, 0.5))
def value_chosen_before_a_break(x, limit):
    for scale in [1.0, 2.0, 3.0]:
        if x * scale > limit:
            step = 0.1 * x
        else:
            step = 0.2
        x = x + step
        if x > 2.0 * limit:
            break
    return x


@case((0.9, 2), (0.9, 0))
def last_chosen_value_read_by_a_function(x, n):
    chosen = x

    def last():
        return chosen * 2.0

    for i in range(n):
        if i < 1:
            chosen = np.sin(x)
        else:
            chosen = np.cos(x)
        x = x + chosen
    return last() * x
