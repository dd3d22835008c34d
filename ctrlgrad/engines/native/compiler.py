"""From the source of a loop to machine code: from the cache on disk where it is there, else by Numba."""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from ctrlgrad.engines.native.cache import find, forget, keep
from ctrlgrad.engines.native.checked import CheckedFunction, is_checked
from ctrlgrad.engines.native.object_code import CannotLoad, Loop, function_at, loaded

_LOG = logging.getLogger("ctrlgrad")
_LOCK = threading.RLock()
_FUNCTIONS: dict[str, Loop] = {}
# What Numba loaded itself and would otherwise unload.
_KEPT: list[Any] = []
_BLAS: dict[str, int] = {}


def compiled(source: str) -> Loop | CheckedFunction:
    """The function of a source: takes the table, an int64 array.

    Compiled once per process and, where there is a directory for it (`cache`), once per machine; never where loops are
    checked.
    """
    if is_checked():
        return CheckedFunction(source)
    with _LOCK:
        if source not in _FUNCTIONS:
            _FUNCTIONS[source] = _from_disk(source) or _compiled_now(source)
        return _FUNCTIONS[source]


def is_cached(source: str) -> bool:
    """Whether `compiled` of this source takes no compiling."""
    return source in _FUNCTIONS or find(source) is not None


def _from_disk(source: str) -> Loop | None:
    code = find(source)
    if code is None:
        return None
    try:
        return loaded(code)
    except CannotLoad as reason:
        _LOG.info("a compiled loop on disk cannot be used: %s", reason)
        forget(source)
        return None


def _compiled_now(source: str) -> Loop:
    """Compile; what is kept on disk has been loaded from the same bytes once."""
    from ctrlgrad.engines.native.pipeline import Made

    names = _names()
    exec(compile(source, "<compiled loop>", "exec"), names)
    made = Made(names["loop"])
    try:
        if made.holds_addresses:
            raise CannotLoad("it holds addresses of this process")
        function = loaded(made.code)
    except CannotLoad as reason:
        _LOG.info("a compiled loop is not kept on disk: %s", reason)
        _KEPT.append(made)
        return function_at(made.address)
    keep(source, made.code)
    return function


def _names() -> dict[str, Any]:
    """What generated code may call."""
    import numba

    from ctrlgrad.engines.native import elementary, intrinsics, machine, scalars

    names: dict[str, Any] = dict(scalars.FUNCTIONS)
    names |= {kernel.name: kernel.function for kernel in elementary.KERNELS.values()}
    names |= {f"pointer_{name}": function for name, function in machine.POINTERS.items()}
    for name in ("scopes", "load", "store", "fetch", "put", "shifted", "span", "invoke", "look", "gemm", "gemv"):
        names[name] = getattr(machine, name)
    names["widest_vectors"] = intrinsics.widest_vectors
    for name in [
        "float32",
        "float64",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "complex64",
        "complex128",
    ]:
        names[name] = getattr(numba, name)
    names |= {"inf": np.inf, "nan": np.nan}
    return names


def blas_address(name: str) -> int:
    """The address of a BLAS routine: NumPy's own where NumPy's wheel brings it, else one from the library of SciPy.

    With NumPy's a process has one pool of threads for products, and products are those of the reference engine.
    Integers go to it by reference and in eight bytes; SciPy's reads the lower four.
    """
    if name not in _BLAS:
        _BLAS[name] = address_in_numpy(name) or address_in_scipy(name)
    return _BLAS[name]


def address_in_numpy(name: str) -> int | None:
    """From the library that NumPy's wheels link, by its name there; None where NumPy was built with another."""
    # A library is searched together with those that it needs, except on Windows.
    library = ctypes.CDLL(importlib.import_module("numpy._core._multiarray_umath").__file__)
    routine = getattr(library, f"scipy_{name}_64_", None)
    return None if routine is None else ctypes.cast(routine, ctypes.c_void_p).value


def address_in_scipy(name: str) -> int:
    capsule = _cython_blas().__pyx_capi__[name]
    get_name, get_pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address: int = get_pointer(capsule, get_name(capsule))
    return address


def _cython_blas() -> Any:
    """SciPy's module of BLAS addresses, without the rest of `scipy.linalg`, a third of a second to import."""
    name = "scipy.linalg.cython_blas"
    if name in sys.modules:
        return sys.modules[name]

    import scipy

    folder = Path(scipy.__file__).parent / "linalg"
    (path,) = [p for p in folder.glob("cython_blas.*") if p.suffix in (".so", ".pyd")]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
