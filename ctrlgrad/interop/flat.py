"""A function of pytrees as one of the arrays in them: what a tracer is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.signature import Static

_RESULTS = (Tensor, jax.Array, np.ndarray, np.generic, bool, int, float, complex)


class Flat:
    """A function for arguments of one signature, as a function of those that are arrays.

    Called once, by the tracer. From then on it knows which results are no arrays, and how all are put together.

    Args:
        treedef: the structure of the arguments, as JAX flattens `(args, kwargs)`.
        kinds: a `Static` for each leaf that reaches `fn` as it is, anything else for an array.
        result: makes of a result what the tracer takes.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        treedef: Any,
        kinds: Sequence[Any],
        result: Callable[[Any], Any] = lambda x: x,
    ) -> None:
        self.fn, self.kinds, self.result = fn, tuple(kinds), result
        # By which JAX calls it in errors.
        self.__name__ = str(getattr(fn, "__name__", type(fn).__name__))
        self._arguments = treedef
        # The results that are no arrays, by their place.
        self._rest: dict[int, Any] = {}
        self._results: Any = None

    @property
    def arrays(self) -> list[Any]:
        """The kinds of the arguments that are arrays."""
        return [kind for kind in self.kinds if not isinstance(kind, Static)]

    def __call__(self, *arrays: Any) -> list[Any]:
        """The results that are arrays."""
        given = iter(arrays)
        leaves = [kind.value if isinstance(kind, Static) else next(given) for kind in self.kinds]
        args, kwargs = jax.tree_util.tree_unflatten(self._arguments, leaves)
        found, self._results = jax.tree_util.tree_flatten(self.fn(*args, **kwargs))
        self._rest = {i: x for i, x in enumerate(found) if not isinstance(x, _RESULTS)}
        return [self.result(x) for x in found if isinstance(x, _RESULTS)]

    def unflatten(self, arrays: Sequence[Any]) -> Any:
        """The results of the function, with these arrays in their places."""
        if self._rest:
            given = iter(arrays)
            total = len(arrays) + len(self._rest)
            arrays = [self._rest[i] if i in self._rest else next(given) for i in range(total)]
        return jax.tree_util.tree_unflatten(self._results, arrays)
