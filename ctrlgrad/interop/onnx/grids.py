"""`GridSample`: an image at places between its pixels, with derivatives by the image and by the places."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.frontend.apply import cast
from ctrlgrad.interop.onnx.operators import Node, entry
from ctrlgrad.interop.onnx.resizing import cubic

_OLD_NAMES = {"bilinear": "linear", "bicubic": "cubic"}


def _reflected(x: Any, low: float, high: float) -> Any:
    """Numbers thrown back by two mirrors, as often as they pass one."""
    width = high - low
    if not width:
        return cnp.zeros_like(x)
    turns = cnp.remainder(x - np.asarray(low, x.dtype), np.asarray(2 * width, x.dtype))
    return np.asarray(low, x.dtype) + cnp.where(turns > width, np.asarray(2 * width, x.dtype) - turns, turns)


def _taps(node: Node, places: Any, size: int) -> list[tuple[Any, Any]]:
    """Along an axis the pixels that count for each place, -1 to 1 from end to end, and their weights."""
    mode, padding = (node.get("mode", "linear"), node.get("padding_mode", "zeros"))
    mode, is_aligned = _OLD_NAMES.get(mode, mode), bool(node.get("align_corners", 0))
    of = places.dtype.type
    x = (places + of(1)) * of(size - 1) / of(2) if is_aligned else ((places + of(1)) * of(size) - of(1)) / of(2)
    edges = (0.0, size - 1.0) if is_aligned else (-0.5, size - 0.5)
    x = cnp.rint(x) if mode == "nearest" else x
    if padding == "border":
        x = cnp.clip(x, of(0), of(size - 1))
    elif padding == "reflection":
        x = _reflected(x, *edges)
    first = cnp.floor(x)
    f, one = x - first, of(1)
    if mode == "nearest":
        weights = [cnp.ones_like(f)]
    elif mode == "linear":
        weights = [one - f, f]
    else:
        weights = [cubic(d, -0.75) for d in (f + one, f, one - f, of(2) - f)]
    before = 1 if mode == "cubic" else 0
    found = []
    for k, weight in enumerate(weights):
        i = first + of(k - before)
        if padding == "reflection":
            i = _reflected(i, *edges)
        elif padding == "zeros":
            weight = cnp.where((i >= 0) & (i < size), weight, cnp.zeros_like(weight))
        found.append((cast(cnp.clip(i, of(0), of(size - 1)), np.int64), weight))
    return found


@entry("GridSample")
def _grid_sample(node: Node, x: Any, grid: Any) -> Any:
    sizes, batch, channels = x.shape[2:], x.shape[0], x.shape[1]
    # Places are given with the last axis first.
    taps = [_taps(node, grid[..., -1 - axis], n) for axis, n in enumerate(sizes)]
    flat = cnp.reshape(x, (batch, channels, math.prod(sizes)))
    count = math.prod(grid.shape[1:-1])
    total = None
    for corner in itertools.product(*taps):
        index, weight = corner[0]
        for (i, w), n in zip(corner[1:], sizes[1:], strict=True):
            index, weight = index * n + i, weight * w
        index = cnp.broadcast_to(cnp.reshape(index, (batch, 1, count)), (batch, channels, count))
        part = cnp.take_along_axis(flat, index, 2) * cast(cnp.reshape(weight, (batch, 1, count)), x.dtype)
        total = part if total is None else total + part
    return cnp.reshape(total, (batch, channels, *grid.shape[1:-1]))
