"""Matrix products as calls of the machine's routines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from ctrlgrad import threads
from ctrlgrad.engines.native import target
from ctrlgrad.engines.native.loops import counted_loop
from ctrlgrad.engines.native.plan_text import PlanText
from ctrlgrad.engines.native.products import blocks, kernels, real, tiles, times
from ctrlgrad.engines.native.shared_nests import call_ranges
from ctrlgrad.engines.native.stack_text import StackText
from ctrlgrad.engines.native.text import Writer
from ctrlgrad.plan.model import Pack, Product
from ctrlgrad.plan.sizes import ONE, ZERO, Size, row_major


class ProductWriter:
    """Writes one product: a call for each matrix of the batch. Threads share a large batch of small matrices."""

    def __init__(self, plan: StackText, step: Product) -> None:
        self.plan, self.w, self.step = plan, plan.w, step
        self.kind = real.KINDS[step.result.dtype.char]

    def write(self) -> None:
        step, plan = self.step, self.plan
        target = plan.define(step.result)
        places = plan.plan.places
        if step.base is not None and places[step.base] != places[step.result]:
            nbytes = plan.size(step.result.count * Size(step.result.dtype.itemsize))
            plan.copy_bytes(target, plan.place_of(step.base), nbytes)
        result = step.result.view
        addresses = [plan.view_address(step.a), plan.view_address(step.b), target]
        m, n, k = (plan.size(s) for s in (result.shape[-2], result.shape[-1], step.a.shape[-1]))
        scratch = self.scratch(m, n, k)
        self.packed = "" if step.packed is None else plan.place_of(step.packed)
        batch = [axis for axis, size in enumerate(result.shape[:-2]) if size != ONE]
        sizes = [known(size) for size in (*step.a.shape[-2:], *result.shape)]
        if batch and None not in sizes:
            each = math.prod(size or 0 for size in (*sizes[:2], sizes[-1]))
            work, length = each * math.prod(size or 0 for size in sizes[2:-2]), known(result.shape[batch[0]]) or 0
            unit = math.ceil(length / threads.parts_of(work)) if each < threads.WORK_TO_SHARE else length
            if unit < length:
                self.write_parts(batch, addresses, (m, n, k), scratch, unit, work)
                return
        self.matrices(batch, addresses, (m, n, k), scratch)

    def matrices(
        self,
        batch: Sequence[int],
        addresses: list[str],
        sizes: tuple[str, str, str],
        scratch: str,
        ends: tuple[str, str] | None = None,
    ) -> None:
        """The loops over the axes of a batch, the first one between `ends`, and the call in them."""
        plan, views = self.plan, [self.step.a, self.step.b, self.step.result.view]
        with ExitStack() as loops:
            for axis in batch:
                first, end = ends or ("0", plan.size(views[2].shape[axis]))
                ends = None
                i = loops.enter_context(counted_loop(plan.w, first, end))
                addresses = [
                    moved(plan, address, i, view.strides[axis], view.dtype)
                    for address, view in zip(addresses, views, strict=True)
                ]
            self.call(addresses, *sizes, scratch)

    def write_parts(
        self,
        batch: Sequence[int],
        addresses: list[str],
        sizes: tuple[str, str, str],
        scratch: str,
        unit: int,
        work: int,
    ) -> None:
        """A function for `unit` matrices along the first axis of a batch, and its call by the pool."""
        plan, w, outside = self.plan, self.w, self.packed

        def write(inner: Writer, places: list[str], first: str, end: str, own: str) -> None:
            *inside, self.packed = places
            plan.w = self.w = inner
            self.matrices(batch, inside, sizes, own, (first, end))
            plan.w, self.w, self.packed = w, w, outside

        length = known(self.step.result.view.shape[batch[0]]) or 0
        given = [*addresses, self.packed or "null"]
        call_ranges(plan, given, scratch, str(length), unit, math.ceil(length / unit), work, write)

    @property
    def is_vector(self) -> bool:
        """Return true if the result has one row or one column, for which there is a special routine."""
        is_one = ONE in self.step.result.view.shape[-2:]
        return is_one and self.step.packed is None and not self.step.in_order and self.kind in ("f32", "f64")

    def scratch(self, m: str, n: str, k: str) -> str:
        """Memory for the routine, if it is one that wants some."""
        if self.kind not in ("f32", "f64") or self.is_vector:
            return "null"
        return self.plan.scratch(f"cg_gemm_scratch_{self.kind}", [m, n, k])

    def call(self, addresses: list[str], m: str, n: str, k: str, scratch: str) -> None:
        step, plan, w = self.step, self.plan, self.w
        if self.is_vector and self.by_vector(addresses):
            return
        a, b, c = addresses
        routine = "gemv" if self.is_vector else "gemm" if step.packed is None else "gemm_packed"
        name = f"cg_{routine}_{self.kind}"
        w.declare(f"void @{name}(ptr, i64, ptr, i64, i64, ptr, i64, i64, i64, i64, i64, i64, ptr)")
        if self.kind in ("f32", "f64") and not self.is_vector:
            self.declare_kernels()
        ldc = plan.size(row_major(step.result.shape)[-2])
        left = ", ".join(f"i64 {plan.size(s)}" for s in step.a.strides[-2:])
        right = ", ".join(f"i64 {plan.size(s)}" for s in step.b.strides[-2:])
        if step.packed is not None:
            b, right = self.packed, "i64 0, i64 0"
        accumulate = tiles.how(step.base is not None, step.in_order and self.kind in ("f32", "f64"))
        w.line(
            f"call void @{name}(ptr {c}, i64 {ldc}, ptr {a}, {left}, ptr {b}, {right}, "
            f"i64 {m}, i64 {n}, i64 {k}, i64 {accumulate}, ptr {scratch})"
        )

    @property
    def real(self) -> real.Real:
        return next(kind for kind in real.reals(target.host()) if kind.name == self.kind)

    def declare_kernels(self) -> None:
        """Declare the kernels that a product of these sizes calls, so that the module is linked with them."""
        m, n = map(known, self.step.result.view.shape[-2:])
        rows_of_b = self.step.b.strides[-1] == ONE
        for name in blocks.needed(self.real, m, n, self.step.packed is not None, rows_of_b, self.step.in_order):
            self.w.declare(kernels.signature(name))

    def by_vector(self, addresses: list[str]) -> bool:
        """Declare the kernels for a matrix and a vector; and call the one that it is, where that is known here and the
        product is one for one thread."""
        step, (a, b, c) = self.step, addresses
        (m, n), k = step.result.view.shape[-2:], step.a.shape[-1]
        (ra, ca), (rb, cb), rc = step.a.strides[-2:], step.b.strides[-2:], row_major(step.result.shape)[-2]
        of_a, of_b = (c, rc, a, ra, ca, b, rb, m, k), (c, ONE, b, cb, rb, a, ca, n, k)
        ways = [of_b] if known(n) not in (1, None) else [of_a] if n == ONE else [of_a, of_b]
        for way in ways:
            _, out, _, rows, columns, _, x, count, depth = way
            found, is_sure = times.needed(self.real, *map(known, (rows, columns, x, out)))
            for name in found:
                self.w.declare(kernels.signature(name))
            size, other = known(count), known(depth)
            is_little = size and other and (size * other + size + other) * self.real.bytes < threads.WORK_TO_SHARE
            if len(ways) == 1 and is_sure and is_little:
                numbers = [self.plan.size(value) if isinstance(value, Size) else value for value in way]
                numbers.append(str(step.base is not None).lower())
                given = zip(times.PARAMETERS, numbers, strict=True)
                self.w.line(f"call void @{found[0]}({', '.join(f'{kind} {value}' for (kind, _), value in given)})")
                return True
        return False


def known(size: Size) -> int | None:
    """A size that is known; None of another."""
    return size.factor if size.is_known else None


def moved(plan: PlanText, address: str, i: str, stride: Size, dtype: np.dtype) -> str:
    """An address, so many strides of elements further."""
    if stride == ZERO:
        return address
    nbytes = plan.w.op(f"mul i64 {i}, {plan.size(stride * Size(dtype.itemsize))}")
    return plan.w.op(f"getelementptr i8, ptr {address}, i64 {nbytes}")


def write_pack(plan: StackText, step: Pack) -> None:
    """Lay a right side out."""
    kind = real.KINDS[np.dtype(step.view.dtype).char]
    target, source = plan.define(step.result), plan.view_address(step.view)
    k, n = (plan.size(s) for s in step.view.shape[-2:])
    rows, columns = (plan.size(s) for s in step.view.strides[-2:])
    plan.w.declare(f"void @cg_pack_b_{kind}(ptr, ptr, i64, i64, i64, i64)")
    plan.w.line(f"call void @cg_pack_b_{kind}(ptr {target}, ptr {source}, i64 {rows}, i64 {columns}, i64 {k}, i64 {n})")
