"""A prepared body in memory: its buffers on the card, and the list of its launches in the processor's memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.kernel import KernelText, Parameter
from ctrlgrad.engines.cuda.prepared import walker
from ctrlgrad.engines.cuda.prepared.kernel_text import BLOCK, grid_of
from ctrlgrad.engines.cuda.prepared.model import (
    Access,
    Affine,
    Buffer,
    Carried,
    CarriedArray,
    Fixed,
    Given,
    KernelSpec,
    Launch,
    Operand,
    PreparedBody,
    ProductLaunch,
    Rows,
    Source,
    View,
    contiguous,
)
from ctrlgrad.engines.cuda.products import Factor, layout, parameters
from ctrlgrad.engines.cuda.stacks import own_array
from ctrlgrad.errors import MemoryBudgetError

WORD = np.dtype(np.int64).itemsize
# Words that one kernel writes: each is two of its parameters.
MOST_WORDS = 64


def setting(count: int) -> KernelSpec:
    """The kernel that writes so many words: their values are arguments, and so are their places."""
    inputs = tuple(Parameter("int64", f"a{k}") for k in range(count))
    outputs = tuple(Parameter("int64", f"o{k}") for k in range(count))
    text = KernelText(inputs, outputs, "\n".join(f"o{k} = a{k};" for k in range(count)))
    return KernelSpec(text, (), (Access(None),) * count, (Access(()),) * count)


class Binding:
    """The list of one run of a loop.

    Args:
        given: captures and constants, by slot.
        integers: the integers of the host by slot.
        carry: what the loop carries. An array that nobody else holds becomes a buffer; others are copied into one.

    Raises `MemoryBudgetError` where a budget has no memory for the buffers; what is carried is in `carry` then.
    """

    def __init__(self, body: PreparedBody, context: Context, given: Mapping[int, Any], carry: list[Any]) -> None:
        self.body, self.library, self.precision = body, context.library, context.precision
        self._given = given
        self.carried: dict[int, list[Any]] = {}
        try:
            self.buffers = [self.library.empty(shape, dtype) for shape, dtype in body.buffers]
            for position, its in enumerate(body.carries):
                if isinstance(its, CarriedArray):
                    self.carried[position] = _buffers(context, its, carry, position)
        except MemoryBudgetError:
            for position, (array, _) in self.carried.items():
                carry[position] = array
            raise
        # Whether the next iteration reads the second buffers.
        self.odd = 0
        self._called = self.library.launcher(body.products > 0)
        # Words that are pointed to: nothing may move them.
        self._memory: list[np.ndarray] = []
        self._set: list[np.ndarray] = []
        first = [self._setting(start) for start in range(0, 1 + len(body.words), MOST_WORDS)]
        entries = [self._entry(launch, side) for side in range(2) for launch in body.launches]
        self._first = len(first)
        self._list = np.array([*first, *entries], np.int64)

    def carry(self, position: int) -> Any:
        """The array that is carried at a position now."""
        return self.carried[position][self.odd]

    def run(self, iterations: int, rows: Mapping[int, int], integers: Mapping[int, int]) -> None:
        """Put iterations on the library's stream.

        Args:
            rows: of each stack that is pushed on or popped off, the address where rows begin or end.
            integers: those of the host, by their slots.
        """
        # The counter, and what moves.
        values = [0]
        for word in self.body.words:
            if isinstance(word, Affine):
                values.append(word.value(integers))
            else:
                assert isinstance(word.source, Rows)
                values.append(rows[word.source.position] + word.offset)
        for number, words in enumerate(self._set):
            words[:] = values[number * MOST_WORDS :][: len(words)]
        try:
            functions, half = self._called.functions, len(self.body.launches)
            walker.run(self._list.ctypes.data, self._first, half, self.odd, iterations, functions)
        except walker.Failed as failed:
            raise self._called.error(failed.kind, failed.status) from None
        self.odd = (self.odd + iterations) & 1

    # Entries of the list.

    def _setting(self, start: int) -> tuple[int, int]:
        count = min(MOST_WORDS, 1 + len(self.body.words) - start)
        places = self.library.address(self.buffers[0]) + WORD * np.arange(start, start + count)
        words = np.concatenate([np.zeros(count, np.int64), places])
        self._set.append(words[:count])
        return self._kernel(setting(count), words)

    def _entry(self, launch: Launch, side: int) -> tuple[int, int]:
        if isinstance(launch, ProductLaunch):
            return walker.PRODUCT, self._held(np.array(self._product(launch, side), np.int64))
        spec = launch.spec
        words = [self._address(Buffer(0), side)] if spec.is_moving else []
        for access, argument in zip(spec.accesses, launch.arguments, strict=True):
            if access.has_parameter:
                words.append(self._argument(argument, side))
        return self._kernel(spec, np.array(words, np.int64))

    def _kernel(self, spec: KernelSpec, words: np.ndarray) -> tuple[int, int]:
        function = self.library.function(spec, self.precision != "ieee")
        pointers = self._held(words) + WORD * np.arange(len(words))
        called = [function, grid_of(spec), BLOCK, self._called.stream, self._held(pointers)]
        return walker.KERNEL, self._held(np.array(called, np.int64))

    def _product(self, launch: ProductLaunch, side: int) -> tuple[int, ...]:
        a, b = (self._factor(view, side) for view in (launch.a, launch.b))
        (m, k), n = launch.a.shape, launch.b.shape[1]
        out = self._address(launch.out.source, side) + launch.out.offset
        given = parameters(launch.out.dtype, (m, n, k), a, b, out, 1, launch.adds, self.precision)
        return (self._called.handle, *given)

    def _factor(self, view: View, side: int) -> Factor:
        found = layout(view.shape, view.strides, view.dtype.itemsize)
        assert found is not None
        return Factor(self._address(view.source, side) + view.offset, *found)

    def _argument(self, argument: Operand, side: int) -> int:
        if isinstance(argument, View):
            return self._address(argument.source, side) + argument.offset
        if isinstance(argument, Affine):
            return argument.constant
        assert isinstance(argument, Fixed)
        value = argument.value if argument.slot is None else self._given[argument.slot]
        word = np.zeros(1, np.int64)
        word.view(np.uint8)[: argument.dtype.itemsize] = np.asarray(value, argument.dtype).reshape(1).view(np.uint8)
        return int(word[0])

    def _address(self, source: Source, side: int) -> int:
        """Where an array begins, for iterations that read the buffers of a side."""
        match source:
            case Given(slot):
                array = self._given[slot]
            case Buffer(number):
                array = self.buffers[number]
            case Carried(position, is_next):
                array = self.carried[position][side ^ is_next]
            case _:
                raise AssertionError(source)
        return self.library.address(array)

    def _held(self, words: np.ndarray) -> int:
        """The address of words, which are held as long as the list."""
        self._memory.append(words)
        return int(words.ctypes.data)


def _buffers(context: Context, its: CarriedArray, carry: list[Any], position: int) -> list[Any]:
    """The two buffers of a carried array, the first with what it is; twice the same where there is one."""
    library, holder = context.library, [carry[position]]
    carry[position] = None
    try:
        array, was_copied = own_array(holder, library)
    except MemoryBudgetError:
        carry[position] = holder[0]
        raise
    context.counts.calls += was_copied
    carry[position] = array  # until all of it is had
    if tuple(array.strides) != contiguous(its.shape, its.dtype):
        ordered = library.empty(its.shape, its.dtype)
        ordered[...] = array
        context.counts.calls += 1
        array = ordered
    other = library.empty(its.shape, its.dtype) if its.is_double else array
    carry[position] = None
    return [array, other]


__all__ = ["Binding", "setting"]
