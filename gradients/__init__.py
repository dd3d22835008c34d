"""Gradients: derivative rules, and the transforms of graphs for reverse and forward mode.

Both transforms give ordinary graphs, so they can be applied again. The modules, in reading order:

    table, rules   tables of derivative rules, and the rules, file by file as in `ctrlgrad.ops`
    activity       the values that a derivative has to visit
    reverse        a graph becomes a forward graph that keeps residuals and a backward graph that uses them
    adjoint        the reverse pass over one scope: cotangents added up node by node
    forward        a graph becomes one that computes a tangent beside each value
    calls          derivatives of `call`: by the user's rule, or recomputed
    row_rules      derivatives of `custom_vmap`
    later          under `vmap`: a function is batched first and differentiated after that
    ranges         intervals that hold values, by interval arithmetic
    strong_zeros   a cotangent that is zero by a selection stays zero
    manner         the manner of differentiation in a block of code
"""

if __name__ != "ctrlgrad.gradients":
    raise ImportError("this folder is a part of ctrlgrad: import ctrlgrad.gradients, not gradients")

from ctrlgrad.gradients.adjoint import Pullback
from ctrlgrad.gradients.forward import Pushforward, push_forward
from ctrlgrad.gradients.manner import Manner, current_manner, differentiating
from ctrlgrad.gradients.reverse import reverse

__all__ = ["Manner", "Pullback", "Pushforward", "current_manner", "differentiating", "push_forward", "reverse"]
