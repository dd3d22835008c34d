"""Discrete Fourier transforms as calls of the machine's routines, whose parts threads share."""

from __future__ import annotations

from ctrlgrad.engines.native import target
from ctrlgrad.engines.native.product_calls import known
from ctrlgrad.engines.native.products import real, transforms
from ctrlgrad.engines.native.shared_nests import call_ranges
from ctrlgrad.engines.native.stack_text import StackText
from ctrlgrad.engines.native.text import Writer
from ctrlgrad.plan.model import Transform
from ctrlgrad.plan.sharing import work_of_transform


def write_transform(plan: StackText, step: Transform) -> None:
    w, share = plan.w, plan.plan.shares.get(step)
    rows, _, columns = step.view.shape
    kind = real.reals(target.host())[step.view.dtype.char in "dD"]
    form = transforms.form_of(kind, step.how, step.n, known(rows * columns), known(columns))
    table = transforms.table_name(kind, step.how, step.n, form)
    routine = transforms.symbol("across" if form.across else "within", kind.name, form.lanes)
    result, source = plan.define(step.result), plan.view_address(step.view)
    scratch = plan.scratch_of(str(form.scratch_bytes(kind)))
    w.declare(f"void @{table}()")
    w.declare(f"void @{routine}(ptr, ptr, ptr, i64, i64, i64, ptr)")
    sizes = [plan.size(size) for size in (rows * columns, columns)]

    def call(w: Writer, places: list[str], first: str, end: str, own: str) -> None:
        given = ", ".join(f"ptr {place}" for place in (*places, f"@{table}"))
        w.line(f"call void @{routine}({given}, i64 {first}, i64 {end}, i64 {sizes[1]}, ptr {own})")

    if share is None:
        call(w, [result, source], "0", sizes[0], scratch)
        return
    work = work_of_transform(step)
    call_ranges(plan, [result, source], scratch, sizes[0], share.unit, share.parts, work, call)
