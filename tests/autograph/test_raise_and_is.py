"""`raise`, `assert`, `is` and `in` on traced values: refused by name where Python's answer would be wrong."""

from __future__ import annotations

import contextlib
import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
from ctrlgrad.errors import TracingError, TypeMismatchError


def raises_in_if(x):
    if x < 0:
        raise ValueError("negative")
    return x


def raises_in_else(x):
    if x >= 0:
        y = x
    else:
        raise ValueError
    return y


def raises_in_while(x):
    while x < 3:
        x = x + 1
        raise ValueError("negative")
    return x


def raises_after_a_return(x):
    if x > 0:
        return x
    raise ValueError("negative") from None


def raises_in_a_handler_for_everything(x):
    try:
        if x < 0:
            raise ValueError("negative")
        y = x
    except Exception:
        y = -x
    return y


def raises_in_a_function(x):
    return helper(x) if x > 0 else x


def helper(x):
    raise ValueError("negative")


def asserts_in_if(x):
    if x > 0:
        assert x.ndim == 1, "negative"
    return x


RAISES = {
    raises_in_if: 2,
    raises_in_else: 4,
    raises_in_while: 3,
    raises_after_a_return: 3,
    raises_in_a_handler_for_everything: 3,
    raises_in_a_function: None,
    asserts_in_if: 2,
}


