"""Derivatives of identities: a watched value's cotangent is shown on its way back; a barrier changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ctrlgrad.gradients.table import jointly_linear, linear, not_differentiable, refuse, reverse
from ctrlgrad.ops.term import Term

not_differentiable("callback")
refuse("pure_callback", "give the function around it a rule, with ctrlgrad.custom_jvp or ctrlgrad.custom_vjp")


def _watch(ct: Term, out: Term, x: Term, fn: Callable[..., Any], label: str) -> Term:
    ct.builder.emit_all("callback", [ct.value], {"fn": fn, "label": label})
    return ct


linear("barrier", lambda ct, x, name=None: ct)
jointly_linear("watch", (0,))
reverse("watch", _watch)
