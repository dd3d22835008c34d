"""Assign handles to stacks: versions with one handle are one run-time object. Insert copies of stacks where needed.

An update changes the object in place if nothing needs the old version afterwards; else it changes a copy. A loop
carries one object: what its body yields in another one changes places with it at the end of the iteration.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from typing import Any

from ctrlgrad.plan.effects import defines, updates
from ctrlgrad.plan.liveness import Liveness, kept
from ctrlgrad.plan.model import (
    Array,
    Block,
    Branch,
    Carry,
    CopyStack,
    Loop,
    Numbers,
    Outside,
    Plan,
    Stack,
    Step,
    Value,
)


def assign_handles(plan: Plan) -> Plan:
    """The plan with a handle for each stack."""
    return _Handles(plan).run()


class _Handles:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.live = Liveness(plan)
        self.handles: dict[Stack, int] = {}
        self.versions: dict[int, list[Stack]] = {}
        self.count = 0
        # Results of the enclosing loops: needed later, and defined only when these are over.
        self.to_come: set[Stack] = set()

    def run(self) -> Plan:
        for argument in self.plan.arguments:
            if isinstance(argument, Stack):
                self.new(argument)
        body = self.block(self.plan.body)
        copies: list[Step] = []
        results: list[Numbers | Array | Stack] = []
        seen: set[int] = set()
        for result in self.plan.results:
            if isinstance(result, Stack):
                if self.handles[result] in seen:
                    copies.append(copy := self.copy(result))
                    result = copy.result
                seen.add(self.handles[result])
            results.append(result)
        body = replace(body, steps=(*body.steps, *copies))
        return replace(self.plan, body=body, results=tuple(results), handles=self.handles)

    def new(self, stack: Stack) -> None:
        self.put(stack, self.count)
        self.count += 1

    def put(self, stack: Stack, handle: int) -> None:
        self.handles[stack] = handle
        self.versions.setdefault(handle, []).append(stack)

    def copy(self, stack: Stack) -> CopyStack:
        other = replace(stack, name=f"{stack.name}c{self.count}")
        self.plan.rows[other] = self.plan.rows[stack]
        self.new(other)
        return CopyStack(stack, other)

    def block(self, block: Block) -> Block:
        steps: list[Step] = []
        for step in block.steps:
            self.step(step, steps)
        return replace(block, steps=tuple(steps))

    def step(self, step: Step, steps: list[Step]) -> None:
        if isinstance(step, Outside):
            step = self.outside(step, steps)
        elif isinstance(step, Loop):
            step = self.loop(step, steps)
        elif isinstance(step, Branch):
            step = self.branch(step, steps)
        else:
            step = self.update(step, steps)
        steps.append(step)

    def owned(self, stack: Stack, step: Step, steps: list[Step]) -> Stack:
        """A version that may be changed in place."""
        if stack not in self.live.after[step]:
            return stack
        copied = self.copy(stack)
        steps.append(copied)
        return copied.result

    def update(self, step: Any, steps: list[Step]) -> Step:
        """The step, on a stack that it may change in place; other stacks that it makes are new."""
        for after, before in updates(step):
            if isinstance(after, Stack) and isinstance(before, Stack):
                stack = self.owned(before, step, steps)
                self.put(after, self.handles[stack])
                step = replace(step, stack=stack)
        for value in defines(step):
            if isinstance(value, Stack) and value not in self.handles:
                self.new(value)
        return step  # type: ignore[no-any-return]

    def outside(self, step: Outside, steps: list[Step]) -> Step:
        operands = list(step.operands)
        for position in step.consumed:
            stack = operands[position]
            assert isinstance(stack, Stack)
            operands[position] = self.owned(stack, step, steps)
        consumed = iter(step.consumed)
        for result in step.results:
            if isinstance(result, Stack):
                first = next(consumed, None)
                source = None if first is None else operands[first]
                if isinstance(source, Stack):
                    self.put(result, self.handles[source])
                else:
                    self.new(result)
        return replace(step, operands=tuple(operands))

    def loop(self, step: Loop, steps: list[Step]) -> Step:
        captured = self.live.reads[step] - kept(c.init for c in step.carries)
        for block in (step.condition, step.body):
            for inner in block.steps:
                captured |= self.live.reads[inner]
        # Values from outside the loop are live in the next iteration too.
        mine = {c.inside for c in step.carries} | {v for each in step.body.steps for v in defines(each)}
        outside = kept(c.next for c in step.carries) - mine
        captured |= outside
        carries: list[Carry] = []
        used: set[int] = set()
        for carry in step.carries:
            init, inside, result = carry.init, carry.inside, carry.result
            if isinstance(init, Stack):
                assert isinstance(inside, Stack) and isinstance(result, Stack)
                needed = init in self.live.after[step] or init in captured or self.handles[init] in used
                if needed:
                    copied = self.copy(init)
                    steps.append(copied)
                    init = copied.result
                self.put(inside, self.handles[init])
                self.put(result, self.handles[init])
                used.add(self.handles[init])
                carry = replace(carry, init=init)
            carries.append(carry)
        around = self.to_come
        self.to_come = around | {c.result for c in step.carries if isinstance(c.result, Stack)}
        condition, body = self.block(step.condition), self.block(step.body)
        self.to_come = around
        wanted = [(c.next, c.inside) for c in carries]
        body, values = self.moved(body, wanted, outside)
        carries = [replace(c, next=value) for c, value in zip(carries, values, strict=True)]
        return replace(step, carries=tuple(carries), condition=condition, body=body)

    def branch(self, step: Branch, steps: list[Step]) -> Step:
        """A result has a handle of its own, unless all branches leave it in one."""
        blocks = [self.block(block) for block in step.blocks]
        stacks = [(k, r) for k, r in enumerate(step.results) if isinstance(r, Stack)]
        reused: set[int] = set()
        for position, result in stacks:
            yielded = [values[position] for values in step.outputs]
            found = {self.handles[v] for v in yielded if isinstance(v, Stack)}
            only = found.pop() if len(found) == 1 else None
            after = self.live.after[step]
            if only is None or only in reused or any(v in after and v not in self.to_come for v in self.versions[only]):
                self.new(result)
            else:
                self.put(result, only)
            reused.add(self.handles[result])
        outputs = list(step.outputs)
        for k, (block, values) in enumerate(zip(blocks, step.outputs, strict=True)):
            wanted = list(zip(values, step.results, strict=True))
            blocks[k], outputs[k] = self.moved(block, wanted, self.live.after[step])
        return replace(step, blocks=tuple(blocks), outputs=tuple(outputs))

    def moved(
        self, block: Block, wanted: Sequence[tuple[Value, Value]], needed: Container[object]
    ) -> tuple[Block, tuple[Value, ...]]:
        """The block with its stacks brought to the handles that are wanted, all at once, and what it gives then.

        What is needed besides stays where it is, and a copy goes.
        """
        copies: list[Step] = []
        moves: list[tuple[Stack, int, int]] = []
        values = [value for value, _ in wanted]
        # One that stays where it is, or that has gone already, does not go to another place as well.
        gone = {v for v, t in wanted if isinstance(v, Stack) and isinstance(t, Stack) and self.is_there(v, t)}
        for position, (value, target) in enumerate(wanted):
            if not isinstance(value, Stack) or not isinstance(target, Stack) or self.is_there(value, target):
                continue
            if value in gone or value in needed:
                copies.append(copy := self.copy(value))
                value = values[position] = copy.result
            gone.add(value)
            moves.append((value, self.handles[value], self.handles[target]))
        return replace(block, steps=(*block.steps, *copies), stack_moves=tuple(moves)), tuple(values)

    def is_there(self, stack: Stack, wanted: Stack) -> bool:
        return self.handles[stack] == self.handles[wanted]
