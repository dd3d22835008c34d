"""Loops and branches inside a compiled loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ctrlgrad.engines.native.expressions import type_name
from ctrlgrad.engines.native.frames import Item, StackState, uses_of
from ctrlgrad.engines.native.layout import NotNative, Ref, Scalar, Splat, product, row_major
from ctrlgrad.engines.native.looking import FIRST
from ctrlgrad.engines.native.program import Entry, Status
from ctrlgrad.engines.native.regions import RegionWriter
from ctrlgrad.engines.native.rules.stacks import changed, local_stack, state_of
from ctrlgrad.engines.native.rules.table import rule
from ctrlgrad.engines.native.stack_uses import origin
from ctrlgrad.ir import Graph, Node, StackType, Value


def _passed(e: RegionWriter, operands: Sequence[Value], inputs: Sequence[Value]) -> dict[Value, Item]:
    """What a region inside sees of the values around it."""
    items: dict[Value, Item] = {}
    for outer, inner in zip(operands, inputs, strict=True):
        item = e.item(outer)
        if isinstance(item, StackState):
            item = state_of(e, outer)
        items[inner] = item
    return items


@rule("cond")
def _cond(e: RegionWriter, node: Node) -> None:
    e.flush()
    selector = e.number(node.operands[0])
    passed = [_passed(e, node.operands[1:], region.inputs) for region in node.regions]
    is_bool = node.operands[0].tensor.dtype.kind == "b"
    order = [1, 0] if is_bool else list(range(len(node.regions)))
    targets: list[Ref | str | None] = []
    for v in node.results:
        if isinstance(v.type, StackType):
            targets.append(None)
        elif v.tensor.rank == 0:
            targets.append(e.fresh("v"))
        else:
            targets.append(e.place(v))
    before = {id(item): item.version for items in passed for item in items.values() if isinstance(item, StackState)}
    results: list[StackState | None] = [None] * len(node.results)
    leaving = [_leaving(e, node, position) for position in range(len(node.results))]
    last_readers = [operand for operand in node.operands[1:] if _is_used_up(e, operand)]
    e.in_branch += 1
    for number, k in enumerate(order):
        last = number == len(order) - 1
        head = "else:" if last else f"if {selector}:" if is_bool else f"{'el' if number else ''}if {selector} <= {k}:"
        if len(order) == 1:
            head = "if True:"
        with e.block(head):
            used_up = {v for v, o in zip(node.regions[k].inputs, node.operands[1:], strict=True) if o in last_readers}
            made = {origins[k]: state for origins, state in filter(None, leaving)}
            _branch(e, node.regions[k], passed[k], targets, results, used_up, made)
    e.in_branch -= 1
    changed_ones = {id(state) for state in results if state is not None}
    changed_ones |= {id(e.frame.items[operand]) for operand in last_readers}
    for items in passed:
        for item in items.values():
            if isinstance(item, StackState) and id(item) not in changed_ones:
                item.version = before[id(item)]  # the branches have only read it
    for v, target, state in zip(node.results, targets, results, strict=True):
        if state is not None:
            changed(e, state, v)
        elif isinstance(target, Ref):
            e.frame.items[v] = target
        else:
            assert isinstance(target, str)
            e.frame.items[v] = Scalar(target, v.tensor.dtype)


def _leaving(e: RegionWriter, node: Node, position: int) -> tuple[list[Value], StackState] | None:
    """A stack that each branch makes anew: what it is at first in each of them, and the memory that they share."""
    result = node.results[position]
    if not isinstance(result.type, StackType):
        return None
    origins = [v for region in node.regions if (v := origin(region, region.outputs[position])) is not None]
    if len(origins) < len(node.regions):
        return None
    also = list(zip(node.regions, origins, strict=True))
    return origins, e.frame.leaving.get(result) or local_stack(e, result, also)


def _is_used_up(e: RegionWriter, stack: Value) -> bool:
    """Whether nothing after a branch takes a stack that goes into it: then the branch may leave it as it likes.

    If it came from outside of the region, nothing outside may take it either; only a branch around knows that.
    """
    frame = e.frame
    if not isinstance(stack.type, StackType) or uses_of(frame.graph)[stack] != 1:
        return False
    return stack not in frame.graph.inputs or stack in frame.used_up


def _branch(
    e: RegionWriter,
    region: Graph,
    passed: dict[Value, Item],
    targets: Sequence[Ref | str | None],
    results: list[StackState | None],
    used_up: set[Value],
    leaving: dict[Value, StackState],
) -> None:
    items = dict(passed)
    for v, item in passed.items():
        if isinstance(item, StackState):
            item.version = v
    wanted: dict[Value, Callable[[], Ref | None]] = {}
    for out, target in zip(region.outputs, targets, strict=True):
        if isinstance(target, Ref) and out not in wanted and out not in region.inputs:
            wanted[out] = _fixed(target)
    frame = e.region(region, items, wanted)
    frame.used_up, frame.leaving = used_up, leaving
    e.run(frame)
    for position, (out, target) in enumerate(zip(region.outputs, targets, strict=True)):
        item = e.item(out)
        if isinstance(item, StackState):
            if item.version is not out or (results[position] is not None and results[position] is not item):
                raise NotNative("the branches change stacks in different ways")
            results[position] = item
        elif isinstance(target, str):
            assert isinstance(item, Scalar)
            dtype = out.tensor.dtype
            text = f"{type_name(dtype)}({item.text})" if dtype.kind in "iuf" else item.text
            e.line(f"{target} = {text}")
        else:
            assert isinstance(target, Ref) and isinstance(item, Ref | Splat)
            e.copy(item, Ref(target.base, target.offset, item.shape, target.strides, target.dtype))
    kept = {id(r) for r in results if r is not None}
    for v, item in passed.items():
        if isinstance(item, StackState) and id(item) not in kept and item.version is not v and v not in used_up:
            raise NotNative("a branch changes a stack and does not yield it")
    e.leave()


def _fixed(ref: Ref) -> Callable[[], Ref | None]:
    return lambda: ref


@rule("while")
def _while(e: RegionWriter, node: Node) -> None:
    e.flush()
    cond, body = node.regions
    captures = node.attrs["captures"]
    passed = _passed(e, node.operands, body.inputs)
    carries = body.inputs[captures:]
    names = [e.fresh("w") for _ in carries]
    scalars, items = [f"s_{n}" for n in names], dict(passed)
    for v in body.inputs[:captures]:
        item = items[v]
        if isinstance(item, StackState):
            items[v] = StackState(item.number, item.use, v)  # what the loop only reads keeps its version outside
    finals: list[Item | None] = []
    for v, name, initial in zip(carries, names, node.operands[captures:], strict=True):
        item = passed[v]
        if isinstance(item, StackState):
            finals.append(None)
        elif isinstance(item, Scalar):
            text = f"{type_name(item.dtype)}({item.text})" if item.dtype.kind in "iuf" else item.text
            e.line(f"s_{name} = {text}")
            items[v] = Scalar(f"s_{name}", item.dtype)
            finals.append(items[v])
        else:
            items[v] = _carried_array(e, v, name, e.tensor(initial))
            finals.append(items[v])
    trips, maximum = e.fresh("v"), node.attrs.get("maximum_iterations")
    e.line(f"{trips} = 0")
    e.in_loop += 1
    e.inner.append((node, trips))
    with e.block("while True:"):
        for v, name in zip(carries, names, strict=True):
            if isinstance(items[v], Ref):
                e.line(f"A_{name} = pointer_{v.tensor.dtype.name}(a_{name})")
                e.line(f"B_{name} = pointer_{v.tensor.dtype.name}(b_{name})")
        _inner_test(e, cond, [items[v] for v in body.inputs])
        _look(e, node)
        if maximum is not None:
            e.fail(f"{trips} == {maximum}", Status.TOO_MANY_ITERATIONS, str(e.site(node)))
        for v in carries:
            item = items[v]
            if isinstance(item, StackState):
                item.version = v
        swapped = e.carried_region(
            body,
            [items[v] for v in body.inputs],
            captures,
            [f"A_{n}" for n in names],
            [f"B_{n}" for n in names],
            scalars,
        )
        for i in swapped:
            e.line(f"a_{names[i]}, b_{names[i]} = b_{names[i]}, a_{names[i]}")
        e.line(f"{trips} += 1")
    e.in_loop -= 1
    e.inner.pop()
    for v in body.inputs[:captures]:
        item = items[v]
        if isinstance(item, StackState) and item.version is not v:
            raise NotNative("a loop changes a stack that it does not carry")
    for v, final, inner in zip(node.results, finals, carries, strict=True):
        item = items[inner]
        if isinstance(item, StackState):
            changed(e, item, v)
        elif isinstance(final, Ref):
            # The pointers are set at the head of each iteration, so after the last they are those of the result.
            e.frame.items[v] = final
            e.frame.own.add(v)
        else:
            assert final is not None
            e.frame.items[v] = e.scalar(final.text, v.tensor.dtype) if isinstance(final, Scalar) else final


def _look(e: RegionWriter, node: Node) -> None:
    """Let signals through once in so many iterations; see `looking`."""
    if "look" not in e.routines:
        e.routines["look"] = "look_at"
        e.header += [f"look_at = {e.entry(Entry('look'))}", f"left = {FIRST}"]
    e.line("left -= 1")
    with e.block("if left <= 0:"):
        e.line("left = look(look_at)")
        e.fail("left <= 0", Status.RAISED, str(e.site(node)))


def _carried_array(e: RegionWriter, value: Value, name: str, initial: Ref | Splat) -> Ref:
    shape, dtype = e.shapes.sizes(value), value.tensor.dtype
    for letter in "ab":
        place = e.entry(Entry("temporary", dtype=dtype, size=product(shape)))
        e.header.append(f"{letter}_{name} = {place}")
    e.line(f"A_{name} = pointer_{dtype.name}(a_{name})")
    current = Ref(f"A_{name}", "0", shape, row_major(shape), dtype)
    e.copy(initial, current)
    return current


def _inner_test(e: RegionWriter, cond: Graph, items: Sequence[Item]) -> None:
    seen: dict[Value, Item] = {}
    for v, item in zip(cond.inputs, items, strict=True):
        if isinstance(item, StackState):
            item = StackState(item.number, item.use, v)
        seen[v] = item
    frame = e.region(cond, seen, {})
    e.run(frame)
    test = e.number(cond.outputs[0])
    e.leave()
    with e.block(f"if not ({test}):"):
        e.line("break")
