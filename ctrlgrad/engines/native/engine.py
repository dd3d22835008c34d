"""The native engine: loops in machine code, the rest as the reference engine runs it.

Outside of loops, and in loops that have no native form, nodes run one by one by the reference kernels. A loop that a
compiled loop cannot hold runs so itself, while the loops inside it may still be compiled.
"""

from __future__ import annotations

import functools
from typing import Any

from ctrlgrad.engines.block_kernels import with_blocks
from ctrlgrad.engines.native.chunk_loop import ChunkLoop
from ctrlgrad.engines.native.loop import NativeLoop
from ctrlgrad.engines.native.stack_uses import stack_use
from ctrlgrad.engines.reference import Kernels, Run
from ctrlgrad.engines.reference.control_kernels import InterpretedLoop, loop_name
from ctrlgrad.errors import UserInputError
from ctrlgrad.ir import Node, StackType
from ctrlgrad.memory.session import current


class CompiledLoop:
    """A `while` node: compiled where it has a native form."""

    def __init__(self, node: Node, kernels: Kernels) -> None:
        self.native = NativeLoop(node)
        self.interpreted = InterpretedLoop(node, kernels)

    @functools.cached_property
    def chunk_loop(self) -> ChunkLoop:
        """How a loop over chunks runs in a session."""
        return ChunkLoop(self.native.node, self.interpreted)

    def __call__(self, values: list[Any], run: Run) -> Any:
        if run.is_watched:
            return self.interpreted(values, run)
        if "chunks_of" in self.native.node.attrs and current() is not None:
            return self.chunk_loop(values, run)
        plan = self.native.plan(values)
        if not isinstance(plan, str):
            return plan.run(values, run)
        self._check_options(plan)
        return self.interpreted(values, run)

    def _check_options(self, reason: str) -> None:
        """Rows of an interpreted loop may leave, but are not computed again: that would be ignored silently."""
        node = self.native.node
        if not node.attrs.get("checkpoint"):
            return
        stacks = [i for i, v in enumerate(node.operands) if isinstance(v.type, StackType)]
        modes = {stack_use(node, i, ()).mode for i in stacks}
        if "push" in modes and "pop" not in modes:
            raise UserInputError(
                f"{loop_name(node)}: checkpoint cannot be kept to, since the loop has no native form",
                source=node.source,
                expected="a loop that compiles; Function.explain says which do",
                got=reason,
                hint="leave out checkpoint, or use swap_memory=True",
            )


NATIVE = with_blocks("native", CompiledLoop)

__all__ = ["NATIVE", "CompiledLoop"]
