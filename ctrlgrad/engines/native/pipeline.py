"""Numba's compiler without the passes that generated loops do not need.

Those have no closures, no `with`, no branches on constants and no variable that changes its type, so that rewriting,
inlining, pruning and static single assignment form leave them as they are and only take time: about a quarter of it.
LLVM promotes the variables to registers all the same. Source: Numba's manual, "Customizing the Compiler".
"""

from __future__ import annotations

from typing import Any

from numba.core.compiler import CompilerBase
from numba.core.compiler_machinery import PassManager
from numba.core.typed_passes import IRLegalization, NativeLowering, NoPythonBackend, NopythonTypeInference
from numba.core.untyped_passes import FixupArgs, IRProcessing, TranslateByteCode

_PASSES = {
    TranslateByteCode: "read the bytecode",
    FixupArgs: "name the arguments",
    IRProcessing: "find the blocks",
    NopythonTypeInference: "infer types",
    IRLegalization: "check",
    NativeLowering: "generate code",
    NoPythonBackend: "finish",
}


class LoopCompiler(CompilerBase):  # type: ignore[misc]
    """The passes for the function of a generated loop."""

    def define_pipelines(self) -> list[Any]:
        manager = PassManager("generated loop")
        for each, purpose in _PASSES.items():
            manager.add_pass(each, purpose)
        manager.finalize()
        return [manager]
