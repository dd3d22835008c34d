"""Calls that Python itself would refuse in words about the library's inside, and `.at` as users get it wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import CtrlgradError, MissingAttributeError, TypeMismatchError

CALLS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "TensorFlow's names": (
        lambda: cg.while_loop(cond=lambda c: c < 3, body=lambda c: c + 1, init=0),
        "while_loop: got an unexpected keyword argument 'cond'",
        "while_loop(cond_fun, body_fun, init",
    ),
    "no carry": (
        lambda: cg.while_loop(lambda c: c < 3, lambda c: c + 1),
        "while_loop: missing 1 required positional argument: 'init'",
        "while_loop(cond_fun, body_fun, init",
    ),
    "scan": (lambda: cg.scan(lambda c, x: (c, x)), "scan: missing 1 required", "scan(f, init, xs"),
    "fori_loop": (lambda: cg.fori_loop(0, 3, lambda i, c: c, 0, 1), "fori_loop: takes 4", "fori_loop(lower, upper"),
    "cond": (lambda: cg.cond(True, lambda: 1.0), "cond: missing 1 required", "cond(pred, true_fun"),
    "a TensorArray with TensorFlow's names": (
        lambda: cg.TensorArray("float64", 3, dynamic_size=True),
        "TensorArray: got an unexpected keyword argument 'dynamic_size'",
        "TensorArray(dtype, size, element_shape",
    ),
    "an option of jit spelt otherwise": (
        lambda: cg.jit(lambda x: x, static_argnum=0),
        "function: got an unexpected keyword argument 'static_argnum'",
        "function(fn, engine",
    ),
    "checkpoint with the arguments": (lambda: cg.checkpoint(lambda x: x, 1.0), "checkpoint: takes", "checkpoint(fn, "),
    "one of two rules": (
        lambda: cg.custom_vjp(lambda x: x).defvjp(lambda x: (x, None)),
        "defvjp: missing 1 required positional argument: 'bwd'",
        "defvjp(fwd, bwd",
    ),
    "set": (lambda: cnp.at(np.ones(3))[0].set(), "set: missing 1 required", "set(value, mode"),
    "modus": (
        lambda: cnp.at(np.ones(3))[0].add(1.0, modus="drop"),
        "add: got an unexpected keyword",
        "add(value, mode",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_shows_how_it_is_called(name: str) -> None:
    call, problem, expected = CALLS[name]
    with pytest.raises(TypeMismatchError) as caught:
        call()
    assert caught.value.problem.startswith(problem)
    assert caught.value.expected.startswith(expected)
    assert "test_misuse.py" in str(caught.value.source)


def test_a_type_error_inside_of_a_users_function_stays_his() -> None:
    with pytest.raises(TypeError, match="unsupported operand") as caught:
        cg.while_loop(lambda c: c < 3, lambda c: [] - 1, 0)  # type: ignore[operator]
    assert not isinstance(caught.value, CtrlgradError)


def _assign(at: Any) -> None:
    at[0] = 1.0


def _add_in_place(at: Any) -> None:
    place = at[0]
    place += 1.0


MISUSED: dict[str, tuple[Callable[[Any], Any], type[CtrlgradError], str]] = {
    "assigned": (_assign, TypeMismatchError, "at: assigned to"),
    "gone through": (list, TypeMismatchError, "at: gone through"),
    "no index": (lambda at: at.set(1.0), MissingAttributeError, "at: there is no 'set'"),
    "indexed twice": (lambda at: at[0][0], TypeMismatchError, "at: indexed twice"),
    "added": (lambda at: at[0] + 1.0, TypeMismatchError, "at: computed with"),
    "added in place": (_add_in_place, TypeMismatchError, "at: computed with"),
    "to the right": (lambda at: 2.0 * at[0], TypeMismatchError, "at: computed with"),
    "of NumPy": (lambda at: np.sin(at[0]), TypeMismatchError, "at: computed with"),
    "as a number": (lambda at: float(at[0]), TypeMismatchError, "at: computed with"),
    "another method": (lambda at: at[0].sub(1.0), MissingAttributeError, "at: there is no 'sub'"),
}


@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize("name", MISUSED)
def test_at_in_another_way_than_its_own(name: str, traced: bool) -> None:
    misuse, kind, problem = MISUSED[name]
    with pytest.raises(kind) as caught:
        if traced:
            cg.function(lambda x: misuse(x.at))(np.ones(3))
        else:
            misuse(cnp.at(np.ones(3)))
    assert caught.value.problem == problem
    assert caught.value.expected == "x.at[index].set(value)"
    assert caught.value.hint


class Scaled:
    """An object with a compiled method."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.call = cg.function(self.scaled)

    def scaled(self, x: Any) -> Any:
        return x * self.factor


