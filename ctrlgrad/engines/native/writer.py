"""Text of generated code: names, lines, pointers, and loops over the elements of tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from ctrlgrad.engines.native.frames import Frame, Layout, StackState, Tensor, merged
from ctrlgrad.engines.native.layout import Ref, Scalar, Sizes, Splat, plus, product, row_major, times
from ctrlgrad.engines.native.program import FIRST_ENTRY, Entry, OutsideCall, Site
from ctrlgrad.engines.native.shapes import Shapes
from ctrlgrad.ir import Node, Value


class Writer:
    """What is written so far, and the small parts that code is made of."""

    def __init__(self, node: Node, shapes: Shapes, layouts: Sequence[Layout]) -> None:
        self.node = node
        self.shapes = shapes
        # How each captured array lies in memory.
        self.layouts = layouts
        self.lines: list[str] = []
        self.header: list[str] = []
        self.depth = 1
        self.entries: list[Entry] = []
        self.sites: list[Site] = []
        self.stacks: list[StackState] = []
        self.notes: list[str] = []
        self.swapped: list[int] = []
        self._outer: list[Frame] = []
        self._numbers: Counter[str] = Counter()
        self._loops = 0
        self._constants: dict[int, str] = {}
        self.routines: dict[str, str] = {}
        self.calls: list[OutsideCall] = []
        # How many stacks are made inside an iteration.
        self.locals = 0
        self.frame: Frame = None  # type: ignore[assignment]
        # How many loops (beside the outermost) and branches stand around what is being written.
        self.in_loop = 0
        # Those loops, each with the name that counts its iterations.
        self.inner: list[tuple[Node, str]] = []
        # Pushes whose value was computed right into the slot.
        self.in_slot: set[Node] = set()
        self.in_branch = 0
        # Carries that live in the stack that they are pushed on, by their number.
        self.settled: dict[int, StackState] = {}
        # Sums that were computed with the product in them, and values whose memory nothing reads again.
        self.done: set[Node] = set()
        self.last_uses: set[Value] = set()

    # Text.

    def fresh(self, prefix: str) -> str:
        self._numbers[prefix] += 1
        return f"{prefix}{self._numbers[prefix] - 1}"

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """An indented block; never left empty."""
        self.line(head)
        self.depth += 1
        before = len(self.lines)
        yield
        if len(self.lines) == before:
            self.line("pass")
        self.depth -= 1

    def entry(self, entry: Entry) -> str:
        """A place of the table, as text."""
        self.entries.append(entry)
        return f"t[{FIRST_ENTRY + len(self.entries) - 1}]"

    def pointer(self, entry: Entry, dtype: np.dtype) -> str:
        """A pointer that is the same throughout the function."""
        name = self.fresh("p")
        self.header.append(f"{name} = pointer_{dtype.name}({self.entry(entry)})")
        return name

    # Memory.

    def declare(self, state: StackState) -> None:
        """The names of a stack: its rows, its length, its capacity and its marks."""
        position = state.number
        self.header.append(f"{state.base} = pointer_{state.use.dtype.name}({self.entry(Entry('rows', position))})")
        self.header.append(f"{state.count} = {self.entry(Entry('length', position))}")
        self.header.append(f"{state.capacity} = {self.entry(Entry('capacity', position))}")
        if state.use.marks:
            self.header.append(f"M{position} = pointer_uint8({self.entry(Entry('written', position))})")
        self.stacks.append(state)

    def temporary(self, shape: Sizes, dtype: np.dtype) -> Ref:
        base = self.pointer(Entry("temporary", dtype=dtype, size=product(shape)), dtype)
        return Ref(base, "0", shape, row_major(shape), dtype)

    def constant(self, array: np.ndarray, shape: Sizes) -> Ref:
        if id(array) not in self._constants:
            self._constants[id(array)] = self.pointer(Entry("constant", array=array), array.dtype)
        return Ref(self._constants[id(array)], "0", shape, row_major(shape), array.dtype)

    def load(self, ref: Ref, index: str) -> str:
        text = f"fetch({ref.base}, {index})"
        return f"{text} != 0" if ref.dtype.kind == "b" else text

    def put(self, ref: Ref, index: str, value: str) -> None:
        self.line(f"put({ref.base}, {index}, {self.stored(value, ref.dtype)})")

    @staticmethod
    def stored(value: str, dtype: np.dtype) -> str:
        return f"uint8({value})" if dtype.kind == "b" else value

    def scalar(self, text: str, dtype: np.dtype) -> Scalar:
        """A scalar under a name of its own."""
        name = self.fresh("v")
        self.line(f"{name} = {text}")
        return Scalar(name, dtype)

    # Loops over elements.

    def copied(self, source: Tensor) -> Ref:
        """A contiguous copy."""
        target = self.temporary(source.shape, source.dtype)
        self.copy(source, target)
        return target

    def copy(self, source: Tensor, target: Ref) -> None:
        if source == target:
            return
        with self.nest(target.shape, [source, target], 1) as (index, names):
            value = names(0)
            self.line(f"store({target.base}, {index(1)}, {self.stored(value, target.dtype)}, {self._loops}, 0)")

    @contextmanager
    def nest(
        self, shape: Sizes, tensors: Sequence[Tensor], stores: int = 0
    ) -> Iterator[tuple[Callable[[int], str], Callable[[int], str]]]:
        """Loops over a shape. Gives two functions of a tensor's number: its index, and its element.

        `stores`: how many stores in it are told apart from all loads, and from each other.

        Axes that all tensors run through alike become one. What has nothing to do inside does nothing.
        """
        self._loops += 1
        strides = [t.strides if isinstance(t, Ref) else () for t in tensors]
        axes, columns = merged(shape, [s for t, s in zip(tensors, strides, strict=True) if isinstance(t, Ref)])
        rows = iter(columns)
        by_tensor = [next(rows) if isinstance(t, Ref) else () for t in tensors]
        offsets = [t.offset if isinstance(t, Ref) else "" for t in tensors]
        depth = self.depth
        if stores:
            self.line(f"scopes({self._loops}, {stores})")
        for axis, size in enumerate(axes):
            counter = self.fresh("i")
            self.line(f"for {counter} in range({size}):")
            self.depth += 1
            last = axis == len(axes) - 1
            for k, t in enumerate(tensors):
                if not isinstance(t, Ref):
                    continue
                offset = plus(offsets[k], times(counter, by_tensor[k][axis]))
                if not last and not offset.isidentifier() and offset != "0":
                    name = self.fresh("o")
                    self.line(f"{name} = {offset}")
                    offset = name
                offsets[k] = offset
        loop = self._loops

        def element(k: int) -> str:
            t = tensors[k]
            if isinstance(t, Splat):
                return t.scalar.text
            text = f"load({t.base}, {offsets[k]}, {loop})"
            return f"{text} != 0" if t.dtype.kind == "b" else text

        before = len(self.lines)
        yield (lambda k: offsets[k]), element
        if axes and len(self.lines) == before:
            self.line("pass")
        self.depth = depth
