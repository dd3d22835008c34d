"""Ops without a native form: generated code calls the reference engine's kernel between two native pieces.

The call goes by addresses. The generated code writes the address of each operand and result into a small table and
calls back with the number of the call; `ctrlgrad.engines.native.outside` makes arrays of the addresses and runs the
kernel. Operands and results are contiguous; numbers go by memory too.
"""

from __future__ import annotations

import numpy as np

from ctrlgrad.engines.native.layout import Ref, Scalar, Size, product
from ctrlgrad.engines.native.program import Entry, OutsideCall, Status
from ctrlgrad.engines.native.regions import RegionWriter
from ctrlgrad.engines.native.rules.table import give, rule
from ctrlgrad.engines.reference import REFERENCE
from ctrlgrad.ir import Node, Value

_ADDRESS = np.dtype(np.int64)


def by_reference(e: RegionWriter, node: Node) -> None:
    """Call the reference kernel of a node."""
    e.flush()
    operands = [_in_memory(e, v) for v in node.operands]
    results = [_result(e, v) for v in node.results]
    addresses = e.pointer(Entry("temporary", dtype=_ADDRESS, size=Size(len(operands) + len(results))), _ADDRESS)
    for k, ref in enumerate([*operands, *results]):
        is_result = int(k >= len(operands))
        e.line(f"put({addresses}, {k}, span({ref.base}, {ref.offset}, {product(ref.shape)}, {is_result}))")
    shapes = [tuple((r.shape, r.dtype) for r in refs) for refs in (operands, results)]
    e.calls.append(OutsideCall(node, *shapes))
    failed = f"invoke({_routine(e)}, {len(e.calls) - 1}, {addresses}) != 0"
    e.fail(failed, Status.RAISED, str(e.site(node)))
    for v, ref in zip(node.results, results, strict=True):
        give(e, v, ref)
    e.notes.append(f"{node.op.name} by the reference engine")


def _in_memory(e: RegionWriter, value: Value) -> Ref:
    item = e.item(value)
    if isinstance(item, Scalar):
        ref = e.temporary((), item.dtype)
        e.put(ref, "0", item.text)
        return ref
    ref = e.ref(value)
    return ref if ref.is_contiguous else e.copied(ref)


def _result(e: RegionWriter, value: Value) -> Ref:
    if value.tensor.rank:
        ref = e.place(value)
        if ref.is_contiguous:
            return ref
    return e.temporary(e.shapes.sizes(value), value.tensor.dtype)


def _routine(e: RegionWriter) -> str:
    if "outside" not in e.routines:
        e.header.append(f"outside = {e.entry(Entry('outside'))}")
        e.routines["outside"] = "outside"
    return e.routines["outside"]


def _register() -> None:
    """The rule of every op that has a reference kernel and no rule of its own."""
    from ctrlgrad.engines.native.rules.table import RULES

    for name in REFERENCE.pure:
        if name not in RULES and not name.startswith("stack_"):
            rule(name)(by_reference)


_register()
