"""A polynomial fitted to the sign of its argument by least squares, and the gradient by its coefficients.

The polynomial's values at all points come from Horner's rule: a loop over the coefficients. How many points there are
is a number that the program is given, so their array has a size that depends on data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from benchmarks.gradbench.evaluation import Evaluation, Module, compiled


def half_squares(x: Any, n: Any) -> Any:
    t = -1.0 + 2.0 * cnp.arange(n) / (n - 1.0)
    m = x.shape[0]
    values = cg.fori_loop(0, m, lambda j, y: y * t + x[m - 1 - j], cnp.zeros_like(t))
    return 0.5 * cnp.sum((cnp.sign(t) - values) ** 2)


def prepare(given: Mapping[str, Any]) -> tuple[Any, ...]:
    return np.array(given["x"], np.float64), np.int64(given["n"])


MODULE = Module(
    {
        "primal": Evaluation(compiled(half_squares, 1, "n"), prepare, float),
        "gradient": Evaluation(compiled(cg.grad(half_squares), 1, "n"), prepare),
    },
    example={"x": [0.3, -0.2, 0.1], "n": 5},
)
