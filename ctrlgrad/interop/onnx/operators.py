"""The table of ONNX's operators: the translation of each node of a model into this library.

An entry is a function of the node and its inputs; an input that is left out is None. Families of entries stand in files
of their own; users add entries with `onnx_op`. An operator without an entry that ONNX defines by a function of other
operators is read as that function. Any other operator is an error that names it, the node and `onnx_op`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import AttributeProto, TensorProto, TypeProto, helper, numpy_helper

from ctrlgrad.dtypes import NAMES
from ctrlgrad.errors import TracingError, UnsupportedPrimitiveError
from ctrlgrad.frontend.apply import value_in
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import recorder
from ctrlgrad.source import Source

# Tensors, types and attributes of ONNX models as values of Python.


_NAMES = {number: name for name, number in TensorProto.DataType.items()}
# ONNX's dtypes that this library has.
_DTYPES: dict[int, str] = {TensorProto.FLOAT: "float32", TensorProto.DOUBLE: "float64"}
_DTYPES |= {getattr(TensorProto, name.upper()): name for name in NAMES if name not in ("float32", "float64")}
_NUMBERS = {np.dtype(name): number for number, name in _DTYPES.items()}


def dtype_of(number: int) -> np.dtype:
    """The dtype of an element type."""
    if number not in _DTYPES:
        name = _NAMES.get(number, str(number))
        raise UnsupportedPrimitiveError(
            f"from_onnx: the element type {name} is not supported",
            expected=", ".join(_DTYPES.values()),
            got=name,
            hint="convert the model to float32: onnxconverter_common, or the exporter's settings"
            if name != "STRING"
            else "keep text outside of the model",
            source=None,
        )
    return np.dtype(_DTYPES[number])


def array_of(tensor: TensorProto) -> np.ndarray:
    """A constant of a model."""
    dtype = dtype_of(tensor.data_type)
    array: np.ndarray = np.asarray(numpy_helper.to_array(tensor), dtype)
    return array


def attribute(proto: AttributeProto) -> Any:
    """The value of an attribute; a graph stays unchanged."""
    kind = proto.type
    if kind == AttributeProto.TENSOR:
        return array_of(proto.t)
    if kind == AttributeProto.TENSORS:
        return [array_of(t) for t in proto.tensors]
    if kind == AttributeProto.SPARSE_TENSOR:
        values, places = array_of(proto.sparse_tensor.values), array_of(proto.sparse_tensor.indices)
        shape = tuple(proto.sparse_tensor.dims)
        array = np.zeros(shape, values.dtype)
        if places.ndim == 1:
            array.reshape(-1)[places] = values
        else:
            array[tuple(places.T)] = values
        return array
    value = helper.get_attribute_value(proto)
    if kind == AttributeProto.STRING:
        return value.decode()
    if kind == AttributeProto.STRINGS:
        return [s.decode() for s in value]
    return list(value) if kind in (AttributeProto.FLOATS, AttributeProto.INTS, AttributeProto.GRAPHS) else value


def type_proto(x: Any) -> TypeProto:
    """The type of a value, as ONNX writes it; an empty one for a value that is left out."""
    if x is None:
        return TypeProto()
    if isinstance(x, list):
        return helper.make_sequence_type_proto(type_proto(x[0]) if x else TypeProto())
    found: TypeProto = helper.make_tensor_type_proto(_NUMBERS[np.dtype(x.dtype)], list(x.shape))
    return found


Entry = Callable[..., Any]

TABLE: dict[tuple[str, str], Entry] = {}

_STRINGS = "strings have no arrays and no derivatives here"
_IMAGES = "it is an operator on images or boxes"
_RANDOM = "its random numbers have no state that a function could be given: draw them outside and pass them"

# Operators without a meaning here, with the reason. The whole domain "ai.onnx.ml" is refused.
REFUSED: dict[str, str] = {
    **dict.fromkeys(("RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer"), _STRINGS),
    **dict.fromkeys(("DeformConv", "ImageDecoder", "MaxRoiPool"), _IMAGES),
    **dict.fromkeys(("NonMaxSuppression", "RoiAlign"), _IMAGES),
    **dict.fromkeys(("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike"), _RANDOM),
    **dict.fromkeys(("RandomUniform", "RandomUniformLike"), _RANDOM),
}


class NeedsInputs(Exception):
    """An operator needs the values of these inputs of the model before it runs."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(names)
        self.names = names


@dataclass(frozen=True, eq=False)
class Body:
    """A graph that a node owns: its results for its inputs, given as a list. It sees the values around it."""

    inputs: tuple[str, ...]
    outputs: int
    read: Callable[..., list[Any]]

    def __call__(self, *inputs: Any) -> list[Any]:
        return self.read(*inputs)


