"""Orders and positions are integers: sorted values get their derivative from the `getitem` that reads them."""

from __future__ import annotations

from ctrlgrad.gradients.table import not_differentiable

not_differentiable("argsort top_k searchsorted nonzero")
