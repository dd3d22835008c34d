"""Machine code as bytes, and back to a function: by LLVM's loader alone, without Numba.

An object is one relocatable file as the system's compilers write it. All that it may use from outside are the functions
of the C library that the process has already loaded; one that needs more is refused.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import binding

Loop = Callable[[np.ndarray], None]
"""A compiled loop: takes its table, a contiguous int64 array, and writes to it. Runs without Python's lock."""


class CannotLoad(Exception):
    """An object is broken, or uses functions that the process does not have."""


@dataclass(frozen=True)
class ObjectCode:
    """An object file, and in it the name of a C function `int32_t(void **, void **, int64_t *)`.

    The arguments are those of Numba's compiled functions (its `numba.core.callconv`): a place for the result (none
    here), one for an exception, then the table. The result is 0 where nothing was raised.
    """

    symbol: str
    code: bytes


# Without the arguments' types, since all are given by reference, a call takes half the time.
_PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int32)
_LOCK = threading.Lock()
_NUMBERS = itertools.count()


def loaded(given: ObjectCode) -> Loop:
    """The function of an object. Raises `CannotLoad`. Its code stays in memory as long as the process."""
    builder = binding.JITLibraryBuilder().add_object_img(given.code).add_current_process().export_symbol(given.symbol)
    with _LOCK:
        try:
            library = builder.link(_linker(), f"ctrlgrad.{next(_NUMBERS)}")
        except RuntimeError as error:
            raise CannotLoad(str(error)) from error
        # Never unloaded: at exit a thread may still be in it.
        library.detach()
    return function_at(library[given.symbol])


def function_at(address: int) -> Loop:
    """The compiled loop at an address."""
    # A NumPy array is a buffer, which its annotations do not say for every Python.
    first_of: Any = ctypes.c_int64.from_buffer
    call, at = _PROTOTYPE(address), ctypes.byref
    result, exception = at(ctypes.c_void_p()), at(ctypes.c_void_p())

    def run(table: np.ndarray) -> None:
        if call(result, exception, at(first_of(table))):
            raise RuntimeError("a compiled loop raised an exception: a defect of the code generator")

    return run


@functools.cache
def _linker() -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.create_lljit_compiler(suppress_errors=True)
