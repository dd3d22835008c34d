"""Features of a `ufunc` besides its values: attributes, keywords, NumPy's own methods on traced tensors, errors."""

from __future__ import annotations

import inspect

import jax.numpy as jnp
import numpy as np
import pytest
from array_cases.running import assert_same, data, run

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import ShapeError, TracingError, TypeMismatchError

A, V = data("float64", (3, 4)), data("float64", (4,))
SMALL = data("int8", (3, 4))


def test_every_ufunc_of_jax_is_one_here() -> None:
    for name in cnp.__all__:
        theirs, ours = getattr(jnp, name, None), getattr(cnp, name)
        if isinstance(theirs, jnp.ufunc):
            assert isinstance(ours, cnp.ufunc), name
            assert (ours.nin, ours.nout) == (theirs.nin, theirs.nout)


def test_attributes_are_numpys() -> None:
    assert (cnp.add.identity, cnp.multiply.identity, cnp.subtract.identity) == (0, 1, None)
    assert (cnp.divmod.nin, cnp.divmod.nout, cnp.divmod.nargs) == (2, 2, np.divmod.nargs)
    assert cnp.mod is cnp.remainder and repr(cnp.add) == "<ctrlgrad.numpy.ufunc 'add'>"
    assert list(inspect.signature(cnp.add).parameters) == ["x1", "x2", "where", "dtype"]


def test_numpys_methods_take_traced_tensors() -> None:
    for call in (
        lambda x: np.subtract.reduce(x),
        lambda x: np.multiply.reduce(x, axis=(0, 1), keepdims=True),
        lambda x: np.add.reduce(x, where=A > 0, initial=2.0, axis=1),
        lambda x: np.maximum.reduce(x, initial=0.5, axis=None),
        lambda x: np.maximum.accumulate(x, axis=1),
        lambda x: np.hypot.outer(x, V),
        lambda x: np.logaddexp.reduceat(x, [0, 2, 1], axis=1),
        lambda x: np.add(x, 1, dtype=np.float32),
    ):
        assert_same(run(call, [A]), [call(A)], "traced")


@pytest.mark.parametrize("name", ["add", "multiply", "bitwise_or", "subtract"])
def test_small_integers_keep_numpys_dtypes(name: str) -> None:
    ours, theirs = getattr(cnp, name), getattr(np, name)
    for call in (
        lambda f: f.reduce(SMALL),
        lambda f: f.accumulate(SMALL, 1),
        lambda f: f.reduceat(SMALL, [0, 2, 1]),
    ):
        assert_same([call(ours)], [call(theirs)], name)


def test_reduce_of_no_elements() -> None:
    empty = np.zeros((0, 2))
    np.testing.assert_array_equal(cnp.logaddexp.reduce(empty), [-np.inf, -np.inf])
    np.testing.assert_array_equal(cnp.hypot.reduce(empty), [0.0, 0.0])
    with pytest.raises(ShapeError, match="no elements"):
        cnp.subtract.reduce(empty)


def test_where_leaves_derivatives_finite() -> None:
    x = np.array([-1.0, 0.0, 2.0])
    found = cg.value_and_grad(lambda x: cnp.sum(cnp.log(x, where=x > 0)))(x)
    np.testing.assert_allclose(found[0], np.log(2.0))
    np.testing.assert_array_equal(found[1], [0.0, 0.0, 0.5])
    np.testing.assert_array_equal(cg.grad(lambda x: cnp.sum(np.divide(1.0, x, where=x != 0)))(x), [-1.0, 0.0, -0.25])
    np.testing.assert_array_equal(cg.grad(lambda x: cnp.sum(cnp.arccosh(x, where=x > 1)))(x)[:2], [0.0, 0.0])


def test_dtype_chooses_the_loop() -> None:
    for dtype in (np.float32, np.complex128):
        assert_same([cnp.multiply(A, SMALL, dtype=dtype)], [np.multiply(A, SMALL, dtype=dtype)], str(dtype))
    with pytest.raises(TypeMismatchError):
        cnp.add(A, 1.0, dtype=np.int64)


def test_mistakes() -> None:
    with pytest.raises(TracingError, match="arrays do not change in place"):
        cnp.add.at(A, 0, 1.0, inplace=True)
    with pytest.raises(TypeMismatchError, match="not a function of two operands"):
        cnp.sin.reduce(A)
    with pytest.raises(TypeMismatchError, match="where= needs a value"):
        cnp.max(A, where=A > 0)
    with pytest.raises(TracingError, match="out= is not possible"):
        run(lambda x: np.add(x, 1.0, out=A), [A])
    with pytest.raises(TracingError, match=r"np\.add\.at"):
        run(lambda x: np.add.at(x, 0, 1.0), [A])


def test_a_ufunc_is_a_function_for_transforms() -> None:
    assert cg.grad(cnp.sin)(0.0) == 1.0
    np.testing.assert_array_equal(cg.vmap(cnp.add)(A, A), A + A)
    assert cg.function(cnp.hypot)(3.0, 4.0) == 5.0


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16", "f2", "i4", "b1", ">f4", "longdouble"])
def test_arrays_that_need_no_conversion_have_the_values_errors_and_dtypes_of_all_others(dtype: str) -> None:
    """Two arrays of one float dtype are computed at once; lists and scalars of the same numbers go the long way."""
    x = np.asarray([1, 0, 1], dtype)
    if dtype == "longdouble":
        with pytest.raises(TypeMismatchError, match="is not supported"):
            cnp.add(x, x)
        return
    for found, expected in (
        (cnp.add(x, x), np.add(x, x)),
        (cnp.add(cnp.asarray(x), x), np.add(x, x)),
        (cnp.add(x, x[0]), np.add(x, x[0])),
        (cnp.exp(x), np.exp(x)),
    ):
        is_small = np.dtype(dtype).kind in "ib"
        assert type(found) is type(cnp.asarray(x)) and (is_small or found.dtype == expected.dtype.newbyteorder("="))
        np.testing.assert_allclose(found, expected, rtol=1e-2 if dtype == "f2" else 1e-6)
    with pytest.raises(ShapeError, match="add"):
        cnp.add(x, x[:2])
