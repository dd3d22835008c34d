"""Loops that run in chunks kept by a memory manager, and a loop as a plan of its own, to run a chunk again.

Of nested loops the outermost one that pushes on stacks from outside it runs in chunks: at the head of an iteration it
may come back to the driver, which seals what was pushed so far and lends fresh blocks. Where the loop does nothing but
push to the stacks that it carries, and calls nothing with effects, a chunk can be run again from the values that its
carries began with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from ctrlgrad.ir import Trait, attributes
from ctrlgrad.plan.effects import (
    INDEX,
    binds,
    blocks_of,
    defines,
    names_of,
    numbers_of,
    reads,
    updates,
    walk,
    with_blocks,
    yields,
)
from ctrlgrad.plan.expression import BOOL, ExpressionBuilder
from ctrlgrad.plan.model import (
    Array,
    Block,
    Branch,
    Compute,
    CopyStack,
    Loop,
    Outside,
    Plan,
    Pop,
    Push,
    Register,
    Stack,
    Step,
    Value,
)
from ctrlgrad.plan.sizes import Size
from ctrlgrad.records import record


@record
class ChunkedLoop:
    """Roles of the stacks that a loop in chunks carries, by handle."""

    loop: Loop
    # `pushed`: at most one push per iteration. `pushed_inside`: pushed by inner loops or in runs, an unknown number of
    # rows.
    pushed: tuple[int, ...]
    pushed_inside: tuple[int, ...]
    pops: bool
    can_repeat: bool
    # Each iteration pushes one row on each of `pushed`, and nothing else.
    is_steady: bool
    # Where it can be repeated, what it reads from outside.
    captured: tuple[Value, ...]

    @property
    def pushes(self) -> bool:
        return bool(self.pushed or self.pushed_inside)


def carried_stacks(loop: Loop) -> Iterator[tuple[int, Stack]]:
    """The stacks that a loop carries, inside, each with the number of the graph's stack that it is, or is a part of."""
    number = 0
    for carry in loop.carries:
        if isinstance(carry.inside, Stack):
            yield number, carry.inside
            # Its sizes come before the elements.
            number += carry.inside.holds != "sizes"


def loops_in_chunks(plan: Plan) -> Iterator[ChunkedLoop]:
    """The loops that run in chunks: those in no other loop, or where such a one does not push, those inside that do."""
    return _in_chunks(plan, plan.body, False)


def _in_chunks(plan: Plan, block: Block, is_inner: bool) -> Iterator[ChunkedLoop]:
    for step in block.steps:
        if isinstance(step, Branch):
            for each in step.blocks:
                yield from _in_chunks(plan, each, is_inner)
        elif isinstance(step, Loop):
            found = chunked_loop(plan, step)
            # Rows that a loop over one chunk pushes are read at once, by the products after it: it is not cut into
            # chunks.
            if found.pushes and not (is_inner and attributes.Loop.of(step.node).chunk is not None):
                yield found
                continue
            inside = list(_in_chunks(plan, step.body, True))
            if not (inside or is_inner):
                yield found
            yield from inside


def chunked_loop(plan: Plan, loop: Loop) -> ChunkedLoop:
    """The roles of a loop's stacks."""
    carried = {plan.handles[c.inside] for c in loop.carries if isinstance(c.inside, Stack)}
    direct: dict[int, None] = {}
    inside: dict[int, None] = {}
    pops, can_repeat = False, True

    def look(block: Block, is_inner: bool) -> None:
        nonlocal pops, can_repeat
        for step in block.steps:
            inner = blocks_of(step)
            used = {plan.handles[v] for v in reads(step) if isinstance(v, Stack)} & carried
            if isinstance(step, Push):
                for handle in used:
                    is_known = not is_inner and handle not in direct and step.stack.holds != "elements"
                    (direct if is_known else inside)[handle] = None
            elif used and not inner:
                # The rows below those of the chunk are not there again.
                pops |= isinstance(step, Pop)
                can_repeat = False
            can_repeat &= not isinstance(step, CopyStack)
            can_repeat &= not (isinstance(step, Outside) and Trait.EFFECT in step.node.op.traits)
            for each in inner:
                can_repeat &= not each.stack_moves
                look(each, is_inner or isinstance(step, Loop))

    look(loop.condition, False)
    look(loop.body, False)
    can_repeat &= not loop.body.stack_moves and bool(direct or inside)
    for handle in inside:
        direct.pop(handle, None)
    captured = loop_plan(plan, loop).captured if can_repeat else ()
    always = {plan.handles[step.stack] for step in loop.body.steps if isinstance(step, Push)}
    is_steady = bool(direct) and not inside and always >= set(direct)
    return ChunkedLoop(loop, tuple(direct), tuple(inside), pops, can_repeat, is_steady, captured)


# A loop as a plan.


@record
class LoopPlan:
    """A loop as a plan of its own. Its arguments: iterations at most, what is `captured`, what is carried."""

    plan: Plan
    captured: tuple[Value, ...]


