"""Views, and what is written through them: a change of a view is a change of what it is a view of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.frontend.apply import cast
from ctrlgrad.interop.torch.arranging import axes_of
from ctrlgrad.interop.torch.operators import TABLE, unsupported

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


__all__ = ["View", "written"]
