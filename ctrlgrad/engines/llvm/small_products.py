"""Matrix products as loops in the code: rows of the result are sums of rows of the right side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from ctrlgrad.engines.llvm.nests import counted_loop, element_parts
from ctrlgrad.engines.llvm.text import memory_type_of, type_of
from ctrlgrad.plan.model import Product, View
from ctrlgrad.plan.sizes import ONE, Size, row_major

if TYPE_CHECKING:
    from ctrlgrad.engines.llvm.emit import PlanWriter


class ProductWriter:
    """Writes one product."""

    def __init__(self, plan: PlanWriter, step: Product) -> None:
        self.plan, self.w, self.step = plan, plan.w, step
        self.dtype, self.parts = element_parts(step.result.dtype)

    def write(self) -> None:
        step, plan, w = self.step, self.plan, self.w
        target = plan.define(step.result)
        nbytes = plan.size(step.result.count * Size(step.result.dtype.itemsize))
        if step.base is None:
            w.declare("void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
            w.line(f"call void @llvm.memset.p0.i64(ptr {target}, i8 0, i64 {nbytes}, i1 false)")
        elif plan.plan.places[step.base] != plan.plan.places[step.result]:
            plan.copy_bytes(target, plan.place_of(step.base), nbytes)
        result = step.result.view
        bases = [plan.view_address(step.a), plan.view_address(step.b), target]
        views = [step.a, step.b, result]
        batch = len(result.shape) - 2
        with ExitStack() as loops:
            offsets = ["0", "0", "0"]
            for axis in range(batch):
                if result.shape[axis] == ONE:
                    continue
                i = loops.enter_context(counted_loop(w, "0", plan.size(result.shape[axis])))
                offsets = self.moved(offsets, i, [v.strides[axis] for v in views])
            m, n, k = result.shape[-2], result.shape[-1], step.a.shape[-1]
            i = loops.enter_context(counted_loop(w, "0", plan.size(m)))
            row = self.moved(offsets, i, [step.a.strides[-2], Size(0), row_major(result.shape)[-2]])
            kk = loops.enter_context(counted_loop(w, "0", plan.size(k)))
            row = self.moved(row, kk, [step.a.strides[-1], step.b.strides[-2], Size(0)])
            left = [self.load(bases[0], row[0], part, 1) for part in range(self.parts)]
            self.add_row(left, bases, row, n, step.b)

    def moved(self, offsets: Sequence[str], i: str, strides: Sequence[Size]) -> list[str]:
        found = []
        for offset, stride in zip(offsets, strides, strict=True):
            if stride == Size(0):
                found.append(offset)
                continue
            step = i if stride == ONE else self.w.op(f"mul i64 {i}, {self.plan.size(stride)}")
            found.append(step if offset == "0" else self.w.op(f"add i64 {offset}, {step}"))
        return found

    def add_row(self, left: Sequence[str], bases: Sequence[str], row: Sequence[str], n: Size, b: View) -> None:
        """result[i, :] += a[i, k] * b[k, :]."""
        total, start = self.plan.size(n), "0"
        width = self.plan.vector_bytes // self.dtype.itemsize
        if self.parts == 1 and self.dtype.itemsize > 2 and b.strides[-1] == ONE and not (n.is_known and n.factor < width):
            rest = self.w.op(f"srem i64 {total}, {width}")
            end = self.w.op(f"sub i64 {total}, {rest}")
            with counted_loop(self.w, "0", end, width) as j:
                self.point(left, bases, row, j, b, width)
            start = end
        with counted_loop(self.w, start, total) as j:
            self.point(left, bases, row, j, b, 1)

    def point(
        self, left: Sequence[str], bases: Sequence[str], row: Sequence[str], j: str, b: View, width: int
    ) -> None:
        _, at_b, at_c = self.moved(row, j, [Size(0), b.strides[-1], ONE])
        right = [self.load(bases[1], at_b, part, width) for part in range(self.parts)]
        sums = [self.load(bases[2], at_c, part, width) for part in range(self.parts)]
        for part in range(self.parts):
            value = sums[part]
            for of, sign, x, y in self.terms(left, right, width):
                if of == part:
                    value = self.multiplied_in(value, sign, x, y, width)
            self.store(bases[2], at_c, part, value, width)

    def terms(
        self, left: Sequence[str], right: Sequence[str], width: int
    ) -> Iterator[tuple[int, int, str, str]]:
        """(part, sign, factor, factor) of the product of two numbers."""
        if self.parts == 1:
            yield 0, 1, left[0], right[0]
            return
        yield 0, 1, left[0], right[0]
        yield 0, -1, left[1], right[1]
        yield 1, 1, left[0], right[1]
        yield 1, 1, left[1], right[0]

    def multiplied_in(self, value: str, sign: int, x: str, y: str, width: int) -> str:
        w, kind = self.w, type_of(self.dtype, width)
        if width > 1:
            first = w.op(f"insertelement {kind} poison, {type_of(self.dtype)} {x}, i64 0")
            x = w.op(f"shufflevector {kind} {first}, {kind} poison, <{width} x i32> zeroinitializer")
        if self.dtype.kind != "f":
            return w.op(f"add {kind} {value}, {w.op(f'mul {kind} {x}, {y}')}")
        if sign < 0:
            x = w.op(f"fneg {kind} {x}")
        name = f"llvm.fma.{f'v{width}' if width > 1 else ''}f{8 * self.dtype.itemsize}"
        w.declare(f"{kind} @{name}({kind}, {kind}, {kind})")
        return w.op(f"call {kind} @{name}({kind} {x}, {kind} {y}, {kind} {value})")

    def address(self, base: str, at: str, part: int) -> str:
        kind = memory_type_of(self.dtype)
        if self.parts == 2:
            at = self.w.op(f"shl i64 {at}, 1")
            at = self.w.op(f"add i64 {at}, {part}")
        return self.w.op(f"getelementptr {kind}, ptr {base}, i64 {at}")

    def load(self, base: str, at: str, part: int, width: int) -> str:
        kind = memory_type_of(self.dtype, width)
        return self.w.op(f"load {kind}, ptr {self.address(base, at, part)}, align {self.dtype.itemsize}")

    def store(self, base: str, at: str, part: int, value: str, width: int) -> None:
        kind = memory_type_of(self.dtype, width)
        self.w.line(f"store {kind} {value}, ptr {self.address(base, at, part)}, align {self.dtype.itemsize}")

