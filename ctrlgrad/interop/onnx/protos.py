"""Tensors, types and attributes of ONNX models as values of Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, TypeProto, helper, numpy_helper

from ctrlgrad.errors import UnsupportedPrimitiveError

_NAMES = {number: name for name, number in TensorProto.DataType.items()}
# ONNX's dtypes that this library has.
_DTYPES: dict[int, str] = {
    TensorProto.BOOL: "bool",
    TensorProto.INT8: "int8",
    TensorProto.INT16: "int16",
    TensorProto.INT32: "int32",
    TensorProto.INT64: "int64",
    TensorProto.UINT8: "uint8",
    TensorProto.UINT16: "uint16",
    TensorProto.UINT32: "uint32",
    TensorProto.UINT64: "uint64",
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.FLOAT: "float32",
    TensorProto.DOUBLE: "float64",
    TensorProto.COMPLEX64: "complex64",
    TensorProto.COMPLEX128: "complex128",
}
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
    """The value of an attribute; a graph is left as it is."""
    kind = proto.type
    if kind == AttributeProto.TENSOR:
        return array_of(proto.t)
    if kind == AttributeProto.TENSORS:
        return [array_of(t) for t in proto.tensors]
    if kind == AttributeProto.SPARSE_TENSOR:
        return _dense(proto.sparse_tensor)
    value = helper.get_attribute_value(proto)
    if kind == AttributeProto.STRING:
        return value.decode()
    if kind == AttributeProto.STRINGS:
        return [s.decode() for s in value]
    return list(value) if kind in (AttributeProto.FLOATS, AttributeProto.INTS, AttributeProto.GRAPHS) else value


def _dense(sparse: onnx.SparseTensorProto) -> np.ndarray:
    values, places = array_of(sparse.values), array_of(sparse.indices)
    shape = tuple(sparse.dims)
    array = np.zeros(shape, values.dtype)
    if places.ndim == 1:
        array.reshape(-1)[places] = values
    else:
        array[tuple(places.T)] = values
    return array


def type_proto(x: Any) -> TypeProto:
    """The type of a value, as ONNX writes it; an empty one for a value that is left out."""
    if x is None:
        return TypeProto()
    if isinstance(x, list):
        return helper.make_sequence_type_proto(type_proto(x[0]) if x else TypeProto())
    found: TypeProto = helper.make_tensor_type_proto(_NUMBERS[np.dtype(x.dtype)], list(x.shape))
    return found
