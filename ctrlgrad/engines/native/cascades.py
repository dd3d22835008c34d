"""Reductions of rows that are reduced side by side: each vector with numbers of several rows goes on as it is there.

Where a run has no columns, or fewer rows than a vector has lanes, one kernel runs after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ctrlgrad.engines.native.axes import has_calls
from ctrlgrad.engines.native.nest import Known
from ctrlgrad.engines.native.nests import KernelWriter
from ctrlgrad.engines.native.rows_across import RowsAcross, are_across, reduce_across, rows_across
from ctrlgrad.engines.native.sum_blocks import held_in_registers
from ctrlgrad.engines.native.text import is_number
from ctrlgrad.plan.model import Array, Kernel
from ctrlgrad.plan.reductions import EXTREMES

# Reductions to which it is all the same how often an element comes.
_IDEMPOTENT = frozenset(["max", "min", *EXTREMES])


def write_cascade(first: KernelWriter, second: KernelWriter, alone: Callable[[Kernel], None]) -> None:
    """Write two kernels; `alone` writes one of them by itself."""
    w, axes = first.w, first.axes()
    outer, inner = axes
    form = rows_across(first.kernel, axes, first.width_side_by_side(inner), first.whole_width, first.uniform)
    if form is None or not _has_vectors(second, form):
        alone(first.kernel)
        alone(second.kernel)
        return
    rows = first.size(outer.size)
    does, after = are_across(first, form, "0", rows), w.new_label("after")
    if does != "true":
        joined, apart = w.new_label("cascade"), w.new_label("apart")
        w.branch_if(does, joined, apart)
        w.label(apart)
        alone(replace(first.kernel, operands=tuple(replace(o, columns=None) for o in first.kernel.operands)))
        alone(second.kernel)
        w.branch(after)
        w.label(joined)
    first.still = dict.fromkeys(range(len(first.kernel.writes)), 1)
    offsets = [first.offset(view.offset) for view in first.views]
    second_part = _Second(second, first.kernel, form)
    held = held_in_registers(second.sums.values())
    reduce_across(first, form, axes, offsets, "0", rows, second_part.take, held)
    second_part.finish()
    if does != "true":
        w.branch(after)
        w.label(after)


def _has_vectors(second: KernelWriter, form: RowsAcross) -> bool:
    """Return true if the second kernel vectorises over rows at a width that suits the first one's."""
    (axis,) = second.axes()
    second.still = dict.fromkeys(range(len(second.kernel.writes)), 0)
    width = second.width_side_by_side(axis)
    return width > 1 and (width == form.width or not has_calls(second.kernel))


class _Second:
    """Writes the reductions of the second kernel, of which each vector of a turn has its own."""

    def __init__(self, nest: KernelWriter, first: Kernel, form: RowsAcross) -> None:
        self.nest, self.form = nest, form
        (self.axis,) = nest.axes()
        # The first kernel's outputs, which are not written to memory, by array: their numbers among its writes.
        self.made: dict[Array, int] = {write.view.array: k for k, write in enumerate(first.writes)}
        self.offsets = [nest.offset(view.offset) for view in nest.views]
        for k in range(len(nest.kernel.writes)):
            nest.sums[k] = nest.gathered(k, [(form.width, number) for number in range(form.together)])

    def take(self, at: str, begin: str, stop: str, made: Sequence[Sequence[str]]) -> None:
        """Go on with vectors of rows, as `rows_across.Take`."""
        nest, width = self.nest, self.form.width
        offsets = nest.moved(self.axis, self.offsets, at)
        for number, found in enumerate(made):
            outputs = nest.evaluated(offsets, width, self.axis, number * width, self.known(found))
            for k, write in enumerate(nest.kernel.writes):
                counted = None if write.how in _IDEMPOTENT else self.counted(at, begin, stop, len(made))
                nest.sums[k].add([outputs[o] for o in write.outputs], width, number, counted)

    def known(self, found: Sequence[str]) -> Known:
        """Values that the second kernel reads from the first one's registers."""

        def of(place: int) -> tuple[str, bool] | None:
            number = self.made.get(self.nest.kernel.operands[place].view.array)
            return None if number is None else (found[number], True)

        return of

    def counted(self, at: str, begin: str, stop: str, vectors: int) -> str | None:
        """A mask of the lanes whose rows come now for the only time that counts; None where all do."""
        w, width = self.nest.w, self.form.width
        is_known = all(map(is_number, (at, begin, stop)))
        if vectors > 1 or (is_known and at == begin and int(at) + width <= int(stop)):
            return None
        kind, lanes = f"<{width} x i64>", ", ".join(f"i64 {lane}" for lane in range(width))
        rows = w.op(f"add {kind} {w.in_all_lanes(at, 'i64', width)}, <{lanes}>")
        is_new = w.op(f"icmp sge {kind} {rows}, {w.in_all_lanes(begin, 'i64', width)}")
        is_last = w.op(f"icmp slt {kind} {rows}, {w.in_all_lanes(stop, 'i64', width)}")
        return w.op(f"and <{width} x i1> {is_new}, {is_last}")

    def finish(self) -> None:
        for k in range(len(self.nest.kernel.writes)):
            self.nest.finish(k, self.offsets)
