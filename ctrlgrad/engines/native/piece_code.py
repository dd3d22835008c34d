"""Generates the function of a part: straight-line code, once through.

The table begins with the arrays, first those that the part takes, then those that it makes. What stands there is the
address of each array's object, and the function itself reads where its elements lie: asking NumPy for an address takes
a microsecond, asking Python for an object's takes a thirtieth. In an array's object the pointer to the elements comes
right after what all objects begin with (NumPy's C API reference, "PyArrayObject"); `elements_are_found` tries it.

An array that the part takes and that a sum of products or an indexed update ends in is overwritten; who calls hands
over one that nobody else holds.
"""

from __future__ import annotations

import ctypes
import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ctrlgrad.engines.native.frames import Item, Layout, uses_of
from ctrlgrad.engines.native.layout import ONE, Ref, Scalar, Size, Splat, row_major
from ctrlgrad.engines.native.program import FIRST_ENTRY, STATUS, Entry, Site
from ctrlgrad.engines.native.regions import RegionWriter
from ctrlgrad.engines.native.shapes import Shape, Shapes, infer_graph
from ctrlgrad.ir import Node, Value

# In words of eight bytes, as the table's.
_ELEMENTS = object.__basicsize__ // 8


@functools.cache
def elements_are_found() -> bool:
    """Whether the pointer to an array's elements lies where generated code looks for it."""
    arrays: list[np.ndarray] = [np.empty(1), np.empty((3, 4), np.float32)[1:], np.empty(7, np.int8)]
    found = [ctypes.c_void_p.from_address(id(a) + 8 * _ELEMENTS).value for a in arrays]
    return object.__basicsize__ % 8 == 0 and found == [a.ctypes.data for a in arrays]


@dataclass(frozen=True)
class PartProgram:
    """A part's source with all that a call needs to fill its table."""

    source: str
    # The same for a table of addresses of elements.
    plain_source: str
    entries: tuple[Entry, ...]
    # The operands that are overwritten, and by output the one that it replaces.
    overwritten: frozenset[int]
    replaced: Mapping[int, int]
    sites: tuple[Site, ...]
    notes: tuple[str, ...]


