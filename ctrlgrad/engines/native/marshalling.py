"""Arguments into the words of a frame, and results out of them.

What a call passes is known before it: where each number and each address is written is found once for a frame. A
result whose shape follows from the arguments' sizes has its memory before compiled code is entered, which then asks for
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ctrlgrad.dtypes import computed_dtype
from ctrlgrad.engines.native import frame
from ctrlgrad.engines.native.frame import Layout
from ctrlgrad.engines.native.frame_memory import FrameMemory
from ctrlgrad.engines.native.memory import address_of
from ctrlgrad.engines.native.stacks import FrameStack
from ctrlgrad.memory.session import current
from ctrlgrad.plan.effects import names_of
from ctrlgrad.plan.model import Array, Stack
from ctrlgrad.records import record
from ctrlgrad.runtime.chunks import chunk_bytes
from ctrlgrad.runtime.stack import BlockStack

# The words of a frame as numbers of a dtype.
Views = Mapping[np.dtype, np.ndarray]


@record
class _Number:
    """An argument that is one register, or of a complex number two."""

    position: int
    indices: tuple[int, ...]
    view: Any


class Arguments:
    """Copier of a call's arguments into a frame."""

    def __init__(self, words: np.ndarray, views: Views, layout: Layout, stacks: Sequence[FrameStack]) -> None:
        plan = layout.plan
        # Python's memory views are quick to write to.
        self.integers = words.data
        self.numbers: list[_Number] = []
        self.complex_numbers: list[_Number] = []
        # Positions of arguments, each with what it is put into.
        self.arrays: list[tuple[int, int]] = []
        self.stacks: list[tuple[int, FrameStack]] = []
        # A position, an axis, and the word that has its size.
        self.sizes = [(number, axis, layout.sizes + k) for k, (_, number, axis) in enumerate(plan.sizes)]
        for position, (argument, index) in enumerate(zip(plan.arguments, layout.arguments, strict=True)):
            if isinstance(argument, Array):
                self.arrays.append((position, index))
            elif isinstance(argument, Stack):
                self.stacks.append((position, stacks[plan.handles[argument]]))
            else:
                dtype = argument[0].dtype
                found = _Number(
                    position,
                    tuple((index + k) * (8 // dtype.itemsize) for k in range(len(argument))),
                    # Memory views know no floats of 16 bits.
                    views[dtype] if computed_dtype(dtype) != dtype else views[dtype].data,
                )
                (self.numbers if len(argument) == 1 else self.complex_numbers).append(found)

    def put(self, arguments: Sequence[Any]) -> list[np.ndarray]:
        """Put the arguments into the frame; what has to stay alive meanwhile besides them."""
        integers = self.integers
        kept: list[np.ndarray] = []
        for number in self.numbers:
            number.view[number.indices[0]] = arguments[number.position]
        for position, index in self.arrays:
            given = arguments[position]
            if not (isinstance(given, np.ndarray) and given.flags.c_contiguous):
                given = np.ascontiguousarray(given)
                kept.append(given)
            integers[index] = address_of(given)
        for number in self.complex_numbers:
            given, (real, imaginary) = arguments[number.position], number.indices
            number.view[real], number.view[imaginary] = given.real, given.imag
        # Under a budget the blocks that are open at one time, one of each stack, share the bytes of a chunk.
        most_bytes = chunk_bytes() // len(self.stacks) if self.stacks and current() is not None else None
        for position, stack in self.stacks:
            stack.hold(arguments[position].copy(), most_bytes=most_bytes)
        for position, axis, index in self.sizes:
            given = arguments[position]
            integers[index] = given.shape[axis] if isinstance(given, np.ndarray) else _row_size(given, axis)
        return kept


@record
class _Sized:
    """A result whose shape follows from the arguments' sizes: each axis is a factor times the sizes in some words."""

    number: int
    buffer: int
    dtype: np.dtype
    axes: tuple[tuple[int, tuple[int, ...]], ...]


class Results:
    """Results of a call: memory for results whose shapes are known at its start, and readers for the rest."""

    def __init__(
        self, words: np.ndarray, views: Views, layout: Layout, memory: FrameMemory, stacks: Sequence[FrameStack]
    ) -> None:
        plan = layout.plan
        self.integers, self.count = words.data, len(plan.results)
        # Results of one shape always: which, the word that has the address, the shape.
        self.fixed: list[tuple[int, int, tuple[int, ...], np.dtype]] = []
        self.sized: list[_Sized] = []
        self.read: list[tuple[int, Callable[[], Any]]] = []
        sizes = {register.name: layout.sizes + k for k, (register, _, _) in enumerate(plan.sizes)}
        for k, (result, index) in enumerate(zip(plan.results, layout.results, strict=True)):
            if isinstance(result, tuple):
                self.read.append((k, _number(words, index, [r.dtype for r in result], views)))
            elif isinstance(result, Stack):
                self.read.append((k, stacks[plan.handles[result]].settle))
            elif k in memory.grown_results:
                self.read.append((k, self._grown(memory, k, result, index)))
            else:
                axes = tuple((axis.factor, tuple(sizes[name] for name in axis.names)) for axis in result.shape)
                buffer = layout.buffer(memory.buffer_of[k])
                if names_of(result.shape):
                    self.sized.append(_Sized(k, buffer, result.dtype, axes))
                    continue
                shape = tuple(factor for factor, _ in axes)
                self.fixed.append((k, buffer + frame.ADDRESS, shape, result.dtype))
                self.integers[buffer + frame.BYTES] = math.prod(shape) * result.dtype.itemsize

    def _grown(self, memory: FrameMemory, number: int, result: Array, index: int) -> Callable[[], np.ndarray]:
        shape = slice(index, index + len(result.shape))
        return lambda: memory.result(number, result.dtype, tuple(self.integers[shape].tolist()))

    def begin(self) -> list[Any]:
        """The results before a run, whose arguments have been put: arrays that it will write, and gaps for the rest."""
        integers = self.integers
        found: list[Any] = [None] * self.count
        for number, address, shape, dtype in self.fixed:
            array = found[number] = np.empty(shape, dtype)
            integers[address] = address_of(array)
        for result in self.sized:
            shape = tuple(factor * math.prod([integers[k] for k in words]) for factor, words in result.axes)
            array = found[result.number] = np.empty(shape, result.dtype)
            integers[result.buffer + frame.ADDRESS] = address_of(array)
            integers[result.buffer + frame.BYTES] = array.nbytes
        return found

    def finish(self, found: list[Any]) -> list[Any]:
        """The results after the run."""
        for number, read in self.read:
            found[number] = read()
        return found


def _number(words: np.ndarray, index: int, dtypes: Sequence[np.dtype], views: Views) -> Callable[[], Any]:
    """Reader of a number in the frame: an array of rank 0."""
    cells = [views[dtype][(index + k) * (8 // dtype.itemsize) :][:1].reshape(()) for k, dtype in enumerate(dtypes)]
    if len(cells) == 1:
        return cells[0].copy
    whole, (real, imaginary) = np.result_type(dtypes[0], np.complex64), cells
    return lambda: np.array(complex(real, imaginary), whole)


def _row_size(stack: Any, axis: int) -> int:
    if isinstance(stack, BlockStack):
        return stack.shape[axis]
    return next((np.shape(row)[axis] for row in stack if row is not None), 0)
