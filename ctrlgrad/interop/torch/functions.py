"""PyTorch's functions as the user calls them, while a trace goes on.

Here recurrent networks are still one operator, indices and numbers may be traced, and `item()` gives a number of the
trace. `Run` is what of the trace the functions need: how a value becomes a tensor, and a tensor a value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

import ctrlgrad.numpy as cnp
from ctrlgrad.autograph.values import SAME
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.interop.torch.entries import TABLE
from ctrlgrad.interop.torch.operators import at
from ctrlgrad.interop.torch.values import TracedTensor, value_of


class Run(Protocol):
    """The trace that goes on."""

    def wrap(self, value: Any) -> TracedTensor: ...
    def value(self, x: Any) -> Any: ...
    def number(self, x: Any) -> Any: ...
    def size(self, value: Any) -> Any: ...
    def store(self, target: Any, found: Any, name: str) -> None: ...


class Functions(TorchFunctionMode):
    """PyTorch's functions as the user calls them."""

    def __init__(self, trace: Run) -> None:
        super().__init__()
        self.trace = trace

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        special = _SPECIAL.get(func)
        if special is not None:
            found = special(self.trace, *args, **kwargs)
            if found is not NotImplemented:
                return found
        whole = _WHOLE.get(func)
        if whole is not None and any(map(_is_traced, _pytree.arg_tree_leaves(*args, **kwargs))):
            given, named = (_pytree.tree_map(self.trace.value, x) for x in (list(args), kwargs))
            found = TABLE[whole](*given, **named)
            return tuple(map(self.trace.wrap, found)) if isinstance(found, tuple) else self.trace.wrap(found)
        if any(isinstance(x, Tensor) for x in _pytree.arg_tree_leaves(*args, **kwargs)):
            args, kwargs = (_pytree.tree_map(self._number, x) for x in (args, kwargs))
        if func in _FACTORIES:
            args, kwargs = (_pytree.tree_map(self._as_size, x) for x in (args, kwargs))
        return func(*args, **kwargs)

    def _number(self, x: Any) -> Any:
        """A number of the trace as PyTorch takes it: a whole one may be a size."""
        if not isinstance(x, Tensor):
            return x
        return self.trace.size(x) if x.dtype.kind in "iu" and not x.ndim else self.trace.wrap(x)

    def _as_size(self, x: Any) -> Any:
        if isinstance(x, TracedTensor) and x.dtype in (torch.int64, torch.int32) and not x.dim():
            return self.trace.size(value_of(x))
        return x


def _is_traced(x: Any) -> bool:
    return isinstance(x, TracedTensor) and isinstance(value_of(x), Tensor)


def _item(trace: Run, x: Any) -> Any:
    """The number of a tensor: a traced one stands for a Python number."""
    value = trace.number(x)
    if not isinstance(value, Tensor):
        return value.item()
    scalar = cnp.reshape(value, ())
    return Tensor(scalar.builder, scalar.value, weak=True)


def _refused(what: str) -> Callable[..., Any]:
    def refuse(trace: Run, x: Any, *more: Any, **named: Any) -> Any:
        value = value_of(x)
        if not isinstance(value, Tensor):
            return NotImplemented
        return getattr(value, what)(*more)

    return refuse


def _has_traced_key(key: Any) -> bool:
    parts = key if isinstance(key, tuple) else (key,)
    return any(
        isinstance(k, Tensor)
        or (isinstance(k, TracedTensor) and not k.dim() and k.dtype != torch.bool and _is_traced(k))
        or (isinstance(k, slice) and any(isinstance(b, Tensor | TracedTensor) for b in (k.start, k.stop, k.step)))
        for k in parts
    )


def _plain_key(trace: Run, key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(_plain_key(trace, k) for k in key)
    if isinstance(key, slice):
        return slice(*(_plain_key(trace, b) for b in (key.start, key.stop, key.step)))
    return trace.value(key)


def _getitem(trace: Run, x: Any, key: Any) -> Any:
    """An element at a place that is traced."""
    if not _has_traced_key(key):
        return NotImplemented
    return trace.wrap(at(value_of(x), _plain_key(trace, key)))


def _setitem(trace: Run, x: Any, key: Any, new: Any) -> Any:
    if new is SAME:
        return None
    if not _has_traced_key(key):
        return NotImplemented
    found = cnp.at(value_of(x))[_plain_key(trace, key)].set(trace.value(new))
    trace.store(x, trace.wrap(found), "item assignment")
    return None


def _pack(trace: Run, x: Any, lengths: Any, batch_first: bool) -> Any:
    if not _is_traced(x) and not _is_traced(lengths):
        return NotImplemented
    data, counts = TABLE["_pack_padded_sequence"](value_of(x), value_of(lengths), batch_first)
    data, counts = trace.wrap(data), trace.wrap(counts)
    counts.first = x.shape[0 if batch_first else 1]
    return data, counts


def _ctc_loss(
    trace: Run,
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:
    if not _is_traced(log_probs):
        return NotImplemented
    given = [trace.value(x) for x in (log_probs, targets, input_lengths, target_lengths)]
    how = ("none", "mean", "sum").index(reduction)
    return trace.wrap(TABLE["ctc_loss"](*given, blank, how, zero_infinity))


_SPECIAL: dict[Any, Callable[..., Any]] = {
    torch.nn.functional.ctc_loss: _ctc_loss,
    torch.Tensor.item: _item,
    torch.Tensor.__bool__: _refused("__bool__"),
    torch.Tensor.__int__: _refused("__int__"),
    torch.Tensor.__float__: _refused("__float__"),
    torch.Tensor.__index__: _refused("__index__"),
    torch.Tensor.tolist: _refused("tolist"),
    torch.Tensor.numpy: _refused("__array__"),
    torch.Tensor.__array__: _refused("__array__"),
    torch.Tensor.__getitem__: _getitem,
    torch.Tensor.__setitem__: _setitem,
    torch._C._VariableFunctions._pack_padded_sequence: _pack,
}
_VF = torch._C._VariableFunctions
# Functions that PyTorch would take apart before the table sees them.
_WHOLE: dict[Any, str] = {
    **{getattr(_VF, name): name for name in ("lstm", "gru", "rnn_tanh", "rnn_relu", "_pad_packed_sequence")},
    **{getattr(_VF, name): name for name in ("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell", "ctc_loss")},
    torch._C._nn.linear: "linear",
    torch._C._nn.scaled_dot_product_attention: "scaled_dot_product_attention",
}
_FACTORIES = {torch.zeros, torch.ones, torch.full, torch.empty, torch.arange, torch.eye}
