"""A device `cuda:N` in one run: its pieces are programs of the CUDA engine, queued on the library's compute stream.

Values stay on the device from one piece to the next. A value that is a host scalar for the CUDA engine (a counter,
an index, a bound) is one here too, so a loop that counts reads nothing. The place of a value is looked up when a
piece fires. The piece has a program for each combination of places that it meets: at most two where a loop's first
iteration takes host scalars and later ones take the device's.

An index that is out of range on the device is noted there. Every copy to the host brings the note too, so no
message carries a value that such an index has spoiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.dataflow.devices import DeviceRun, Piece
from ctrlgrad.engines.cuda.copies import Copies, InCopy, OutCopy
from ctrlgrad.engines.cuda.engine import program_of
from ctrlgrad.engines.cuda.library import ArrayLibrary
from ctrlgrad.engines.cuda.placement import DEVICE, HOST, Place, Places, place
from ctrlgrad.engines.cuda.program import Context, Program, scalar, to_device
from ctrlgrad.engines.cuda.stacks import DeviceStack
from ctrlgrad.engines.reference import Run
from ctrlgrad.errors import CtrlgradError
from ctrlgrad.ir import Graph, StackType, TensorType, Type, Value

# From copies in their order to the value that they are of.
_Build = Callable[[Sequence[Any]], Any]


def cuda_piece(region: Graph) -> Piece:
    """A function that runs a cluster's nodes on a list of operands, which it takes over, in a `Context`."""
    programs: dict[tuple[str, Places], tuple[Places, Program]] = {}

    def piece(values: list[Any], context: Context) -> list[Any]:
        library = context.library
        found = tuple([_place(library, v, x) for v, x in zip(region.inputs, values, strict=True)])
        key = (library.name, found)
        if key not in programs:
            wanted = _with_growing_stacks(region, found)
            programs[key] = (wanted, program_of(library, region, wanted))
        places, program = programs[key]
        for i, its in enumerate(places):
            values[i] = _host_value(values[i]) if its is HOST else to_device(context, values[i], region.inputs[i].type)
        return program(values, context)

    return piece


def _place(library: ArrayLibrary, value: Value, x: Any) -> Place:
    if not isinstance(value.type, StackType):
        return DEVICE if value.tensor.rank or library.is_array(x) else HOST
    if value.type.element.rank or isinstance(x, DeviceStack):
        return DEVICE
    # All rows that were written are on one side.
    first = next((row for row in x if row is not None), None)
    return DEVICE if library.is_array(first) else HOST


def _with_growing_stacks(region: Graph, given: Places) -> Places:
    """The places, but for stacks on the host on which something of the device's is put: they go there at once."""
    inputs = dict(zip(region.inputs, given, strict=True))
    while True:
        places = place(region, tuple(inputs.values()))
        came_as = {v: v for v in region.inputs}
        moved = set()
        for node in region.nodes:
            if not node.results or not isinstance(node.results[0].type, StackType) or node.regions:
                continue
            origin = next((came_as[v] for v in node.operands[:1] if v in came_as), None)
            if origin is None:
                continue
            came_as[node.results[0]] = origin
            if inputs[origin] is HOST and places[node.results[0]] is DEVICE:
                moved.add(origin)
        if not moved:
            return tuple(inputs.values())
        inputs |= dict.fromkeys(moved, DEVICE)


def _host_value(x: Any) -> Any:
    return x if isinstance(x, list) else scalar(x)


def _scalars(rows: Sequence[Any]) -> list[Any]:
    """A stack of scalars on the host; None for a slot that was not written."""
    return [None if row is None else scalar(np.asarray(row)) for row in rows]


def _among(written: Sequence[bool]) -> _Build:
    """Rows to a stack in which only some slots were written."""

    def build(arrays: Sequence[Any]) -> list[Any]:
        rest = iter(arrays)
        return [scalar(next(rest)) if is_written else None for is_written in written]

    return build


@contextmanager
def _seen_late(context: Context) -> Iterator[None]:
    """An error inside is not one of the step that fires just now."""
    try:
        yield
    except CtrlgradError:
        context.is_late = True
        raise


