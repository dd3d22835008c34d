"""Arrays on a card that outlive a run: what functions with `engine="cuda"` return, and what other libraries hand in.

A `DeviceArray` never changes. It is lent to other libraries without a copy, by DLPack and by the CUDA array interface,
and NumPy gets a copy. The engine may overwrite its memory once it has been donated, and only if it was never lent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from ctrlgrad.dtypes import BFLOAT16, NAMES
from ctrlgrad.errors import TypeMismatchError, UserInputError

if TYPE_CHECKING:
    from ctrlgrad.engines.cuda.library import ArrayLibrary

# DLPack's numbers of memory that kernels reach: the card's own, and managed memory.
_CUDA_DEVICES = (2, 13)

Apply = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Computes a function of NumPy's on arrays of the card, which stay there."""


class DeviceArray(NDArrayOperatorsMixin):
    """An array in a card's memory.

    It has `shape`, `dtype`, `ndim`, `size`, `nbytes` and `device`; operators and NumPy's functions compute on the card
    and give arrays there. `numpy.asarray(x)`, `float(x)` and `x.item()` wait for the card and copy.
    `cupy.from_dlpack(x)`, `torch.from_dlpack(x)` and `jax.dlpack.from_dlpack(x)` see the same memory. Functions with
    engine="cuda" return such arrays; users do not construct them.

    >>> result = cg.function(lambda x: 2 * x, engine="native")(np.ones(2))
    >>> isinstance(result, cg.DeviceArray), isinstance(result, np.ndarray)
    (False, True)
    """

    __slots__ = ("__weakref__", "_apply", "_array", "_is_lent", "_kept", "_library", "dtype", "shape")

    def __init__(self, library: ArrayLibrary, array: Any, apply: Apply | None = None) -> None:
        self._library, self._array, self._apply = library, array, apply
        self.shape: tuple[int, ...] = tuple(array.shape)
        self.dtype: np.dtype = np.dtype(array.dtype)
        # True if another library may hold the memory: it is kept then, and so never overwritten.
        self._is_lent = False
        self._kept: Any = None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def device(self) -> str:
        """ "cuda:0"."""
        return self._library.name

    @property
    def is_donated(self) -> bool:
        """Return true if the array was donated to a function: it has no memory any more."""
        return self._array is None

    @property
    def array(self) -> Any:
        """The array library's own array. It must not be written to.

        Raises:
            UserInputError: it was donated.
        """
        if self._array is None:
            raise UserInputError(
                "an array that was donated is used again",
                expected="an array that no function was given to keep",
                got=f"{self.dtype}{list(self.shape)}, donated to a function",
                hint="use the function's result, or leave the argument out of donate_argnums",
            )
        return self._array

    def taken(self) -> Any:
        """Take the array library's array out of this one. The caller is then its only holder, unless it was lent."""
        array, self._array = self.array, None
        if self._is_lent:
            self._kept = array
        return array

    def computing_with(self, apply: Apply) -> DeviceArray:
        """The same memory, with a way to compute on it."""
        return DeviceArray(self._library, self.taken(), apply)

    # On the host.

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("an array on a card becomes one of NumPy's by a copy only")
        with self._library.running():
            (found,) = self._library.read([self.array])
        return np.asarray(found) if dtype is None else np.asarray(found).astype(dtype, copy=False)

    def item(self) -> Any:
        """The only element, as a Python number."""
        return self.__array__().item()

    def tolist(self) -> Any:
        """The elements as Python numbers, in nested lists."""
        return self.__array__().tolist()

    def __float__(self) -> float:
        return float(self.__array__())

    def __int__(self) -> int:
        return int(self.__array__())

    def __complex__(self) -> complex:
        return complex(self.__array__())

    def __bool__(self) -> bool:
        return bool(self.__array__())

    def __index__(self) -> int:
        return int(self.__array__().__index__())

    def __format__(self, spec: str) -> str:
        return format(self.__array__()[()], spec)

    def __repr__(self) -> str:
        if self._array is None:
            return f"DeviceArray(donated, shape={self.shape}, dtype={self.dtype})"
        inner = np.array2string(self.__array__(), separator=", ", prefix="DeviceArray(")
        return f"DeviceArray({inner}, dtype={self.dtype}, device={self.device})"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array of rank 0")
        return self.shape[0]

    # On the card.

    def __getitem__(self, key: Any) -> DeviceArray:
        """A part by numbers, slices, None and the ellipsis, without a copy."""
        for part in key if isinstance(key, tuple) else (key,):
            if part is not None and part is not Ellipsis and not isinstance(part, int | np.integer | slice):
                raise TypeMismatchError(
                    "an array on a card is indexed by an array",
                    expected="whole numbers, slices, None and ...",
                    got=type(part).__name__,
                    hint='index it in a function: ctrlgrad.function(lambda x, i: x[i], engine="cuda")',
                )
        with self._library.running():
            key = key if isinstance(key, tuple) else (key,)
            return self._like(self.array[key if Ellipsis in key else (*key, ...)])

    def reshape(self, *shape: Any) -> DeviceArray:
        """The same elements in another shape."""
        with self._library.running():
            found = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
            return self._like(self.array.reshape(found))

    def astype(self, dtype: Any, copy: bool = True) -> DeviceArray:
        """The elements in another dtype."""
        with self._library.running():
            return self._like(self.array.astype(np.dtype(dtype)))

    def sum(self, axis: Any = None, keepdims: bool = False) -> Any:
        """`numpy.sum`, on the card."""
        return np.sum(self, axis=axis, keepdims=keepdims)

    def _like(self, array: Any) -> DeviceArray:
        return DeviceArray(self._library, array, self._apply)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if self._apply is None or options.get("out") is not None:
            return NotImplemented
        return self._apply(ufunc if method == "__call__" else getattr(ufunc, method), inputs, options)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if self._apply is None or kwargs.get("out") is not None:
            return NotImplemented
        return self._apply(function, args, kwargs)

    # For other libraries.

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype == BFLOAT16:
            # A library that does not find this attribute takes DLPack, which has a name for bfloat16.
            raise AttributeError("the CUDA array interface has no name for bfloat16, but DLPack has")
        self._is_lent = True
        with self._library.running():
            return dict(self.array.__cuda_array_interface__)

    def __dlpack__(self, **options: Any) -> Any:
        self._is_lent = True
        with self._library.running():
            return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number = self.array.__dlpack_device__()
        return int(kind), int(number)