def test_a_copied_object_has_compiled_methods_of_its_own() -> None:
    one = Scaled(2.0)
    assert float(one.call(1.0)) == 2.0
    other = copy.deepcopy(one)
    other.factor = 5.0
    assert (float(other.call(1.0)), float(one.call(1.0))) == (5.0, 2.0)
    assert other.call.traces == 1


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("make", [cg.function, cg.grad, cg.value_and_grad, cg.vmap], ids=lambda f: f.__name__)
def test_copies_of_functions_compute_the_same(make: Any, copied: Any) -> None:
    f = make(lambda x: x * x)
    x = np.array([1.0, 2.0]) if make is cg.vmap else 3.0
    expected, traces = f(x), f.traces
    found = copied({"f": f})["f"](x)
    assert cg.tree.leaves(cg.tree.map(np.array_equal, found, expected)) == [True] * len(cg.tree.leaves(expected))
    # A transform traces at every call.
    assert make is not cg.function or f.traces == traces


NAMES: dict[str, tuple[Callable[[], Any], str]] = {
    "PyTorch's name": (lambda: cnp.cat, "ctrlgrad.numpy.concatenate"),
    "TensorFlow's name": (lambda: cnp.reduce_sum, "ctrlgrad.numpy.sum"),
    "PyTorch's name on the package": (lambda: cg.unsqueeze, "ctrlgrad.numpy.expand_dims"),
    "a name of lax on the package": (lambda: cg.dynamic_slice, "ctrlgrad.lax.dynamic_slice"),
    "a name of nn on numpy": (lambda: cnp.cross_entropy, "ctrlgrad.nn.cross_entropy"),
    "a name of numpy on linalg": (lambda: cnp.linalg.einsum, "ctrlgrad.numpy.einsum"),
    "a name of linalg on numpy": (lambda: cnp.cholesky, "ctrlgrad.numpy.linalg.cholesky"),
    "misspelt on lax": (lambda: cg.lax.while_lop, "ctrlgrad.lax.while_loop"),
    "misspelt on random": (lambda: cg.random.unifrom, "ctrlgrad.random.uniform"),
    "no such name": (lambda: cnp.fft.quux_frobnicate, "dir(ctrlgrad.numpy.fft) lists the names that there are"),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_a_module_lacks_leads_to_the_one_that_there_is(name: str) -> None:
    looked_up, instead = NAMES[name]
    with pytest.raises(MissingAttributeError) as caught:
        looked_up()
    assert caught.value.hint == instead


KEYWORDS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "of a method": (lambda: cg.function(lambda x: x.sum(dim=0))(np.ones(3)), "sum(x, axis", "axis=0"),
    "of a budget": (lambda: cg.memory.budget(gpu="1 MiB"), "budget(device, host", "device='1 MiB'"),
    "an optimiser's state": (lambda: cg.optim.adam(0.1).update(np.ones(3)), "update(updates, state", "name the param"),
    "a layer's parameters": (lambda: cg.nn.Linear(3, 2)(np.ones(3)), "layer(params, x)", "layer.init("),
}


@pytest.mark.parametrize("name", KEYWORDS)
def test_a_call_with_other_arguments_shows_those_that_there_are(name: str) -> None:
    call, expected, hint = KEYWORDS[name]
    with pytest.raises(CtrlgradError) as caught:
        call()
    assert caught.value.expected.startswith(expected)
    assert caught.value.hint.startswith(hint) or hint in caught.value.hint
    assert "<locals>" not in str(caught.value.problem)


