"""The launches of an iteration while they are listed, with the words and buffers that they need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from ctrlgrad.engines.cuda.arguments import Access, joined_axes
from ctrlgrad.engines.cuda.indexing.keys import Chosen
from ctrlgrad.engines.cuda.indexing.model import IndexLaunch
from ctrlgrad.engines.cuda.indexing.stages import Surroundings, gather, scatter
from ctrlgrad.engines.cuda.kernel import KernelText, Parameter
from ctrlgrad.engines.cuda.prepared.model import (
    Branching,
    CannotPrepare,
    CarriedRows,
    Item,
    KernelLaunch,
    KernelSpec,
    ProductLaunch,
    Repeating,
)
from ctrlgrad.engines.cuda.prepared.movement import movement
from ctrlgrad.engines.cuda.prepared.operands import (
    INT64,
    Affine,
    Before,
    Began,
    Buffer,
    Capacity,
    Counter,
    Flag,
    GoesOn,
    LastSlot,
    Limit,
    Most,
    Operand,
    Rows,
    Shape,
    Short,
    Source,
    View,
    Word,
    contiguous,
    slot,
    word_view,
)
from ctrlgrad.engines.cuda.prepared.views import broadcast, reshaped
from ctrlgrad.engines.cuda.reductions.model import ReductionLaunch, ReductionText
from ctrlgrad.engines.cuda.reductions.stages import scan, stages
from ctrlgrad.engines.cuda.sites import FLAG_WORDS, MOST_NOTED, Site
from ctrlgrad.engines.cuda.texts import ADVANCE, copy_text
from ctrlgrad.ir import Node


def _flattened(inputs: Sequence[Operand], outputs: Sequence[View]) -> tuple[list[Operand], list[View]]:
    """Views of one shape with as few axes as tell where their elements lie, in the same order."""
    views = [x for x in (*inputs, *outputs) if isinstance(x, View)]
    full = outputs[0].shape
    shape, strides = joined_axes(full, range(len(full)), [view.strides for view in views])
    flat = iter(strides)
    seen = [
        replace(x, shape=tuple(shape), strides=tuple(next(flat))) if isinstance(x, View) else x
        for x in (*inputs, *outputs)
    ]
    return seen[: len(inputs)], [x for x in seen[len(inputs) :] if isinstance(x, View)]


def whole(inputs: int | Sequence[str], outputs: Sequence[str]) -> KernelText:
    """Kernel of int64 results over operands named `a0`, `a1`, ...; `inputs` is their number, or their dtypes."""
    dtypes = ["int64"] * inputs if isinstance(inputs, int) else inputs
    read = tuple(Parameter(dtype, f"a{k}") for k, dtype in enumerate(dtypes))
    written = tuple(Parameter("int64", f"o{k}") for k in range(len(outputs)))
    return KernelText(read, written, "\n".join(f"o{k} = {x};" for k, x in enumerate(outputs)))


class Launches:
    """In the order of execution. Buffer 0 is that of the words."""

    def __init__(self) -> None:
        # Items of the region that is being read.
        self.items: list[Item] = []
        self.words: dict[Word, int] = {Counter(0): 0}
        self.buffers: list[tuple[Shape, np.dtype]] = [((1,), INT64)]
        # The loops around the region that is read now, the outermost first.
        self.loops: list[tuple[Node, int]] = []

    @contextmanager
    def listing(self, items: list[Item]) -> Iterator[list[Item]]:
        """Go on with another list, which is a region's."""
        outside, self.items = self.items, items
        try:
            yield self.items
        finally:
            self.items = outside

    def buffer(self, shape: Shape, dtype: np.dtype) -> View:
        """A buffer of its own."""
        self.buffers.append((shape, dtype))
        return View(Buffer(len(self.buffers) - 1), dtype, shape, contiguous(shape, dtype))

    def kernel(self, text: KernelText, shape: Shape, inputs: Sequence[Operand], outputs: Sequence[View]) -> None:
        """Nothing is launched where there is nothing to compute."""
        if 0 in shape:
            return
        seen = [broadcast(x, shape) if isinstance(x, View) else x for x in inputs]
        seen, outputs = _flattened(seen, outputs)
        shape = outputs[0].shape
        accesses = [self._access(x) for x in (*seen, *outputs)]
        spec = KernelSpec(text, shape, tuple(accesses[: len(seen)]), tuple(accesses[len(seen) :]))
        self.items.append(KernelLaunch(spec, (*seen, *outputs)))

    def gather(self, its: Chosen, node: Node) -> View:
        """A buffer with what indices choose; see `ctrlgrad.engines.cuda.indexing.stages`."""
        found = self.buffer(its.shape, its.whole.dtype)
        self.items += gather(its, found, self.around(node))
        return found

    def scatter(self, its: Chosen, value: View, text: KernelText | None, node: Node) -> None:
        """See `ctrlgrad.engines.cuda.indexing.stages`."""
        self.items += scatter(its, value, text, self.around(node))

    def around(self, node: Node) -> Surroundings:
        """Of a node of the region that is read now. Noted are when the run began, and the iterations in it and in loops
        inside."""
        loops = tuple(loop for loop, _ in self.loops)
        words: list[Word] = [Began(), Counter(0), *(Counter(since) for _, since in self.loops)]
        noted = [self.word(word) for word in words]
        if len(noted) > MOST_NOTED:
            raise CannotPrepare("loops inside lie too deep for an error to name them")
        flag = View(Flag(), INT64, (FLAG_WORDS,), contiguous((FLAG_WORDS,), INT64))
        return Surroundings(self._sized, self.buffer, flag, Site(node, loops), tuple(noted))

    @contextmanager
    def inside(self, loop: Node, since: int) -> Iterator[None]:
        """In a loop, which has a counter of its iterations since it began."""
        self.loops.append((loop, since))
        try:
            yield
        finally:
            self.loops.pop()

    def reduction(
        self,
        text: ReductionText,
        shape: Shape,
        axes: Sequence[int],
        inputs: Sequence[Operand],
        stored: Sequence[View],
        results: Sequence[View],
    ) -> None:
        """See `ctrlgrad.engines.cuda.reductions.stages`."""
        self.items += stages(text, shape, axes, inputs, stored, results, self._sized, self.buffer)

    def scan(self, text: ReductionText, axis: int, x: View, result: View) -> None:
        """See `ctrlgrad.engines.cuda.reductions.stages`."""
        self.items += scan(text, x.shape, axis, [x], [result], self._sized, self.buffer)

    def _sized(self, x: Operand) -> Access:
        """Access whose strides are parameters."""
        found = self._access(x)
        return found if found.strides is None else replace(found, strides=())

    def _access(self, x: Operand) -> Access:
        moved = movement(x)
        if moved is not None:
            for word in (moved.word, *(Counter(number) for number, _ in moved.others)):
                self.word(word)
        has_parameter = moved is None or (isinstance(x, View) and not isinstance(x.source, Rows))
        others = 0 if moved is None else len(moved.others)
        return Access(x.strides if isinstance(x, View) else None, has_parameter, moved is not None, others)

    def word(self, its: Word) -> int:
        """The number of a word."""
        return self.words.setdefault(its, len(self.words))

    def number(self, its: Word) -> View:
        """A word as an array on the card."""
        return word_view(self.word(its))

    def counter(self, number: int) -> View:
        """A counter as an array on the card."""
        return self.number(Counter(number))

    def copied(self, x: Operand, target: View) -> None:
        dtype = INT64 if isinstance(x, Affine) else x.dtype
        self.kernel(copy_text(dtype, target.dtype), target.shape, [x], [target])

    def copy(self, x: Operand, shape: Shape | None = None) -> View:
        """A buffer with the same elements."""
        found = shape if shape is not None else x.shape if isinstance(x, View) else ()
        target = self.buffer(found, INT64 if isinstance(x, Affine) else x.dtype)
        self.copied(x, target)
        return target

    def reshaped(self, view: View, shape: Shape) -> View:
        """The same elements with another shape: the view, or a copy."""
        found = reshaped(view, shape)
        if found is None:
            found = reshaped(self.copy(view), shape)
        assert found is not None
        return found

    def product(self, a: View, b: View, out: View, adds: bool) -> None:
        self.items.append(ProductLaunch(a, b, out, adds))

    def advance(self, number: int, slots: Mapping[int, int]) -> None:
        """A region has been gone through: its counter counts. Where slots are counted it has so many rows."""
        counter = self.counter(number)
        self.kernel(ADVANCE, (), [counter], [counter])
        self.move(slots)

    def enter(self, slots: Mapping[int, int]) -> None:
        """A pass begins of a region that pops so many rows (below 0) off stacks: it is noted where there are none."""
        popped = [position for position, rows in slots.items() if rows < 0]
        if not popped:
            return
        ends = [self.number(LastSlot(position)) for position in popped]
        changed = [*(self.counter(slot(position)) for position in popped), self.number(Short())]
        last = [(f"a{k}", f"a{len(changed) + k}") for k in range(len(popped))]
        found = [f"np_select({x} < {end}, {x}, {end})" for x, end in last]
        is_short = " | ".join(f"({x} > {end})" for x, end in last)
        found.append(f"np_select({is_short}, int64(1), a{len(popped)})")
        self.kernel(whole(len(changed) + len(ends), found), (), [*changed, *ends], changed)

    def move(self, slots: Mapping[int, int]) -> None:
        """So many rows have been pushed on stacks, or popped off them (below 0), by their positions."""
        if not slots:
            return
        words = [self.counter(slot(position)) for position in slots]
        ends = {position: self.number(LastSlot(position)) for position, rows in slots.items() if rows > 0}
        last = {position: f"a{len(words) + k}" for k, position in enumerate(ends)}
        moved = {position: f"(a{k} + int64({abs(rows)}))" for k, (position, rows) in enumerate(slots.items())}
        # Of those that are popped it is seen when the next pass begins.
        found = [f"np_select({x} < {last[n]}, {x}, {last[n]})" if n in last else x for n, x in moved.items()]
        self.kernel(whole(len(words) + len(ends), found), (), [*words, *ends.values()], words)

    def check(self, stacks: Mapping[int, CarriedRows], asked: View | None = None) -> None:
        """Behind an iteration: whether there is another one, for which there is memory on these stacks.

        Args:
            asked: where the loop's end depends on data, its predicate.
        """
        words: dict[Word, int] = {}

        def read(word: Word) -> str:
            return f"a{words.setdefault(word, len(words))}"

        conditions, found = [f"({read(Counter(0))} < {read(Limit())})"], dict[Word, str]()
        for position, its in stacks.items():
            if its.most is None and not its.is_endless:
                # The host knows of enough.
                continue
            rows = " + ".join(f"{read(Counter(counter))} * int64({abs(count)})" for counter, count in its.rows)
            most = f"int64({its.most})"
            if its.is_endless:
                # As many as any iteration so far.
                pushed, most = f"({rows} - {read(Before(position))})", read(Most(position))
                most = f"np_select({most} < {pushed}, {pushed}, {most})"
                found |= {Most(position): most, Before(position): rows}
            conditions.append(f"({rows} + {most} <= {read(Capacity(position))})")
        if any(its.is_endless and not its.pushes for its in stacks.values()):
            conditions.append(f"({read(Short())} == int64(0))")
        given = [word_view(self.word(x)) for x in words]
        dtypes = ["int64"] * len(words)
        if asked is not None:
            conditions.append(f"a{len(words)}")
            dtypes.append(asked.dtype.name)
            given.append(asked)
        found[GoesOn()] = f"np_select({' & '.join(conditions)}, int64(1), int64(0))"
        self.kernel(whole(dtypes, list(found.values())), (), given, [word_view(self.word(x)) for x in found])

    def renamed(self, before: Source, after: Source) -> None:
        """Write and read elsewhere, in the region that is read now."""

        def view(x: Operand) -> Operand:
            return replace(x, source=after) if isinstance(x, View) and x.source == before else x

        def named(launch: Item) -> Item:
            if isinstance(launch, Branching):
                sides = tuple(tuple(map(named, side)) for side in launch.sides)
                return Branching(launch.chosen, sides)
            if isinstance(launch, Repeating):
                return replace(launch, items=tuple(map(named, launch.items)))
            if isinstance(launch, KernelLaunch | ReductionLaunch | IndexLaunch):
                return replace(launch, arguments=tuple(map(view, launch.arguments)))
            a, b, out = (view(x) for x in (launch.a, launch.b, launch.out))
            assert isinstance(a, View) and isinstance(b, View) and isinstance(out, View)
            return replace(launch, a=a, b=b, out=out)

        self.items[:] = map(named, self.items)
