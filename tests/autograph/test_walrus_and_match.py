"""`:=` and `match` in converted functions: the values and gradients of plain Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
from ctrlgrad.errors import UserInputError


def while_test(x: Any) -> Any:
    while (third := x / 3.0) > 1.0:
        x = third + 0.1
    return x * third


def while_with_continue(x: Any) -> Any:
    total = 0.0
    while (half := x / 2.0) > 0.3:
        x = half
        if x > 2.0:
            continue
        total = total + half * x
    return total + half


def while_with_else(x: Any) -> Any:
    while (y := x * 0.5) > 1.0:
        x = y
        if y > 100.0:
            break
    else:
        x = x * 2.0
    return x + y


def while_and_break(x: Any) -> Any:
    while (y := x * 1.5) < 100.0:
        x = y
        if x > 20.0:
            break
    return x


def if_test(x: Any) -> Any:
    if (root := np.sqrt(x)) > 2.0:
        return root * 3.0
    if (square := x * x) > 1.0:
        return square
    return x - root + square


def nested_first(x: Any) -> Any:
    y = abs(z := -x) + z
    return np.sin((w := y + 2.0) * w) + w


def value_case(kind: Any, x: Any) -> Any:
    match kind:
        case 0:
            y = x
        case 1 | 2:
            y = x * x
        case _:
            y = x * x * x
    return y


def guarded_case(x: Any) -> Any:
    match x:
        case v if v > 2.0:
            return v * v
        case _:
            return -x


def static_case(x: Any, mode: str = "square") -> Any:
    match mode:
        case None:
            return x
        case "cube" as name:
            return x**3 * len(name)
        case "square" as name:
            return x * x * len(name)


def case_in_loop(x: Any) -> Any:
    total, n = 0.0, 0
    while n < 6:
        n += 1
        match n % 3:
            case 0:
                continue
            case 1:
                total = total + x
            case rest:
                total = total * x + rest
        if total > 50.0:
            break
    return total


CASES: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]]]] = {
    "while": (while_test, [(20.0,), (1.0,)]),
    "while, continue": (while_with_continue, [(9.0,), (0.1,)]),
    "while, else": (while_with_else, [(9.0,), (1.0,)]),
    "while, break": (while_and_break, [(1.0,), (200.0,)]),
    "if": (if_test, [(9.0,), (2.0,)]),
    "first operands": (nested_first, [(0.7,), (-0.4,)]),
    "guarded": (guarded_case, [(3.0,), (1.0,)]),
    "static": (static_case, [(3.0,)]),
    "in a loop": (case_in_loop, [(1.5,), (9.0,)]),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_python(name: str) -> None:
    fn, points = CASES[name]
    converted = cg.function(fn, autograph=True)
    for (x,) in points:
        assert float(converted(x)) == pytest.approx(float(fn(x)), rel=1e-14)
        slope = (float(fn(x + 1e-6)) - float(fn(x - 1e-6))) / 2e-6
        assert float(cg.grad(converted)(x)) == pytest.approx(slope, rel=1e-6)


def test_a_traced_subject_chooses_its_case_when_it_runs() -> None:
    converted = cg.function(value_case, autograph=True)
    for kind, value, slope in ((0, 3.0, 1.0), (1, 9.0, 6.0), (2, 9.0, 6.0), (7, 27.0, 27.0)):
        assert float(converted(kind, 3.0)) == value
        assert float(cg.grad(converted, argnums=1)(kind, 3.0)) == slope
    assert converted.traces == 1


def test_the_value_of_a_walrus_is_evaluated_as_often_as_in_python() -> None:
    def loop(step: Callable[[int], int]) -> int:
        n = 0
        while (n := step(n)) < 5:
            if n == 2:
                continue
        return n

    counts = []
    for fn in (loop, cg.function(loop, autograph=True)):
        calls: list[int] = []
        fn(lambda n, calls=calls: calls.append(n) or n + 1)  # type: ignore[misc]
        counts.append(calls)
    assert counts[0] == counts[1] == [0, 1, 2, 3, 4]


def second_operand(x: Any) -> Any:
    return x + (x := 2.0) * x


def after_and(x: Any) -> Any:
    return 1.0 if x > 0.0 and (y := x) > 1.0 else x + 0.0 * y


def function_set_inside(f: Any) -> Any:
    return f(f := 2.0)


def sequence_pattern(x: Any) -> Any:
    match x:
        case [a, b]:
            return a + b
    return x


def as_with_guard(x: Any) -> Any:
    match x:
        case 1 as y if x > 0:
            return y
    return x


@pytest.mark.parametrize("fn", [second_operand, after_and, function_set_inside, sequence_pattern, as_with_guard])
def test_what_is_refused(fn: Callable[..., Any]) -> None:
    with pytest.raises(UserInputError, match="autograph cannot convert") as caught:
        cg.function(fn, autograph=True)
    assert "cannot be converted" in caught.value.got and "line" in caught.value.got
