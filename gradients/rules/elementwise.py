"""Derivatives of elementwise ops, from the facts that stand with their declarations."""

from __future__ import annotations

from ctrlgrad.gradients.table import elementwise, not_differentiable
from ctrlgrad.ops.elementwise import FACTS

for _name, _facts in FACTS.items():
    if _facts.partials:
        elementwise(_name, *_facts.partials)
    elif _facts.partials is not None:
        not_differentiable(_name)
# The identity whose derivative is zero.
not_differentiable("stop_gradient")