DTYPES: dict[str, Callable[[Any], Any]] = {
    "zeros": lambda dtype: cnp.zeros(3, dtype),
    "arange": lambda dtype: cnp.arange(3, dtype=dtype),
    "linspace": lambda dtype: cnp.linspace(0.0, 1.0, 3, dtype=dtype),
    "eye": lambda dtype: cnp.eye(3, dtype=dtype),
    "tri": lambda dtype: cnp.tri(3, dtype=dtype),
    "add": lambda dtype: cnp.add(np.ones(3), 1.0, dtype=dtype),
    "finfo": cnp.finfo,
    "iinfo": cnp.iinfo,
    "result_type": lambda dtype: cnp.result_type(dtype, np.ones(3)),
    "promote_types": lambda dtype: cnp.promote_types(dtype, "float32"),
    "can_cast": lambda dtype: cnp.can_cast(dtype, "float32"),
    "isdtype": lambda dtype: cnp.isdtype(dtype, "integral"),
    "fftfreq": lambda dtype: cnp.fft.fftfreq(3, dtype=dtype),
    "random.normal": lambda dtype: cg.random.normal(cg.random.key(0), (3,), dtype),
    "random.randint": lambda dtype: cg.random.randint(cg.random.key(0), (3,), 0, 5, dtype),
    "random.bits": lambda dtype: cg.random.bits(cg.random.key(0), (3,), dtype),
    "nn.Linear": lambda dtype: cg.nn.Linear(3, 2).init(cg.random.key(0), dtype=dtype),
    "nn.one_hot": lambda dtype: cg.nn.one_hot(np.array([1]), 3, dtype=dtype),
    "nn.lstm_init": lambda dtype: cg.nn.lstm_init(cg.random.key(0), 3, 4, dtype=dtype),
    "lax.convert_element_type": lambda dtype: cg.lax.convert_element_type(np.ones(3), dtype),
    "lax.iota": lambda dtype: cg.lax.iota(dtype, 3),
    "optim.adam": lambda dtype: cg.optim.adam(0.1, mu_dtype=dtype).init(np.ones(3)),
}


@pytest.mark.parametrize("name", DTYPES)
def test_a_dtype_that_there_is_not(name: str) -> None:
    with pytest.raises(TypeMismatchError, match="there is no such dtype") as caught:
        DTYPES[name]("torch.float32")
    assert caught.value.got == "'torch.float32'" and caught.value.hint == "'float32'"


ADVICE: dict[str, tuple[Callable[[], Any], str]] = {
    "a negative size": (lambda: cg.random.normal(cg.random.key(0), (-3,)), "-1 stands for the size that is left over"),
    "a write whose array is dropped": (
        lambda: [a := cg.TensorArray("float64", 3), a.write(0, 1.0), a.stack()],
        "keep what .write returns, array = array.write(i, x)",
    ),
    "two arrays for max": (lambda: cnp.max(1.0, 2.0), "convert it with int(); ctrlgrad.numpy.maximum(x, y)"),
    "a size of reshape": (lambda: cnp.reshape(np.ones(3), (2, -1)), "choose the other sizes"),
    "axes of transpose": (lambda: cnp.transpose(np.ones((2, 3, 4)), (1, 0)), "name all axes in their new order"),
    "letters of einsum": (lambda: cnp.einsum("ij->i", np.ones(3)), "write a letter for each axis"),
    "sizes of einsum": (lambda: cnp.einsum("ij,jk", np.ones((2, 3)), np.ones((2, 3))), "a letter stands for axes of"),
    "a matrix that is not square": (
        lambda: cnp.linalg.solve(np.ones((2, 3)), np.ones(2)),
        "matrices that are not square have a ctrlgrad.numpy.linalg.svd",
    ),
    "an option": (lambda: cg.options(chek_nans=True).__enter__(), "'check_nans'"),
    "an engine": (lambda: cg.function(lambda x: x, engine="natve"), "'native'"),
    "an axis of a scalar": (lambda: cnp.sum(1.0, axis=0), "ctrlgrad.numpy.atleast_1d(x) has one"),
    "a choice beside None": (lambda: cnp.fft.fft(np.ones(3), norm="orth"), "'ortho'"),
    "an engine of JAX's": (lambda: cg.function(lambda x: x, engine="gpu"), "'cuda'"),
    "an array that vmap cannot map": (lambda: cg.vmap(lambda x: x)(1.0), "in_axes may hold an entry for each array"),
    "an engine unlike all": (lambda: cg.function(lambda x: x, engine="xla_gpu_v2"), "'auto'"),
}


@pytest.mark.parametrize("name", ADVICE)
def test_the_advice_fits_the_mistake(name: str) -> None:
    mistake, hint = ADVICE[name]
    with pytest.raises(CtrlgradError) as caught:
        mistake()
    assert caught.value.hint.startswith(hint)
