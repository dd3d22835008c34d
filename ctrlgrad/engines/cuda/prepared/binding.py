"""A prepared body in memory: the list of its launches in the processor's memory, and buffers on the card while it runs.

The list is written once. What another run of the loop changes (where captures and buffers lie, numbers of the host, the
stream) is named in it, and set when the run begins. Between two runs it has no memory on the card.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.arguments import Access
from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.indexing.model import BLOCK as INDEX_BLOCK
from ctrlgrad.engines.cuda.indexing.model import IndexLaunch, IndexSpec
from ctrlgrad.engines.cuda.kernel import KernelText, Parameter
from ctrlgrad.engines.cuda.library import Launcher
from ctrlgrad.engines.cuda.prepared import graphs, walker
from ctrlgrad.engines.cuda.prepared.kernel_text import BLOCK, grid_of
from ctrlgrad.engines.cuda.prepared.model import (
    Affine,
    Buffer,
    Carried,
    CarriedArray,
    Fixed,
    Flag,
    Given,
    KernelLaunch,
    KernelSpec,
    Launch,
    Operand,
    PreparedBody,
    ProductLaunch,
    Rows,
    View,
    contiguous,
    movement,
)
from ctrlgrad.engines.cuda.prepared.words import WORD, Known, Words
from ctrlgrad.engines.cuda.products import Factor, layout, parameters
from ctrlgrad.engines.cuda.reductions import tree
from ctrlgrad.engines.cuda.reductions.model import ReductionLaunch, ReductionSpec
from ctrlgrad.engines.cuda.stacks import own_array
from ctrlgrad.errors import MemoryBudgetError
from ctrlgrad.ir import Node

# Words that one kernel writes: each is two of its parameters.
MOST_WORDS = 64
HANDLE, MEMORY = "handle", Buffer(0)


@dataclass(frozen=True)
class NumberWord:
    """One of the words of a number of the host's."""

    number: Fixed
    position: int


_BYTE = np.dtype(np.uint8)


def setting(count: int) -> KernelSpec:
    """The kernel that writes so many words: their values are arguments, and so are their places."""
    inputs = tuple(Parameter("int64", f"a{k}") for k in range(count))
    outputs = tuple(Parameter("int64", f"o{k}") for k in range(count))
    text = KernelText(inputs, outputs, "\n".join(f"o{k} = a{k};" for k in range(count)))
    return KernelSpec(text, (), (Access(None),) * count, (Access(()),) * count)


