"""Discrete Fourier transforms as calls of the machine's routines, whose parts threads share."""

from __future__ import annotations

from ctrlgrad.engines.native import target
from ctrlgrad.engines.native.product_calls import known
from ctrlgrad.engines.native.products import real, transforms
from ctrlgrad.engines.native.shared_nests import call_parts, work_of_transform
from ctrlgrad.engines.native.stack_text import StackText
from ctrlgrad.engines.native.text import Writer
from ctrlgrad.plan.model import Transform


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
    inner = Writer(w)
    captured = [("ptr", text) for text in (result, source, scratch)]
    slots = [inner.op(f"getelementptr i64, ptr %table, i64 {k}") for k in range(len(captured))]
    *places, own = [inner.op(f"load ptr, ptr {slot}") for slot in slots]
    inner.declare("ptr @cg_pool_scratch(i64)")
    other, is_caller = inner.op("call ptr @cg_pool_scratch(i64 %worker)"), inner.op("icmp eq i64 %worker, 0")
    own = inner.op(f"select i1 {is_caller}, ptr {own}, ptr {other}")
    inner.declare("i64 @llvm.smin.i64(i64, i64)")
    first = inner.op(f"mul i64 %part, {share.unit}")
    after = inner.op(f"add i64 {first}, {share.unit}")
    call(inner, places, first, inner.op(f"call i64 @llvm.smin.i64(i64 {after}, i64 {sizes[0]})"), own)
    inner.line("ret void")
    name = f"part{len(plan.parts)}"
    plan.parts.append(inner.function(f"internal void @{name}(ptr %table, i64 %part, i64 %worker)", plan.vector_bytes))
    call_parts(w, name, captured, share.parts, str(work_of_transform(step)))
