"""The process's native routines: their addresses, by which compiled code calls them, and a Python face of each.

A module declares the routine (`declare void @cg_gemm_f32(...)`) and is linked with `products().symbols`.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad import forks
from ctrlgrad.engines.native import target
from ctrlgrad.engines.native.products import blocks, pack, pool, real, tiles
from ctrlgrad.engines.native.products.real import Real
from ctrlgrad.engines.native.products.routines import Routines
from ctrlgrad.errors import UserInputError
from ctrlgrad.threads import MOST_THREADS, default_threads

_HOW_LONG = 5.0  # seconds that resizing waits for a call of another thread


@dataclass(frozen=True)
class Products:
    """The native routines: `symbols` are their addresses by name, `reals` the float types and their tiles."""

    symbols: Mapping[str, int]
    reals: Mapping[str, Real]

    def address(self, name: str) -> int:
        return self.symbols[name]

    def pack(self, b: np.ndarray) -> np.ndarray:
        """The right operand (float32 or float64, any strides) as `matmul_packed` reads it."""
        kind, (k, n), of = real.KINDS[b.dtype.char], b.shape, self.reals[b.dtype.char]
        packed = np.empty(k * -(-n // of.columns) * of.columns + pack.SLACK // of.bytes, b.dtype)
        routine = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 4)
        routine(self.symbols[f"cg_pack_b_{kind}"])(packed.ctypes.data, b.ctypes.data, *_strides(b), k, n)
        return packed

    def scratch_bytes(self, dtype: Any, m: int, n: int, k: int) -> int:
        """Scratch bytes of a product of two matrices (m by k and k by n)."""
        return self._bytes("gemm", dtype, m, n, k) if np.dtype(dtype).char in self.reals else 0

    def matmul(
        self, a: np.ndarray, b: np.ndarray, out: np.ndarray, accumulate: bool = False, in_order: bool = False
    ) -> np.ndarray:
        """out = a @ b, or out += a @ b; `out` has dense rows and shares no memory with `a` and `b`.

        `in_order`: the bits of an element do not depend on where the depth and the rows are cut; see `tiles`.
        """
        (m, k), n = a.shape, b.shape[1]
        if a.dtype.char in self.reals:
            self._need(a.dtype, m, n, False, _strides(b)[1] == 1, in_order)
        name, how = f"cg_gemm_{real.KINDS[a.dtype.char]}", tiles.how(accumulate, in_order)
        self._gemm(name, a, b.ctypes.data, _strides(b), out, (m, n, k), how)
        return out

    def matmul_packed(
        self, a: np.ndarray, packed: np.ndarray, out: np.ndarray, accumulate: bool = False, in_order: bool = False
    ) -> np.ndarray:
        """As `matmul`, the right operand having been packed by `pack`."""
        (m, k), n = a.shape, out.shape[1]
        self._need(a.dtype, m, n, True, in_order=in_order)
        name = f"cg_gemm_packed_{real.KINDS[a.dtype.char]}"
        self._gemm(name, a, packed.ctypes.data, (0, 0), out, (m, n, k), tiles.how(accumulate, in_order))
        return out

    def _need(self, dtype: Any, m: int, n: int, packed: bool, rows_of_b: bool = False, in_order: bool = False) -> None:
        """Have the kernels for such a product."""
        for name in blocks.needed(self.reals[np.dtype(dtype).char], m, n, packed, rows_of_b, in_order):
            self.address(name)

    def _gemm(
        self,
        name: str,
        a: np.ndarray,
        b: int,
        b_strides: tuple[int, int],
        out: np.ndarray,
        sizes: tuple[int, int, int],
        how: int,
    ) -> None:
        scratch = np.empty(self.scratch_bytes(a.dtype, *sizes), np.uint8)
        routine = _prototype("pnpnnpnnnnnnp")(self.symbols[name])
        c = (out.ctypes.data, _strides(out)[0])
        routine(*c, a.ctypes.data, *_strides(a), b, *b_strides, *sizes, how, scratch.ctypes.data)

    def lu_solve(self, a: np.ndarray, b: np.ndarray, small: bool = False) -> tuple[np.ndarray, int]:
        """x with a x = b, and the status: 0, or one more than the number of the pivot that is 0."""
        self._need_for(a, small)
        return self._solve("lu_solve_small" if small else "lu_solve", a, b)

    def triangular_solve(
        self, a: np.ndarray, b: np.ndarray, lower: bool, unit: bool = False, small: bool = False
    ) -> tuple[np.ndarray, int]:
        """x with a x = b, where only one triangle of a counts, and the status; `small`: of few rows, no products."""
        self._need_for(a, small)
        return self._solve("triangular_solve_small" if small else "triangular_solve", a, b, int(lower), int(unit))

    def _solve(self, name: str, a: np.ndarray, b: np.ndarray, *more: int) -> tuple[np.ndarray, int]:
        kind, x, (n, r) = real.KINDS[a.dtype.char], np.empty(b.shape, b.dtype), b.shape
        scratch = np.empty(self._bytes(name, a.dtype, n, r), np.uint8)
        routine = _prototype("pnpnnpnnnnp" + "n" * len(more), ctypes.c_int64)(self.symbols[f"cg_{name}_{kind}"])
        operands = (a.ctypes.data, *_strides(a), b.ctypes.data, *_strides(b))
        return x, routine(x.ctypes.data, _strides(x)[0], *operands, n, r, scratch.ctypes.data, *more)

    def cholesky(self, a: np.ndarray, small: bool = False) -> tuple[np.ndarray, int]:
        """The lower factor of a, of which the lower triangle is read, and the status."""
        self._need_for(a, small)
        name = "cholesky_small" if small else "cholesky"
        kind, x, n = real.KINDS[a.dtype.char], np.empty(a.shape, a.dtype), len(a)
        scratch = np.empty(self._bytes(name, a.dtype, n), np.uint8)
        routine = _prototype("pnpnnnp", ctypes.c_int64)(self.symbols[f"cg_{name}_{kind}"])
        return x, routine(x.ctypes.data, _strides(x)[0], a.ctypes.data, *_strides(a), n, scratch.ctypes.data)

    def _need_for(self, a: np.ndarray, small: bool) -> None:
        """Have the kernels for the products of triangular systems and Cholesky factors."""
        for name in () if small else blocks.needed(self.reals[a.real.dtype.char], None, None, False):
            self.address(name)

    def pivots(self, a: np.ndarray) -> tuple[np.ndarray, int]:
        """Numbers whose product is the determinant of a, and the status."""
        kind, x, n = real.KINDS[a.dtype.char], np.empty(len(a), a.dtype), len(a)
        scratch = np.empty(self._bytes("pivots", a.dtype, n), np.uint8)
        routine = _prototype("ppnnnp", ctypes.c_int64)(self.symbols[f"cg_pivots_{kind}"])
        return x, routine(x.ctypes.data, a.ctypes.data, *_strides(a), n, scratch.ctypes.data)

    def orthonormal(self, a: np.ndarray) -> np.ndarray:
        """Q of the reduced decomposition a = Q R, with no more columns than rows."""
        return self._factors("orthonormal", a, np.empty(a.shape, a.dtype))

    def spectrum(self, name: str, a: np.ndarray, vectors: bool = True) -> np.ndarray:
        """Vectors as columns above a row of values, or that row alone: of symmetric a ("eigh"), or of any ("svd")."""
        above = (len(a) if name == "eigh" else sum(a.shape)) if vectors else 0
        return self._factors(name, a, np.empty((above + 1, min(a.shape)), a.dtype), int(vectors))

    def _factors(self, name: str, a: np.ndarray, x: np.ndarray, *more: int) -> np.ndarray:
        scratch = np.empty(self._bytes(name, a.dtype, *a.shape), np.uint8)
        routine = _prototype("pnpnnnnp" + "n" * len(more), ctypes.c_int64)
        given = (x.ctypes.data, _strides(x)[0], a.ctypes.data, *_strides(a), *a.shape, scratch.ctypes.data, *more)
        routine(self.symbols[f"cg_{name}_{real.KINDS[a.dtype.char]}"])(*given)
        return x

    def _bytes(self, name: str, dtype: Any, *sizes: int) -> int:
        symbol = f"cg_{name}_scratch_{real.KINDS[np.dtype(dtype).char]}"
        found: int = _prototype("n" * len(sizes), ctypes.c_int64)(self.symbols[symbol])(*sizes)
        return found

    # Threads.

    @property
    def threads(self) -> int:
        """Number of threads that share a product, the calling one counted."""
        found: int = _prototype("", ctypes.c_int64)(self.symbols["cg_pool_threads"])()
        return found

    def set_threads(self, threads: int) -> None:
        """Share products by so many threads; they are made when they are first needed."""
        if not 1 <= threads <= MOST_THREADS:
            raise UserInputError(
                "the number of threads is out of range", expected=f"1 to {MOST_THREADS}", got=str(threads)
            )
        self._resize(threads)

    def _resize(self, threads: int) -> None:
        resize, end = _prototype("n", ctypes.c_int64)(self.symbols["cg_pool_resize"]), time.monotonic() + _HOW_LONG
        while not resize(threads) and time.monotonic() < end:
            time.sleep(1e-4)

    def _forget(self) -> None:
        _prototype("")(self.symbols["cg_pool_forget"])()


@functools.cache
def _prototype(arguments: str, result: Any = None) -> Any:
    """A C function's type: `p` is a pointer, `n` a number."""
    kinds = {"p": ctypes.c_void_p, "n": ctypes.c_int64}
    return ctypes.CFUNCTYPE(result, *[kinds[kind] for kind in arguments])


def _strides(array: np.ndarray) -> tuple[int, int]:
    """Row and column stride in elements."""
    row, column = array.strides
    return row // array.itemsize, column // array.itemsize


# The process's routines.

_LOCK = forks.lock()


def products() -> Products:
    """The routines of this machine, for the whole process."""
    with _LOCK:
        return _products()


def prepare(names: Iterable[str]) -> None:
    """Have routines compiled meanwhile whose addresses will be asked for."""
    _routines().prepare([*pool.SYMBOLS, *names])


def addresses(names: Iterable[str]) -> dict[str, int]:
    """The addresses of routines by their names."""
    found = products()
    return {name: found.address(name) for name in names}


@functools.cache
def _routines() -> Routines:
    return Routines(target.host())


@functools.cache
def _products() -> Products:
    routines, kinds = _routines(), real.reals(target.host())
    library = Products(routines, {"f": kinds[0], "d": kinds[1]})
    library._forget()
    library._resize(default_threads())
    # At the end no thread may be in code that is about to go.
    atexit.register(library._resize, 1)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=library._forget)
    return library
