"""JAX's abstract values, arguments, errors, and settings, as `from_jax` and `to_jax` share them."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any

import jax
import jaxlib
import numpy as np
from jax._src.config import traceback_filtering

from ctrlgrad.dtypes import NAMES, dtype_kind
from ctrlgrad.errors import CtrlgradError, TypeMismatchError, locate, parts
from ctrlgrad.frontend.apply import is_weak
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir import TensorType
from ctrlgrad.signature import Static, require_hash, static
from ctrlgrad.source import Source, raised_at

# Errors of JAX, which reach the user as errors of this library with JAX's message.
#
# JAX runs while a function is traced and while a rule is. An exception that JAX's own code raises becomes an error
# that names the operation, the user's line and what to do. One that the user's code raises stays as it is.


_FOLDERS = tuple(os.path.join(os.path.abspath(m.__path__[0]), "") for m in (jax, jaxlib))
_BENEATH = (
    os.path.join(os.path.dirname(os.path.abspath(np.__file__)), ""),
    contextlib.__file__,
    functools.__file__,
    "<",
)


def is_of_jax(file: str) -> bool:
    """Return true for a file of JAX's code."""
    return file.startswith(_FOLDERS)


@contextmanager
def told(kind: type[CtrlgradError], problem: str, source: Source | None, hint: str) -> Iterator[None]:
    """A block that calls JAX, whose exceptions become errors of a kind; `source` is where no line of the user's is."""
    try:
        # All frames are kept: the innermost one tells whose code raised.
        with traceback_filtering("off"):
            yield
    except CtrlgradError:
        raise
    except Exception as error:
        frames = list(parts(error.__traceback__))
        # JAX or the user's code may have called NumPy or Python's library: skip frames of these.
        raising = next((file for file in map(_file, reversed(frames)) if not file.startswith(_BENEATH)), "")
        kept: TracebackType | None = None
        for t in reversed(frames):
            if not is_of_jax(_file(t)):
                kept = TracebackType(kept, t.tb_frame, t.tb_lasti, t.tb_lineno)
        error = error.with_traceback(kept)
        if not is_of_jax(raising):
            locate(error, "code that JAX traces for from_jax", source)
            raise
        said = str(error).strip() or "no reason"
        raise kind(
            problem,
            source=raised_at(error) or source,
            expected="a program that JAX takes",
            got=f"JAX's {type(error).__name__}: {said}",
            hint=hint,
        ) from error


def _file(traceback: TracebackType) -> str:
    return traceback.tb_frame.f_code.co_filename


# JAX's settings that decide what a program means.


# In `jax` itself since JAX 0.8.
_enable_x64: Any = (jax if hasattr(jax, "enable_x64") else importlib.import_module("jax.experimental")).enable_x64


def has_x64() -> bool:
    """Return true if JAX has 64-bit types now."""
    config: Any = jax.config
    return bool(config.jax_enable_x64)


def x64_as(on: bool) -> AbstractContextManager[Any]:
    """64-bit types in JAX, or none, for a block."""
    return contextlib.nullcontext() if has_x64() == on else _enable_x64(on)


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
    """Dtype of this library's counterpart of a JAX value."""
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
    """Type of this library's counterpart of a JAX value."""
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
    """A static argument; errors call the function `what`."""
    require_hash(
        x,
        f"{what} is called on an object that is neither an array nor hashable",
        "pytrees of arrays, numbers, and objects that are compared by ==",
        lambda: "register its class as a pytree with jax.tree_util, or close over the object",
    )
    return static(x)


# A function of pytrees as a function of their arrays: arguments and results of a tracer.


_RESULTS = (Tensor, jax.Array, np.ndarray, np.generic, bool, int, float, complex)


class Flat:
    """A function for arguments of one signature, as a function of its array arguments.

    Called once, by the tracer. From then on it knows which results are no arrays, and how all are put together.

    Args:
        treedef: the structure of the arguments, as JAX flattens `(args, kwargs)`.
        kinds: a `Static` for each leaf that reaches `fn` as it is, anything else for an array.
        result: makes of a result what the tracer takes.
    """

    def __init__(
        self, fn: Callable[..., Any], treedef: Any, kinds: Sequence[Any], result: Callable[[Any], Any] = lambda x: x
    ) -> None:
        self.fn, self.kinds, self.result = fn, tuple(kinds), result
        # Name in JAX's errors.
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
