"""Find stacks that may have unwritten rows: only their pushes and writes must mark the rows that they fill."""

from __future__ import annotations

from collections.abc import Iterator

from ctrlgrad.plan.effects import blocks_of, walk
from ctrlgrad.plan.model import Block, CopyStack, NewStack, Outside, Plan, Stack


def partly_written(plan: Plan) -> frozenset[int]:
    """The handles of stacks some of whose rows may never have been written."""
    begun = [a for a in plan.arguments if isinstance(a, Stack)]
    for step in walk(plan.body):
        if isinstance(step, NewStack) and step.size is not None:
            begun.append(step.result)
        elif isinstance(step, Outside):
            begun += [r for r in step.results if isinstance(r, Stack)]
    found = {plan.handles[stack] for stack in begun}
    passed = set(_passed_on(plan))
    while more := {target for source, target in passed if source in found} - found:
        found |= more
    return frozenset(found)


def _passed_on(plan: Plan) -> Iterator[tuple[int, int]]:
    """Pairs of handles: rows may go from the first to the second."""
    yield from _moved(plan.body)
    for step in walk(plan.body):
        if isinstance(step, CopyStack):
            yield plan.handles[step.stack], plan.handles[step.result]
        for block in blocks_of(step):
            yield from _moved(block)


def _moved(block: Block) -> Iterator[tuple[int, int]]:
    for _, source, target in block.stack_moves:
        yield source, target
