"""Systems of equations, Cholesky factors and pivots as calls of the machine's routines."""

from __future__ import annotations

import math
from contextlib import ExitStack

from ctrlgrad import threads
from ctrlgrad.engines.native import target
from ctrlgrad.engines.native.loops import counted_loop
from ctrlgrad.engines.native.product_calls import known, moved
from ctrlgrad.engines.native.products import blocks, kernels, real
from ctrlgrad.engines.native.products.solves import MOST_ROWS
from ctrlgrad.engines.native.products.triangular import BLOCK
from ctrlgrad.engines.native.shared_code import LINE
from ctrlgrad.engines.native.shared_nests import call_ranges
from ctrlgrad.engines.native.stack_text import StackText
from ctrlgrad.engines.native.text import Writer
from ctrlgrad.plan.model import Factorise, View
from ctrlgrad.plan.sizes import ONE

# Units of work (see `ctrlgrad.threads`) of a multiplication of a small matrix's factors.
MULTIPLICATION = 16
# Routines on matrices that need not be square, without a right side.
_DECOMPOSITIONS = ("orthonormal", "eigh", "svd")
_ROUTINES = {"solve": "lu_solve", "pivots": "pivots", "triangular_solve": "triangular_solve", "cholesky": "cholesky"}
_ROUTINES |= {"lu": "lu", "lu_solved": "lu_solved"}
_ROUTINES |= {how: how for how in _DECOMPOSITIONS}
# Routines built on products: up to this number of rows, they run unblocked.
_FEW_ROWS = {"lu_solve": MOST_ROWS, "triangular_solve": BLOCK, "cholesky": BLOCK}


