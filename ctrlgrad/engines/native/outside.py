"""Ops that the reference kernels compute for compiled code."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np

from ctrlgrad.engines.block_kernels import IN_BLOCKS
from ctrlgrad.engines.native.frame import operand_words
from ctrlgrad.engines.native.memory import array_at
from ctrlgrad.engines.native.positions import iterations, noted
from ctrlgrad.engines.native.stacks import Frame
from ctrlgrad.engines.reference import Run
from ctrlgrad.engines.reference.interpreter import explained
from ctrlgrad.ir import Node
from ctrlgrad.plan.model import Array, Stack, Step, View
from ctrlgrad.plan.model import Outside as OutsideStep
from ctrlgrad.records import record
from ctrlgrad.runtime.stack import WHOLE_STACKS


@record
class Call:
    """An op that is called, with where the words of its operands and results start, and its kernel."""

    step: Step
    node: Node
    operands: tuple[tuple[Any, int], ...]
    consumed: tuple[int, ...]
    results: tuple[tuple[Any, int], ...]
    kernel: Callable[[list[Any], Run], Any]
    # The kernel neither keeps its operands nor changes them, so it may read them where they lie.
    reads_in_place: bool

    @classmethod
    def of(cls, step: OutsideStep, index: int) -> Call:
        """The call of a step whose words start at an index."""
        starts = list(accumulate(map(operand_words, (*step.operands, *step.results)), initial=index))
        count = len(step.operands)
        operands = tuple(zip(step.operands, starts, strict=False))
        results = tuple(zip(step.results, starts[count:], strict=False))
        in_place = step.node.op.name in IN_BLOCKS.pure and not any(
            isinstance(x, Stack) for x in (*step.operands, *step.results)
        )
        return cls(step, step.node, operands, step.consumed, results, _kernel(step.node), in_place)


def _kernel(node: Node) -> Callable[[list[Any], Run], Any]:
    """Function that computes a node: an op of whole stacks by blocks where possible, else the reference kernel."""
    name = node.op.name
    by_blocks, kernel = WHOLE_STACKS.get(name), None
    if name in IN_BLOCKS.pure:
        pure = IN_BLOCKS.pure[name](node)
        kernel = lambda operands, run: pure(*operands)
    else:
        kernel = IN_BLOCKS.effect(node)
    if by_blocks is None:
        return kernel

    def computed(operands: list[Any], run: Run) -> Any:
        found = by_blocks(*operands)
        return kernel(operands, run) if found is None else found

    return computed


class Outside:
    """The outside calls of one frame."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.run = Run()
        self.pending: list[Any] = []
        # How many calls of callbacks were made in this run.
        self.callbacks = 0
        self.calls: dict[int, Call] = {}

    def start(self, silent_callbacks: int) -> None:
        """A run begins, the first callbacks of which were called already."""
        self.run.silent_callbacks = silent_callbacks
        self.callbacks = 0

    def call(self, number: int) -> Call:
        """Static data of an outside call, computed once."""
        if number not in self.calls:
            step = self.frame.layout.calls[number]
            self.calls[number] = Call.of(step, self.frame.layout.outside[step])
        return self.calls[number]

    def compute(self, number: int, knows_rows: bool) -> None:
        frame, call = self.frame, self.call(number)
        node, is_callback = call.node, call.node.op.name == "callback"
        operands = [
            self.operand(item, index, position in call.consumed, call.reads_in_place)
            for position, (item, index) in enumerate(call.operands)
        ]
        if is_callback:
            self.run.iterations = iterations(frame, frame.program.positions.steps[call.step])
        try:
            with np.errstate(all="ignore"):
                found = self.computed(call, operands)
        except BaseException as error:
            found = explained(error, node, operands)
            noted(found, frame, frame.program.positions.steps[call.step])
            if found is error:
                raise
            raise found from error
        self.callbacks += is_callback
        results = [found] if len(call.results) == 1 else list(found or ())
        if call.reads_in_place:
            # Operands that die here may lend their memory to the results.
            results = [np.array(x) if any(np.may_share_memory(x, given) for given in operands) else x for x in results]
        del operands
        self.pending = results
        for (result, index), value in zip(call.results, results, strict=True):
            if isinstance(result, Stack):
                handle = frame.plan.handles[result]
                frame.stacks[handle].hold(value, frame.row_shape(handle) if knows_rows else None)
            elif isinstance(result, Array):
                rank = len(result.shape)
                frame.words[index + 1 : index + 1 + rank] = np.shape(value)
            else:
                parts = (value.real, value.imag) if len(result) == 2 else (value,)
                for k, (register, part) in enumerate(zip(result, parts, strict=True)):
                    frame.put(index + k, register.dtype, part)

    def computed(self, call: Call, operands: list[Any]) -> Any:
        """Result of a call's kernel."""
        return call.kernel(operands, self.run)

    def operand(self, item: Any, index: int, is_consumed: bool, reads_in_place: bool = False) -> Any:
        frame = self.frame
        if isinstance(item, Stack):
            running = frame.stacks[frame.plan.handles[item]]
            stack = running.settle()
            if is_consumed:
                running.clear()
            # Of a stack without rows the op's own type and operands say which shape they would have.
            return stack if len(stack) else []
        if isinstance(item, View):
            rank = len(item.shape)
            words = frame.words[index : index + 1 + 2 * rank].tolist()
            strides = tuple(s * item.dtype.itemsize for s in words[1 + rank :])
            array = array_at(words[0], tuple(words[1 : 1 + rank]), strides, item.dtype)
            # Copied where a kernel may keep what it is given: the memory is overwritten later.
            return array if reads_in_place else np.array(array)
        value = frame.number(index, item[0].dtype)
        if len(item) == 2:
            dtype = np.result_type(item[0].dtype, np.complex64)
            return dtype.type(complex(value, frame.number(index + 1, item[1].dtype)))
        return value

    def fetch(self, number: int) -> None:
        """Write the arrays to where they belong."""
        frame = self.frame
        for (item, index), value in zip(self.call(number).results, self.pending, strict=True):
            if isinstance(item, Array):
                rank = len(item.shape)
                words = frame.words[index : index + 1 + 2 * rank].tolist()
                strides = tuple(s * item.dtype.itemsize for s in words[1 + rank :])
                target = array_at(words[0], tuple(words[1 : 1 + rank]), strides, item.dtype)
                target[...] = value
        self.pending = []
