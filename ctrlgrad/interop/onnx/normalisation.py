"""Normalisations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.dtypes import computed_dtype
from ctrlgrad.frontend.apply import cast
from ctrlgrad.interop.onnx.operators import Node, entry


def _over(x: Any, axes: tuple[int, ...], epsilon: float) -> tuple[Any, Any, Any]:
    """x with mean 0 and variance 1 over some axes, the mean, and one over the standard deviation."""
    mean = cnp.mean(x, axes, keepdims=True)
    centred = x - mean
    scale = 1 / cnp.sqrt(cnp.mean(centred * centred, axes, keepdims=True) + np.asarray(epsilon, x.dtype))
    return centred * scale, mean, scale


def _along_channels(v: Any, x: Any) -> Any:
    """A number for each channel, as an array that broadcasts with x[batch, channel, ...]."""
    return cnp.reshape(v, (*v.shape, *[1] * (x.ndim - 2)))


@entry("LayerNormalization")
def _layer(node: Node, x: Any, scale: Any, bias: Any = None) -> Any:
    axis, dtype = node.get("axis", -1) % x.ndim, x.dtype
    wide = cast(x, computed_dtype(dtype))
    found, mean, deviation = _over(wide, tuple(range(axis, x.ndim)), node.get("epsilon", 1e-5))
    found = cast(found, dtype) * scale
    return found if bias is None else found + bias, mean, deviation


@entry("BatchNormalization")
def _batch(node: Node, x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
    epsilon, momentum = node.get("epsilon", 1e-5), node.get("momentum", 0.9)
    running: tuple[Any, ...] = ()
    if node.get("training_mode", 0) if node.version >= 14 else node.outputs > 1:
        axes = (0, *range(2, x.ndim))
        now = cnp.mean(x, axes)
        spread = cnp.mean((x - _along_channels(now, x)) ** 2, axes)
        running = tuple(
            cast(old * momentum + cast(new, old.dtype) * (1 - momentum), old.dtype)
            for old, new in ((mean, now), (variance, spread))
        )
        mean, variance = now, spread
    centred = x - _along_channels(cast(mean, x.dtype), x)
    factor = cast(scale, x.dtype) / cnp.sqrt(cast(variance, x.dtype) + np.asarray(epsilon, x.dtype))
    return centred * _along_channels(factor, x) + _along_channels(cast(bias, x.dtype), x), *running


@entry("InstanceNormalization")
def _instance(node: Node, x: Any, scale: Any, bias: Any) -> Any:
    found, _, _ = _over(x, tuple(range(2, x.ndim)), node.get("epsilon", 1e-5))
    return found * _along_channels(scale, x) + _along_channels(bias, x)


@entry("LRN")
def _local_response(node: Node, x: Any) -> Any:
    size = node.get("size")
    before = (size - 1) // 2
    channels = x.shape[1]
    squares = cnp.pad(x * x, [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)])
    total = sum((squares[:, i : i + channels] for i in range(1, size)), squares[:, :channels])
    number: Callable[[float], Any] = lambda value: np.asarray(value, x.dtype)
    base = number(node.get("bias", 1.0)) + number(node.get("alpha", 1e-4) / size) * total
    return x / base ** number(node.get("beta", 0.75))
