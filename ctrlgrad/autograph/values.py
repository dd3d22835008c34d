"""Values of Python variables in traced control flow: arrays at the leaves of a pytree, and static parts.

Arrays, numbers and tensors can change in a traced loop or differ between branches. All else (None, strings,
functions, objects, the shape of the pytree) is static: it must be the same on every path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ctrlgrad import tree
from ctrlgrad.autograph.undefined import Undefined, UndefinedReturnValue
from ctrlgrad.errors import CtrlgradError
from ctrlgrad.frontend.apply import EagerStack, is_weak, result_dtype, type_of
from ctrlgrad.frontend.checks import type_name
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir import Builder, StackType, TensorType, Type, Value, join

_CONSTANTS = (bool, int, float, complex, str, bytes, type(None))


def is_array(x: Any) -> bool:
    """Return true if x is a tensor or could become one: an array or a number of a dtype that graphs hold."""
    if isinstance(x, Tensor | EagerStack | bool | int | float | complex):
        return True
    if not isinstance(x, np.ndarray | np.generic) and not hasattr(x, "__array__"):
        return False
    try:
        type_of(x)
    except CtrlgradError:
        return False
    return True


def same(a: Any, b: Any) -> bool:
    """Return true if two leaves are known to be the same value without running anything."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.value is b.value
    if isinstance(a, _CONSTANTS):
        return bool(a == b)
    if isinstance(a, np.ndarray | EagerStack):
        return False
    try:
        return (a == b) is True
    except Exception:
        return False


def describe(value: Any) -> str:
    """A value as errors show it."""
    if isinstance(value, Undefined | UndefinedReturnValue):
        return "no value"
    if value is None:
        return "None"
    if isinstance(value, tuple | list):
        inside = ", ".join(describe(x) for x in value[:6]) + (", ..." if len(value) > 6 else "")
        return f"({inside})" if isinstance(value, tuple) else f"[{inside}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {describe(x)}" for key, x in list(value.items())[:6]) + "}"
    if is_array(value):
        return type_name(value)
    return repr(value) if isinstance(value, str | bytes) else f"a {type(value).__name__}"


def joint_type(leaves: Sequence[Any]) -> Type | None:
    """The type that arrays from different paths share, or None where they do not fit together.

    Python numbers take the dtype of the arrays; dtypes of arrays must agree. A dimension that is unknown on one
    path is unknown.
    """
    types = [type_of(x) for x in leaves]
    if all(isinstance(t, TensorType) for t in types):
        strong = {t.dtype for x, t in zip(leaves, types, strict=True) if not is_weak(x) and isinstance(t, TensorType)}
        dtype = result_dtype(*leaves)
        if len(strong) > 1 or (strong and dtype not in strong):
            return None
        types = [TensorType(dtype, t.shape) for t in types if isinstance(t, TensorType)]
    joined: Type | None = types[0]
    for t in types[1:]:
        joined = None if joined is None or not _known_dims_agree(joined, t) else join(joined, t)
    return joined


def _known_dims_agree(a: Type, b: Type) -> bool:
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        return a.rank == b.rank and all(m is None or n is None or m == n for m, n in zip(a.shape, b.shape, strict=True))
    return True


def zeros_value(builder: Builder, t: Type) -> Value:
    """Zeros of a type, in place of a value that will not be used; unknown dimensions are empty."""
    if isinstance(t, StackType):
        return builder.emit("stack_new", (), {"element": t.element})
    return builder.constant(zeros_array(t))


def zeros_array(t: Type) -> Any:
    """As `zeros_value`, as an array outside of any trace."""
    if isinstance(t, StackType):
        return EagerStack(t, [])
    return np.zeros([d or 0 for d in t.shape], t.dtype)


def leaf_paths(name: str, treedef: tree.TreeDef) -> list[str]:
    """`y[0]` for the leaves of the variable `y`."""
    return [name + path for path in tree.paths(treedef)]


def weaken(x: Any, weak: bool) -> Any:
    """A tensor marked as standing for a Python number, or not."""
    return Tensor(x.builder, x.value, weak) if isinstance(x, Tensor) and x.weak != weak else x
