"""Part of a difference that rounding explains, by Monte Carlo arithmetic (D. S. Parker, 1997).

Two engines that are both right round differently. How far that takes their results apart is a matter of the program: a
recurrence over a long axis may be chaotic, and its derivatives differ in the sixth digit. So where two engines
differ, the reference engine runs the graph again, with every computed number changed at random by up to a unit in its
last place. Results that differ by little more than these runs do from each other are not judged to be wrong.
Numbers that are only moved, and whole ones, which are mostly exact and decide, stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.engines.reference import REFERENCE, Kernels, Run, interpret
from ctrlgrad.engines.reference.table import Pure
from ctrlgrad.ir import Graph, Node
from ctrlgrad.ir.op import Trait

RUNS = 3
# By how much the rounding of another order of operations may exceed that of a few random ones.
FACTOR = 20.0


def spread(graph: Graph, arguments: Sequence[Any], results: Sequence[Any]) -> list[float]:
    """For each result, how far rounding takes it from what it is; infinite where it turns whole numbers or shapes."""
    found = [0.0] * len(results)
    for seed in range(RUNS):
        _chance.rng = np.random.default_rng(seed)
        again = interpret(graph, arguments, Run(), ROUNDED)
        found = [max(a, _distance(b, c)) for a, b, c in zip(found, again, results, strict=True)]
    return found


def explains(spread: float, found: np.ndarray, expected: np.ndarray) -> bool:
    """Return true if rounding that moves a result so far explains the distance of two results."""
    return found.dtype == expected.dtype and spread > 0.0 and _distance(found, expected) <= FACTOR * spread


def _distance(found: Any, expected: Any) -> float:
    a, b = np.asarray(found), np.asarray(expected)
    if a.shape != b.shape or (b.dtype.kind in "biu" and not np.array_equal(a, b)):
        return np.inf
    return 0.0 if b.dtype.kind in "biu" else float(np.max(np.abs(a - b), initial=0.0))


@dataclass
class _Chance:
    """Source of random numbers: programs of the interpreter are kept with their kernels, each run begins anew."""

    rng: np.random.Generator


_chance = _Chance(np.random.default_rng(0))


def _rounded(entry: Pure) -> Pure:
    def of_node(node: Node) -> Callable[..., Any]:
        kernel = entry(node)
        if Trait.MOVES in node.op.traits or Trait.VIEW in node.op.traits:
            return kernel
        if len(node.results) == 1:
            return lambda *operands: _changed(kernel(*operands))
        return lambda *operands: [_changed(x) for x in kernel(*operands)]

    return of_node


def _changed(x: Any) -> Any:
    """The number or array with what is not whole of it changed by up to a unit in the last place of its dtype."""
    if not isinstance(x, np.ndarray | np.generic) or x.dtype.kind not in "fc":
        return x
    unit = np.finfo(x.dtype).eps
    factor = 1.0 + unit * _chance.rng.uniform(-1.0, 1.0, x.shape)
    return np.where(x == np.rint(x), x, x * factor).astype(x.dtype)


# The reference engine's, whose results are rounded at random.
ROUNDED = Kernels(
    "reference, rounded at random",
    {name: _rounded(entry) for name, entry in REFERENCE.pure.items()},
    REFERENCE.in_place,
    REFERENCE.control,
)
