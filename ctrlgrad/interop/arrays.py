"""Primitives that make, arrange and index arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad import lax
from ctrlgrad.frontend.apply import value_in
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import recorder
from ctrlgrad.interop.avals import dtype_of, key_words
from ctrlgrad.interop.primitives import TABLE, Equation, by_keyword, entry

TABLE |= {
    "rev": lambda equation, x: lax.rev(x, tuple(equation.params["dimensions"])),
    "pad": by_keyword(lax.pad, "padding_config"),
    "split": by_keyword(lax.split, "sizes", "axis"),
}


def recorded(x: Any) -> Tensor:
    """A value as one of the graph, so that what is made of it is recorded and not computed at once."""
    return x if isinstance(x, Tensor) else Tensor(recorder(), value_in(recorder(), x))


def words(equation: Equation) -> tuple[int, ...]:
    """The axes that values of an equation have behind those of JAX: that of the words where they are keys."""
    return next(filter(None, map(key_words, equation.inputs)), ())


@entry("broadcast_in_dim")
def _broadcast_in_dim(equation: Equation, x: Any, *sizes: Any) -> Any:
    shape, places = equation.params["shape"], equation.params["broadcast_dimensions"]
    more = words(equation)
    shape, places = (*shape, *more), (*places, *range(len(shape), len(shape) + len(more)))
    return lax.broadcast_in_dim(recorded(x), shape, places)


@entry("iota")
def _iota(equation: Equation, *sizes: Any) -> Any:
    shape, axis = equation.params["shape"], equation.params["dimension"]
    numbers = recorded(np.arange(shape[axis])).astype(dtype_of(equation.outputs[0]))
    return lax.broadcast_in_dim(numbers, shape, (axis,))


@entry("empty", "empty2")
def _empty(equation: Equation) -> Any:
    aval = equation.outputs[0]
    return cnp.broadcast_to(recorded(np.zeros((), dtype_of(aval))), aval.shape)


@entry("concatenate")
def _concatenate(equation: Equation, *operands: Any) -> Any:
    return cnp.concatenate(operands, equation.params["dimension"])


@entry("stack")
def _stack(equation: Equation, *operands: Any) -> Any:
    return cnp.stack(operands, equation.params["axis"])


@entry("unstack")
def _unstack(equation: Equation, x: Any) -> Any:
    axis, x = equation.params["axis"], recorded(x)
    return [x[(*[slice(None)] * axis, i)] for i in range(equation.inputs[0].shape[axis])]


@entry("reshape")
def _reshape(equation: Equation, x: Any, *sizes: Any) -> Any:
    shape, order = equation.params["new_sizes"], equation.params.get("dimensions")
    more = words(equation)
    order = None if order is None else (*order, *range(len(order), len(order) + len(more)))
    return lax.reshape(x, (*shape, *more), order)


@entry("squeeze")
def _squeeze(equation: Equation, x: Any) -> Any:
    return cnp.squeeze(x, tuple(axis % equation.inputs[0].ndim for axis in equation.params["dimensions"]))


@entry("expand_dims")
def _expand_dims(equation: Equation, x: Any) -> Any:
    return cnp.expand_dims(x, tuple(equation.params["dimensions"]))


@entry("transpose")
def _transpose(equation: Equation, x: Any) -> Any:
    order = tuple(equation.params["permutation"])
    return cnp.transpose(x, (*order, *range(len(order), len(order) + len(words(equation)))))


@entry("tile")
def _tile(equation: Equation, x: Any) -> Any:
    return cnp.tile(x, tuple(equation.params["reps"]))


@entry("slice")
def _slice(equation: Equation, x: Any) -> Any:
    params = equation.params
    return lax.slice(x, params["start_indices"], params["limit_indices"], params["strides"])


def _inside(start: Any, size: int, width: int) -> Any:
    """A start at which a slice lies inside: negative ones do not count from the end."""
    return cnp.clip(cnp.asarray(start).astype(np.int64), 0, size - width)


def _keys(starts: Sequence[Any], sizes: Sequence[int], widths: Sequence[int]) -> tuple[list[Any], list[int]]:
    """An index for each axis, and the axes that it drops: those along which the slice has one element."""
    keys: list[Any] = []
    dropped = []
    for axis, (start, size, width) in enumerate(zip(starts, sizes, widths, strict=True)):
        if width == size:
            keys.append(slice(None))
        elif width == 1:
            keys.append(_inside(start, size, 1))
            dropped.append(axis)
        else:
            keys.append(None)
    return keys, dropped


@entry("dynamic_slice")
def _dynamic_slice(equation: Equation, x: Any, *operands: Any) -> Any:
    # NumPy's arrays take no traced index.
    x, sizes, widths = recorded(x), equation.inputs[0].shape, tuple(equation.params["slice_sizes"])
    starts, more = operands[: len(sizes)], words(equation)
    keys, dropped = _keys(starts, sizes, widths)
    for axis, key in enumerate(keys):
        if key is None:
            places = _inside(starts[axis], sizes[axis], widths[axis]) + np.arange(widths[axis])
            x, keys[axis] = cnp.take(x, places, axis=axis), slice(None)
    if not dropped:
        return x
    return cnp.reshape(x[(*keys, *[slice(None)] * len(more))], (*widths, *more))


@entry("dynamic_update_slice")
def _dynamic_update_slice(equation: Equation, x: Any, update: Any, *starts: Any) -> Any:
    sizes, widths = equation.inputs[0].shape, equation.inputs[1].shape
    keys, dropped = _keys(starts, sizes, widths)
    if not keys or 0 in widths:
        return update if not keys else x
    if any(key is None for key in keys):
        # Positions along all axes, each along its own.
        places = [
            np.reshape(np.arange(width), [width if b == a else 1 for b in range(len(widths))])
            + _inside(start, size, width)
            for a, (start, size, width) in enumerate(zip(starts, sizes, widths, strict=True))
        ]
        return cnp.at(x)[tuple(places)].set(update)
    return cnp.at(x)[tuple(keys)].set(cnp.squeeze(update, tuple(dropped)))
