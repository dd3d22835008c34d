"""This machine's processor as LLVM knows it, and LLVM's text made into an object for it.

Only llvmlite's binding is used (to parse, optimise and emit); the text is written by others.
"""

from __future__ import annotations

import ctypes
import functools
import types
from collections.abc import Sequence
from typing import Any

import llvmlite
from llvmlite import binding

from ctrlgrad.records import record


@record
class Target:
    """The processor that code is made for: LLVM's triple, its name and its features ("+avx2,+fma,-avx512f,...")."""

    triple: str
    processor: str
    features: str

    def has(self, feature: str) -> bool:
        return f"+{feature}" in self.features.split(",")

    @property
    def vector_bytes(self) -> int:
        """The bytes of a vector register: 64 with AVX-512, 32 with AVX, else 16 (SSE2, NEON)."""
        return 64 if self.has("avx512f") else 32 if self.has("avx2") else 16

    @property
    def vector_registers(self) -> int:
        """How many vector registers there are."""
        return 32 if self.has("avx512f") or self.triple.startswith(("aarch64", "arm64")) else 16


@functools.cache
def host() -> Target:
    """The processor that this process runs on."""
    features = binding.get_host_cpu_features().flatten()
    return Target(binding.get_process_triple(), binding.get_host_cpu_name(), features)


def facts() -> dict[str, str]:
    """What objects depend on besides their text: the processor and the compiler."""
    found = host()
    return {
        "llvmlite": llvmlite.__version__,
        "triple": found.triple,
        "processor": found.processor,
        "features": found.features,
    }


# LLVM's levels of generating code: the one for what is run often, and the one that takes a sixth of the time.
GOOD, QUICK = 2, 0

USUAL = ("sroa", "instruction_combine", "simplify_cfg")
"""Passes for printed code, which is vectors already, with its invariants outside of its loops: registers are made of
its memory. LLVM's own pipelines take twenty times as long, and what they make of such code is no faster."""


def compiled(text: str, passes: tuple[str, ...] = USUAL, level: int = GOOD) -> bytes:
    """The object that LLVM makes of a module's text for this machine; several threads may do so at once.

    Text that LLVM refuses is a defect of the printer: RuntimeError with LLVM's words. Functions should be `nounwind`:
    nothing is thrown through them, and unwind tables would have to be registered and taken back.
    """
    idle = _IDLE.setdefault((passes, level), [])
    try:
        compiler = idle.pop()
    except IndexError:
        compiler = _Compiler(passes, level)
    code = compiler.compiled(text)
    idle.append(compiler)
    return code


class _Compiler:
    """What makes objects of texts, for one thread at a time."""

    def __init__(self, passes: Sequence[str], level: int) -> None:
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        found = host()
        # Position-independent, since an object may lie anywhere, and small, since an object is one piece.
        self._machine = binding.Target.from_triple(found.triple).create_target_machine(
            cpu=found.processor, features=found.features, opt=level, reloc="pic", codemodel="small", jit=True
        )
        self._builder = binding.create_pass_builder(self._machine, binding.create_pipeline_tuning_options())
        self._passes = binding.create_new_module_pass_manager()
        for name in passes:
            getattr(self._passes, f"add_{name}_pass")()
        self._calls = _calls()

    def compiled(self, text: str) -> bytes:
        """Each text has a context of its own: what belongs to none is LLVM's, which is made for threads."""
        calls, problem = self._calls, ctypes.c_char_p()
        context = calls.LLVMPY_ContextCreate()
        module = calls.LLVMPY_ParseAssembly(context, text.encode(), ctypes.byref(problem))
        try:
            if not module or calls.LLVMPY_VerifyModule(module, ctypes.byref(problem)):
                raise RuntimeError(f"LLVM IR parsing error: {(problem.value or b'').decode()}")
            calls.LLVMPY_RunNewModulePassManager(self._passes, module, self._builder)
            buffer = calls.LLVMPY_TargetMachineEmitToMemory(self._machine, module, 1, ctypes.byref(problem))
            if not buffer:
                raise RuntimeError(f"LLVM makes no object of a text: {(problem.value or b'').decode()}")
            code = ctypes.string_at(calls.LLVMPY_GetBufferStart(buffer), calls.LLVMPY_GetBufferSize(buffer))
            calls.LLVMPY_DisposeMemoryBuffer(buffer)
            return code
        finally:
            if module:
                calls.LLVMPY_DisposeModule(module)
            calls.LLVMPY_ContextDispose(context)
            if problem:
                calls.LLVMPY_DisposeString(problem)


_IDLE: dict[tuple[tuple[str, ...], int], list[_Compiler]] = {}

# Calls in which LLVM works. The others are over at once.
_LONG = ("LLVMPY_ParseAssembly", "LLVMPY_RunNewModulePassManager", "LLVMPY_TargetMachineEmitToMemory")
_SHORT = (
    "LLVMPY_ContextCreate",
    "LLVMPY_VerifyModule",
    "LLVMPY_GetBufferStart",
    "LLVMPY_GetBufferSize",
    "LLVMPY_DisposeMemoryBuffer",
    "LLVMPY_DisposeModule",
    "LLVMPY_ContextDispose",
    "LLVMPY_DisposeString",
)


@functools.cache
def _calls() -> Any:
    """llvmlite's functions, as it declares them, but without its lock, which lets one thread at a time into LLVM.

    Python's threads go on during the long ones. A thread that let them go on in each short one too would wait for its
    next turn as often.
    """
    declared = binding.ffi.lib
    found = {}
    for kind, names in ((ctypes.CDLL, _LONG), (ctypes.PyDLL, _SHORT)):
        library = kind(declared._name)
        for name in names:
            found[name] = getattr(library, name)
            found[name].argtypes = getattr(declared, name).argtypes
            found[name].restype = getattr(declared, name).restype
    return types.SimpleNamespace(**found)
