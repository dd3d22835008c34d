"""Quantisation of floats to integers of 8 and 16 bits, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.frontend.apply import cast
from ctrlgrad.interop.onnx.convolutions import conv_integer
from ctrlgrad.interop.onnx.operators import Node, entry
from ctrlgrad.interop.onnx.products import by_row, matmul_integer
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
    return _saturated(rounded, dtype)


def _saturated(x: Any, dtype: Any) -> Any:
    limits = np.iinfo(dtype)
    return cast(cnp.clip(x, np.asarray(limits.min, x.dtype), np.asarray(limits.max, x.dtype)), dtype)


@entry("DynamicQuantizeLinear")
def _dynamic(node: Node, x: Any) -> Any:
    low, high = cnp.minimum(cnp.min(x), np.float32(0)), cnp.maximum(cnp.max(x), np.float32(0))
    scale = (high - low) / np.float32(255)
    zero = cnp.clip(cnp.rint(-low / scale), np.float32(0), np.float32(255))
    y = cast(cnp.clip(cnp.rint(x / scale) + zero, np.float32(0), np.float32(255)), np.uint8)
    return y, scale, cast(zero, np.uint8)


def _requantized(whole: Any, factor: Any, zero: Any, dtype: Any) -> Any:
    """Whole numbers times a factor, rounded into the range of a dtype."""
    # Products of numbers of 32 bits and of float32 are exact in float64.
    found = cast(whole, np.float64) * cast(factor, np.float64)
    return _saturated(cnp.rint(found if zero is None else found + cast(zero, np.float64)), dtype)


@entry("QLinearMatMul")
def _qlinear_matmul(node: Node, *inputs: Any) -> Any:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs
    factor = by_row(a_scale) * b_scale / y_scale
    return _requantized(matmul_integer(node, a, b, a_zero, b_zero), factor, y_zero, y_zero.dtype)


@entry("QLinearConv")
def _qlinear_conv(node: Node, *inputs: Any) -> Any:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *bias = inputs
    whole = conv_integer(node, x, w, x_zero, w_zero)
    by_channel = (-1, *[1] * (x.ndim - 2))
    if bias and bias[0] is not None:
        whole = whole + cnp.reshape(bias[0], by_channel)
    return _requantized(whole, cnp.reshape(x_scale * w_scale / y_scale, by_channel), y_zero, y_zero.dtype)