class CudaLeaving:
    """A value on its way to the host, and the note of indices out of range so far."""

    def __init__(self, context: Context, copy: OutCopy, is_noted: bool, build: _Build) -> None:
        self._context, self._copy, self._is_noted, self._build = context, copy, is_noted, build

    def is_done(self) -> bool:
        return self._copy.is_done()

    def value(self) -> Any:
        with _seen_late(self._context):
            arrays = self._copy.arrays()
            if self._is_noted:
                self._context.raise_flagged(arrays.pop())
        return self._build(arrays)


@dataclass(frozen=True, eq=False)
class _Arriving:
    """A value on its way to the device."""

    copies: list[InCopy]
    build: _Build


class CudaRun(DeviceRun):
    """A device `cuda:N`, by its library."""

    def __init__(self, library: ArrayLibrary, run: Run) -> None:
        super().__init__(run)
        self.library = library
        self.context = Context(library, run=run)
        self.copies = Copies(library)
        # The last predicate that was read, and its value: all Switches of a branch ask for it.
        self._read: tuple[Any, Any] = (None, None)

    @property
    def is_late(self) -> bool:
        return bool(self.context.is_late)

    @contextmanager
    def running(self) -> Iterator[None]:
        with self.library.running():
            try:
                yield
            finally:
                self._read = (None, None)
                self.copies.close()

    def entered(self, value: Any, its: Type) -> Any:
        if isinstance(its, StackType):
            # A copy: the run may change it.
            on_host = its.element.rank == 0
            return _scalars(value) if on_host else self.context.stack_on_device(list(value), its.element.dtype)
        return self.context.on_device(value) if its.rank else scalar(np.asarray(value))

    def on_host(self, value: Any) -> Any:
        if not self.library.is_array(value):
            return value
        if self._read[0] is not value:
            self._read = (value, scalar(self.context.predicate(value)[0]))
        return self._read[1]

    # Messages.

    def leave(self, value: Any) -> CudaLeaving | None:
        if self.library.is_array(value):
            return self._leave([value], lambda arrays: scalar(arrays[0]))
        if isinstance(value, DeviceStack):
            blocks = [value.used(block) for block in value.blocks]
            return self._leave(blocks, lambda arrays: [row for array in arrays for row in array])
        if isinstance(value, list) and any(map(self.library.is_array, value)):
            return self._leave([row for row in value if row is not None], _among([row is not None for row in value]))
        return None

    def _leave(self, arrays: Sequence[Any], build: _Build) -> CudaLeaving:
        flag = self.context.flag
        # A copy of the note: a later kernel may write to it.
        notes = [] if flag is None else [self.library.xp.array(flag)]
        return CudaLeaving(self.context, self.copies.out([*arrays, *notes]), bool(notes), build)

    def arrive(self, value: Any, its: Type) -> Any:
        if isinstance(its, StackType):
            return self._stack(value, its.element)
        x = np.asarray(value)
        return scalar(x) if not x.ndim else _Arriving([self._begin([x], x.shape)], lambda arrays: arrays[0])

    def _stack(self, rows: Sequence[Any], element: TensorType) -> Any:
        if not element.rank:
            return _scalars(rows)
        if not rows:
            return DeviceStack(self.library, element.dtype)
        written = [row for row in rows if row is not None]
        if len(written) == len(rows) and len({np.shape(row) for row in rows}) == 1:
            whole = self._begin(rows, (len(rows), *np.shape(rows[0])))
            return _Arriving([whole], lambda arrays: DeviceStack.of(self.library, arrays[0]))
        return _Arriving([self._begin([row], np.shape(row)) for row in written], _among([r is not None for r in rows]))

    def _begin(self, rows: Sequence[Any], shape: tuple[int, ...]) -> InCopy:
        """Begin to take in an array, given whole or by its rows."""
        self.context.counts.uploads += 1
        dtype = np.asarray(rows[0]).dtype

        def fill(target: np.ndarray) -> None:
            for x, row in zip(rows, target.reshape(len(rows), *np.shape(rows[0])), strict=True):
                row[...] = x

        with _seen_late(self.context):
            return self.copies.into(shape, dtype, fill)

    def landed(self, arriving: Any) -> Any:
        if not isinstance(arriving, _Arriving):
            return arriving
        return arriving.build([self.copies.landed(copy) for copy in arriving.copies])

    def results(self, outputs: Mapping[int, Any]) -> dict[int, Any]:
        self._read = (None, None)
        return dict(zip(outputs, self.context.finish(list(outputs.values())), strict=True))
