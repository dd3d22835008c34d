"""How much two computations of one derivative may differ.

Without the user's own `rtol` and `atol`, a tolerance is a base for the dtype and order, plus what was
measured: how far the result moves when the arguments move by their last bit, and the error that finite
differences estimate of themselves. What was measured counts up to a limit only, so that no error of a
gradient's leading digits ever passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np

from ctrlgrad.dtypes import dtype_kind, finfo
from ctrlgrad.ir import Graph, TensorType, walk

# Exponents of the machine epsilon: float64 gives 1e-9, 9e-8 and 7e-4, float32 1e-4, 8e-4 and 4e-2.
_JAX, _DIFFERENCES, _LIMIT = 0.575, 0.45, 0.2

# By how much finite differences may be wrong, over the error that they estimate of themselves.
ERROR_FACTOR = 10.0


@dataclass(frozen=True)
class Tolerances:
    """`epsilon` is that of the coarsest floating-point dtype in the program; see the module's docstring."""

    epsilon: float
    rtol: float | None
    atol: float | None

    def jax(self, order: int, scale: float, magnitude: float, moved: float) -> float:
        """For an elementwise comparison.

        `scale` is the largest element of the judge's result, `magnitude` that of anything in the problem,
        `moved` how far the result moved when the arguments did by their last bit.
        """
        base: float = self.epsilon**_JAX * 10.0 ** (order - 1)
        return self._total(base, scale, magnitude, 16.0 * moved, 0.0)

    def differences(self, order: int, scale: float, magnitude: float, error: float, noise: float) -> float:
        """For a directional derivative with an estimated `error`; `noise` is what rounding alone does to it."""
        base: float = self.epsilon**_DIFFERENCES * 10.0 ** (order - 1)
        return self._total(base, scale, magnitude, ERROR_FACTOR * error, 100.0 * noise)

    def _total(self, base: float, scale: float, magnitude: float, measured: float, allowed: float) -> float:
        if self.rtol is not None or self.atol is not None:
            return (self.atol or 0.0) + (self.rtol or 0.0) * scale
        limit: float = self.epsilon**_LIMIT * scale + allowed
        return 64.0 * self.epsilon * max(1.0, magnitude) + base * scale + min(measured, limit)


def coarsest_epsilon(graph: Graph) -> float:
    """The machine epsilon of the least precise floating-point value in a graph and its regions."""
    values = chain(graph.inputs, graph.outputs, *(node.results for node in walk(graph)))
    dtypes = {v.type.dtype for v in values if isinstance(v.type, TensorType) and dtype_kind(v.type.dtype) in "fc"}
    return max((float(finfo(dtype).eps) for dtype in dtypes), default=float(finfo(np.float64).eps))