def lies_on_card(x: Any) -> bool:
    """Return true if x is an array in memory of a CUDA device, of any library."""
    if isinstance(x, DeviceArray):
        return True
    if isinstance(x, np.ndarray | np.generic):
        return False
    # Of the class: a traced value of another library raises where its own attributes are asked for.
    if getattr(type(x), "__dlpack_device__", None) is not None:
        try:
            return x.__dlpack_device__()[0] in _CUDA_DEVICES
        except BufferError:
            return False
    return hasattr(x, "__cuda_array_interface__")


def type_on_card(x: Any) -> tuple[np.dtype, tuple[int, ...]]:
    """The dtype and the shape of an array for which `lies_on_card` holds.

    Raises:
        TypeMismatchError: graphs have no such dtype.
    """
    # PyTorch's dtypes are no NumPy dtypes, but have their names.
    name = str(x.dtype).rpartition(".")[2]
    try:
        dtype = np.dtype(name)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.name not in NAMES:
        raise TypeMismatchError(
            f"dtype {x.dtype} is not supported",
            expected="a bool, an integer, a float, bfloat16 among them, or a complex dtype",
            got=f"{type(x).__name__} of {x.dtype}",
            hint="convert the array to float32 before",
        )
    return dtype, tuple(map(int, x.shape))
