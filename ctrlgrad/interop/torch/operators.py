"""The table of ATen's operators: the function of this library that each operator of PyTorch is.

A key is an operator without its overload ("add"), or with it where overloads differ in meaning ("max.dim"). An entry is
a function of the operator's arguments in the order of its schema: tensors are traced tensors or arrays, dtypes are
NumPy's, and arguments that say where and how numbers lie in memory (`device`, `layout`, `memory_format`) are left out.
Families of entries stand in files of their own. Each result is cast to the dtype that PyTorch states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ctrlgrad.errors import UnsupportedPrimitiveError
from ctrlgrad.frontend.apply import cast
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.interop.torch.tensors import DTYPES
from ctrlgrad.source import Source, here

Entry = Callable[..., Any]

TABLE: dict[str, Entry] = {}

# Operators whose operands are cast to the dtype of the result before they are combined.
PROMOTED: set[str] = set()

_RANDOM = "its random numbers have no state that a function could be given: call module.eval(), or pass numbers in"
_GRADIENT = "it is a step of PyTorch's own reverse mode: ctrlgrad.grad differentiates the operator itself"
_STRIDES = "it reads memory by strides, which traced tensors do not have"

# Operators that have no meaning here, and the reason.
REFUSED: dict[str, str] = {
    **dict.fromkeys(("rand", "randn", "randperm", "randint", "rand_like", "randn_like"), _RANDOM),
    **dict.fromkeys(("bernoulli", "multinomial", "normal", "uniform", "poisson", "randint_like"), _RANDOM),
    **dict.fromkeys(("dropout", "normal_functional", "bernoulli_", "normal_", "uniform_", "exponential_", "random_"), _RANDOM),
    **dict.fromkeys(("_adaptive_avg_pool2d_backward", "avg_pool2d_backward", "convolution_backward"), _GRADIENT),
    **dict.fromkeys(("embedding_dense_backward", "max_pool2d_with_indices_backward"), _GRADIENT),
    **dict.fromkeys(("native_group_norm_backward", "native_layer_norm_backward"), _GRADIENT),
    **dict.fromkeys(("as_strided", "empty_strided", "sym_storage_offset", "sym_stride"), _STRIDES),
    "resize_": "it leaves numbers undefined",
    "sym_is_contiguous": _STRIDES,
}

_PLACES = ("device", "layout", "memory_format", "non_blocking", "pin_memory", "requires_grad", "generator")


def entry(*names: str) -> Callable[[Entry], Entry]:
    """Give the translation of operators: a function of their arguments."""

    def register(fn: Entry) -> Entry:
        for name in names:
            TABLE[name] = fn
        return fn

    return register


def name_of(op: Any) -> str:
    """`aten.max.dim` as "max.dim"; the default overload has no second part."""
    name = str(op.name()).removeprefix("aten::")
    return name if op.namespace == "aten" else str(op.name())


def find(op: Any) -> Entry | None:
    """The entry of an operator, by its overload or else by its name alone."""
    name = name_of(op)
    return TABLE.get(name) or TABLE.get(name.split(".")[0])


def arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of an operator as an entry takes them."""
    named = {name: _plain(x) for name, x in kwargs.items() if name not in _PLACES}
    return [_plain(x) for x in args], named


def _plain(x: Any) -> Any:
    return DTYPES.get(x, x) if isinstance(x, torch.dtype) else x


def promoted(op: Any, args: list[Any], dtype: np.dtype | None) -> list[Any]:
    """Operands of an elementwise operator in the dtype of its result, a float or a complex number."""
    if dtype is None or dtype.kind not in "fcV" or name_of(op).split(".")[0] not in PROMOTED:
        return args
    return [cast(x, dtype) if is_array(x) and x.dtype != dtype and x.dtype.kind != "b" else x for x in args]


def is_array(x: Any) -> bool:
    return isinstance(x, Tensor | np.ndarray | np.generic)


def unsupported(name: str, source: Source | None = None, reason: str | None = None) -> UnsupportedPrimitiveError:
    """The error of an operator that cannot be read."""
    reason = reason or REFUSED.get(name) or REFUSED.get(name.split(".")[0])
    return UnsupportedPrimitiveError(
        f"from_torch: PyTorch's operator {name!r} " + (f"is not supported: {reason}" if reason else "has no translation"),
        source=source or here(),
        expected="operators of the table in docs/torch_operators.md, and those that PyTorch decomposes into them",
        got=name,
        hint="write that part of the module with other operators",
    )


def sized(x: Any, *axes: int) -> tuple[Any, ...]:
    """The sizes of some axes."""
    shape = x.shape
    return tuple(shape[axis] for axis in axes)


__all__ = [
    "PROMOTED",
    "REFUSED",
    "TABLE",
    "Entry",
    "arguments",
    "entry",
    "find",
    "is_array",
    "name_of",
    "promoted",
    "sized",
    "unsupported",
]