class Binding:
    """The list of a loop's launches. One run of the loop has it at a time, between `begin` and `end`."""

    def __init__(self, body: PreparedBody, context: Context) -> None:
        self.body, self.library, self.precision = body, context.library, context.precision
        self.carried: dict[int, list[Any]] = {}
        # Whether the next iteration reads the second buffers.
        self.odd = 0
        self._given: Mapping[int, Any] = {}
        self._memory: Any = None
        self._launcher: Launcher | None = None
        # Whether all of the list has been called before: what is loaded at its first call is there.
        self.is_warm = False
        # With the memory that its products have. It has the list as it was.
        self.graph: graphs.LoopGraph | None = None
        self._workspace: Any = None
        self._captured = 0
        self._words = Words()
        # Word 0 is the counter.
        self._numbers = {word: number for number, word in enumerate(body.words, 1)}
        # The words that another run of iterations changes: the number of the first, how many, and the first value.
        self._set: list[tuple[int, int, int]] = []
        first = [self._setting(start) for start in range(0, 2 + len(body.words), MOST_WORDS)]
        entries = [self._entry(launch, side) for side in range(2) for launch in body.launches]
        self._first, self._begin = len(first), len(self._words)
        for kind, arguments in (*first, *entries):
            self._words.add(kind)
            self._words.inner(arguments)
        self.list = self._words.made()

    def begin(self, context: Context, given: Mapping[int, Any], carry: list[Any]) -> None:
        """Have memory, and name it in the list.

        Args:
            given: captures and constants, by slot, and numbers of the host.
            carry: what the loop carries. An array that nobody else holds becomes a buffer; others are copied into one.

        Raises `MemoryBudgetError` where a budget has no memory for the buffers; what is carried is in `carry` then.
        """
        self._given, self.carried, self.odd = given, {}, 0
        try:
            self._memory = self.library.empty((self.body.placement.nbytes,), _BYTE)
            if Flag() in self.list.named:
                context.index_flag()
            for position, its in enumerate(self.body.carries):
                if isinstance(its, CarriedArray):
                    self.carried[position] = _buffers(context, its, carry, position)
        except MemoryBudgetError:
            for position, (array, _) in self.carried.items():
                carry[position] = array
            self.end()
            raise
        self._launcher = self.library.launcher(self.body.products > 0)
        for named in self.list.named:
            self.list.set(named, self._word(named, context))
        if self.list.version != self._captured:
            self.graph = None

    def end(self) -> None:
        """Let go of all memory."""
        self._given, self.carried, self._memory = {}, {}, None
        if self._workspace is not None:
            self.graph = self._workspace = None

    @property
    def _called(self) -> Launcher:
        assert self._launcher is not None
        return self._launcher

    def carry(self, position: int) -> Any:
        """The array that is carried at a position now."""
        return self.carried[position][self.odd]

    def run(
        self, iterations: int, rows: Mapping[int, int], integers: Mapping[int, int], in_graph: bool = False
    ) -> None:
        """Put iterations on the library's stream.

        Args:
            rows: of each stack that is pushed on or popped off, the address where rows begin or end.
            integers: those of the host, by their slots.
            in_graph: by the graph, which begins with an even one, but for one at either end. A graph that asks the
                predicate leaves out those past the loop's end.
        """
        # The counter, what moves, and the limit.
        values = [0]
        for word in self.body.words:
            if isinstance(word, Affine):
                values.append(word.value(integers))
            else:
                assert isinstance(word.source, Rows)
                values.append(rows[word.source.position] + word.offset)
        values.append(iterations)
        for number, count, start in self._set:
            its = values[start : start + count]
            self.list.words[number : number + count] = its + its[-1:] * (count - len(its))
        self._walk(0, self._first, 0, 0)
        listed = self.odd if in_graph else iterations
        self._iterate(listed)
        if in_graph:
            assert self.graph is not None and iterations - listed >= graphs.TURN
            try:
                self.graph.launch(self._called.stream)
            except graphs.GraphFailed as failed:
                raise self._called.error(walker.KERNEL, failed.status) from None
            self._iterate((iterations - listed) % graphs.TURN)
        self.is_warm = self.is_warm or iterations >= graphs.TURN

    def _iterate(self, iterations: int) -> None:
        self._walk(self._first, 0, iterations, self.odd)
        self.odd = (self.odd + iterations) & 1

    def _walk(self, start: int, once: int, iterations: int, odd: int, stream: int | None = None) -> None:
        """Go through the list from an entry on."""
        called, half = self._called, len(self.body.launches)
        address = self.list.address + WORD * (self._begin + start * walker.ENTRY)
        try:
            walker.run(address, once, half, odd, iterations, called.functions, stream or called.stream)
        except walker.Failed as failed:
            if stream is not None:
                raise
            raise called.error(failed.kind, failed.status) from None

    # The graph.

    def capture(self, predicate: int | None) -> None:
        """Have a graph of the list, which asks the predicate that is carried at this position, if there is one.

        Raises `graphs.Refused`, and `MemoryBudgetError` where a budget has no memory for the products' workspace.
        """
        addresses = self._called.graphs()
        if isinstance(addresses, str):
            raise graphs.Refused(addresses)
        driver = graphs.GraphDriver(addresses)
        # A capture may neither compile nor load it.
        asking = self.library.function(graphs.condition(predicate is not None), self.precision != "ieee")
        size, workspace = self._called.workspace_bytes, None
        if self.body.products:
            workspace = self.library.empty((size,), np.dtype(np.uint8))
        try:
            driver.call("cuFuncLoad", asking)
            with self._called.capturing(workspace) as stream:
                self.graph = graphs.LoopGraph(driver, stream, lambda *given: self._turn(predicate, *given))
            self._workspace, self._captured = workspace, self.list.version
        except graphs.GraphFailed as failed:
            raise self._called.error(walker.KERNEL, failed.status) from None
        except walker.Failed as failed:
            raise self._called.error(failed.kind, failed.status) from None

    def _turn(self, predicate: int | None, stream: int, handle: int) -> None:
        self._walk(self._first, 0, graphs.TURN, 0, stream)
        counter = self.library.address(self._memory)
        given = [counter, counter + WORD * (1 + len(self.body.words))]
        if predicate is not None:
            given.append(self.library.address(self.carried[predicate][0]))
        words = Words()
        given.append(int(np.uint64(handle).astype(np.int64)))
        spec = graphs.condition(predicate is not None)
        kind, arguments = self._kernel(words, spec, _parameters(words, given), (grid_of(spec), BLOCK))
        entry = words.add(kind)
        words.inner(arguments)
        asking = words.made()
        walker.run(asking.address + WORD * entry, 1, 0, 0, 0, self._called.functions, stream)

    # The list: of an entry the kind, and the number of the first word of what it is called with.

    def _setting(self, start: int) -> tuple[int, int]:
        wanted = min(MOST_WORDS, 2 + len(self.body.words) - start)
        # Few different kernels: the last word is written again.
        count = 1 << (wanted - 1).bit_length()
        places = [Known(MEMORY, WORD * (start + min(k, wanted - 1))) for k in range(count)]
        parameters = _parameters(self._words, [*[0] * count, *places])
        self._set.append((parameters[0], count, start))
        spec = setting(count)
        return self._kernel(self._words, spec, parameters, (grid_of(spec), BLOCK))

    def _entry(self, launch: Launch, side: int) -> tuple[int, int]:
        if isinstance(launch, ProductLaunch):
            return walker.PRODUCT, self._words.add(Known(HANDLE), *self._product(launch, side))
        spec = launch.spec
        given: list[int | Known | tuple[int | Known, ...]] = [Known(MEMORY)] if spec.is_moving else []
        for access, argument in zip(spec.accesses, launch.arguments, strict=True):
            if access.has_parameter:
                given.append(self._argument(argument, side))
            if (moved := movement(argument)) is not None:
                given += [self._numbers[moved[0]], moved[1]]
        match launch:
            case ReductionLaunch():
                given += launch.numbers
                grid = launch.blocks, tree.BLOCK
            case IndexLaunch():
                given += [Known(number) if isinstance(number, Node) else number for number in launch.numbers]
                grid = launch.blocks, INDEX_BLOCK
            case KernelLaunch():
                grid = grid_of(launch.spec), BLOCK
        return self._kernel(self._words, spec, _parameters(self._words, given), grid)

    def _kernel(
        self,
        words: Words,
        spec: KernelSpec | ReductionSpec | IndexSpec,
        parameters: Sequence[int],
        grid: tuple[int, int],
    ) -> tuple[int, int]:
        """An entry of a kernel whose parameters begin with the words of these numbers, on blocks of so many threads."""
        function = self.library.function(spec, self.precision != "ieee")
        pointers = words.inner(*parameters)
        called = words.add(function, *grid)
        words.inner(pointers)
        return walker.KERNEL, called

    def _product(self, launch: ProductLaunch, side: int) -> tuple[int | Known, ...]:
        *batch, m, n = launch.out.shape
        places = [self._place(view, side) for view in (launch.a, launch.b, launch.out)]
        # Stand for the places among the numbers.
        marks = range(-len(places), 0)
        a, b = (_factor(view, mark) for view, mark in zip((launch.a, launch.b), marks, strict=False))
        sizes, count = (m, n, launch.a.shape[-1]), math.prod(batch)
        given = parameters(launch.out.dtype, sizes, a, b, marks[-1], count, launch.adds, self.precision)
        return tuple(places[word] if word in marks else word for word in given)

    def _argument(self, argument: Operand, side: int) -> int | Known | tuple[int | Known, ...]:
        if isinstance(argument, View):
            return self._place(argument, side)
        if isinstance(argument, Affine):
            return argument.constant
        assert isinstance(argument, Fixed)
        if argument.slot is None:
            return tuple(_bits(argument.dtype, argument.value))
        return tuple(Known(NumberWord(argument, k)) for k in range(-(-argument.dtype.itemsize // WORD)))

    def _place(self, view: View, side: int) -> Known:
        """Where a view begins, for iterations that read the buffers of a side."""
        source, offset = view.source, view.offset
        if isinstance(source, Buffer):
            place = self.body.placement.places[source.number]
            assert place is not None
            source, offset = place[0], place[1] + offset
        if isinstance(source, Carried):
            source = Carried(source.position, bool(side) != source.is_next)
        return Known(source, offset)

    def _word(self, named: object, context: Context) -> int:
        """What is named in the list, as it is now."""
        match named:
            case Given(slot):
                return self.library.address(self._given[slot])
            case Carried(position, is_second):
                return self.library.address(self.carried[position][is_second])
            case NumberWord(Fixed(dtype, _, slot), position):
                assert slot is not None
                return _bits(dtype, self._given[slot])[position]
            case Node():
                return context.site(named)
            case Flag():
                return self.library.address(context.index_flag())
        if named is MEMORY:
            return self.library.address(self._memory)
        return self._called.handle


def _factor(view: View, place: int) -> Factor:
    found = layout(view.shape[-2:], view.strides[-2:], view.dtype.itemsize)
    assert found is not None
    return Factor(place, *found, view.strides[0] // view.dtype.itemsize if len(view.shape) > 2 else 0)


def _bits(dtype: np.dtype, value: Any) -> list[int]:
    """A number as words."""
    words = np.zeros(-(-dtype.itemsize // WORD), np.int64)
    words.view(np.uint8)[: dtype.itemsize] = np.asarray(value, dtype).reshape(1).view(np.uint8)
    return [int(word) for word in words]


def _parameters(words: Words, given: Sequence[int | Known | tuple[int | Known, ...]]) -> list[int]:
    """Add a kernel's parameters, which are a word or several; the number of the first of each."""
    return [words.add(*(x if isinstance(x, tuple) else (x,))) for x in given]


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
