"""Tensors of PyTorch that hold values of a trace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ctrlgrad.errors import LeakedValueError
from ctrlgrad.frontend import trace as tracing
from ctrlgrad.frontend.apply import type_of
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.interop.torch.tensors import to_array
from ctrlgrad.interop.torch.writing import View
from ctrlgrad.source import here


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
            source=here(),
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


__all__ = ["Storage", "TracedTensor", "outside", "value_of"]
