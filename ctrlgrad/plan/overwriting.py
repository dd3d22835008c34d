"""Arrays that a step may overwrite: it reads them for the last time just where it writes."""

from __future__ import annotations

import functools
from collections.abc import Container, Iterator, Mapping

from ctrlgrad.plan.effects import defines, reads, updates
from ctrlgrad.plan.model import Array, Block, Kernel, Operand, Product, Step, Value, View, Write


def results_of(step: Step) -> list[Array]:
    """The arrays that a step makes."""
    return [value for value in defines(step) if isinstance(value, Array)]


def operands_of(step: Step) -> list[Array]:
    """The arrays over which a step may write, those that it updates first."""
    return [v for v in (*(before for _, before in updates(step)), *reads(step)) if isinstance(v, Array)]


def may_overwrite(step: Step, array: Array, other: Array) -> bool:
    """Return true if a step that reads `other` may write `array` to the same memory.

    A kernel may, if each element is read for the last time just before it is written: both at the position of the point
    itself. An update may lie over its base, if nothing else of the base is read but the elements that are written.
    """
    if isinstance(step, Kernel):
        writes, updating, reads_of = _by_array(step)
        write, reading = writes[array], reads_of.get(other, ())
        if any(w is not write for w in updating.get(other, ())):
            return False
        if write.base is not None:
            if write.base is not other:
                return False
            # An update that does not read what it updates, or reads just the element that it writes.
            return all(not o.gathered and o.view == _at(write.view, other) and not write.scattered for o in reading)
        if write.how != "store" or write.scattered or write.view != array.view:
            return False
        return all(o.view == other.view and not o.gathered and o.view.shape == write.view.shape for o in reading)
    if isinstance(step, Product):
        return step.base is other and step.a.array is not other and step.b.array is not other
    return False


@functools.lru_cache(maxsize=16)
def _by_array(kernel: Kernel) -> tuple[dict[Array, Write], dict[Array, list[Write]], dict[Array, list[Operand]]]:
    """A kernel's writes by the array that they make and by the one that they update; its operands by their array."""
    updating: dict[Array, list[Write]] = {}
    reading: dict[Array, list[Operand]] = {}
    for write in kernel.writes:
        if write.base is not None:
            updating.setdefault(write.base, []).append(write)
    for operand in kernel.operands:
        reading.setdefault(operand.view.array, []).append(operand)
    return {write.view.array: write for write in kernel.writes}, updating, reading


def _at(view: View, array: Array) -> View:
    """The same elements of another array."""
    return View(array, view.offset, view.shape, view.strides)


def origins_of(
    array: Array, producers: Mapping[Array, Step], after: Mapping[Step, Container[object]]
) -> Iterator[Array]:
    """The arrays of a block that one is an update of, the nearest first, as long as it may be written over them.

    `producers` has the steps of the block that make arrays, `after` what is needed after each step.
    """
    while isinstance(producers.get(array), Kernel | Product):
        step = producers[array]
        origin = dict(updates(step)).get(array)
        if (
            not isinstance(origin, Array)
            or not isinstance(producers.get(origin), Kernel | Product)
            or origin in after[step]
            or not may_overwrite(step, array, origin)
        ):
            return
        yield origin
        array = origin


def origins_in(block: Block) -> dict[Value, Value | None]:
    """For each value that a block defines what it is an update of; None: of nothing."""
    origins: dict[Value, Value | None] = {}
    for step in block.steps:
        origins.update(dict.fromkeys(defines(step)))
        origins.update(updates(step))
    return origins


def root_of(origins: Mapping[Value, Value | None], value: Value) -> Array | None:
    """The array from outside of a block that a value of it is an update of, or is itself."""
    while value in origins:
        origin = origins[value]
        if origin is None:
            return None
        value = origin
    return value if isinstance(value, Array) else None
