"""Quantisation of floats to integers of 8 and 16 bits, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.frontend.apply import cast
from ctrlgrad.interop.onnx.operators import Node, entry
from ctrlgrad.interop.onnx.protos import dtype_of


def _spread(node: Node, parameter: Any, x: Any) -> Any:
    """A scale or zero point so that it broadcasts with x: one number, one for each place of an axis, or of a block."""
    if parameter.ndim == 0 or parameter.size == 1:
        return cnp.reshape(parameter, ())
    axis, block = node.get("axis", 1) % x.ndim, node.get("block_size", 0)
    if block:
        return cnp.repeat(parameter, block, axis=axis)[tuple(slice(0, n) for n in x.shape)]
    return cnp.reshape(parameter, [-1 if a == axis else 1 for a in range(x.ndim)])


@entry("DequantizeLinear")
def _dequantize(node: Node, x: Any, scale: Any, zero: Any = None) -> Any:
    number = node.get("output_dtype", 0)
    dtype = dtype_of(number) if number else scale.dtype
    found = cast(x, np.float32)
    if zero is not None:
        found = found - cast(_spread(node, zero, x), np.float32)
    return cast(found * cast(_spread(node, scale, x), np.float32), dtype)


@entry("QuantizeLinear")
def _quantize(node: Node, x: Any, scale: Any, zero: Any = None) -> Any:
    number = node.get("output_dtype", 0)
    dtype = dtype_of(number) if number else np.dtype(np.uint8) if zero is None else np.dtype(zero.dtype)
    number = node.get("precision", 0)
    scale = cast(_spread(node, scale, x), dtype_of(number) if number else scale.dtype)
    rounded = cnp.rint(cast(x, scale.dtype) / scale)
    if zero is not None:
        rounded = rounded + cast(_spread(node, zero, x), rounded.dtype)
    limits = np.iinfo(dtype)
    return cast(cnp.clip(rounded, np.asarray(limits.min, rounded.dtype), np.asarray(limits.max, rounded.dtype)), dtype)


@entry("DynamicQuantizeLinear")
def _dynamic(node: Node, x: Any) -> Any:
    low, high = cnp.minimum(cnp.min(x), np.float32(0)), cnp.maximum(cnp.max(x), np.float32(0))
    scale = (high - low) / np.float32(255)
    zero = cnp.clip(cnp.rint(-low / scale), np.float32(0), np.float32(255))
    y = cast(cnp.clip(cnp.rint(x / scale) + zero, np.float32(0), np.float32(255)), np.uint8)
    return y, scale, cast(zero, np.uint8)
