"""Gradients: derivative rules, and the transforms of graphs for reverse and forward mode.

`reverse` splits a graph into a forward half that keeps residuals and a backward half that uses them;
`push_forward` computes tangents beside the values. Both give ordinary graphs, so they can be applied again.
"""

if __name__ != "ctrlgrad.gradients":
    raise ImportError("this folder is a part of ctrlgrad: import ctrlgrad.gradients, not gradients")

from ctrlgrad.gradients.adjoint import Pullback
from ctrlgrad.gradients.forward import Pushforward, push_forward
from ctrlgrad.gradients.reverse import reverse
from ctrlgrad.gradients.strong_zeros import strong_zeros_are_on, with_strong_zeros

__all__ = ["Pullback", "Pushforward", "push_forward", "reverse", "strong_zeros_are_on", "with_strong_zeros"]
