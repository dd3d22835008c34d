"""Gradients: derivative rules, and the transforms of graphs for reverse and forward mode.

`reverse` splits a graph into a forward half that keeps residuals and a backward half that uses them;
`push_forward` computes tangents beside the values. Both give ordinary graphs, so they can be applied again.
"""

if __name__ != "ctrlgrad.gradients":
    raise ImportError("this folder is a part of ctrlgrad: import ctrlgrad.gradients, not gradients")

from ctrlgrad.gradients.adjoint import Pullback
from ctrlgrad.gradients.forward import Pushforward, push_forward
from ctrlgrad.gradients.manner import Manner, current_manner, differentiating
from ctrlgrad.gradients.reverse import reverse

__all__ = ["Manner", "Pullback", "Pushforward", "current_manner", "differentiating", "push_forward", "reverse"]
