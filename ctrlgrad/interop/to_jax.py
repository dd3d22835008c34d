"""`to_jax`: a function of this library as one of JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ctrlgrad.errors import TracingError, TypeMismatchError
from ctrlgrad.frontend.apply import cast
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.interop.avals import is_key
from ctrlgrad.interop.engine_primitive import Program, bind
from ctrlgrad.interop.settings import has_x64
from ctrlgrad.ir import TensorType
from ctrlgrad.ir.caching import Recent
from ctrlgrad.options import current_options
from ctrlgrad.signature import Static, static
from ctrlgrad.source import here

# Of how many signatures a function's programs are kept.
SIGNATURES = 256


def to_jax(fn: Callable[..., Any]) -> Callable[..., Any]:
    return _ToJax(fn)


@dataclass(eq=False)
class _Signature:
    """A function for arguments of one signature."""

    program: Program
    # The results that are no arrays, by their place, and how the results are put together.
    rest: dict[int, Any]
    treedef: Any

    def __call__(self, arrays: Sequence[Any]) -> Any:
        given = iter(bind(self.program, *arrays) if self.program.results else ())
        total = len(self.program.results) + len(self.rest)
        leaves = [self.rest[i] if i in self.rest else next(given) for i in range(total)]
        return jax.tree_util.tree_unflatten(self.treedef, leaves)


class _ToJax:
    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.name = getattr(fn, "__name__", type(fn).__name__)
        self._signatures: Recent[Any, _Signature] = Recent(SIGNATURES)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<{self.name} for JAX>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, treedef = jax.tree_util.tree_flatten((args, kwargs))
        kinds = tuple(map(self._kind, leaves))
        engine = current_options().engine
        key = (treedef, kinds, has_x64(), engine)
        signature = self._signatures.get(key, lambda: self._traced(treedef, kinds, engine))
        return signature([_array(x) for x, kind in zip(leaves, kinds, strict=True) if isinstance(kind, TensorType)])

    def _traced(self, treedef: Any, kinds: tuple[Any, ...], engine: str) -> _Signature:
        rest: dict[int, Any] = {}
        treedefs: list[Any] = []

        def flat(*tensors: Any) -> list[Any]:
            given = iter(tensors)
            leaves = [kind.value if isinstance(kind, Static) else next(given) for kind in kinds]
            args, kwargs = jax.tree_util.tree_unflatten(treedef, leaves)
            found, out = jax.tree_util.tree_flatten(self.fn(*args, **kwargs))
            is_array = [isinstance(x, _RESULTS) for x in found]
            rest.update({i: x for i, (x, yes) in enumerate(zip(found, is_array, strict=True)) if not yes})
            treedefs[:] = [out]
            return [_narrow(x) for x, yes in zip(found, is_array, strict=True) if yes]

        types = [kind for kind in kinds if isinstance(kind, TensorType)]
        return _Signature(Program(self.name, flat, types, engine), rest, treedefs[0])

    def _kind(self, x: Any) -> Any:
        """What a call's signature has for an argument: its type, or the value itself."""
        if isinstance(x, float | complex) and not isinstance(x, np.generic):
            return TensorType(jax.dtypes.canonicalize_dtype(type(x)))
        if not isinstance(x, jax.Array | np.ndarray | np.generic):
            return self._static(x)
        dtype = x.dtype
        return TensorType(jax.dtypes.canonicalize_dtype(dtype), x.shape)

    def _static(self, x: Any) -> Static:
        return static(x)


_RESULTS = (Tensor, jax.Array, np.ndarray, np.generic, bool, int, float, complex)


def _array(x: Any) -> Any:
    return x if isinstance(x, jax.Array) else jnp.asarray(x)


def _narrow(x: Any) -> Any:
    """A result in the dtype that JAX has for it."""
    return cast(x, jax.dtypes.canonicalize_dtype(x.dtype if hasattr(x, "dtype") else type(x)))
