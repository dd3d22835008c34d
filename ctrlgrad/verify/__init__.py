"""Judges of derivatives that share no rule with the library: finite differences and JAX.

The modules, in reading order:

    check            `check_grads`: the library's derivatives against both judges
    report           the result, as data and as a table
    jax_judge        derivatives of a graph by JAX, at any order
    jax_translation  the graph as a function of JAX
    recording        one run of the graph, for the sizes that JAX must know
    originals        functions of JAX in the graph, which stay as they are
"""

from ctrlgrad.verify.check import check_grads
from ctrlgrad.verify.report import GradientReport

__all__ = ["GradientReport", "check_grads"]
