"""Keys of random numbers, and the cipher that makes bits of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad.dtypes import as_dtype, dtype_kind
from ctrlgrad.errors import TypeMismatchError, UnknownSizeError, UserInputError
from ctrlgrad.frontend.functions import publish
from ctrlgrad.ops.term import require_sizes
from ctrlgrad.options import default_float
from ctrlgrad.source import called_function

# Paper, table 4 and equation 3.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_U32 = np.uint32


def key(seed: Any) -> Any:
    """A key, uint32[2], from an integer of up to 64 bits.

    >>> cg.random.key(7)
    array([0, 7], dtype=uint32)
    """
    if isinstance(seed, int):
        if not -(2**63) <= seed < 2**64:
            raise UserInputError(
                "random.key: the seed has more than 64 bits",
                expected="an integer from -2**63 to 2**64 - 1",
                got=str(seed),
                hint="seed % 2**64 is one of 64 bits",
            )
        return np.array([(seed >> 32) & 0xFFFFFFFF, seed & 0xFFFFFFFF], _U32)
    wide = cnp.asarray(seed)
    if dtype_kind(wide.dtype) not in "iu" or wide.ndim:
        raise TypeMismatchError(
            "random.key: the seed is no integer",
            expected="an integer, traced or not",
            got=f"{wide.dtype}{list(wide.shape)}",
            hint="int(seed), or seed.astype(int) of a traced one; ctrlgrad.vmap(ctrlgrad.random.key) takes several",
        )
    wide = wide.astype(np.uint64)
    return cnp.stack([(wide >> np.uint64(32)).astype(_U32), wide.astype(_U32)])


def split(key: Any, num: int | tuple[int, ...] = 2) -> Any:
    """`num` new keys, uint32[num, 2], unpacked or indexed along axis 0; or as many as a shape has elements.

    >>> cg.random.split(cg.random.key(0), 3).shape
    (3, 2)
    """
    key = checked("split", key)
    shape = shape_of("split", (num,) if isinstance(num, int) else num)
    halves = cnp.stack(encrypted(key, math.prod(shape)), axis=1)
    return cnp.reshape(halves, (*shape, 2))


def fold_in(key: Any, data: Any) -> Any:
    """A new key from a key and an integer, such as the number of an iteration.

    >>> first, second = (cg.random.fold_in(cg.random.key(0), k) for k in (1, 2))
    >>> bool((first != second).any())
    True
    """
    key = checked("fold_in", key)
    number = cnp.reshape(cnp.asarray(data).astype(_U32), (1,))
    return cnp.concat(threefry(key[:1], key[1:], np.zeros(1, _U32), number))


def key_data(keys: Any) -> Any:
    """The data of a key. A key here is two uint32, so it is returned; a key of `jax.random.key` is converted.

    >>> cg.random.key_data(cg.random.key(7))
    array([0, 7], dtype=uint32)
    """
    return cnp.asarray(keys)


def wrap_key_data(key_bits_array: Any, *, impl: Any = None) -> Any:
    """A key of two uint32; the opposite of `key_data`.

    >>> cg.random.wrap_key_data(np.array([0, 7], np.uint32))
    array([0, 7], dtype=uint32)
    """
    return checked("wrap_key_data", key_bits_array)


def clone(key: Any) -> Any:
    """The same key again: it draws the same numbers.

    >>> cg.random.clone(cg.random.key(7))
    array([0, 7], dtype=uint32)
    """
    return checked("clone", key)


def key_impl(keys: Any) -> str:
    """Name of the generator of a key: always "threefry2x32".

    >>> cg.random.key_impl(cg.random.key(7))
    'threefry2x32'
    """
    checked("key_impl", keys)
    return "threefry2x32"


def encrypted(key: Any, count: int) -> tuple[Any, Any]:
    """The ciphers of the counters 0, 1, ..., each in two halves."""
    numbers = np.arange(count, dtype=np.uint64)
    high, low = (numbers >> np.uint64(32)).astype(_U32), numbers.astype(_U32)
    return threefry(key[:1], key[1:], high, low)


def threefry(k0: Any, k1: Any, x0: Any, x1: Any) -> tuple[Any, Any]:
    """Threefry-2x32, 20 rounds: a rotation after each, the key added after every fourth.

    All are arrays of one dimension: integers wrap in them, where NumPy's scalars would warn.
    """
    keys = (k0, k1, k0 ^ k1 ^ _U32(_PARITY))
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = ((x1 << _U32(distance)) | (x1 >> _U32(32 - distance))) ^ x0
        x0 = x0 + keys[(group + 1) % 3]
        x1 = x1 + keys[(group + 2) % 3] + _U32(group + 1)
    return x0, x1


def threefry2x32(k0: Any, k1: Any, x0: Any, x1: Any) -> tuple[Any, Any]:
    """The two halves of counters (x0, x1), encrypted with keys (k0, k1): uint32, of shapes that broadcast together.

    >>> from ctrlgrad.random.keys import threefry2x32
    >>> [f"{int(x[0]):x}" for x in threefry2x32(*np.zeros((4, 1), np.uint32))]
    ['6b200159', '99ba4efe']
    """
    shape = cnp.broadcast_shapes(*(cnp.asarray(x).shape for x in (k0, k1, x0, x1)))
    flat = [cnp.ravel(cnp.broadcast_to(cnp.asarray(x), shape)) for x in (k0, k1, x0, x1)]
    first, second = threefry(*flat)
    return cnp.reshape(first, shape), cnp.reshape(second, shape)


def checked(operation: str, key: Any) -> Any:
    """A key as two uint32."""
    if hasattr(key, "dtype"):
        key = cnp.asarray(key)
    dtype, shape = getattr(key, "dtype", None), tuple(getattr(key, "shape", ()))
    if dtype != np.uint32 or shape != (2,):
        raise TypeMismatchError(
            f"random.{called_function(__package__) or operation}: not a key",
            expected="uint32[2], as random.key and random.split make them",
            got=f"{dtype}{list(shape)}" if dtype is not None else type(key).__name__,
            hint="pass random.key(seed), or one row of random.split(key)",
        )
    return key


def shape_of(operation: str, shape: Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    operation = called_function(__package__) or operation
    require_sizes(f"random.{operation}", sizes)
    if any(not isinstance(n, int | np.integer) for n in sizes):
        raise UnknownSizeError(
            f"random.{operation}: not a shape of known sizes",
            expected="a tuple of ints",
            got=repr(shape),
            hint="sizes are known when the function is traced: those of an array, x.shape, or an argument by\n"
            "static_argnums; else draw as many numbers as there may be, and mask them",
        )
    return tuple(int(n) for n in sizes)


def float_of(operation: str, dtype: Any) -> np.dtype:
    found = default_float() if dtype is None else as_dtype(f"random.{operation}", dtype)
    if dtype_kind(found) != "f":
        raise TypeMismatchError(f"random.{operation}: no such dtype", expected="a dtype of floats", got=found.name)
    return found


# As it is called in JAX.
PRNGKey = key


publish(__name__, "checked", "encrypted", "float_of", "shape_of", "threefry")
