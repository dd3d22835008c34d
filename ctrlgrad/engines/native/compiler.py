"""From the source of a loop to machine code."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

_LOCK = threading.RLock()
_FUNCTIONS: dict[str, Callable[[np.ndarray], None]] = {}
_BLAS: dict[str, int] = {}


def compiled(source: str) -> Callable[[np.ndarray], None]:
    """The function of a source: takes the table, an int64 array. Compiled once per process."""
    with _LOCK:
        if source not in _FUNCTIONS:
            _FUNCTIONS[source] = _compile(source)
        return _FUNCTIONS[source]


def _compile(source: str) -> Callable[[np.ndarray], None]:
    import numba

    names = _names()
    exec(compile(source, "<compiled loop>", "exec"), names)
    function = numba.njit("void(int64[::1])", error_model="numpy", nogil=True)(names["loop"])
    run: Callable[[np.ndarray], None] = function
    return run


def _names() -> dict[str, Any]:
    """What generated code may call."""
    import numba

    from ctrlgrad.engines.native import elementary, machine, scalars

    names: dict[str, Any] = dict(scalars.FUNCTIONS)
    names |= {kernel.name: kernel.function for kernel in elementary.KERNELS.values()}
    names |= {f"pointer_{name}": function for name, function in machine.POINTERS.items()}
    for name in ("load", "store", "fetch", "put", "shifted", "gemm"):
        names[name] = getattr(machine, name)
    for name in "float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 complex64 complex128".split():
        names[name] = getattr(numba, name)
    names |= {"inf": np.inf, "nan": np.nan}
    return names


def blas_address(name: str) -> int:
    """The address of a BLAS routine, from the library that SciPy brings."""
    if name not in _BLAS:
        import ctypes

        capsule = _cython_blas().__pyx_capi__[name]
        get_name, get_pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
        get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
        get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        _BLAS[name] = get_pointer(capsule, get_name(capsule))
    return _BLAS[name]


def _cython_blas() -> Any:
    """SciPy's module of BLAS addresses, without the rest of `scipy.linalg`: that takes a third of a second to import."""
    import sys

    name = "scipy.linalg.cython_blas"
    if name in sys.modules:
        return sys.modules[name]
    import scipy

    from pathlib import Path

    folder = Path(scipy.__file__).parent / "linalg"
    (path,) = [p for p in folder.glob("cython_blas.*") if p.suffix in (".so", ".pyd")]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
