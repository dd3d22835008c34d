"""This machine's processor as LLVM knows it, and LLVM's text made into an object for it.

Only llvmlite's binding is used (to parse, optimise and emit); the text is written by others.
"""

from __future__ import annotations

import functools
import os
import threading
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


_LOCK = threading.Lock()


# LLVM's levels of generating code: the one for what is run often, and the one that takes a sixth of the time.
GOOD, QUICK = 2, 0


def compiled(text: str, passes: Any = None, level: int = GOOD) -> bytes:
    """The object that LLVM makes of a module's text for this machine.

    Text that LLVM refuses is a defect of the printer: RuntimeError with LLVM's words. `passes` (a ModulePassManager)
    replaces the usual ones, which are none at the quick level.
    """
    with _LOCK:
        module = binding.parse_assembly(text)
        module.verify()
        for function in module.functions:
            # Nothing is thrown through it: no unwind tables, which would have to be registered and taken back.
            if not function.is_declaration:
                function.add_function_attribute("nounwind")
        machine = _machine(level)
        if passes is not None or level != QUICK:
            builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options())
            (passes or _passes()).run(module, builder)
        code: bytes = machine.emit_object(module)
        return code


def _passes() -> Any:
    """Printed code is vectors already, with its invariants outside of its loops: registers are made of its memory.

    LLVM's own pipelines take twenty times as long, and what they make of such code is no faster.
    """
    passes = binding.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    return passes


def _renew_lock() -> None:
    """In a forked child: another thread of the parent may have held the lock."""
    global _LOCK
    _LOCK = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


@functools.cache
def _machine(level: int) -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    found = host()
    # Position-independent, since an object may lie anywhere, and small, since an object is one piece.
    return binding.Target.from_triple(found.triple).create_target_machine(
        cpu=found.processor, features=found.features, opt=level, reloc="pic", codemodel="small", jit=True
    )
