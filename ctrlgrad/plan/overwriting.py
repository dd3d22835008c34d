"""What a step may write over: arrays that it reads for the last time just where it writes."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from ctrlgrad.plan.model import (
    Array,
    Block,
    Branch,
    Cascade,
    Columns,
    Factorise,
    FromStack,
    Kernel,
    Loop,
    Outside,
    Pack,
    Pop,
    Product,
    ReadRow,
    Step,
    Value,
    View,
)


def results_of(step: Step) -> list[Array]:
    """The arrays that a step without blocks makes."""
    if isinstance(step, Kernel):
        return [w.view.array for w in step.writes]
    if isinstance(step, Cascade):
        return [*results_of(step.first), *results_of(step.second)]
    if isinstance(step, Product | Pack | Columns | Factorise | FromStack):
        return [step.result]
    if isinstance(step, Outside):
        return [r for r in step.results if isinstance(r, Array)]
    if isinstance(step, Pop | ReadRow) and isinstance(step.row, Array):
        return [step.row]
    return []


def operands_of(step: Step) -> list[Array]:
    """The arrays over which a step may write, those that it updates first."""
    if isinstance(step, Kernel):
        bases = [w.base for w in step.writes if w.base is not None]
        return [*bases, *(o.view.array for o in step.operands)]
    return [step.base] if isinstance(step, Product) and step.base is not None else []


def may_overwrite(step: Step, array: Array, other: Array) -> bool:
    """Whether a step that reads `other` may write `array` to the same memory.

    A kernel may, if each element is read for the last time just before it is written: both at the position of the point
    itself. What is updated may lie where it lay, if nothing else of it is read but what goes there.
    """
    if isinstance(step, Kernel):
        write = next(w for w in step.writes if w.view.array is array)
        if any(w.base is other and w is not write for w in step.writes):
            return False
        reading = [o for o in step.operands if o.view.array is other]
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
        origin = base_of(step, array)
        if (
            not isinstance(producers.get(origin), Kernel | Product)
            or origin in after[step]
            or not may_overwrite(step, array, origin)
        ):
            return
        yield origin
        array = origin


def base_of(step: Kernel | Product, array: Array) -> Array | None:
    """What an array that a step makes is an update of."""
    if isinstance(step, Product):
        return step.base
    return next(w for w in step.writes if w.view.array is array).base


def origins_in(block: Block) -> dict[Value, Value | None]:
    """For each array of a block what it is an update of; None: of nothing."""
    origins: dict[Value, Value | None] = {}
    for step in block.steps:
        if isinstance(step, Loop):
            origins.update((c.result, c.init) for c in step.carries)
        elif isinstance(step, Branch):
            origins.update(dict.fromkeys(step.results))
        elif isinstance(step, Kernel | Product):
            origins.update((array, base_of(step, array)) for array in results_of(step))
        else:
            origins.update(dict.fromkeys(results_of(step)))
    return origins


def root_of(origins: Mapping[Value, Value | None], value: Value) -> Array | None:
    """The array from outside of a block that a value of it is an update of, or is itself."""
    while value in origins:
        origin = origins[value]
        if not isinstance(origin, Array):
            return None
        value = origin
    return value if isinstance(value, Array) else None
