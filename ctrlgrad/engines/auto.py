"""The engine "auto": every loop starts interpreted, and goes on in machine code once that pays.

A loop that has run for `WORTH` seconds in all, over any number of calls, is compiled, and the call in which that
happens goes on compiled from the iteration that it has reached. So a short loop never waits for a compiler, and a long
one costs at most that much more than if it had been compiled from the start. What is compiled is logged
(logger "ctrlgrad", level INFO).
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import time
from typing import Any

from ctrlgrad.engines.block_kernels import with_blocks
from ctrlgrad.engines.reference import REFERENCE, Kernels, Run
from ctrlgrad.engines.reference.control_kernels import InterpretedLoop, loop_name
from ctrlgrad.ir import Node

# Seconds that a loop runs interpreted before it is compiled: about what compiling costs.
WORTH = 1.0
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

    def __call__(self, values: list[Any], run: Run) -> Any:
        if run.is_watched:
            return self.interpreted(values, run)
        if self.spent >= WORTH:
            plan = self._plan(values)
            return self.interpreted(values, run) if isinstance(plan, str) else plan.run(values, run)
        state = self.interpreted.start(values)
        began = time.perf_counter()
        left = WORTH - self.spent

        def pause(trips: int) -> bool:
            return trips % _EVERY == 0 and time.perf_counter() - began > left

        finished = self.interpreted.advance(state, run, pause)
        self.spent += time.perf_counter() - began
        if not finished:
            operands = state.shared + state.carry
            plan = self._plan(operands)
            if not isinstance(plan, str):
                state.shared, state.carry = [], []
                return plan.run(operands, run, state.trips)
            del operands
            self.interpreted.advance(state, run)
        return self.interpreted.finish(state, run)

    def _plan(self, values: list[Any]) -> Any:
        if self.native is None:
            from ctrlgrad.engines.native.loop import NativeLoop

            self.native = NativeLoop(self.node)
            _LOG.info("compiling the %s", loop_name(self.node))
        return self.native.plan(values)


AUTO = with_blocks("auto", TieredLoop)


def auto_kernels() -> Kernels:
    """The kernels of the best engine that is installed."""
    return AUTO if has_native() else REFERENCE


__all__ = ["AUTO", "TieredLoop", "auto_kernels", "has_native"]
