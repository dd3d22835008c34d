"""Numba as a compiler of generated loops: their Python function in, an object file out.

Two things differ from `numba.njit`. The function is not wrapped for calls from Python or C: the wrappers handle
exceptions by functions that only Numba's own loader provides, and generated loops raise none. And passes that such
loops do not need are left out: they have no closures, no `with`, no branches on constants and no variable that changes
its type, so that rewriting, inlining, pruning and static single assignment form leave them as they are and only take
time, about a quarter of it. LLVM keeps the variables in registers all the same. Sources: Numba's manual, "Customizing
the Compiler"; its `numba.core.ccallback`, which compiles for C in the same steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.core import registry, types
from numba.core.compiler import CompilerBase
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import PassManager
from numba.core.dispatcher import _FunctionCompiler  # type: ignore[attr-defined]
from numba.core.typed_passes import IRLegalization, NativeLowering, NoPythonBackend, NopythonTypeInference
from numba.core.untyped_passes import FixupArgs, IRProcessing, TranslateByteCode

from ctrlgrad.engines.native.object_code import ObjectCode

# Numba's own annotations do not cover its internals.
_Manager: Any = PassManager
_types: Any = types
_PASSES = {
    TranslateByteCode: "read the bytecode",
    FixupArgs: "name the arguments",
    IRProcessing: "find the blocks",
    NopythonTypeInference: "infer types",
    IRLegalization: "check",
    NativeLowering: "generate code",
    NoPythonBackend: "finish",
}


class _LoopPasses(CompilerBase):
    def define_pipelines(self) -> list[Any]:
        manager = _Manager("generated loop")
        for each, purpose in _PASSES.items():
            manager.add_pass(each, purpose)
        manager.finalize()
        return [manager]


class _LoopCompiler(_FunctionCompiler):  # type: ignore[misc]
    def _customize_flags(self, flags: Any) -> Any:
        flags.no_cpython_wrapper = True
        flags.no_cfunc_wrapper = True
        # Otherwise it looks for the first of these wrappers.
        flags.no_compile = True
        flags.enable_pyobject = False
        return flags


class Made:
    """A generated loop as Numba compiled it; its code stays loaded as long as this object."""

    def __init__(self, function: Callable[[Any], None]) -> None:
        compiler = _LoopCompiler(function, registry.cpu_target, {"error_model": "numpy"}, {}, _LoopPasses)
        with global_compiler_lock:
            result = compiler.compile((_types.CPointer(_types.int64),), _types.void)
            self._library = result.library
            symbol: str = result.fndesc.llvm_func_name
            self.address: int = self._library.get_pointer_to_function(symbol)
            self.code = ObjectCode(symbol, bytes(self._library._get_compiled_object()))
        self.holds_addresses: bool = self._library.has_dynamic_globals
        """Whether addresses of this process are part of the code."""
