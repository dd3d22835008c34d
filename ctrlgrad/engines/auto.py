"""The engine "auto": every loop starts interpreted, and goes on in machine code once that pays.

A loop that has run for `WORTH` seconds in all, over any number of calls, is compiled, and the call in which that
happens goes on compiled from the iteration that it has reached. So a short loop never waits for a compiler, and a long
one costs at most that much more than if it had been compiled from the start. A loop whose machine code an earlier
process left on disk takes it after `LOOK` seconds. What is compiled is logged (logger "ctrlgrad", level INFO).
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import math
import time
from typing import Any

from ctrlgrad.engines.block_kernels import with_blocks
from ctrlgrad.engines.reference import REFERENCE, Kernels, Run
from ctrlgrad.engines.reference.control_kernels import InterpretedLoop, LoopState, loop_name
from ctrlgrad.ir import Node

# Seconds that a loop runs interpreted before it is compiled: about what compiling costs.
WORTH = 1.0
# Seconds after which it is asked whether it was compiled before: about what asking costs.
LOOK = 0.02
# The clock is read once in so many iterations.
_EVERY = 8

_LOG = logging.getLogger("ctrlgrad")


@functools.cache
def has_native() -> bool:
    """Whether what the native engine needs is installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("numba", "scipy"))


class TieredLoop:
    """A `while` node that is compiled when it has run long enough."""

    def __init__(self, node: Node, kernels: Kernels) -> None:
        self.node = node
        self.interpreted = InterpretedLoop(node, kernels)
        self.spent = 0.0
        self.native: Any = None
        # How long it may run interpreted before there is something to decide.
        self.until = LOOK

    def __call__(self, values: list[Any], run: Run) -> Any:
        if run.is_watched:
            return self.interpreted(values, run)
        if self.spent >= self.until:
            plan = self._plan(values)
            if plan is not None:
                return plan.run(values, run)
        state = self.interpreted.start(values)
        while not self._advance(state, run):
            operands = state.shared + state.carry
            plan = self._plan(operands)
            if plan is not None:
                state.shared, state.carry = [], []
                return plan.run(operands, run, state.trips)
            del operands
        return self.interpreted.finish(state, run)

    def _advance(self, state: LoopState, run: Run) -> bool:
        """Run interpreted to the end, or until there is something to decide."""
        began = time.perf_counter()
        left = self.until - self.spent

        def pause(trips: int) -> bool:
            return trips % _EVERY == 0 and time.perf_counter() - began > left

        finished = self.interpreted.advance(state, run, pause)
        self.spent += time.perf_counter() - began
        return finished

    def _plan(self, values: list[Any]) -> Any:
        """The plan to go on by; None to go on interpreted."""
        if self.native is None:
            from ctrlgrad.engines.native.loop import NativeLoop

            self.native = NativeLoop(self.node)
        plan = self.native.plan(values)
        if isinstance(plan, str):
            self.until = math.inf
            return None
        if not plan.is_ready:
            if self.spent < WORTH:
                self.until = WORTH
                return None
            _LOG.info("compiling the %s", loop_name(self.node))
        return plan


AUTO = with_blocks("auto", TieredLoop)


def auto_kernels() -> Kernels:
    """The kernels of the best engine that is installed."""
    return AUTO if has_native() else REFERENCE


__all__ = ["AUTO", "TieredLoop", "auto_kernels", "has_native"]