@dataclass(frozen=True, eq=False)
class Node:
    """One node of a model.

    Attributes:
        version: of the operator set that it belongs to.
        attributes: by name, with ONNX's defaults; arrays for tensors, a `Body` for graphs.
        outputs: how many results it may have; `wanted` says which of them have a name.
        origins: for each input the inputs of the model that determine its value; None if further values do: a loop's
            carry, a size that depends on data.
    """

    name: str
    domain: str
    version: int
    attributes: dict[str, Any]
    outputs: int
    wanted: tuple[bool, ...]
    inputs: tuple[Any, ...]
    origins: tuple[frozenset[str] | None, ...]
    # True if the model can be read again with the values of its inputs.
    may_ask: bool
    source: Source

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        value = self.attributes.get(name)
        return default if value is None else value

    def known(self, i: int) -> np.ndarray | None:
        """The value of an input; None if it is known only when the model runs.

        If the value depends on inputs of the model alone, the model is read again with their values, if they are known.
        """
        x = self.inputs[i] if i < len(self.inputs) else None
        if not isinstance(x, Tensor):
            return None if x is None else np.asarray(x)
        origins = self.origins[i]
        if origins and self.may_ask:
            raise NeedsInputs(origins)
        return None

    def value(self, i: int) -> np.ndarray:
        """The value of an input, which has to be known."""
        found = self.known(i)
        if found is None:
            raise self._not_known(i, self.origins[i] or frozenset())
        return found

    def _not_known(self, i: int, origins: frozenset[str]) -> TracingError:
        given = " and ".join(map(repr, sorted(origins)))
        return TracingError(
            f"from_onnx: {self.name} needs the value of its input {i} before it runs",
            source=self.source,
            expected="a constant, or what follows from constants, shapes and inputs that are NumPy arrays",
            got=f"a value that follows from {given or 'what a loop carries or a size that depends on data'}",
            hint=f"pass {given} as NumPy arrays, and do not differentiate by them"
            if given
            else f"say what the operator is with ctrlgrad.interop.onnx_op({self.name!r}), or change the model",
        )

    def unsupported(self, reason: str | None = None) -> UnsupportedPrimitiveError:
        """The error of a node that cannot be translated."""
        name = f"{self.domain}.{self.name}" if self.domain else self.name
        given = f", {self.domain!r}" if self.domain else ""
        return UnsupportedPrimitiveError(
            f"from_onnx: the ONNX operator {name!r} "
            + (f"is not supported: {reason}" if reason else "has no translation"),
            source=self.source,
            expected="operators of the table in docs/onnx_operators.md",
            got=f"{name}, version {self.version}",
            hint=f"say what it is: a function of its inputs and, by keyword, its attributes,\n"
            f"decorated with @ctrlgrad.interop.onnx_op({self.name!r}{given})",
        )

    def of(self, *inputs: Any, **attributes: Any) -> Node:
        """The same node with other inputs, all of them known, and further attributes."""
        return replace(self, inputs=inputs, origins=(None,) * len(inputs), attributes=self.attributes | attributes)


def entry(*names: str, domain: str = "") -> Callable[[Entry], Entry]:
    """Give the translation of operators: `fn(node, *inputs)` returns the result, or a tuple of several."""

    def register(fn: Entry) -> Entry:
        for name in names:
            TABLE[domain, name] = fn
        return fn

    return register


def plain(fn: Callable[..., Any]) -> Entry:
    """An entry of a function that takes inputs alone."""
    return lambda node, *inputs: fn(*inputs)


def recorded(x: Any) -> Tensor:
    """Convert a value to a traced tensor, so that operations on it are recorded and not computed at once."""
    return x if isinstance(x, Tensor) else Tensor(recorder(), value_in(recorder(), x))


def known_shape(x: Any) -> tuple[int | None, ...]:
    """The sizes of an array, None for one that shows in the run."""
    return x.tensor_type.shape if isinstance(x, Tensor) else tuple(x.shape)


def is_array(x: Any) -> bool:
    """Return true if a value is an array, and not a sequence or an empty optional."""
    return isinstance(x, Tensor | np.ndarray | np.generic)


def shown(values: Sequence[Any]) -> str:
    """Values by their types, for messages."""
    kinds = [
        f"{x.dtype}{list(x.shape)}" if is_array(x) else "nothing" if x is None else type(x).__name__ for x in values
    ]
    return ", ".join(kinds) or "nothing"


def onnx_op(name: str, domain: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Tell `from_onnx` what an operator of ONNX is here; it replaces what was known of it.

    The decorated function takes the node's inputs as traced tensors and arrays, None for one that is left out, and its
    attributes by keyword, and returns its result, or a tuple of several. A graph among the attributes is a function of
    arrays that returns a list. It is written with `ctrlgrad.numpy`.

    >>> from onnx import TensorProto, helper
    >>> @cg.interop.onnx_op("ScaledSine", "my.domain")
    ... def _(x, *, scale):
    ...     return cnp.sin(scale * x)
    >>> vector = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])
    >>> x, y = vector("x"), vector("y")
    >>> node = helper.make_node("ScaledSine", ["x"], ["y"], domain="my.domain", scale=2.0)
    >>> f = cg.from_onnx(helper.make_model(helper.make_graph([node], "g", [x], [y])))
    >>> cg.grad(lambda x: f(x).sum())(np.zeros(2, np.float32))
    array([2., 2.], dtype=float32)
    """

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        TABLE[domain, name] = lambda node, *inputs: fn(*inputs, **node.attributes)
        return fn

    return register
