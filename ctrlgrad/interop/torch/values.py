"""Tensors of PyTorch that hold values of a trace."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

import ctrlgrad.numpy as cnp
from ctrlgrad.errors import LeakedValueError
from ctrlgrad.frontend import trace as tracing
from ctrlgrad.frontend.apply import cast, type_of
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.interop.torch.arranging import axes_of
from ctrlgrad.interop.torch.operators import TABLE, unsupported
from ctrlgrad.interop.torch.tensors import to_array


class Storage:
    """The value that a tensor and its views share, and the trace that it was made in."""

    def __init__(self, value: Any) -> None:
        self.value, self.version, self.builder = value, 0, tracing.current()


class TracedTensor(torch.Tensor):
    """A tensor of PyTorch that holds a value of a trace, or a known array; or a view of one that does."""

    storage: Storage
    views: tuple[View, ...]
    # The first number of it, where it is known though the rest are not.
    first: int | None
    _seen: tuple[int, Any]

    @staticmethod
    def __new__(cls, fake: Any, storage: Storage, views: tuple[View, ...] = ()) -> TracedTensor:
        made: TracedTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            fake.size(),
            strides=fake.stride(),
            storage_offset=fake.storage_offset(),
            dtype=fake.dtype,
            device="cpu",
        )
        made.fake, made.storage, made.views, made.first = fake, storage, views, None
        made._seen = (-1, None)
        return made

    def __init__(self, *_: Any) -> None:
        super().__init__()

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise LeakedValueError(
            "a traced tensor is used after its function has ended",
            expected="a value that the function returned",
            got=str(func),
            hint="return the value",
        )

    def __ctrlgrad_value__(self) -> Any:
        """Current value: a traced tensor, or an array."""
        if not self.views:
            return self.storage.value
        if self._seen[0] != self.storage.version or isinstance(self._seen[1], Tensor):
            value = self.storage.value
            for view in self.views:
                value = view.of(value)
            self._seen = (self.storage.version, value)
        return self._seen[1]

    def __deepcopy__(self, memo: Any) -> TracedTensor:
        copy: Any = self.clone()
        return copy  # type: ignore[no-any-return]

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"TracedTensor({type_of(value_of(self))})"

    __str__ = __repr__


@contextlib.contextmanager
def outside() -> Iterator[None]:
    """PyTorch as it is without a trace."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


def value_of(x: Any) -> Any:
    """The value of a tensor: of the trace, or an array."""
    if isinstance(x, TracedTensor):
        return x.__ctrlgrad_value__()
    with outside():
        return to_array(x)


# Views, and writes through them: a write to a view changes its base.

_RESHAPED = ("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "alias", "_reshape_alias", "view_as")


@dataclass(frozen=True, eq=False)
class View:
    """An operator that gives a view of its first operand, or the view of that number of several."""

    name: str
    number: int | None
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def of(self, value: Any) -> Any:
        fn = TABLE.get(self.name) or TABLE[self.name.split(".")[0]]
        found = fn(value, *self.args[1:], **self.kwargs)
        return found if self.number is None else found[self.number]

    def put(self, value: Any, new: Any) -> Any:
        """The value whose view is `new`, and all else as it was."""
        plain = self.name.split(".")[0]
        if plain in _RESHAPED:
            return cnp.reshape(new, value.shape)
        if plain == "permute":
            return cnp.transpose(new, tuple(int(i) for i in np.argsort(axes_of(value, self.args[1]))))
        if plain in ("transpose", "t"):
            return TABLE[plain](new, *self.args[1:])
        if plain in ("select", "slice"):
            return TABLE[plain + "_scatter"](value, new, *self.args[1:], **self.kwargs)
        if not all(isinstance(n, int) for n in value.shape):
            raise unsupported(self.name, reason="a tensor of unknown sizes is changed through this view of it")
        places = self.of(np.arange(math.prod(value.shape)).reshape(value.shape))
        flat = cnp.at(cnp.ravel(value))[cnp.ravel(places)].set(cnp.ravel(cast(new, value.dtype)))
        return cnp.reshape(flat, value.shape)


def written(value: Any, views: Sequence[View], new: Any, name: str) -> Any:
    """The value after `new` was written through views of views."""
    if not views:
        return new
    first, *more = views
    return first.put(value, written(first.of(value), more, new, name))