@pytest.mark.parametrize("fn", RAISES, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("x", [1.0, -1.0])
@pytest.mark.parametrize("transform", [lambda f: f, cg.grad], ids=["value", "grad"])
def test_a_raise_under_a_traced_condition_is_refused_at_its_line(fn, x, transform) -> None:
    line = RAISES[fn]
    at = inspect.getsourcelines(helper)[1] + 1 if line is None else inspect.getsourcelines(fn)[1] + line
    with pytest.raises(TracingError, match=r"a `raise` inside the ") as caught:
        cg.function(transform(cg.function(fn, autograph=True)))(x)
    assert caught.value.source is not None and caught.value.source.line == at
    assert isinstance(caught.value.__cause__, ValueError | AssertionError)


def test_a_raise_that_python_decides_on_is_pythons() -> None:
    def fn(x, mode):
        if x > 0:
            try:
                if mode != "known":
                    raise KeyError(mode)
                y = x
            except KeyError:
                y = 2 * x
        else:
            y = -x
        if mode == "refused":
            raise ValueError("mode")
        return y

    f = cg.function(fn, autograph=True, static_argnums=1)
    assert [float(f(3.0, "known")), float(f(3.0, "other")), float(f(-3.0, "other"))] == [3.0, 6.0, 3.0]
    with pytest.raises(ValueError, match="mode"):
        f(3.0, "refused")


def test_a_mistake_in_a_branch_says_which_branch_was_traced() -> None:
    def fn(x):
        if x < 0:
            return x * {}["none"]
        return x

    with pytest.raises(KeyError, match="none") as caught:
        cg.function(fn, autograph=True)(1.0)
    (note,) = caught.value.__notes__
    assert "raised when the `if` on a traced tensor was traced, at: " in note and "test_raise_and_is.py" in note


SAME = {
    "another tensor": lambda x: 1 if x * 1 is x else 2,
    "itself": lambda x: 1 if x is x else 2,
    "True": lambda x: 1 if (x > 0) is True else 2,
    "not False": lambda x: 1 if (x > 0) is not False else 2,
    "nan": lambda x: 1 if x is np.nan else 2,
    "from the left": lambda x: 1 if np.inf is x else 2,
    "an array": lambda x: 1 if x is X else 2,
    "in a chain": lambda x: 1 if 0 < 1 < x is True else 2,
}
X = np.ones(3)


@pytest.mark.parametrize("name", SAME)
def test_is_on_a_traced_tensor_and_a_value_is_refused(name: str) -> None:
    with pytest.raises(TracingError, match="`is` on a traced tensor") as caught:
        cg.function(SAME[name], autograph=True)(2.0)
    assert "test_raise_and_is.py" in str(caught.value)


def test_is_beside_what_is_no_value_is_pythons() -> None:
    missing = object()

    def fn(x, y=None, z=missing, flag=True):
        if y is None and z is missing and flag is True and x is not None and x is not missing and x is not fn:
            return 2 * x
        return x

    assert float(cg.function(fn, autograph=True)(3.0)) == 6.0


INSIDE = {
    "comprehension": lambda x: sum([v for v in [x, x + 1] if v > 2]),
    "sorted": lambda x: sorted([x, 1.0])[0],
    "lists": lambda x: [x, 1.0] == [2.0, 1.0],
    "index": lambda x: [1.0, 2.0].index(x),
}


@pytest.mark.parametrize("name", INSIDE)
def test_advice_inside_autograph_does_not_advise_autograph(name: str) -> None:
    with pytest.raises(TracingError, match="autograph does not convert") as caught:
        cg.function(INSIDE[name], autograph=True)(2.0)
    assert "autograph=True" not in str(caught.value)
    with pytest.raises(TracingError, match=r"autograph=True|ctrlgrad\.numpy\.sort"):
        cg.function(INSIDE[name])(2.0)


IN = {
    "a list": lambda x: 1.0 if x in [1.0, 2.0] else 0.0,
    "traced values": lambda x: 1.0 if 3.0 in [x, x + 1] else 0.0,
    "an array": lambda x: 1.0 if x in np.array([1.0, 2.0]) else 0.0,
    "not a tuple": lambda x: 0.0 if x not in (1.0, 2.0) else 1.0,
    "a chain": lambda x: 1.0 if 0 < x in [1.0, 2.0] else 0.0,
    "a long chain": lambda x: 1.0 if 1 < x <= x * x < 5 else 0.0,
    "keys": lambda x: 1.0 if x in {2.0: "two"} else 0.0,
}


@pytest.mark.parametrize("name", IN)
def test_in_and_chains_ask_the_run(name: str) -> None:
    f = cg.function(IN[name], autograph=True)
    assert [float(f(x)) for x in (2.0, 7.0)] == [1.0, 0.0] == [IN[name](2.0), IN[name](7.0)]


def counts_down():
    try:
        yield 2.0
    except KeyError:
        yield 1.0


def throws_into_a_generator(x):
    numbers = counts_down()
    next(numbers)
    if x < 0:
        numbers.throw(ValueError("negative"))
    return x


def throws_into_a_new_generator(x):
    while x < 0:
        counts_down().throw(ValueError("negative"))
    return x


def raises_in_a_library(x):
    if x < 0:
        np.linalg.inv(np.zeros((2, 2)))
    return x


def asserts_in_a_library(x):
    if x < 0:
        np.testing.assert_allclose(1.0, 2.0)
    return x


def raises_in_what_is_not_converted(x):
    return x * 2 if (lambda: x > 0)() else unconvertible(x)


def unconvertible(x):
    if isinstance(whole := x, float):
        return whole
    raise ValueError("negative")


UNCONVERTED = [
    throws_into_a_generator,
    throws_into_a_new_generator,
    raises_in_a_library,
    asserts_in_a_library,
    raises_in_what_is_not_converted,
]


@pytest.mark.parametrize("fn", UNCONVERTED, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("x", [1.0, -1.0])
def test_a_raise_in_code_that_is_not_converted_is_refused(fn, x) -> None:
    with pytest.raises(TracingError, match="a `raise` inside the ") as caught:
        cg.function(fn, autograph=True)(x)
    assert caught.value.source is not None and caught.value.source.file == __file__


def test_a_throw_that_the_generator_takes_is_pythons() -> None:
    def fn(x):
        numbers, y = counts_down(), x
        next(numbers)
        if x < 0:
            y = numbers.throw(KeyError()) * x * x
        return y

    f = cg.function(fn, autograph=True)
    assert [float(f(3.0)), float(f(-3.0))] == [3.0, 9.0]


def suppressed(x):
    y = x
    with contextlib.suppress(Exception):
        if x < 0:
            raise ValueError("negative")
        y = 2 * x
    return y


def left_by_a_return(x):
    try:
        if x < 0:
            raise ValueError("negative")
    finally:
        return 2 * x  # noqa: B012


def suppressed_in_a_lambda(x):
    return (lambda y: taking_all(lambda: helper(y) if y < 0 else y))(x)


def taking_all(fn):
    with contextlib.suppress(Exception):
        return suppressed(fn())
    return 5.0


@pytest.mark.parametrize("fn", [suppressed, left_by_a_return, suppressed_in_a_lambda], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("x", [1.0, -1.0])
def test_a_refusal_is_raised_though_code_on_its_way_catches_everything(fn, x) -> None:
    with pytest.raises(TracingError, match="a `raise` inside the "):
        cg.function(fn, autograph=True)(x)


@dataclass
class Ball:
    height: float
    speed: float


def test_an_object_made_anew_in_a_loop_is_to_be_registered_as_a_pytree_node() -> None:
    def fall(height: Any) -> Any:
        ball = Ball(height, 0.0)
        while ball.height > 0.0:
            ball = Ball(ball.height + 0.05 * ball.speed, ball.speed - 0.5)
        return ball.speed

    with pytest.raises(TypeMismatchError) as caught:
        cg.function(fall, autograph=True)(1.0)
    assert "register_dataclass" in caught.value.hint and "Ball" in caught.value.hint