def loop_plan(plan: Plan, loop: Loop, *, pushes: bool = True) -> LoopPlan:
    """A loop of a plan, to be placed anew; without `pushes` it has neither the stacks that it carries nor what only
    they need: it finds the state some chunks later."""
    if not pushes:
        loop = _without_pushes(plan, loop)
    defined: dict[Value, None] = {loop.counter: None}
    used: dict[Value, None] = {}

    def use(values: Iterable[Value]) -> None:
        used.update((v, None) for v in values)

    for carry in loop.carries:
        defined[carry.inside] = None
    blocks = Block((replace(loop, carries=()),))
    for step in walk(blocks):
        use((*reads(step), *numbers_of(step)))
        defined.update(dict.fromkeys((*defines(step), *binds(step))))
        use(yields(step))
    use(tuple(c.next for c in loop.carries))
    for value in [*used, *defined]:
        if isinstance(value, Array):
            use(tuple(_of_sizes(value.shape)))
        elif isinstance(value, Stack):
            use(tuple(_of_sizes(plan.rows[value] or ())))
    names = {v.name for v in defined if isinstance(v, Register)}
    constants = {array for array, _ in plan.constants}
    captured = tuple(
        v for v in used if v not in defined and not (isinstance(v, Register) and v.name in names) and v not in constants
    )
    limit = Register("limit", INDEX)
    condition, test = _limited(loop, limit)
    starts = {c.inside.name: f"start{k}" for k, c in enumerate(loop.carries) if isinstance(c.inside, Register)}
    inits = tuple(_fresh(c.inside, f"start{k}", plan, starts) for k, c in enumerate(loop.carries))
    carries = tuple(replace(c, init=init) for c, init in zip(loop.carries, inits, strict=True))
    body = Block((replace(loop, carries=carries, condition=condition, test=test),))
    arguments = tuple((v,) if isinstance(v, Register) else v for v in (limit, *captured, *inits))
    results = tuple((c.result,) if isinstance(c.result, Register) else c.result for c in loop.carries)
    found = Plan(
        f"{plan.name} loop {loop.number}",
        arguments,
        (),
        body,
        results,
        tuple((a, value) for a, value in plan.constants if a in used),
        plan.sites,
        plan.rows,
        vector_bytes=plan.vector_bytes,
    )
    return LoopPlan(found, captured)


def _without_pushes(plan: Plan, loop: Loop) -> Loop:
    """A loop that only pushes on the stacks that it carries, without these."""
    handles = {plan.handles[c.inside] for c in loop.carries if isinstance(c.inside, Stack)}

    def is_kept(value: object) -> bool:
        return not (isinstance(value, Stack) and plan.handles[value] in handles)

    def block_without(block: Block) -> Block:
        kept = (s for s in block.steps if all(map(is_kept, (v for _, v in updates(s)))) or blocks_of(s))
        return Block(tuple(map(step_without, kept)))

    def step_without(step: Step) -> Step:
        step = with_blocks(step, block_without)
        if isinstance(step, Loop):
            return replace(step, carries=tuple(c for c in step.carries if is_kept(c.inside)))
        if isinstance(step, Branch):
            outputs = tuple(tuple(filter(is_kept, values)) for values in step.outputs)
            return replace(step, outputs=outputs, results=tuple(filter(is_kept, step.results)))
        return step

    found = step_without(loop)
    assert isinstance(found, Loop)
    while True:
        # A kernel that checks something, and a guard, have passed before, and pass again.
        used: set[object] = {v.name if isinstance(v, Register) else v for c in found.carries for v in (c.next,)}
        for step in walk(Block((found,))):
            values = (*reads(step), *numbers_of(step), *yields(step))
            arrays = [v for v in (*values, *defines(step), *binds(step)) if not isinstance(v, Register)]
            used |= {v.name if isinstance(v, Register) else v for v in values}
            used |= {n for v in arrays for n in names_of(v.shape if isinstance(v, Array) else plan.rows[v] or ())}

        def block_of_used(block: Block, used: set[object] = used) -> Block:
            steps = (
                with_blocks(step, block_of_used)
                for step in block.steps
                if not defines(step) or any((v.name if isinstance(v, Register) else v) in used for v in defines(step))
            )
            return replace(block, steps=tuple(steps))

        slimmer = with_blocks(found, block_of_used)
        if len(list(walk(Block((slimmer,))))) == len(list(walk(Block((found,))))):
            return found
        found = slimmer


def _fresh(value: Value, name: str, plan: Plan, starts: Mapping[str, str]) -> Value:
    """An argument for what is carried in an iteration: its sizes are those of that iteration, which may be carried too.

    `starts` are the names of such numbers. Two carries may start as the same value.
    """
    if isinstance(value, Array):
        shape = tuple(Size(s.factor, tuple(sorted(starts.get(n, n) for n in s.names))) for s in value.shape)
        return replace(value, name=name, shape=shape)
    fresh = replace(value, name=name)
    if isinstance(fresh, Stack) and isinstance(value, Stack):
        plan.rows[fresh] = plan.rows[value]
    return fresh


def _limited(loop: Loop, limit: Register) -> tuple[Block, Register]:
    """The condition that also ends the loop at a number of iterations."""
    builder = ExpressionBuilder()
    holds = builder.emit("scalar", (), BOOL, 0)
    below = builder.emit("scalar", (), INDEX, 1) < builder.emit("scalar", (), INDEX, 2)
    test = Register("goes_on", BOOL)
    step = Compute(builder.finish(holds & below), (loop.test, loop.counter, limit), (test,))
    return replace(loop.condition, steps=(*loop.condition.steps, step)), test


def _of_sizes(sizes: tuple[Size, ...]) -> Iterator[Value]:
    yield from (Register(name, INDEX) for name in sorted(names_of(sizes)))
