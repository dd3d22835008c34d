"""The Array API's protocols: devices, copies, the namespace and what it says of itself, DLPack."""

from __future__ import annotations

import numpy as np
import pytest
from array_cases.running import data, run
from instruments import traced_arrays
from instruments.traced_arrays import xp

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import TracingError, TypeMismatchError, UserInputError

# Objects that stand for an array, as JAX lets them say by `__jax_array__`, are operands.


class Parameter:
    """As those of Flax and paramax: a pytree node with one array, used as that array."""

    def __init__(self, value):
        self.value = value

    def __jax_array__(self):
        return 2.0 * self.value


cg.tree.register_pytree_node(Parameter, lambda p: ((p.value,), None), lambda _, children: Parameter(*children))
X = np.arange(4.0).reshape(2, 2)


def test_of_known_numbers():
    assert np.array_equal(cnp.asarray(Parameter(X)), 2 * X)
    assert np.array_equal(cnp.matmul(Parameter(X), Parameter(X)), 4 * X @ X)
    assert np.array_equal(cnp.add(1, Parameter(X)), 1 + 2 * X)


def test_of_traced_tensors():
    f = lambda p, x: cnp.sum(cnp.matmul(p, x) + cnp.exp(p)) + cnp.sum(x * p) + cnp.sum(p - x)
    wanted = lambda v, x: cnp.sum(cnp.matmul(2 * v, x) + cnp.exp(2 * v)) + cnp.sum(x * 2 * v) + cnp.sum(2 * v - x)
    with cg.options(engine="reference"):
        found = cg.function(cg.grad(f, argnums=(0, 1)))(Parameter(X), X + 1)
        expected = cg.grad(wanted, argnums=(0, 1))(X, X + 1)
    np.testing.assert_allclose(found[0].value, expected[0], rtol=1e-14)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-14)


A = data("float64", (3, 4))

MADE = {
    "arange": lambda **k: cnp.arange(3, **k),
    "array": lambda **k: cnp.array([1, 2], **k),
    "asarray": lambda **k: cnp.asarray([1, 2], **k),
    "astype": lambda **k: cnp.astype(A, np.float32, **k),
    "empty": lambda **k: cnp.empty(2, **k),
    "empty_like": lambda **k: cnp.empty_like(A, **k),
    "eye": lambda **k: cnp.eye(2, **k),
    "fftfreq": lambda **k: cnp.fft.fftfreq(4, **k),
    "from_dlpack": lambda **k: cnp.from_dlpack(A, **k),
    "full": lambda **k: cnp.full(2, 1.0, **k),
    "full_like": lambda **k: cnp.full_like(A, 1.0, **k),
    "linspace": lambda **k: cnp.linspace(0.0, 1.0, 3, **k),
    "ones": lambda **k: cnp.ones(2, **k),
    "ones_like": lambda **k: cnp.ones_like(A, **k),
    "rfftfreq": lambda **k: cnp.fft.rfftfreq(4, **k),
    "zeros": lambda **k: cnp.zeros(2, **k),
    "zeros_like": lambda **k: cnp.zeros_like(A, **k),
}


@pytest.mark.parametrize("name", MADE)
def test_array_constructors_take_a_device(name: str) -> None:
    np.testing.assert_array_equal(MADE[name](device="cpu"), MADE[name]())
    with pytest.raises(UserInputError, match=f"{name}: an unknown device"):
        MADE[name](device="gpu")


def test_a_traced_tensor_has_the_protocols() -> None:
    def f(x):
        assert x.device == "cpu" and x.to_device("cpu") is x and x.__dlpack_device__() == (1, 0)
        assert x.__array_namespace__(api_version="2024.12") is cnp
        assert cnp.from_dlpack(x) is x and isinstance(x, cnp.ndarray)
        with pytest.raises(UserInputError, match="to_device: an unknown device"):
            x.to_device("gpu")
        with pytest.raises(UserInputError, match="no such api_version"):
            x.__array_namespace__(api_version="2019.01")
        with pytest.raises(TracingError, match="from_dlpack"):
            np.from_dlpack(x)
        return x

    run(f, [A])


def test_results_have_the_protocols() -> None:
    y = cg.function(lambda x: x * 2)(A)
    assert y.device == "cpu" and isinstance(y, cnp.ndarray)
    np.testing.assert_array_equal(np.from_dlpack(cnp.from_dlpack(y)), y)


def test_copies() -> None:
    assert np.may_share_memory(cnp.asarray(A), A) and np.may_share_memory(cnp.asarray(A, copy=False), A)
    assert not np.may_share_memory(cnp.asarray(A, copy=True), A)
    assert not np.may_share_memory(cnp.array(A), A) and np.may_share_memory(cnp.array(A, copy=False), A)
    assert np.may_share_memory(cnp.from_dlpack(A), A) and not np.may_share_memory(cnp.from_dlpack(A, copy=True), A)
    for x, dtype in (([1.0], None), (A, np.float32), (3.0, None)):
        with pytest.raises(UserInputError, match="this needs a copy"):
            cnp.asarray(x, dtype, copy=False)
    assert cnp.array(1.0, ndmin=2).shape == (1, 1)


def test_namespace_info_agrees_with_numpy() -> None:
    ours, theirs = cnp.__array_namespace_info__(), np.__array_namespace_info__()
    assert cnp.__array_api_version__ == "2024.12"
    assert ours.capabilities() == theirs.capabilities()
    # A list by the standard, a tuple of NumPy 2.5.
    assert (ours.default_device(), ours.devices()) == (theirs.default_device(), list(theirs.devices()))
    assert ours.default_dtypes() == theirs.default_dtypes()
    for kind in (None, "bool", "integral", ("real floating", "complex floating"), "numeric", ()):
        assert ours.dtypes(kind=kind) == theirs.dtypes(kind=kind)
    with pytest.raises(UserInputError, match="an unknown device"):
        ours.dtypes(device="gpu")


def test_ndarray_is_a_type_alone() -> None:
    with pytest.raises(TypeMismatchError, match="not a constructor"):
        cnp.ndarray((2,))
    assert not isinstance([1.0], cnp.ndarray) and issubclass(np.ndarray, cnp.ndarray)


def test_no_dlpack() -> None:
    with pytest.raises(TypeMismatchError, match="no DLPack"):
        cnp.from_dlpack([1, 2])


def test_a_namespace_whose_every_call_is_traced() -> None:
    x = traced_arrays.Array(A)
    y = xp.where(x > 0, x, -x[::-1])
    assert isinstance(y, traced_arrays.Array)
    np.testing.assert_array_equal(y.numbers, np.where(A > 0, A, -A[::-1]))
    np.testing.assert_array_equal(xp.linalg.trace(x @ x.T).numbers, np.trace(A @ A.T))
    x += 1
    x[0, 1:] = 7.0
    assert x.numbers[0].tolist() == [A[0, 0] + 1, 7.0, 7.0, 7.0] and xp.unique_all(x).counts.shape == (10,)
    assert xp.finfo(x.dtype).bits == 64 and x.__array_namespace__() is xp
