"""Sequences, which are lists here, and optionals, which are a value or None."""

from __future__ import annotations

from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.interop.onnx.operators import TABLE, Node, entry

TABLE |= {
    ("", "SequenceConstruct"): lambda node, *xs: list(xs),
    ("", "SequenceEmpty"): lambda node: [],
    ("", "SequenceLength"): lambda node, xs: np.int64(len(xs)),
    ("", "Optional"): lambda node, x=None: x,
    ("", "OptionalHasElement"): lambda node, x=None: np.bool_(x is not None),
}


@entry("SequenceAt")
def _at(node: Node, xs: list[Any], place: Any) -> Any:
    known = node.known(1)
    if known is not None:
        return xs[int(known.reshape(()))]
    # Elements of one shape are rows.
    return cnp.stack(xs)[place]


@entry("SequenceInsert")
def _insert(node: Node, xs: list[Any], x: Any, place: Any = None) -> Any:
    at = len(xs) if place is None else int(node.value(2).reshape(()))
    at = at + len(xs) if at < 0 else at
    return [*xs[:at], x, *xs[at:]]


@entry("SequenceErase")
def _erase(node: Node, xs: list[Any], place: Any = None) -> Any:
    at = (len(xs) - 1 if place is None else int(node.value(1).reshape(()))) % len(xs)
    return [*xs[:at], *xs[at + 1 :]]


@entry("ConcatFromSequence")
def _concat(node: Node, xs: list[Any]) -> Any:
    axis = node.get("axis")
    return cnp.stack(xs, axis) if node.get("new_axis", 0) else cnp.concatenate(xs, axis)


@entry("SplitToSequence")
def _split(node: Node, x: Any, lengths: Any = None) -> Any:
    axis = node.get("axis", 0) % x.ndim
    size = x.shape[axis]
    if lengths is None:
        rows = cnp.split(x, size, axis) if size else []
        return list(rows) if node.get("keepdims", 1) else [cnp.squeeze(row, axis) for row in rows]
    given = node.value(1)
    if given.ndim == 0:
        step = int(given)
        return list(cnp.split(x, list(range(step, size, step)), axis))
    return list(cnp.split(x, np.cumsum(given)[:-1].tolist(), axis))


@entry("OptionalGetElement")
def _get(node: Node, x: Any = None) -> Any:
    if x is None:
        raise node.unsupported("the optional is empty")
    return x
