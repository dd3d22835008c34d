"""The table of ATen's operators: the function of this library that each operator of PyTorch is.

A key is an operator without its overload ("add"), or with it where overloads differ in meaning ("max.dim"). An entry is
a function of the operator's arguments in the order of its schema: tensors are traced tensors or arrays, dtypes are
NumPy's, and arguments that say where and how numbers lie in memory (`device`, `layout`, `memory_format`) are left out.
Families of entries stand in files of their own. Each result is cast to the dtype that PyTorch states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch

import ctrlgrad.numpy as cnp
from ctrlgrad import random
from ctrlgrad.errors import UnsupportedPrimitiveError
from ctrlgrad.frontend import trace as tracing
from ctrlgrad.frontend.apply import cast
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.interop.torch.tensors import DTYPES
from ctrlgrad.source import Source, here

Entry = Callable[..., Any]

TABLE: dict[str, Entry] = {}

# Operators whose operands are cast to the dtype of the result before they are combined.
PROMOTED: set[str] = set()

_RANDOM = "its random numbers have no state that a function could be given: call module.eval(), or pass numbers in"
_DROPOUT = "pass dropout_key=ctrlgrad.random.key(seed), another at each step, or call module.eval()"
_REPEATED = "inside of a loop or branch that depends on data each iteration would draw the same numbers"
_GRADIENT = "it is a step of PyTorch's own reverse mode: ctrlgrad.grad differentiates the operator itself"
_STRIDES = "it reads memory by strides, which traced tensors do not have"

# Operators without a meaning here, with the reason.
REFUSED: dict[str, str] = {
    **dict.fromkeys(("rand", "randn", "randperm", "randint", "rand_like", "randn_like"), _RANDOM),
    **dict.fromkeys(("multinomial", "normal", "uniform", "poisson", "randint_like"), _RANDOM),
    **dict.fromkeys(("normal_functional", "normal_", "uniform_", "exponential_", "random_"), _RANDOM),
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
        TABLE.update(dict.fromkeys(names, fn))
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


class NeedsKey(UnsupportedPrimitiveError):
    """Dropout, or another draw of zeros and ones, in a call that has no key."""


class Draws:
    """Keys of the operators of one trace that draw zeros and ones, each its own."""

    def __init__(self, key: Any) -> None:
        self._key, self._count, self._builder = key, 0, tracing.current()

    def next(self, name: str) -> Any:
        if tracing.current() is not self._builder:
            raise unsupported(name, reason=_REPEATED, hint="draw a mask for all iterations before the loop")
        self._count += 1
        return random.fold_in(self._key, self._count - 1)


# Keys of the trace that goes on; None where the call has none.
DRAWS: ContextVar[Draws | None] = ContextVar("keys of PyTorch's dropout", default=None)


def drawn(name: str, probability: Any, shape: Any) -> Any:
    """A bool array of a shape, each element true with a probability, which may be an array."""
    draws = DRAWS.get()
    if draws is None:
        raise unsupported(name, reason="it draws random numbers, and has no key", hint=_DROPOUT, kind=NeedsKey)
    return random.uniform(draws.next(name), shape, np.float32) < probability


def dropped(name: str, x: Any, p: float) -> Any:
    """x with each element 0 with probability p, and divided by 1 - p otherwise."""
    if not p:
        return x
    return cnp.zeros_like(x) if p == 1 else cnp.where(drawn(name, 1 - p, x.shape), x / (1 - p), 0)


def unsupported(
    name: str,
    source: Source | None = None,
    reason: str | None = None,
    hint: str = "write that part of the module with other operators",
    kind: type[UnsupportedPrimitiveError] = UnsupportedPrimitiveError,
) -> UnsupportedPrimitiveError:
    """The error of an operator that cannot be read."""
    reason = reason or REFUSED.get(name) or REFUSED.get(name.split(".")[0])
    return kind(
        f"from_torch: PyTorch's operator {name!r} "
        + (f"is not supported: {reason}" if reason else "has no translation"),
        source=source or here(),
        expected="operators of the table in docs/torch_operators.md, and those that PyTorch decomposes into them",
        got=name,
        hint=hint,
    )


def at(x: Any, key: Any) -> Any:
    """x[key], where x may be known and the key may be traced."""
    return FUNCTIONS["getitem"](x, key)
