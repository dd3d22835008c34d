"""Inputs of the recurrent programs from a seed, and the two forms of their parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

GATES = {"lstm": 4, "gru": 3}
# What the programs of products alone give: the last ones of the loops, and the weights' gradients.
PRODUCTS = ("last of x @ wx", "last of h @ wh", "last of dz @ wh.T", "gradient of wx", "gradient of wh")


def sequence(size: Sequence[int], seed: int = 0) -> np.ndarray:
    """The inputs xs, float32 `[T, batch, input]`, for a size (T, batch, input, hidden)."""
    steps, batch, inputs, _ = size
    return np.random.default_rng([seed, 0]).standard_normal((steps, batch, inputs)).astype(np.float32)


def by_chance(shape: Sequence[int], seed: int) -> np.ndarray:
    """float32 numbers where only the size matters."""
    return np.random.default_rng([seed, 3]).standard_normal(tuple(shape)).astype(np.float32)


def weights(cell: str, size: Sequence[int], seed: int = 0) -> dict[str, np.ndarray]:
    """Parameters in the shared layout: `wx` `[input, gates * hidden]`, `wh`, `b`, and the GRU's `bn` `[hidden]`."""
    _, _, inputs, hidden = size
    rng = np.random.default_rng([seed, 1])
    bound = hidden**-0.5

    def draw(*shape: int) -> np.ndarray:
        return rng.uniform(-bound, bound, shape).astype(np.float32)

    gates = GATES[cell] * hidden
    made = {"wx": draw(inputs, gates), "wh": draw(hidden, gates), "b": draw(gates)}
    return made | {"bn": draw(hidden)} if cell == "gru" else made


def pack(cell: str, form: str, shared: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The shared layout in the form that a program uses."""
    if form == "separate":
        return dict(shared)
    both = np.concatenate([shared["wx"], shared["wh"]])
    if cell == "lstm":
        return {"w": both, "b": shared["b"]}
    split = 2 * len(shared["wh"])
    inputs = len(shared["wx"])
    candidate = np.ascontiguousarray(both[:, split:])
    packed = {"w": np.ascontiguousarray(both[:, :split]), "wxn": candidate[:inputs], "whn": candidate[inputs:]}
    return packed | {"b": shared["b"], "bn": shared["bn"]}


def unpack(cell: str, form: str, inputs: int, packed: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Parameters, or their gradients, of either form in the shared layout."""
    arrays = {name: np.asarray(x) for name, x in packed.items()}
    if form == "separate":
        return arrays
    wx, wh = arrays["w"][:inputs], arrays["w"][inputs:]
    if cell == "lstm":
        return {"wx": wx, "wh": wh, "b": arrays["b"]}
    wx, wh = np.concatenate([wx, arrays["wxn"]], 1), np.concatenate([wh, arrays["whn"]], 1)
    return {"wx": wx, "wh": wh, "b": arrays["b"], "bn": arrays["bn"]}


def read(cell: str, form: str, inputs: int, result: Any) -> dict[str, np.ndarray]:
    """`(loss, gradients)` under shared names."""
    loss, gradients = result
    return {"loss": np.asarray(loss)} | unpack(cell, form, inputs, gradients)


def lengths(count: int, shortest: int, longest: int, seed: int = 0) -> list[int]:
    """So many different lengths in an order by chance."""
    return [int(n) for n in np.random.default_rng([seed, 2]).permutation(np.linspace(shortest, longest, count).round())]
