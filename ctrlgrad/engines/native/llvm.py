"""LLVM in this process: llvmlite's library, and those of its functions that are called here.

llvmlite's Python is not imported. It declares all functions of the library, and has classes that write LLVM's text:
that takes longer than all else that the first call of a short program does beside compiling. What is called here is
declared here; a test compares it with what llvmlite declares. Neither is llvmlite's lock used, which lets one thread at
a time into LLVM.

To load the library takes long too, but needs no Python: `begin` has another thread do it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import types
from collections.abc import Callable
from ctypes import POINTER, c_bool, c_char_p, c_int, c_size_t, c_uint8, c_uint64, c_void_p
from typing import Any

from ctrlgrad.engines.native import ahead


class LinkElement(ctypes.Structure):
    """Link input: an object (kind 2, with its bytes), or the process's own symbols (kind 3, without a name)."""

    _fields_ = [("element_kind", c_uint8), ("value", c_char_p), ("value_len", c_size_t)]


class SymbolAddress(ctypes.Structure):
    """A function by its name, and where it lies."""

    _fields_ = [("name", c_char_p), ("address", c_uint64)]


OBJECT, PROCESS = 2, 3
TEXT = POINTER(c_char_p)
"""Where LLVM puts a text (see `text_of`)."""

# By their names without "LLVMPY_": the type of the result, and those of the arguments.
LONG: dict[str, tuple[Any, ...]] = {
    "CreateLLJITCompiler": (c_void_p, c_void_p, c_bool, c_bool, TEXT),
    "LLJIT_Link": (
        *(c_void_p, c_void_p, c_char_p, POINTER(LinkElement), c_size_t),
        *(POINTER(SymbolAddress), c_size_t, POINTER(SymbolAddress), c_size_t, TEXT),
    ),
    "ParseAssembly": (c_void_p, c_void_p, c_char_p, TEXT),
    "RunNewModulePassManager": (None, c_void_p, c_void_p, c_void_p),
    "TargetMachineEmitToMemory": (c_void_p, c_void_p, c_void_p, c_int, TEXT),
}
"""Calls in which LLVM works: Python's other threads go on meanwhile."""
SHORT: dict[str, tuple[Any, ...]] = {
    "ContextCreate": (c_void_p,),
    "ContextDispose": (None, c_void_p),
    "CreateNewModulePassManager": (c_void_p,),
    "CreatePassBuilder": (c_void_p, c_void_p, c_void_p),
    "CreatePipelineTuningOptions": (c_void_p,),
    "CreateTargetMachine": (
        *(c_void_p, c_void_p, c_char_p, c_char_p, c_char_p, c_int, c_char_p, c_char_p),
        *(c_int, c_int, c_char_p),
    ),
    "DisposeMemoryBuffer": (None, c_void_p),
    "DisposeModule": (None, c_void_p),
    "DisposeString": (None, c_void_p),
    "GetBufferSize": (c_size_t, c_void_p),
    "GetBufferStart": (c_void_p, c_void_p),
    "GetHostCPUFeatures": (c_int, TEXT),
    "GetHostCPUName": (None, TEXT),
    "GetProcessTriple": (None, TEXT),
    "GetTargetFromTriple": (c_void_p, c_char_p, TEXT),
    "InitializeNativeAsmPrinter": (None,),
    "InitializeNativeTarget": (None,),
    "LLJIT_Dylib_Tracker_Dispose": (c_bool, c_void_p, TEXT),
    "VerifyModule": (c_bool, c_void_p, TEXT),
    "module_AddInstCombinePass": (None, c_void_p),
    "module_AddLoopRotatePass": (None, c_void_p),
    "module_AddSROAPass": (None, c_void_p),
    "module_AddSimplifyCFGPass": (None, c_void_p),
}
"""Short calls that keep the GIL: releasing it in each would cost a wait for the next turn every time."""

_KEY = "LLVM"
_is_begun = False


def begin() -> None:
    """Have another thread load the library, if the process has a processor for one."""
    global _is_begun
    _is_begun = True
    if not functions.cache_info().currsize:
        ahead.prepare(_KEY, _load)


@functools.cache
def functions() -> Any:
    """The functions, as attributes, and llvmlite's `version`; what makes code for this processor is ready for use.

    No lock is held meanwhile: a thread that waits here does other jobs of `ahead`, which may ask for them too. Of two
    that load at once both find the same library.
    """
    return ahead.made(_KEY, _load)


def told(call: Callable[[Any], Any]) -> str:
    """The text that a call gives by its argument."""
    text = c_char_p()
    call(ctypes.byref(text))
    return text_of(text)


def text_of(given: c_char_p) -> str:
    """A text that LLVM gave, with its memory given back."""
    text = (given.value or b"").decode()
    if given:
        functions().DisposeString(given)
    return text


def _load() -> Any:
    import llvmlite  # not needed by who imports ctrlgrad and computes nothing
    from llvmlite.utils import get_library_name

    path = os.path.join(llvmlite.__path__[0], "binding", get_library_name())
    handle, found = _opened(path), {}
    for kind, declared in ((ctypes.CDLL, LONG), (ctypes.PyDLL, SHORT)):
        library = kind(path, handle=handle)
        for name, (result, *arguments) in declared.items():
            function = found[name] = getattr(library, f"LLVMPY_{name}")
            function.restype, function.argtypes = result, arguments
    functions = types.SimpleNamespace(**found, version=llvmlite.__version__)
    functions.InitializeNativeTarget()
    functions.InitializeNativeAsmPrinter()
    return functions


def _opened(path: str) -> int:
    """The handle of the library, loaded while Python's other threads go on: `ctypes.CDLL` would have them wait."""
    if os.name == "posix":
        load = ctypes.CDLL(None).dlopen
        load.restype, load.argtypes = c_void_p, [c_char_p, c_int]
        load(os.fsencode(path), os.RTLD_NOW)
    # A library that is loaded is found at once; for one that cannot be loaded, `CDLL` raises an error with the reason.
    return int(ctypes.CDLL(path)._handle)


def _end_loading() -> None:
    """Before a fork: of a library that another thread has loaded in part, the child could not load the rest."""
    if _is_begun:
        functions()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_end_loading)
