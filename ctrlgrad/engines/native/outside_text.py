"""Calls of the reference kernels as LLVM text: operands are told in words of the frame, results read from there."""

from __future__ import annotations

from collections.abc import Sequence

from ctrlgrad.engines.native import frame
from ctrlgrad.engines.native.frame import Request
from ctrlgrad.engines.native.stack_text import StackText
from ctrlgrad.plan.effects import names_of
from ctrlgrad.plan.model import (
    Array,
    Outside,
    Register,
    Stack,
    View,
)
from ctrlgrad.plan.sizes import row_major


class OutsideText(StackText):
    """Writes outside calls."""

    def outside(self, step: Outside) -> None:
        index = self.layout.outside[step]
        number = str(self.layout.calls.index(step))
        self.tell_position()
        for operand in step.operands:
            index = self.tell(operand, index)
        known = all(
            not step.sizes or not names_of(r.shape) & {s.name for s, _, _ in step.sizes}
            for r in step.results
            if isinstance(r, Array)
        )
        if known:
            self.tell_results(step, index)
        self.ask(Request.COMPUTE, number, self.told_rows(step))
        for register, number_of_result, axis in step.sizes:
            at = index + sum(frame.operand_words(r) for r in step.results[:number_of_result]) + 1 + axis
            self.registers[register.name] = self.load_word(at)
        if not known:
            self.tell_results(step, index)
        if any(isinstance(r, Array) for r in step.results):
            self.ask(Request.FETCH, number)
        at = index
        for result in step.results:
            if isinstance(result, tuple):
                for k, register in enumerate(result):
                    self.registers[register.name] = self.load_number(at + k, register.dtype)
            at += frame.operand_words(result)

    def told_rows(self, step: Outside) -> str:
        """Tell the shape of the rows of a stack among the results, if it is known yet; whether it is."""
        for result in step.results:
            if isinstance(result, Stack) and self.is_shape_known(result):
                self.row_shape(result)
                return "1"
        return "0"

    def tell_results(self, step: Outside, index: int) -> None:
        for result in step.results:
            if isinstance(result, Array):
                self.store_word(index, self.define(result), "ptr")
                for k, (size, stride) in enumerate(zip(result.shape, row_major(result.shape), strict=True)):
                    self.store_word(index + 1 + k, self.size(size))
                    self.store_word(index + 1 + len(result.shape) + k, self.size(stride))
            index += frame.operand_words(result)

    def tell(self, item: Sequence[Register] | View | Stack, index: int) -> int:
        """Write an operand of an outside call; where the next one starts."""
        if isinstance(item, View):
            self.store_word(index, self.view_address(item), "ptr")
            for k, (size, stride) in enumerate(zip(item.shape, item.strides, strict=True)):
                self.store_word(index + 1 + k, self.size(size))
                self.store_word(index + 1 + len(item.shape) + k, self.size(stride))
        elif isinstance(item, tuple):
            for k, register in enumerate(item):
                self.store_number(index + k, register)
        return index + frame.operand_words(item)
