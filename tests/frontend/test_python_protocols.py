"""Protocols of Python and NumPy on a traced tensor beside arithmetic: each works, or is refused with the user's
line."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import MissingAttributeError, TracingError
from ctrlgrad.frontend.tensor import Tensor

V = np.array([2.5, -1.5, 0.25])


def run(fn: Callable[..., Any], *args: Any) -> Any:
    return cg.function(fn, engine="reference")(*args)


WORKS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "divmod": (lambda x: divmod(x, 2.0), np.divmod(V, 2.0)),
    "divmod reflected": (lambda x: divmod(7.0, x), np.divmod(7.0, V)),
    "numpy.divmod": (lambda x: np.divmod(x, 2.0), np.divmod(V, 2.0)),
    "round": (round, np.array([2, -2, 0])),
    "round to digits": (lambda x: round(x, 1), np.round(V, 1)),
    "floor": (math.floor, np.array([2, -2, 0])),
    "ceil": (math.ceil, np.array([3, -1, 1])),
    "trunc": (math.trunc, np.array([2, -1, 0])),
    "copy": (lambda x: copy.copy(x) + 1, V + 1),
    "deepcopy": (lambda x: copy.deepcopy({"x": [x]})["x"][0] + 1, V + 1),
    "conjugate": (lambda x: x.conjugate(), V),
    "real": (lambda x: x.real, V),
    "imag": (lambda x: x.imag, np.zeros(3)),
    "nonzero": (lambda x: x.nonzero()[0], np.arange(3)),
    "searchsorted": (lambda x: cnp.sort(x).searchsorted(0.3), np.int64(2)),
    "trace": (lambda x: cnp.outer(x, x).trace(), np.outer(V, V).trace()),
    "diagonal": (lambda x: cnp.outer(x, x).diagonal(), V**2),
}


@pytest.mark.parametrize("name", WORKS)
def test_protocol_works(name: str) -> None:
    fn, expected = WORKS[name]
    found = run(fn, V)
    for a, b in zip(*((x if isinstance(x, tuple) else (x,)) for x in (found, expected)), strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_array_equal(a, b)


def test_augmented_assignment_leaves_the_other_name_as_it_is() -> None:
    def function(x: Any) -> Any:
        y = x
        y += 1
        return x, y

    before, after = run(function, V)
    np.testing.assert_array_equal(before, V)
    np.testing.assert_array_equal(after, V + 1)


# Operations without a meaning for a traced tensor, or that would change it, and the error's advice.
REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "pow with a modulus": (lambda x: pow(x, 2, 3), r"% modulus"),
    "pickle": (pickle.dumps, "return it"),
    "from_dlpack": (np.from_dlpack, "return it"),
    "del": (lambda x: x.__delitem__(0), "concat"),
    "shape": (lambda x: setattr(x, "shape", (3, 1)), r"x\.reshape"),
    "dtype": (lambda x: setattr(x, "dtype", "f4"), r"x\.astype"),
    "real set": (lambda x: setattr(x, "real", 0.0), "make_complex"),
    "flat set": (lambda x: setattr(x, "flat", 0.0), "reshape"),
    "another attribute": (lambda x: setattr(x, "note", 0.0), "a variable of its own"),
    "sort": (lambda x: x.sort(), r"ctrlgrad\.numpy\.sort"),
    "partition": (lambda x: x.partition(1), r"ctrlgrad\.numpy\.sort"),
    "fill": (lambda x: x.fill(0.0), "full_like"),
    "put": (lambda x: x.put([0], [1.0]), r"\.at\[indices\]"),
    "itemset": (lambda x: x.itemset(0, 1.0), r"\.at\[index\]"),
    "resize": (lambda x: x.resize(4), r"x\.reshape"),
    "setfield": (lambda x: x.setfield(0, "f8"), r"\.at\[index\]"),
    "setflags": (lambda x: x.setflags(write=False), "never changes"),
    "byteswap": (lambda x: x.byteswap(True), "no bytes"),
    "numpy.copyto": (lambda x: np.copyto(x, 1.0), r"numpy\.where"),
    "numpy.put": (lambda x: np.put(x, [0], [1.0]), r"\.at\[indices\]"),
    "numpy.putmask": (lambda x: np.putmask(x, [True], [1.0]), r"numpy\.where"),
    "numpy.place": (lambda x: np.place(x, [True], [1.0]), r"\.at\[mask\]"),
    "numpy.fill_diagonal": (lambda x: np.fill_diagonal(x[None], 1.0), "eye"),
    "numpy.put_along_axis": (lambda x: np.put_along_axis(x, np.array([0]), 1.0, 0), r"\.at\[indices\]"),
    "numpy.add.at": (lambda x: np.add.at(x, 0, 1.0), r"\.at\[index\]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_protocol_is_refused_with_advice(name: str) -> None:
    fn, advice = REFUSED[name]
    with pytest.raises((TracingError, MissingAttributeError), match=rf"(?s)try: .*{advice}") as caught:
        run(lambda x: fn(x), V)
    assert caught.value.source.file == __file__


ADVISED: dict[str, tuple[Callable[[Any], Any], Callable[[np.ndarray], Any]]] = {
    "sort": (cnp.sort, lambda a: a.sort()),
    "fill": (lambda x: cnp.full_like(x, 7.0), lambda a: a.fill(7.0)),
    "put": (lambda x: x.ravel().at[[0, 2]].set([5.0, 6.0]).reshape(x.shape), lambda a: a.put([0, 2], [5.0, 6.0])),
    "copyto": (lambda x: cnp.where(x > 0, 1.0, x), lambda a: np.copyto(a, 1.0, where=a > 0)),
    "place": (lambda x: x.at[x > 0].set([1.0, 2.0]), lambda a: np.place(a, a > 0, [1.0, 2.0])),
}


@pytest.mark.parametrize("name", ADVISED)
def test_advised_code_does_the_in_place_update(name: str) -> None:
    ours, in_place = ADVISED[name]
    expected = V.copy()
    in_place(expected)
    np.testing.assert_array_equal(run(ours, V), expected)


@pytest.mark.parametrize("name", sorted(name for name in dir(np.ndarray) if not name.startswith("_")))
def test_every_attribute_of_an_array_is_there_or_refused_with_advice(name: str) -> None:
    def function(x: Any) -> Any:
        getattr(x, name)
        return x

    if hasattr(Tensor, name):
        run(function, V[None])
        return
    with pytest.raises(MissingAttributeError, match=f"no attribute '{name}'") as caught:
        run(function, V)
    assert caught.value.source.file == __file__
    advised = caught.value.hint
    assert advised is not None
    # A function that the advice names by the attribute's own name does exist.
    assert f"ctrlgrad.numpy.{name}(" not in advised or hasattr(cnp, name)


# Special methods of arrays and numbers that a tensor does not have: what Python does without them is right.
WITHOUT = {
    # x += y makes a new tensor, by the operator of two operands.
    *("__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__", "__imatmul__"),
    *("__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"),
    # `in` iterates and compares, and is refused at the comparison.
    "__contains__",
    # Protocols that ask an object for numbers in memory.
    *("__array_finalize__", "__array_interface__", "__array_struct__", "__array_wrap__", "__dlpack_device__"),
    "__buffer__",
    # Of types, pickles and number classes alone.
    *("__class_getitem__", "__setstate__", "__getnewargs__", "__getformat__"),
}


def test_every_special_method_of_arrays_and_numbers_is_thought_of() -> None:
    special = {name for t in (np.ndarray, float) for name in dir(t) if name.startswith("__")}
    assert special - set(dir(Tensor)) <= WITHOUT


def test_a_tensor_array_is_copied_as_what_it_is() -> None:
    def function(x: Any) -> Any:
        rows = cg.TensorArray("float64", 2, (3,)).write(0, x)
        return copy.deepcopy(rows).write(1, x + 1).stack()

    np.testing.assert_array_equal(run(function, V), np.stack([V, V + 1]))
