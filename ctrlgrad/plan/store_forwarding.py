"""An element that is read of an array in which one element has just been replaced: the array is not made for that.

`x.at[i].set(v)[j]` is v where i equals j, and else `x[j]`. Where x is needed afterwards, the update costs a copy of it.

In: a plan over values. Out: no array that is another one but for one number, and that nothing reads but a few loads in
the block that defines it. Each of those selects between the number and the same load of the other array. Indices are
guarded by steps of their own, which stay.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce

from ctrlgrad.plan.effects import INDEX, count_reads, with_blocks
from ctrlgrad.plan.expression import ExpressionBuilder, Number, select
from ctrlgrad.plan.model import Array, Block, Compute, Kernel, Load, Plan, Register, Step
from ctrlgrad.plan.sizes import ZERO, Size
from ctrlgrad.records import record

# Each load costs a comparison more than before: of an array that is read more often, the update is cheaper.
MOST_LOADS = 2


def forward_stores(plan: Plan) -> Plan:
    """The plan with loads that go past an update of one element."""
    return replace(plan, body=_block(plan.body, count_reads(plan)))


@record
class _Store:
    """Content of an array: `base`, but for `number` at the sum of `offset`."""

    base: Array
    number: Register
    offset: tuple[Size, ...]


def _block(block: Block, reads: Counter[Array]) -> Block:
    loads = Counter(step.view.array for step in block.steps if isinstance(step, Load))
    steps: list[Step] = []
    stores: dict[Array, _Store] = {}
    for step in block.steps:
        step = with_blocks(step, lambda each: _block(each, reads))
        if isinstance(step, Load) and step.view.array in stores:
            steps += _forwarded(step, stores[step.view.array])
            continue
        if isinstance(step, Kernel) and (store := _store(step)) is not None:
            array = step.writes[0].view.array
            if 0 < loads[array] == reads[array] <= MOST_LOADS:
                stores[array] = store
                continue
        steps.append(step)
    return replace(block, steps=tuple(steps))


def _store(kernel: Kernel) -> _Store | None:
    """The store of a kernel that stores one real number; else None."""
    if kernel.space or kernel.checks or len(kernel.writes) != 1:
        return None
    (write,) = kernel.writes
    if len(write.outputs) != 1 or write.how != "store" or write.base is None or write.indices:
        return None
    made = kernel.expression.instructions[kernel.expression.outputs[write.outputs[0]]]
    if made.op != "scalar":
        return None
    return _Store(write.base, kernel.numbers[made.value], write.view.offset)


def _forwarded(load: Load, store: _Store) -> Iterator[Step]:
    """Steps that replace a load of the updated array: load its base, then select the stored number at its offset."""
    (result,) = load.results
    before = Register(f"{result.name}_before", result.dtype)
    yield Load(replace(load.view, array=store.base), (before,))
    builder = ExpressionBuilder()
    operands: dict[Register, int] = {}

    def scalar(register: Register) -> Number:
        return builder.emit("scalar", (), register.dtype, operands.setdefault(register, len(operands)))

    def value(term: Size) -> Number:
        factors = [scalar(Register(name, INDEX)) for name in term.names]
        if term.factor != 1 or not factors:
            factors.append(builder.constant(term.factor, INDEX))
        return reduce(operator.mul, factors)

    def position(offset: Sequence[Size]) -> Number:
        return reduce(operator.add, map(value, offset or (ZERO,)))

    is_there = position(load.view.offset).equals(position(store.offset))
    chosen = select(is_there, scalar(store.number), scalar(before))
    yield Compute(builder.finish(chosen), tuple(operands), (result,))
