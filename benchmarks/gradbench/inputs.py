"""Inputs of GradBench's kind, made up here: for every module a small one and some of a size that is worth timing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.gradbench import ba, gmm, ht

Made = dict[str, Any]


def _lists(arrays: Mapping[str, Any]) -> Made:
    return {name: np.asarray(x).tolist() for name, x in arrays.items()}


def ode(n: int, s: int) -> Made:
    return {"x": np.random.default_rng(0).random(n).tolist(), "s": s}


def llsq(m: int, n: int) -> Made:
    return {"x": np.random.default_rng(0).random(m).tolist(), "n": n}


def lse(n: int) -> Made:
    return {"x": np.random.default_rng(0).random(n).tolist()}


def det(ell: int) -> Made:
    return {"A": np.random.default_rng(0).random(ell * ell).tolist(), "ell": ell}


def lstm(layers: int, length: int, bits: int = 14) -> Made:
    rng = np.random.default_rng(0)
    shapes = {"main_params": (2 * layers, 4 * bits), "extra_params": (3, bits), "state": (2 * layers, bits)}
    made = {name: rng.random(shape) for name, shape in shapes.items()}
    return _lists(made | {"sequence": rng.integers(0, 2, (length, bits)).astype(float)})


def mixture(k: int, d: int, n: int) -> Made:
    return gmm.example(k, d, n)


def kmeans(k: int, n: int, d: int) -> Made:
    points = np.random.default_rng(0).random((n, d))
    return _lists({"points": points, "centroids": points[-k:]})


def bundle(n: int, m: int, p: int) -> Made:
    return ba.MODULE.example | {"n": n, "m": m, "p": p}


def hand(vertices: int, points: int, us: bool) -> Made:
    return ht.example(vertices, points, us)


def particle() -> Made:
    return {"w": 0.0}


def saddle() -> Made:
    return {"start": [1.0, 1.0]}


# What makes a module's input, a small size and one to be timed.
SIZES: dict[str, tuple[Callable[..., Made], Made, Made]] = {
    "ode": (ode, {"n": 4, "s": 5}, {"n": 10_000, "s": 100}),
    "llsq": (llsq, {"m": 4, "n": 6}, {"m": 128, "n": 4096}),
    "lse": (lse, {"n": 5}, {"n": 160_000}),
    "det": (det, {"ell": 4}, {"ell": 7}),
    "lstm": (lstm, {"layers": 2, "length": 5, "bits": 3}, {"layers": 2, "length": 1024}),
    "gmm": (mixture, {"k": 3, "d": 4, "n": 7}, {"k": 25, "d": 10, "n": 1000}),
    "kmeans": (kmeans, {"k": 3, "n": 8, "d": 2}, {"k": 100, "n": 1000, "d": 8}),
    "ba": (bundle, {"n": 2, "m": 3, "p": 4}, {"n": 21, "m": 11315, "p": 36455}),
    "ht": (hand, {"vertices": 6, "points": 4, "us": True}, {"vertices": 544, "points": 400, "us": True}),
    "particle": (particle, {}, {}),
    "saddle": (saddle, {}, {}),
}


def make(module: str, size: Mapping[str, Any]) -> Made:
    """An input of a module, as GradBench would send it."""
    return SIZES[module][0](**size)


def example(module: str, tiny: bool) -> Made:
    """A module's input of the small size, or of the one to be timed."""
    return make(module, SIZES[module][1 if tiny else 2])
