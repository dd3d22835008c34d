"""An error about a dtype that changed says which op changed it, by which operand, at which line, and what to write."""

import re
from pathlib import Path

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import TypeMismatchError

X, W, ZERO = np.ones(3, np.float32), np.ones(3), np.int64(0)


def line_of(mark):
    lines = Path(__file__).read_text().splitlines()
    (line,) = [number for number, text in enumerate(lines, 1) if text.endswith(f"# <- {mark}")]
    return f"{Path(__file__).name}:{line} in"


def error_of(f, *arguments):
    with pytest.raises(TypeMismatchError) as caught:
        cg.function(f, engine="reference").graph(*arguments)
    return str(caught.value)


def test_an_array_from_outside():
    def f(x):
        def body(i, c):
            scaled = c * W  # <- array
            return scaled + c

        return cg.fori_loop(0, 3, body, x)

    message = error_of(f, X)
    assert "multiply of f32 with an array, f64[3], gives f64" in message
    assert line_of("array") in message
    assert "cast that operand: .astype('float32')" in message


def test_an_argument_of_the_function_around_is_named():
    f = lambda x, rate: cg.while_loop(lambda c: c[1] < 3, lambda c: (c[0] - rate * c[0], c[1] + 1), (x, 0))[0]
    message = error_of(f, X, W)
    assert "carry[0]: starts as f32[3], the body returns f64[3]" in message
    assert "multiply of f32 with rate, f64[3], gives f64" in message
    assert "cast rate: .astype('float32')" in message


def test_a_number_with_a_dtype():
    message = error_of(lambda x: cg.fori_loop(0, 3, lambda i, c: c * np.float64(1.5), x), X)
    assert "multiply of f32 with the number 1.5, f64[], gives f64" in message
    assert "1.5 in place of numpy's scalar" in message


def test_an_operand_that_was_cast_too_is_told_as_it_was():
    message = error_of(lambda x: cg.fori_loop(0, 3, lambda i, c: cnp.where(c > 0, c, i), x), X)
    assert re.search(r"where of f32 with \w+, i64\[\], gives f64", message)


def test_the_first_of_several():
    def f(x):
        def body(i, c):
            a = c + cnp.sin(W)[:, None].sum(1)  # <- first
            return a * c

        return cg.fori_loop(0, 3, body, x)

    message = error_of(f, X)
    assert line_of("first") in message and message.count("gives f64") == 1


def test_operands_that_were_given_another_shape():
    message = error_of(lambda x: cg.fori_loop(0, 3, lambda i, c: cnp.stack([c, W]).sum(0), x), X)
    assert "concat of f32 with an array" in message


@pytest.mark.parametrize(("name", "body"), [("divide", lambda c: c / 2), ("sqrt", cnp.sqrt)], ids=["divide", "sqrt"])
def test_an_op_that_makes_floats_of_integers(name, body):
    message = error_of(lambda n: cg.while_loop(lambda c: c < 3, body, n), ZERO)
    assert f"{name} makes f64 of i64" in message
    assert "start from float64, or make int64 of the result: x // y, .astype('int64')" in message


def test_a_cast():
    message = error_of(lambda x: cg.fori_loop(0, 3, lambda i, c: -c.astype(np.float16), x), X)
    assert "cast makes f16 of f32" in message and ".astype('float32')" in message


def test_a_result_that_is_not_of_the_carry_at_all():
    message = error_of(lambda x, w: cg.fori_loop(0, 3, lambda i, c: w + w * w, x), X, W)
    assert "it is computed from w, f64[3]" in message and "cast w: .astype('float32')" in message


def test_a_scan_and_a_loop_inside():
    scan = lambda x: cg.scan(lambda c, row: (c + row, None), np.float32(0), W)  # <- scan
    assert "add of f32 with the result of getitem" in (message := error_of(scan, X)) and line_of("scan") in message
    inner = lambda x, w: cg.fori_loop(0, 3, lambda i, c: c + cg.fori_loop(0, 2, lambda j, d: d * w, c), x)
    assert "multiply of f32 with w, f64[3]" in error_of(inner, X, W)


def test_a_branch():
    f = lambda x, w: cg.cond(x[0] > 0, lambda: x, lambda: x * w)  # <- branch
    message = error_of(f, X, W)
    assert "in false_fun: multiply of f32 with w, f64[3], gives f64" in message
    assert "in true_fun" not in message and line_of("branch") in message
    assert "cast w: .astype('float32')" in message


def test_mismatches_without_a_promoting_op_name_dtypes_only():
    message = error_of(lambda x: cg.fori_loop(0, 3, lambda i, c: W, x), X)
    assert "carry: starts as f32[3], the body returns f64[3]\n  try: cast with .astype" in message
    shapes = error_of(lambda x: cg.fori_loop(0, 3, lambda i, c: c[:2], x), X)
    assert "computed from" not in shapes and "cast that" not in shapes
