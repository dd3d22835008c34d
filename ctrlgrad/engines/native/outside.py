"""Ops that the reference kernels compute for compiled code."""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad.engines.block_kernels import IN_BLOCKS
from ctrlgrad.engines.native.frame import operand_words
from ctrlgrad.engines.native.memory import array_at
from ctrlgrad.engines.native.positions import iterations, noted
from ctrlgrad.engines.native.running import Frame
from ctrlgrad.engines.native.whole_stacks import WHOLE_STACKS
from ctrlgrad.engines.reference import Run
from ctrlgrad.engines.reference.interpreter import explained
from ctrlgrad.ir import Node
from ctrlgrad.plan.model import Array, Stack, View


class Outside:
    """The outside calls of one frame."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.run = Run()
        self.pending: list[Any] = []
        # How many calls of callbacks were made in this run.
        self.callbacks = 0

    def start(self, silent_callbacks: int) -> None:
        """A run begins, the first callbacks of which were called already."""
        self.run.silent_callbacks = silent_callbacks
        self.callbacks = 0

    def compute(self, number: int, knows_rows: bool) -> None:
        frame, step = self.frame, self.frame.layout.calls[number]
        node = step.node
        index = frame.layout.outside[step]
        operands: list[Any] = []
        for position, item in enumerate(step.operands):
            operands.append(self.operand(item, index, position in step.consumed))
            index += operand_words(item)
        if node.op.name == "callback":
            self.run.iterations = iterations(frame, frame.program.positions.steps[step])
        try:
            with np.errstate(all="ignore"):
                found = self.computed(node, operands)
        except BaseException as error:
            found = explained(error, node)
            noted(found, frame, frame.program.positions.steps[step])
            if found is error:
                raise
            raise found from error
        del operands
        self.callbacks += node.op.name == "callback"
        results = [found] if len(step.results) == 1 else list(found or ())
        self.pending = results
        for result, value in zip(step.results, results, strict=True):
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
            index += operand_words(result)

    def computed(self, node: Node, operands: list[Any]) -> Any:
        """What the kernel of a node gives."""
        name = node.op.name
        if name in WHOLE_STACKS:
            found = WHOLE_STACKS[name](*operands)
            if found is not None:
                return found
        if name in IN_BLOCKS.pure:
            return IN_BLOCKS.pure[name](node)(*operands)
        return IN_BLOCKS.effect(node)(operands, self.run)

    def operand(self, item: Any, index: int, is_consumed: bool) -> Any:
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
            # A copy: a kernel may keep what it is given, and the memory is overwritten later.
            return np.array(array_at(words[0], tuple(words[1 : 1 + rank]), strides, item.dtype))
        value = frame.number(index, item[0].dtype)
        if len(item) == 2:
            dtype = np.result_type(item[0].dtype, np.complex64)
            return dtype.type(complex(value, frame.number(index + 1, item[1].dtype)))
        return value

    def fetch(self, number: int) -> None:
        """Write the arrays to where they belong."""
        frame, step = self.frame, self.frame.layout.calls[number]
        index = frame.layout.outside[step] + sum(map(operand_words, step.operands))
        for item, value in zip(step.results, self.pending, strict=True):
            if isinstance(item, Array):
                rank = len(item.shape)
                words = frame.words[index : index + 1 + 2 * rank].tolist()
                strides = tuple(s * item.dtype.itemsize for s in words[1 + rank :])
                target = array_at(words[0], tuple(words[1 : 1 + rank]), strides, item.dtype)
                target[...] = value
            index += operand_words(item)
        self.pending = []


__all__ = ["Outside"]
