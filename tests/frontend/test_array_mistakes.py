"""Mistakes with array functions: one clear error each, with this file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from array_cases.case import EMPTY, I3, ONE, U3, A, B, K, M, V
from array_cases.running import data, trace

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.reference import run_graph
from ctrlgrad.errors import (
    CtrlgradError,
    IndexOutOfRangeError,
    ShapeError,
    TracingError,
    TypeMismatchError,
    UserInputError,
)
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import recording
from ctrlgrad.ir import Builder, StackType, TensorType

pytestmark = pytest.mark.usefixtures("evaluated_by_reference")

F = np.zeros((3, 4))
MASKED = np.ma.array([1.0, 2.0], mask=[True, False])
BAD: dict[str, tuple[type[CtrlgradError], str, Callable[..., Any], tuple[Any, ...]]] = {
    "shapes do not broadcast": (ShapeError, "broadcast", lambda x, y: x + y, (A, data("float64", (3,)))),
    "text operand": (TypeMismatchError, "not an array", lambda x: cnp.add(x, "a"), (A,)),
    "object list": (TypeMismatchError, "not supported", lambda x: cnp.add(x, ["a"]), (A,)),
    "masked array": (TypeMismatchError, "mask would be lost", lambda x: cnp.add(x, MASKED), (V,)),
    "ragged list": (ShapeError, "ragged", lambda x: cnp.add(x, [[1], [1, 2]]), (A,)),
    "number too large": (TypeMismatchError, "does not fit", lambda x: x + 300, (U3,)),
    "boolean minus": (TypeMismatchError, "subtract", lambda x: x - x, (M,)),
    "boolean negative": (TypeMismatchError, "negative", lambda x: -x, (M,)),
    "float bits": (TypeMismatchError, "bitwise_and", lambda x: x & 1, (A,)),
    "float invert": (TypeMismatchError, "invert", lambda x: ~x, (A,)),
    "shift of booleans": (TypeMismatchError, "shift", lambda x: x << 1.5, (M,)),
    "negative integer power": (TypeMismatchError, "negative integer power", lambda x: x**-1, (I3,)),
    "integer reciprocal": (TypeMismatchError, "reciprocal", lambda x: cnp.reciprocal(x), (I3,)),
    "complex to real": (TypeMismatchError, "complex", lambda x: x.astype(float), (data("complex128", (2,)),)),
    "complex order": (TypeMismatchError, "maximum", lambda x: cnp.maximum(x, x), (data("complex128", (2,)),)),
    "where without a value": (TypeMismatchError, "x and y", lambda x: np.where(x, 1.0), (M,)),
    "axis out of range": (ShapeError, "axis 2", lambda x: cnp.sum(x, 2), (A,)),
    "axis twice": (ShapeError, "twice", lambda x: cnp.sum(x, (0, -2)), (A,)),
    "axis not an integer": (TypeMismatchError, "not an integer", lambda x: cnp.sum(x, 0.5), (A,)),
    "traced axis": (TracingError, "index", lambda x, n: cnp.sum(x, n), (A, K)),
    "max of nothing": (ShapeError, "no elements", lambda x: cnp.max(x, 0), (EMPTY,)),
    "argmax of nothing": (ShapeError, "no elements", lambda x: cnp.argmax(x), (EMPTY,)),
    "sort of a scalar": (ShapeError, "scalar", lambda x: cnp.sort(x), (ONE,)),
    "searchsorted side": (UserInputError, "no such side", lambda x: cnp.searchsorted(x, x, side="up"), (V,)),
    "solve not square": (ShapeError, "not square", lambda x: cnp.linalg.solve(x, x), (A,)),
    "inv of a vector": (ShapeError, "rank 2", lambda x: cnp.linalg.inv(x), (V,)),
    "qr mode": (UserInputError, "no such mode", lambda x: cnp.linalg.qr(x, mode="raw"), (A,)),
    "half precision": (TypeMismatchError, "half", lambda x: cnp.linalg.det(x), (np.eye(2, dtype=np.float16),)),
    "norm order": (UserInputError, "no such ord", lambda x: cnp.linalg.matrix_norm(x, ord=3), (A,)),
    "cross size": (ShapeError, "three elements", lambda x: cnp.linalg.cross(x, x), (A,)),
    "fft norm": (UserInputError, "no such norm", lambda x: cnp.fft.fft(x, norm="half"), (V,)),
    "fft of nothing": (ShapeError, "no elements", lambda x: cnp.fft.fft(x, axis=0), (EMPTY,)),
    "rfft of complex": (TypeMismatchError, "complex", lambda x: cnp.fft.rfft(x), (data("complex128", (2,)),)),
    "make_complex of complex": (TypeMismatchError, "complex", lambda x: cnp.make_complex(x, x), (1j * V,)),
    "meshgrid of matrices": (ShapeError, "vectors", lambda x: cnp.meshgrid(x), (A,)),
    "repeat traced counts": (ShapeError, "each element", lambda x, n: cnp.repeat(x, n, axis=0), (A, np.array([1, 2]))),
    "cumulative_sum axis": (ShapeError, "axis is needed", lambda x: cnp.cumulative_sum(x), (A,)),
    "matmul sizes": (ShapeError, "sizes to sum over", lambda x, y: x @ y, (A, A)),
    "matmul vector": (ShapeError, "sizes to sum over", lambda x, y: x @ y, (A, data("float64", (3,)))),
    "matmul scalar": (ShapeError, "scalar", lambda x: cnp.matmul(x, 2.0), (A,)),
    "tensordot axes": (ShapeError, "not so many", lambda x: cnp.tensordot(x, x, 3), (A,)),
    "tensordot sizes": (ShapeError, "sizes to sum over", lambda x: cnp.tensordot(x, x, 1), (A,)),
    "einsum sizes": (ShapeError, "sizes of j", lambda x: cnp.einsum("ij,jk", x, x), (A,)),
    "einsum rank": (ShapeError, "does not fit", lambda x: cnp.einsum("ijk->i", x), (A,)),
    "einsum groups": (ShapeError, "one group", lambda x: cnp.einsum("ij,jk->ik", x), (A,)),
    "einsum result": (ShapeError, "stands in no operand", lambda x: cnp.einsum("ij->ik", x), (A,)),
    "einsum letters": (ShapeError, "not a letter", lambda x: cnp.einsum("i1->i", x), (A,)),
    "einsum lists": (TypeMismatchError, "not text", lambda x: cnp.einsum(x, [0, 1]), (A,)),
    "reshape count": (ShapeError, "number of elements", lambda x: x.reshape(5), (A,)),
    "reshape -1": (ShapeError, "no size fits", lambda x: x.reshape(5, -1), (A,)),
    "reshape two": (ShapeError, "at most one", lambda x: x.reshape(-1, -1), (A,)),
    "reshape float": (TypeMismatchError, "not an integer", lambda x: x.reshape(2.0, -1), (A,)),
    "reshape order": (TypeMismatchError, "C order", lambda x: cnp.reshape(x, -1, order="F"), (A,)),
    "transpose axes": (ShapeError, "one entry", lambda x: x.transpose(0), (A,)),
    "broadcast_to": (ShapeError, "broadcast_to", lambda x: cnp.broadcast_to(x, (5, 4)), (A,)),
    "squeeze": (ShapeError, "size 1", lambda x: cnp.squeeze(x, 0), (A,)),
    "negative size": (ShapeError, "negative", lambda x: cnp.broadcast_to(x, (-1, 4)), (A,)),
    "concat sizes": (ShapeError, "sizes differ", lambda x, y: cnp.concat([x, y]), (A, B)),
    "concat ranks": (ShapeError, "ranks differ", lambda x, y: cnp.concat([x, y]), (A, V)),
    "concat scalars": (ShapeError, "scalars", lambda x: cnp.concat([x, x]), (ONE,)),
    "concat nothing": (TypeMismatchError, "one array or more", lambda x: cnp.concat([]), (A,)),
    "stack shapes": (ShapeError, "sizes differ", lambda x: cnp.stack([x, x[:2]]), (A,)),
    "split unequal": (ShapeError, "not equal", lambda x: cnp.split(x, 2), (A,)),
    "split none": (ShapeError, "at least one", lambda x: cnp.split(x, 0), (A,)),
    "pad mode": (UserInputError, "linear_ramp", lambda x: np.pad(x, 1, mode="outside"), (A,)),
    "pad option": (UserInputError, "no such option", lambda x: np.pad(x, 1, "edge", constant_values=2), (A,)),
    "pad of nothing": (ShapeError, "empty axis", lambda x: np.pad(x, 1, "edge"), (EMPTY,)),
    "unique of nothing": (ShapeError, "fill", lambda x: cnp.unique(x, size=2), (EMPTY,)),
    "nonzero size": (ShapeError, "negative size", lambda x: cnp.nonzero(x, size=-1), (A,)),
    "put mode": (UserInputError, "mode", lambda x: cnp.put(x, 0, 1.0, "drop"), (A,)),
    "partition kth": (IndexOutOfRangeError, "kth", lambda x: cnp.partition(x, 9), (A,)),
    "vectorize signature": (UserInputError, "cannot be read", lambda x: cnp.vectorize(abs, signature="n->n")(x), (A,)),
    "vectorize ranks": (ShapeError, "other ranks", lambda x: cnp.vectorize(lambda y: x)(x), (A,)),
    "vectorize sizes": (
        ShapeError,
        "sizes of n differ",
        lambda x: cnp.vectorize(cnp.dot, signature="(n),(n)->()")(x, x.T),
        (A,),
    ),
    "r_ directive": (UserInputError, "first item", lambda x: cnp.r_["r", x], (A,)),
    "pad negative": (ShapeError, "width", lambda x: cnp.pad(x, -1), (A,)),
    "pad form": (ShapeError, "form", lambda x: cnp.pad(x, ((1, 1), (1, 1), (1, 1))), (A,)),
    "roll shifts": (ShapeError, "shifts", lambda x: cnp.roll(x, (1, 2, 3), (0, 1)), (A,)),
    "index too many": (ShapeError, "more items", lambda x: x[0, 0, 0], (A,)),
    "index two ellipses": (ShapeError, "more than one", lambda x: x[..., ...], (A,)),
    "index range": (IndexOutOfRangeError, "out of range", lambda x: x[3], (A,)),
    "index array range": (IndexOutOfRangeError, "out of range", lambda x: x[:, [0, 4]], (A,)),
    "index float": (TypeMismatchError, "not an index", lambda x: x[1.0], (A,)),
    "index float array": (TypeMismatchError, "not an index", lambda x: x[np.array([1.0])], (A,)),
    "index traced float": (TypeMismatchError, "not an index", lambda x: x[x], (A,)),
    "index text": (TypeMismatchError, "not an index", lambda x: x["a"], (A,)),
    "mask shape": (ShapeError, "another shape", lambda x: x[np.array([True, False])], (A,)),
    "slice bound": (TypeMismatchError, "bound", lambda x: x[1.5:], (A,)),
    "slice traced bound": (TypeMismatchError, "bound", lambda x, i: x[i:], (A, ONE)),
    "slice step": (ShapeError, "step is zero", lambda x: x[::0], (A,)),
    "take float": (TypeMismatchError, "not integers", lambda x: cnp.take(x, x), (A,)),
    "take_along_axis rank": (ShapeError, "ranks differ", lambda x: cnp.take_along_axis(x, [0], 1), (A,)),
    "at dtype": (TypeMismatchError, "dtype", lambda x: cnp.at(x)[0].set(1.5), (I3,)),
    "at shape": (ShapeError, "does not fit", lambda x, v: cnp.at(x)[0].set(v), (A, data("float64", (3,)))),
    "item assignment": (TracingError, "item assignment", lambda x: x.__setitem__(0, 1), (A,)),
    "arange array": (ShapeError, "scalars", lambda x: cnp.arange(x), (V,)),
    "traced linspace": (TracingError, "index", lambda n: cnp.linspace(0.0, 1.0, n), (K,)),
    "repeat counts": (ShapeError, "one count", lambda x: cnp.repeat(x, [1, 2], axis=0), (A,)),
}


@pytest.mark.parametrize("name", BAD)
def test_mistake(name: str) -> None:
    kind, text, fn, arrays = BAD[name]
    with pytest.raises(kind, match=text) as caught:
        trace(fn, arrays)
    assert caught.value.source.file == __file__


@pytest.mark.parametrize("call", [cg.function(cnp.sum), cg.grad(cnp.sum), cg.vmap(cnp.sin), cnp.sin])
def test_a_masked_argument_is_refused(call: Callable[..., Any]) -> None:
    """A masked array is refused, since its masked elements would be used in the computation."""
    with pytest.raises(TypeMismatchError, match="mask would be lost"):
        call(MASKED)


def test_a_stack_is_not_an_array() -> None:
    builder = Builder()
    s = Tensor(builder, builder.input(StackType(TensorType(np.float64, ()))))
    with recording(builder), pytest.raises(TypeMismatchError, match="TensorArray"):
        cnp.exp(s)


LATE: dict[str, tuple[type[CtrlgradError], Callable[..., Any], tuple[Any, ...]]] = {
    "index": (IndexOutOfRangeError, lambda x, i: x[i], (A, np.int64(7))),
    "mask size": (ShapeError, lambda x: x[np.array([True, False])], (A,)),
    "split": (ShapeError, lambda x: cnp.split(x, 2), (A,)),
    "reshape": (ShapeError, lambda x: x.reshape(5, -1), (A,)),
    "broadcast": (ShapeError, lambda x, y: x + y, (A, data("float64", (3,)))),
}


@pytest.mark.parametrize("name", LATE)
def test_mistake_that_only_a_run_shows(name: str) -> None:
    kind, fn, arrays = LATE[name]
    graph = trace(fn, arrays, unknown=True)
    with pytest.raises(kind) as caught:
        run_graph(graph, arrays)
    assert caught.value.source.file == __file__


def test_squeeze_of_an_unknown_size_asks_for_the_axis() -> None:
    with pytest.raises(ShapeError, match="might be 1"):
        trace(lambda x: cnp.squeeze(x), [A], unknown=True)
