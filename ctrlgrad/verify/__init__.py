"""Judges of derivatives that share no rule with the library: finite differences and JAX.

`check` compares the library with both, and `report` is the result. `jax_judge` differentiates a graph at any order that
`jax_translation` has translated to JAX. `recording` runs the graph once, for the sizes that JAX must know.
"""

from ctrlgrad.verify.check import check_grads
from ctrlgrad.verify.report import GradientReport

__all__ = ["GradientReport", "check_grads"]