class FactorsWriter:
    """Writes one step: a call for each matrix of the batch. Threads share a large batch of small matrices."""

    def __init__(self, plan: StackText, step: Factorise) -> None:
        self.plan, self.w, self.step = plan, plan.w, step
        # Factors are of real numbers, of complex matrices too.
        matrix = step.a if step.b is None else step.result
        self.kind = real.KINDS[matrix.dtype.char]
        self.name = _ROUTINES[step.how]
        if self.name in _FEW_ROWS:
            n, columns = (known(size) for size in step.result.shape[-2:])
            is_real = step.result.dtype.kind == "f" or step.how != "solve"
            if is_real and (step.largest is not None or (n is not None and n <= _FEW_ROWS[self.name])):
                self.name += "_small"
            else:
                self.declare_kernels(columns)
        elif step.how in ("lu", "lu_solved"):
            self.declare_kernels(None)
        # Axes of the result that are no batch.
        self.rank = 1 if step.how in ("pivots", "lu") else 2

    def write(self) -> None:
        step, plan, w = self.step, self.plan, self.w
        result = plan.define(step.result)
        n = plan.size(step.a.shape[-1])
        fits = "true" if step.largest is None else w.op(f"icmp sle i64 {n}, {step.largest}")
        done = w.alloca("i1")
        w.line(f"store i1 {fits}, ptr {done}")
        views = [step.result.view, step.a, *([] if step.b is None else [step.b])]
        with plan.w.when(fits):
            sizes = [n] if step.b is None else [plan.size(size) for size in step.b.shape[-2:]]
            if step.how in _DECOMPOSITIONS:
                sizes = [plan.size(step.a.shape[-2]), n]
            addresses = [result, *(plan.view_address(view) for view in views[1:])]
            self.matrices(addresses, views, sizes, done)
        plan.registers[step.done.name] = w.op(f"load i1, ptr {done}")

    def matrices(self, addresses: list[str], views: list[View], sizes: list[str], done: str) -> None:
        """The calls for all matrices, in parts for threads where there are many."""
        plan, w, step = self.plan, self.w, self.step
        batch = [axis for axis, size in enumerate(step.result.shape[: -self.rank]) if size != ONE]
        length, each, work = self.work(batch, views)
        unit = math.ceil(length / threads.parts_of(work)) if each < threads.WORK_TO_SHARE else length
        if unit >= length:
            self.part(batch, addresses, views, sizes, plan.scratch_of(self.scratch_bytes(sizes)), done)
            return
        # Each part has scratch memory of its own.
        parts = math.ceil(length / unit)
        scratch = plan.scratch_of(w.multiply(self.scratch_bytes(sizes), str(parts)))

        def write(inner: Writer, places: list[str], first: str, end: str, _: str) -> None:
            plan.w = self.w = inner
            *inside, flag, whole = places
            own = inner.op(f"getelementptr i8, ptr {whole}, i64 {inner.multiply('%part', self.scratch_bytes(sizes))}")
            self.part(batch, inside, views, sizes, own, flag, (first, end))
            plan.w = self.w = w

        given = [*addresses, done, scratch]
        call_ranges(plan, given, "null", str(length), unit, parts, work, write)

    def scratch_bytes(self, sizes: list[str]) -> str:
        """Bytes of scratch memory for one matrix at a time, in whole lines of the cache."""
        nbytes = self.plan.scratch_bytes(f"cg_{self.name}_scratch_{self.kind}", sizes)
        return self.w.op(f"and i64 {self.w.add(nbytes, str(LINE - 1))}, {-LINE}")

    def work(self, batch: list[int], views: list[View]) -> tuple[int, int, int]:
        """Matrices along the first axis of a batch, and the units of work of a matrix and of all matrices: 0 where only
        the run knows the sizes."""
        step, shape = self.step, self.step.result.shape
        if not batch or not all(size.is_known for view in views for size in (*view.shape, *view.strides)):
            return 1, 0, 0
        rows, columns = (size.factor for size in (step.a if step.b is None else step.b).shape[-2:])
        each = MULTIPLICATION * rows * (columns * columns if step.b is None else rows * (rows + columns))
        return shape[batch[0]].factor, each, each * math.prod(shape[axis].factor for axis in batch)

    def part(
        self,
        batch: list[int],
        addresses: list[str],
        views: list[View],
        sizes: list[str],
        scratch: str,
        done: str,
        ends: tuple[str, str] | None = None,
    ) -> None:
        """The loops over the axes of a batch, the first one between `ends`, and the call in them."""
        w, plan = self.w, self.plan
        with ExitStack() as loops:
            for axis in batch:
                first, end = ends or ("0", plan.size(self.step.result.shape[axis]))
                ends = None
                i = loops.enter_context(counted_loop(w, first, end))
                addresses = [
                    moved(plan, address, i, view.strides[axis], view.dtype)
                    for address, view in zip(addresses, views, strict=True)
                ]
            status = self.call(addresses, views, sizes, scratch)
            if self.step.how != "pivots":
                with w.when(w.op(f"icmp ne i64 {status}, 0")):
                    w.line(f"store i1 false, ptr {done}")

    def declare_kernels(self, columns: int | None) -> None:
        """Declare the product kernels that a blocked routine calls, so that the module is linked with them."""
        one = real.reals(target.host())[self.step.result.dtype.char in "dD"]
        of_products = columns if self.step.how == "triangular_solve" else None
        for name in blocks.needed(one, None, of_products, False):
            self.w.declare(kernels.signature(name))

    def call(self, addresses: list[str], views: list[View], sizes: list[str], scratch: str) -> str:
        """Call the routine for one matrix; its status."""
        given: list[tuple[str, str]] = []
        for k, (address, view) in enumerate(zip(addresses, views, strict=True)):
            strides = view.strides[-2:] if k else view.strides[-2:-1] if self.rank == 2 else ()
            if k == 1 and self.step.how == "lu_solved":
                strides = ()  # of factors
            given += [("ptr", address), *(("i64", self.plan.size(stride)) for stride in strides)]
        given += [*(("i64", size) for size in sizes), ("ptr", scratch)]
        if (triangle := self.step.triangle) is not None:
            given += [("i64", str(int(flag))) for flag in (triangle.lower, triangle.unit_diagonal)]
        if self.step.how == "lu_solved":
            given.append(("i64", str(int(self.step.transposed))))
        if self.step.how in ("eigh", "svd"):
            given.append(("i64", str(int(self.step.result.shape[-2] != ONE))))
        name = f"cg_{self.name}_{self.kind}"
        self.w.declare(f"i64 @{name}({', '.join(kind for kind, _ in given)})")
        return self.w.op(f"call i64 @{name}({', '.join(' '.join(each) for each in given)})")
