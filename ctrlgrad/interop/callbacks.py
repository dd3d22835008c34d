"""Calls of Python from a running program, and what has no meaning outside of JAX."""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad.debug import callback
from ctrlgrad.interop.primitives import REFUSED, Equation, entry

REFUSED |= {
    "io_callback": "it has effects whose order and number JAX states, and a gradient runs parts of a program again",
    "pure_callback": "no graph calls Python for a value that it goes on with",
}


@entry("debug_callback")
def _debug_callback(equation: Equation, *operands: Any) -> Any:
    function = equation.params["callback"]
    callback(lambda arrays, iterations: function(*map(np.asarray, arrays)), list(operands), "jax.debug.callback")
    return []
