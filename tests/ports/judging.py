"""The results of a program's two readings held against each other, and derivatives along a direction."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

import ctrlgrad as cg


def parts(tree: Any, path: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of a result, each with its path; the two readings define classes of their own."""
    if dataclasses.is_dataclass(tree):
        tree = {field.name: getattr(tree, field.name) for field in dataclasses.fields(tree)}
    elif hasattr(tree, "_asdict"):
        tree = tree._asdict()
    if isinstance(tree, dict):
        for name in sorted(tree):
            yield from parts(tree[name], f"{path}.{name}")
    elif isinstance(tree, list | tuple):
        for i, child in enumerate(tree):
            yield from parts(child, f"{path}[{i}]")
    else:
        yield path, np.asarray(tree)


def assert_same(found: Any, expected: Any, rtol: float = 1e-9, atol: float = 1e-11) -> None:
    """The same structure, shapes and dtypes, and the same numbers up to the tolerance."""
    ours, theirs = dict(parts(found)), dict(parts(expected))
    assert list(ours) == list(theirs)
    for path, array in ours.items():
        assert (array.shape, array.dtype) == (theirs[path].shape, theirs[path].dtype), path
        np.testing.assert_allclose(array, theirs[path], rtol, atol, err_msg=path)


def direction(tree: Any, seed: int = 0) -> Any:
    """Normal numbers in the place of a tree's arrays."""
    rng = np.random.default_rng(seed)
    return cg.tree.map(lambda x: rng.standard_normal(np.shape(x)), tree)


def slope(gradient: Any, along: Any) -> float:
    ours, theirs = dict(parts(gradient)), dict(parts(along))
    assert list(ours) == list(theirs)
    return float(sum(np.vdot(ours[path], theirs[path]) for path in ours))


def forward_slope(f: Callable[[Any], Any], at: Any, along: Any) -> float:
    """A derivative by JAX's forward mode: `at` and `along` are trees that JAX knows."""
    return float(jax.jvp(f, (at,), (along,))[1])


def central_slope(f: Callable[[Any], Any], at: Any, along: Any, width: float = 1e-6) -> float:
    ahead, behind = (cg.tree.map(lambda x, d, t=t: x + t * d, at, along) for t in (width, -width))
    return (float(f(ahead)) - float(f(behind))) / (2 * width)
