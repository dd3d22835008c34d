"""What an engine may ask of fusion: bounds of its kernels, and what goes before an update."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from plan.plans import graph_of, unplaced

from ctrlgrad.plan.effects import reads
from ctrlgrad.plan.fusion import Limits, fuse
from ctrlgrad.plan.model import Array, Kernel, Plan, Product, Step

X = np.arange(3.0)


def before_fusion(fn: Any, *arguments: Any) -> Plan:
    return unplaced(graph_of(fn, *arguments), arguments, without=("fuse",))


def kernels(plan: Plan) -> list[Kernel]:
    return [step for step in plan.body.steps if isinstance(step, Kernel)]


def sum_of_many(*xs: Any) -> Any:
    total = xs[0]
    for x in xs[1:]:
        total = total + x
    return total


def products_of_one(x: Any) -> Any:
    return [x * float(k) for k in range(2, 10)]


def chain(x: Any) -> Any:
    for _ in range(8):
        x = np.sin(x)
    return x


@pytest.mark.parametrize(
    ("fn", "count", "limits"),
    [
        (sum_of_many, 9, Limits(reads=4, writes=9, nodes=99)),
        (products_of_one, 1, Limits(reads=9, writes=3, nodes=99)),
        (chain, 1, Limits(reads=9, writes=9, nodes=3)),
    ],
)
def test_kernels_keep_an_engines_bounds(fn: Any, count: int, limits: Limits) -> None:
    plan = before_fusion(fn, *(X + k for k in range(count)))
    assert len(kernels(fuse(plan))) == 1
    found = kernels(fuse(plan, limits))
    assert len(found) == 3
    for kernel in found:
        assert len(kernel.operands) + len(kernel.numbers) <= limits.reads
        assert len(kernel.writes) <= limits.writes and len(kernel.nodes) <= limits.nodes


def test_what_a_kernel_reads_is_read_before_it_is_overwritten() -> None:
    """A product that may be made in the memory of a factor comes after the kernel that reads this factor."""
    a = np.ones((5, 5))
    plan = before_fusion(lambda a, b: (np.sin(a), a @ b), a, a + 1.0)

    def updated(step: Step) -> list[Array]:
        return [array for array in reads(step) if isinstance(array, Array)] if isinstance(step, Product) else []

    assert [type(step) for step in fuse(plan).body.steps] == [Product, Kernel]
    assert [type(step) for step in fuse(plan, updated=updated).body.steps] == [Kernel, Product]
