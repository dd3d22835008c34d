"""JAX's abstract values, and what stands here for a value of theirs."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ctrlgrad.dtypes import NAMES, dtype_kind
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.frontend.apply import is_weak
from ctrlgrad.ir import TensorType
from ctrlgrad.signature import Static, require_hash, static


def is_key(aval: Any) -> bool:
    """Return true if an abstract value is an array of keys of `jax.random`."""
    return jax.numpy.issubdtype(aval.dtype, jax.dtypes.prng_key)


def is_float0(aval: Any) -> bool:
    """Return true for the derivative with respect to integers or booleans: an array without bytes."""
    return bool(aval.dtype == jax.dtypes.float0)


def key_words(aval: Any) -> tuple[int, ...]:
    """The axes that the words of keys have behind those of JAX; none where an abstract value has no keys."""
    return tuple(aval.dtype._impl.key_shape) if is_key(aval) else ()


def constant(x: Any, aval: Any) -> np.ndarray:
    """A constant of a jaxpr as an array."""
    if is_key(aval):
        return np.asarray(jax.random.key_data(x))
    if is_float0(aval):
        return np.zeros(aval.shape, np.bool_)
    return np.asarray(x, dtype_of(aval))


def dtype_of(aval: Any) -> np.dtype:
    """The dtype of what stands here for a value of JAX."""
    if is_key(aval):
        return np.dtype(np.uint32)
    if is_float0(aval):
        return np.dtype(np.bool_)
    dtype: np.dtype = np.dtype(aval.dtype)
    if dtype.name not in NAMES:
        raise TypeMismatchError(
            f"from_jax: the dtype {dtype.name} is not supported",
            expected=", ".join(NAMES) + " and keys",
            got=str(aval),
            hint="use float32 in its place: a network's dtype or param_dtype, or .astype(jnp.float32)",
        )
    return dtype


def tensor_type(aval: Any) -> TensorType:
    """The type of what stands here for a value of JAX."""
    return TensorType(dtype_of(aval), (*aval.shape, *key_words(aval)))


def is_float(aval: Any) -> bool:
    """Return true if values of an abstract value have derivatives."""
    return not is_key(aval) and dtype_kind(np.dtype(aval.dtype)) in "fc"


def has_weak_type(x: Any) -> bool:
    """True if an argument is weakly typed, as Python numbers and some of JAX's arrays are."""
    return bool(x.aval.weak_type) if isinstance(x, jax.Array) else is_weak(x)


def is_array(x: Any) -> bool:
    """True if an argument is an array of NumPy, of JAX, or of a type that converts to NumPy; a class is none."""
    return isinstance(x, jax.Array | np.ndarray | np.generic) or hasattr(type(x), "__array__")


def static_argument(what: str, x: Any) -> Static:
    """An argument that reaches a function as it is; `what` is how errors call the function."""
    require_hash(
        x,
        f"{what} is called on an object that is neither an array nor hashable",
        "pytrees of arrays, numbers, and objects that are compared by ==",
        lambda: "register its class as a pytree with jax.tree_util, or close over the object",
    )
    return static(x)