class PartWriter(RegionWriter):
    """Writes the function of one part; `layouts` has one entry per input."""

    def generate(self) -> PartProgram:
        (graph,) = self.node.regions
        arrays = [i for i, v in enumerate(graph.inputs) if v.tensor.rank]
        bases = {i: self.pointer(Entry("operand", i), graph.inputs[i].tensor.dtype) for i in arrays}
        made = [k for k, v in enumerate(graph.outputs) if v.tensor.rank]
        results = {k: self._result(k, graph.outputs[k]) for k in made}
        items = {v: self._input(i, v, bases) for i, v in enumerate(graph.inputs)}
        targets: dict[Value, Callable[[], Ref | None]] = {graph.outputs[k]: _fixed(ref) for k, ref in results.items()}
        frame = self.region(graph, items, targets)
        kept = set(graph.outputs)
        frame.own.update(v for v in graph.inputs if isinstance(items[v], Ref) and v not in kept)
        given = {items[v].base: i for i, v in enumerate(graph.inputs) if v in frame.own}  # type: ignore[union-attr]
        self.run(frame)
        overwritten = {given[ref.base] for ref in self._updated() if ref.base in given}
        replaced = {}
        for k, v in enumerate(graph.outputs):
            item = self.item(v)
            if k not in results:
                self._put_number(k, v, item)
            elif isinstance(item, Ref) and given.get(item.base) in overwritten and _is_whole(item, self, v):
                replaced[k] = given[item.base]
            else:
                assert isinstance(item, Ref | Splat)
                self.copy(item, results[k])
        self.leave()
        unused = {f"{results[k].base} = " for k in replaced}
        self.header = [text for text in self.header if not any(map(text.startswith, unused))]
        return PartProgram(
            self._source(len(arrays) + len(made)),
            self._source(0),
            tuple(self.entries),
            frozenset(overwritten),
            replaced,
            tuple(self.sites),
            tuple(self.notes),
        )

    def _source(self, objects: int) -> str:
        """`objects`: how many places of the table hold addresses of arrays' objects."""
        first = [f"t[{STATUS}] = 0", "trips = 0"]
        if objects:
            first.append(f"for i in range({FIRST_ENTRY}, {FIRST_ENTRY + objects}):")
            first.append(f"    t[i] = fetch(pointer_int64(t[i]), {_ELEMENTS})")
        dims = [f"{name} = {self.entry_of_dim(name)}" for name in self.shapes.dims.names.values()]
        lines = [*("    " + text for text in ("widest_vectors()", *first, *dims, *self.header)), *self.lines]
        return "\n".join(["def loop(t):", *lines, ""])

    def entry_of_dim(self, name: str) -> str:
        """The place of a size, as text."""
        for place, entry in enumerate(self.entries, FIRST_ENTRY):
            if entry.kind == "dim" and entry.name == name:
                return f"t[{place}]"
        return self.entry(Entry("dim", name=name))

    # What goes in and out.

    def _result(self, k: int, value: Value) -> Ref:
        shape, dtype = self.shapes.sizes(value), value.tensor.dtype
        return Ref(self.pointer(Entry("result", k), dtype), "0", shape, row_major(shape), dtype)

    def _input(self, position: int, value: Value, bases: Mapping[int, str]) -> Item:
        dtype = value.tensor.dtype
        if position not in bases:
            base = self.pointer(Entry("scalar", position, dtype=dtype), dtype)
            return self._first(Ref(base, "0", (), (), dtype))
        shape, layout = self.shapes.sizes(value), self.layouts[position]
        if layout == "one":
            return Splat(self._first(Ref(bases[position], "0", (), (), dtype)), shape)
        strides = (ONE, shape[0]) if layout == "columns" else row_major(shape)
        return Ref(bases[position], "0", shape, strides, dtype)

    def _first(self, ref: Ref) -> Scalar:
        name = self.fresh("v")
        self.header.append(f"{name} = {self.load(ref, '0')}")
        return Scalar(name, ref.dtype)

    def _put_number(self, k: int, value: Value, item: Item) -> None:
        assert isinstance(item, Scalar)
        dtype = value.tensor.dtype
        base = self.pointer(Entry("result", k, dtype=dtype, size=Size(1)), dtype)
        self.line(f"put({base}, 0, {self.stored(item.text, dtype)})")

    # What may be overwritten.

    def _updated(self) -> list[Ref]:
        """Where indexed updates and sums of products were written."""
        (graph,) = self.node.regions
        nodes = [n for n in graph.nodes if n.op.name in ("setitem", "additem") or n in self.done]
        found = [self.frame.items[n.result] for n in nodes]
        return [item for item in found if isinstance(item, Ref)]

    def may_write(self, operand: Value) -> bool:
        """Nothing is written to for being read for the last time in a loop."""
        return False

    def start_sum(self, node: Node, other: Value) -> Ref:
        """The array of a sum, holding one term of it already: that term's own, where nothing else reads it."""
        frame = self.frame
        term = self.tensor(other)
        self.flush()
        if (
            other in frame.own
            and isinstance(term, Ref)
            and term.is_contiguous
            and uses_of(frame.graph)[other] == 1
            and not self.others_read(term.base, Counter([other]))
        ):
            target = frame.targets.get(node.result)
            if target is None or other in frame.graph.inputs:
                self.done.add(node)
                frame.own.add(node.result)
                return term
        return super().start_sum(node, other)


def _fixed(ref: Ref) -> Callable[[], Ref | None]:
    return lambda: ref


def _is_whole(ref: Ref, writer: PartWriter, value: Value) -> bool:
    """Whether a reference is all of an array as the value has it."""
    shape = writer.shapes.sizes(value)
    return ref.offset == "0" and ref.shape == shape and ref.strides == row_major(shape)


def write_part(
    node: Node, shapes: Sequence[Shape], known: Mapping[int, int], layouts: Sequence[Layout]
) -> tuple[PartProgram, Shapes]:
    """The program of a part for inputs of these shapes and layouts; `known` has the integers that decide sizes.

    Raises `NotNative`.
    """
    (graph,) = node.regions
    found = infer_graph(graph, shapes, known)
    return PartWriter(node, found, layouts).generate(), found


__all__ = ["PartProgram", "elements_are_found", "write_part"]
