"""From the source of a loop to machine code."""

from __future__ import annotations

import importlib.util
import logging
import threading
from typing import Any

import numpy as np

from ctrlgrad.engines.native.cache import key_of, open_cache
from ctrlgrad.engines.native.checked import CheckedFunction, is_checked
from ctrlgrad.engines.native.object_code import CannotLoad, Loop, ObjectCode, function_at, loaded

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
    if source in _FUNCTIONS:
        return True
    key, disk = key_of(source), open_cache()
    return key is not None and disk is not None and disk.read(key) is not None


def _from_disk(source: str) -> Loop | None:
    key, disk = key_of(source), open_cache()
    entry = disk.read(key) if key is not None and disk is not None else None
    if entry is None:
        return None
    try:
        return loaded(entry)
    except CannotLoad:
        assert key is not None and disk is not None
        disk.remove(key)
        return None


def _compiled_now(source: str) -> Loop:
    import numba

    names = _names()
    exec(compile(source, "<compiled loop>", "exec"), names)
    made = numba.cfunc("void(CPointer(int64))", error_model="numpy")(names["loop"])
    entry = ObjectCode(made.native_name, bytes(made._library._get_compiled_object()))
    try:
        if made._library.has_dynamic_globals:
            raise CannotLoad("it holds addresses of this process")
        function = loaded(entry)
    except CannotLoad as reason:
        _LOG.info("a compiled loop is not kept on disk: %s", reason)
        _KEPT.append(made)
        return function_at(made.address)
    key, disk = key_of(source), open_cache()
    if key is not None and disk is not None:
        disk.write(key, entry)
    return function


def _names() -> dict[str, Any]:
    """What generated code may call."""
    import numba

    from ctrlgrad.engines.native import elementary, machine, scalars

    names: dict[str, Any] = dict(scalars.FUNCTIONS)
    names |= {kernel.name: kernel.function for kernel in elementary.KERNELS.values()}
    names |= {f"pointer_{name}": function for name, function in machine.POINTERS.items()}
    for name in ("load", "store", "fetch", "put", "shifted", "gemm"):
        names[name] = getattr(machine, name)
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
    from pathlib import Path

    import scipy

    folder = Path(scipy.__file__).parent / "linalg"
    (path,) = [p for p in folder.glob("cython_blas.*") if p.suffix in (".so", ".pyd")]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
