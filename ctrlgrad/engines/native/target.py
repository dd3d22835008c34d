"""Compile LLVM text to an object for this machine's processor.

Other modules write the text; LLVM parses it, optimises it and emits the object.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
from collections.abc import Sequence

from ctrlgrad import forks
from ctrlgrad.engines.native import llvm
from ctrlgrad.errors import UserInputError
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
        """Number of vector registers."""
        return 32 if self.has("avx512f") or self.triple.startswith(("aarch64", "arm64")) else 16


# Features that need vectors of more than so many bytes.
_WIDER = {
    32: re.compile("[+](.*avx512.*|avx10.*|evex512)"),
    16: re.compile("[+](.*avx.*|evex512|f16c|fma4?|sha512|sm3|sm4|vaes|vpclmulqdq|xop)"),
}


@functools.cache
def host() -> Target:
    """The processor that this process runs on, with vectors of at most `$CTRLGRAD_VECTOR_BITS`."""
    calls = llvm.functions()
    features = sorted(llvm.told(calls.GetHostCPUFeatures).split(","), key=lambda feature: feature[1:])
    found = Target(llvm.told(calls.GetProcessTriple), llvm.told(calls.GetHostCPUName), ",".join(features))
    given = os.environ.get("CTRLGRAD_VECTOR_BITS")
    return found if given is None else narrowed(found, given)


def narrowed(machine: Target, bits: str) -> Target:
    """The same processor without vectors of more bits: "128", "256" or "512", at most its own."""
    own = [size for size in (16, 32, 64) if size <= machine.vector_bytes]
    if bits not in (possible := [str(8 * size) for size in own]):
        raise UserInputError(
            "CTRLGRAD_VECTOR_BITS is not a width of vectors of this processor",
            expected=" or ".join(possible),
            got=repr(bits),
        )
    wider = _WIDER.get(int(bits) // 8)
    features = machine.features.split(",")
    kept = ["-" + f[1:] if wider and wider.fullmatch(f) else f for f in features]
    return Target(machine.triple, machine.processor, ",".join(kept))


def facts() -> dict[str, str]:
    """Facts that objects depend on besides their text: the processor and the compiler."""
    found = host()
    return {
        "llvmlite": llvm.functions().version,
        "triple": found.triple,
        "processor": found.processor,
        "features": found.features,
    }


# Bits of the floating-point control register that flush subnormal operands and results to zero; how the register is
# read into %mode and written from it; declarations.
_X86 = (
    0x8040,  # DAZ and FTZ of MXCSR
    """%place = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %place)
  %word = load i32, ptr %place
  %mode = zext i32 %word to i64""",
    """%place = alloca i32
  %word = trunc i64 %mode to i32
  store i32 %word, ptr %place
  call void @llvm.x86.sse.ldmxcsr(ptr %place)""",
    """declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)""",
)
_ARM = (
    1 << 24,  # FZ of FPCR
    "%mode = call i64 @llvm.aarch64.get.fpcr()",
    "call void @llvm.aarch64.set.fpcr(i64 %mode)",
    """declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)""",
)
_CONTROL = {"x86_64": _X86, "i686": _X86, "aarch64": _ARM, "arm64": _ARM}


def _control(machine: Target) -> tuple[int, str, str, str]:
    return _CONTROL.get(machine.triple.partition("-")[0], (0, "%mode = add i64 0, 0", "", ""))


def float_mode(machine: Target) -> str:
    """Text of `@float_mode` and `@set_float_mode`: read and write the thread's floating-point control register.

    On processors other than x86 and aarch64 they do nothing.
    """
    _, get, put, declared = _control(machine)
    return f"""{declared}
define internal i64 @float_mode() nounwind noinline {{
  {get}
  ret i64 %mode
}}
define internal void @set_float_mode(i64 %mode) nounwind noinline {{
  {put}
  ret void
}}
"""


def flushing(machine: Target, name: str, body: str, flag: int) -> str:
    """Text of a function `void @name(ptr %frame)` that calls `body`, meanwhile with subnormal numbers as zeros.

    It does so if word `flag` of the frame is not 0. Loops multiply by factors below 1 again and again, as the gradient
    of a recurrent network does, and arithmetic on subnormal numbers takes about a hundred times as long.
    """
    bits = _control(machine)[0]
    return f"""{float_mode(machine)}
define void @{name}(ptr %frame) nounwind {{
  %place = getelementptr i64, ptr %frame, i64 {flag}
  %flag = load i64, ptr %place
  %flushes = icmp ne i64 %flag, 0
  %bits = select i1 %flushes, i64 {bits}, i64 0
  %before = call i64 @float_mode()
  %mode = or i64 %before, %bits
  call void @set_float_mode(i64 %mode)
  call void @{body}(ptr %frame)
  call void @set_float_mode(i64 %before)
  ret void
}}
"""


# LLVM's levels of generating code: the one for what is run often, and the one that takes a sixth of the time.
GOOD, QUICK = 2, 0

USUAL = ("SROA", "InstCombine", "SimplifyCFG")
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
        with forks.undivided():
            compiler = _Compiler(passes, level)
    with forks.undivided():
        code = compiler.compiled(text)
    idle.append(compiler)
    return code


class _Compiler:
    """Compiler of LLVM text to objects, for one thread at a time."""

    def __init__(self, passes: Sequence[str], level: int) -> None:
        calls, found = llvm.functions(), host()
        triple, problem = found.triple.encode(), ctypes.c_char_p()
        kind = calls.GetTargetFromTriple(triple, ctypes.byref(problem))
        if not kind:
            raise RuntimeError(llvm.text_of(problem))
        # Position-independent, since an object may lie anywhere, and small, since an object is one piece.
        self._machine = calls.CreateTargetMachine(
            *(kind, triple, found.processor.encode(), found.features.encode()),
            *(level, b"pic", b"small", False, True, b""),
        )
        self._builder = calls.CreatePassBuilder(self._machine, calls.CreatePipelineTuningOptions())
        self._passes = calls.CreateNewModulePassManager()
        for name in passes:
            getattr(calls, f"module_Add{name}Pass")(self._passes)

    def compiled(self, text: str) -> bytes:
        """Each text has a context of its own: what belongs to none is LLVM's, which is made for threads."""
        calls, problem = llvm.functions(), ctypes.c_char_p()
        context = calls.ContextCreate()
        module = calls.ParseAssembly(context, text.encode(), ctypes.byref(problem))
        try:
            is_right = module and not calls.VerifyModule(module, ctypes.byref(problem))
            # Of what is right it says nothing, which takes memory too.
            said, problem = llvm.text_of(problem), ctypes.c_char_p()
            if not is_right:
                raise RuntimeError(f"LLVM IR parsing error: {said}")
            calls.RunNewModulePassManager(self._passes, module, self._builder)
            buffer = calls.TargetMachineEmitToMemory(self._machine, module, True, ctypes.byref(problem))
            if not buffer:
                raise RuntimeError(f"LLVM makes no object of a text: {llvm.text_of(problem)}")
            code = ctypes.string_at(calls.GetBufferStart(buffer), calls.GetBufferSize(buffer))
            calls.DisposeMemoryBuffer(buffer)
            return code
        finally:
            if module:
                calls.DisposeModule(module)
            calls.ContextDispose(context)


_IDLE: dict[tuple[tuple[str, ...], int], list[_Compiler]] = {}
