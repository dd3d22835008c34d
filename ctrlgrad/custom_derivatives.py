"""Functions with derivatives of their own, and what their rules use, under the names of `jax.custom_derivatives`."""

from __future__ import annotations

from typing import Any

from ctrlgrad import tree
from ctrlgrad.frontend.apply import float0_like, type_of
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.transforms.custom_calls import (
    CustomVJPPrimal,
    SymbolicZero,
    closure_convert,
    custom_gradient,
    custom_jvp,
    custom_vjp,
    symbolic_zero,
)


def zero_from_primal(val: Any, symbolic_zeros: bool = False) -> Any:
    """The tangent of zero for a pytree of values: zeros, of dtype `float0` for integers; or a `SymbolicZero` each.

    >>> zero_from_primal(2.5), zero_from_primal(3).dtype == [("float0", "V")]
    (np.float64(0.0), True)
    """

    def zero(x: Any) -> Any:
        t = type_of(x)
        if symbolic_zeros:
            return symbolic_zero(t)
        return FUNCTIONS["zeros_like"](x)[()] if t.is_differentiable else float0_like(x)

    return tree.map(zero, val)


def custom_vjp_primal_tree_values(tree_of_primals: Any) -> Any:
    """The values of what a forward rule with `symbolic_zeros` takes: of each `CustomVJPPrimal` its `value`.

    >>> custom_vjp_primal_tree_values({"x": CustomVJPPrimal(2.0, True)})
    {'x': 2.0}
    """
    return tree.map(lambda x: x.value, tree_of_primals)


__all__ = [
    "CustomVJPPrimal", "SymbolicZero", "closure_convert", "custom_gradient", "custom_jvp", "custom_vjp",
    "custom_vjp_primal_tree_values", "zero_from_primal",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
