"""The lowering of a whole graph, by a table of rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from ctrlgrad import ir
from ctrlgrad.ir import Graph, Node, StackType, TensorType, Trait, Value
from ctrlgrad.plan.arguments import ArgumentShape
from ctrlgrad.plan.elementwise import NoExpression
from ctrlgrad.plan.lowering import arithmetic, fourier, indexing, linalg, moving, sorting, stacks
from ctrlgrad.plan.lowering.outside import outside
from ctrlgrad.plan.lowering.stack_facts import Learned, Origins, RaggedStack, StackFacts, parts_of_stack
from ctrlgrad.plan.lowering.state import INDEX, Item, Scope, State
from ctrlgrad.plan.model import Array, Assumption, Block, Branch, Carry, Loop, Numbers, Plan, Register, Stack, View
from ctrlgrad.plan.model import Value as PlanValue
from ctrlgrad.plan.sizes import Size
from ctrlgrad.records import record

# Loops and branches.
#
# A carried array has one shape for the whole loop where each iteration leaves it as it is. A dimension that
# changes is carried itself, as a number beside its array: which dimensions do is found by lowering the body with the
# sizes that the carry starts with, and once more for those that came out different.


Visit = Callable[[Node], None]


@record
class _Changing:
    """A dimension of a carry that differs from iteration to iteration."""

    position: int
    axis: int


def loop(state: State, node: Node, visit: Visit) -> None:
    parts = ir.Loop.of(node)
    linalg.share_factors(state, parts)
    changing: frozenset[_Changing] = frozenset()
    while True:
        count, facts = len(state.sites), state.known_facts(node)
        attempt = _Attempt(state, node, parts, changing)
        found = attempt.run(visit)
        if not found:
            break
        # The steps of the attempt are dropped; so are the places it named, and what it said of stacks.
        del state.sites[count:]
        state.restore(facts)
        changing |= found
    attempt.finish()


class _Attempt:
    """A loop lowered on the assumption that no dimensions but these change."""

    def __init__(self, state: State, node: Node, parts: ir.Loop, changing: frozenset[_Changing]) -> None:
        self.state, self.node, self.parts, self.changing = state, node, parts, changing
        self.carries: list[Carry] = []
        self.inside: list[Item] = []
        # The registers of changing dimensions: inside an iteration, and after the loop.
        self.dims: dict[_Changing, tuple[Register, Register]] = {}

    def run(self, visit: Visit) -> frozenset[_Changing]:
        state, cond, body = self.state, self.parts.cond, self.parts.body
        captured = [state.items[c.outer] for c in self.parts.captures]
        # Arrays at the start, in memory; made outside of the loop.
        starts = [self._start(state.items[c.init]) for c in self.parts.carries]
        with state.block() as around:
            self.counter = state.register(INDEX, "i")
            for change in sorted(self.changing, key=lambda c: (c.position, c.axis)):
                self.dims[change] = (state.register(INDEX, "n"), state.register(INDEX, "n"))
            self.inside = [self._inside(k, start) for k, start in enumerate(starts)]
            with state.block() as condition:
                items = [*captured, *self.inside]
                (test,) = state.run(cond, dict(zip(cond.inputs, items, strict=True)), visit)
            with state.block() as block:
                items = [*captured, *self.inside]
                outputs = state.run(body, dict(zip(body.inputs, items, strict=True)), visit)
                found = self._compare(outputs)
                if found:
                    return found
                following = [self._next(k, item) for k, item in enumerate(outputs)]
        del around
        assert isinstance(test, tuple)
        self.test, self.condition, self.block = test[0], condition, block
        self.starts, self.following = starts, following
        return frozenset()

    def _start(self, item: Item) -> Item:
        if isinstance(item, tuple | Stack | RaggedStack):
            return item
        return self.state.dense(item).view

    def _inside(self, position: int, start: Item) -> Item:
        state = self.state
        if isinstance(start, tuple):
            return tuple(state.register(r.dtype, "c") for r in start)
        if isinstance(start, Stack | RaggedStack):
            return state.version(start)
        assert isinstance(start, View)
        shape = tuple(
            Size(1, (self.dims[_Changing(position, axis)][0].name,)) if _Changing(position, axis) in self.dims else size
            for axis, size in enumerate(start.shape)
        )
        return state.array(start.dtype, shape).view

    def _compare(self, outputs: Sequence[Item]) -> frozenset[_Changing]:
        found = set()
        for position, (inside, output) in enumerate(zip(self.inside, outputs, strict=True)):
            if isinstance(inside, View):
                assert not isinstance(output, tuple | Stack | RaggedStack)
                for axis, (before, after) in enumerate(zip(inside.shape, output.shape, strict=True)):
                    if before != after and _Changing(position, axis) not in self.changing:
                        found.add(_Changing(position, axis))
        return frozenset(found)

    def _next(self, position: int, item: Item) -> Item:
        inside = self.inside[position]
        if isinstance(item, RaggedStack) or isinstance(inside, RaggedStack):
            assert isinstance(item, Stack | RaggedStack) and isinstance(inside, Stack | RaggedStack)
            _common(self.state, (inside, item))
        if isinstance(item, tuple | Stack | RaggedStack):
            return item
        return self.state.dense(item).view

    def finish(self) -> None:
        state = self.state
        results: list[Item] = []
        carries: list[Carry] = []
        for position, (start, inside, following) in enumerate(
            zip(self.starts, self.inside, self.following, strict=True)
        ):
            if isinstance(inside, tuple):
                assert isinstance(start, tuple) and isinstance(following, tuple)
                last = tuple(state.register(r.dtype) for r in inside)
                carries += map(Carry, start, inside, following, last)
                results.append(last)
            elif isinstance(inside, Stack | RaggedStack):
                assert isinstance(start, Stack | RaggedStack) and isinstance(following, Stack | RaggedStack)
                stack = state.version(start)
                carries += map(Carry, *map(parts_of_stack, (start, inside, following, stack)))
                results.append(stack)
            else:
                assert isinstance(start, View) and isinstance(inside, View) and isinstance(following, View)
                shape = self._last_shape(position, start)
                array = state.array(inside.dtype, shape)
                carries.append(Carry(start.array, inside.array, following.array, array))
                results.append(array.view)
        for change, (here, _) in self.dims.items():
            before, after = self.starts[change.position], self.following[change.position]
            assert isinstance(before, View) and isinstance(after, View)
            first = state.size_register(before.shape[change.axis])
            with _into(state, self.block):
                size = state.size_register(after.shape[change.axis])
            carries.append(Carry(first, here, size, self._last_register(change)))
        number = state.loops
        state.loops += 1
        state.emit(
            Loop(
                tuple(carries),
                Block(tuple(self.condition.steps)),
                self.test,
                Block(tuple(self.block.steps)),
                self.counter,
                self.parts.attrs.maximum_iterations,
                self.node,
                number,
            )
        )
        state.items.update(zip(self.node.results, results, strict=True))

    def _last_register(self, change: _Changing) -> Register:
        register = self.dims[change][1]
        self.state.scopes[-1].names.add(register.name)
        return register

    def _last_shape(self, position: int, start: View) -> tuple[Size, ...]:
        return tuple(
            Size(1, (self._last_register(_Changing(position, axis)).name,))
            if _Changing(position, axis) in self.dims
            else size
            for axis, size in enumerate(start.shape)
        )


class _into:
    """Steps go into a block that was left already."""

    def __init__(self, state: State, scope: Scope) -> None:
        self.state, self.scope = state, scope

    def __enter__(self) -> None:
        self.state.scopes.append(self.scope)
        self.state._registers.append({})

    def __exit__(self, *error: object) -> None:
        self.state.scopes.pop()
        self.state._registers.pop()


def call(state: State, node: Node, visit: Visit) -> None:
    """A function that is called: its nodes stand where the call did."""
    parts = ir.Call.of(node)
    operands = [state.items[v] for v in parts.operands]
    results = state.run(parts.function, dict(zip(parts.function.inputs, operands, strict=True)), visit)
    state.items.update(zip(node.results, results, strict=True))


def branch(state: State, node: Node, visit: Visit) -> None:
    parts = ir.Branch.of(node)
    (selector,) = state.numbers(parts.selector)
    outer = [state.items[v] for v in parts.operands]
    blocks: list[Scope] = []
    yielded: list[list[Item]] = []
    for region in parts.branches:
        with state.block() as block:
            yielded.append(state.run(region, dict(zip(region.inputs, outer, strict=True)), visit))
        blocks.append(block)
    outputs: list[list[PlanValue]] = [[] for _ in blocks]
    results: list[PlanValue] = []
    for position, value in enumerate(node.results):
        items = [each[position] for each in yielded]
        if isinstance(value.type, StackType):
            stacks = [item for item in items if isinstance(item, Stack | RaggedStack)]
            result = state.version(_known_outside(state, _common(state, stacks), stacks))
            results += parts_of_stack(result)
            for k, stack in enumerate(stacks):
                outputs[k] += parts_of_stack(stack)
            state.items[value] = result
        elif value.type.rank == 0:
            registers = state.registers(value.type.dtype)
            results += registers
            for k, item in enumerate(items):
                assert isinstance(item, tuple)
                outputs[k] += item
            state.items[value] = registers
        else:
            state.items[value] = _joined(state, value, items, blocks, outputs, results)
    state.emit(
        Branch(
            selector,
            tuple(Block(tuple(b.steps)) for b in blocks),
            tuple(map(tuple, outputs)),
            tuple(results),
            node,
        )
    )


def _common(state: State, stacks: Sequence[Stack | RaggedStack]) -> Stack | RaggedStack:
    """Of several stacks, one of which a branch or loop yields, return the one whose facts hold for all. Rows of one
    shape stay so only if all the stacks agree."""
    facts = [state.facts_of(s) for s in stacks]
    plain = [s for s in stacks if isinstance(s, Stack)]
    if len(plain) < len(stacks):
        if any(f is not facts[0] for f in facts):
            for stack in stacks:
                state.needs_list(stack)
            raise Learned
        return stacks[0]
    is_listed = any(f.is_listed for f in facts)
    number = next((k for k, f in enumerate(facts) if (f.is_listed if is_listed else f.shape is not None)), 0)
    known = facts[number]
    for f in facts:
        if f is known:
            continue
        state.put(plain[number], None)
        if f.shape is None:
            f.shape, f.is_listed = known.shape, is_listed
        elif f.is_listed != is_listed or (not is_listed and f.shape != known.shape):
            state.needs_list(plain[facts.index(f)])
            raise Learned
    return plain[number]


def _known_outside(
    state: State, common: Stack | RaggedStack, stacks: Sequence[Stack | RaggedStack]
) -> Stack | RaggedStack:
    """Require that sizes of rows, which a stack that was made in a branch has, are known behind the branch too."""
    facts = state.facts_of(common)
    sizes = [size for size in (*(facts.shape or ()), *facts.row) if size is not None]
    if not facts.is_listed and any(state.scope_of(size) >= len(state.scopes) for size in sizes):
        for stack in stacks:
            state.needs_list(stack)
        raise Learned
    return common


def _joined(
    state: State,
    value: Value,
    items: Sequence[Item],
    blocks: Sequence[Scope],
    outputs: list[list[PlanValue]],
    results: list[PlanValue],
) -> Item:
    """An array that each branch yields; sizes that differ are numbers that the branches yield beside it."""
    arrays: list[Array] = []
    for item, block in zip(items, blocks, strict=True):
        assert not isinstance(item, tuple | Stack | RaggedStack)
        with _into(state, block):
            arrays.append(state.dense(item))
    shape: list[Size] = []
    for axis in range(value.tensor.rank):
        sizes = [a.shape[axis] for a in arrays]
        if all(s == sizes[0] for s in sizes) and state.scope_of(sizes[0]) < len(state.scopes):
            shape.append(sizes[0])
            continue
        register = state.register(INDEX, "n")
        results.append(register)
        for size, block, each in zip(sizes, blocks, outputs, strict=True):
            with _into(state, block):
                each.append(state.size_register(size))
        shape.append(Size(1, (register.name,)))
    result = state.array(value.tensor.dtype, tuple(shape))
    results.append(result)
    for each, array in zip(outputs, arrays, strict=True):
        each.append(array)
    return result.view


Rule = Callable[[State, Node], None]

RULES: dict[str, Rule] = {
    "constant": moving.constant,
    "dim": moving.dim,
    "iota": moving.iota,
    "reshape": moving.reshape,
    "broadcast_to": moving.broadcast_to,
    "transpose": moving.transpose,
    "expand_dims": moving.expand_dims,
    "squeeze": moving.squeeze,
    "flip": moving.flip,
    "concat": moving.concat,
    "barrier": moving.identity,
    "stop_gradient": moving.identity,
    "forget_sizes": moving.identity,
    "ensure_sizes": moving.ensure_sizes,
    "watch": moving.identity,
    "getitem": indexing.getitem,
    "setitem": indexing.setitem,
    "additem": indexing.additem,
    "sum": arithmetic.reduction,
    "prod": arithmetic.reduction,
    "max": arithmetic.reduction,
    "min": arithmetic.reduction,
    "any": arithmetic.reduction,
    "all": arithmetic.reduction,
    "sum_to": arithmetic.sum_to,
    "common_size": arithmetic.common_size,
    "argmax": sorting.extreme_index,
    "argmin": sorting.extreme_index,
    "fft": fourier.transform,
    "rfft": fourier.transform,
    "irfft": fourier.transform,
    "matmul": linalg.matmul,
    "solve": linalg.solve,
    "triangular_solve": linalg.triangular_solve,
    "cholesky": linalg.cholesky,
    "orthonormal": linalg.orthonormal,
    "eigenvalues": linalg.spectrum,
    "eigenvectors": linalg.spectrum,
    "singular_values": linalg.spectrum,
    "singular_vectors": linalg.spectrum,
    "stack_new": stacks.stack_new,
    "stack_push": stacks.stack_push,
    "stack_pop": stacks.stack_pop,
    "stack_read": stacks.stack_read,
    "stack_write": stacks.stack_write,
    "stack_add": stacks.stack_add,
    "stack_length": stacks.stack_length,
    "stack_from_tensor": stacks.stack_from_tensor,
    "stack_to_tensor": stacks.stack_to_tensor,
    "stack_resize": stacks.stack_resize,
    "stack_clear": stacks.stack_clear,
    "stack_rows": stacks.stack_rows,
    "stack_concat": stacks.stack_concat,
}


# Rules that lower nodes of other graphs: regions, or an op written with other ops.
WITH_OTHERS: dict[str, Callable[[State, Node, Callable[[Node], None]], None]] = {
    "while": loop,
    "cond": branch,
    "call": call,
    "cumsum": sorting.cumulate,
    "cumprod": sorting.cumulate,
    "adjugate": linalg.adjugate,
    "pinv": linalg.pseudo_inverse,
    "det": linalg.determinant,
    "logabsdet": linalg.determinant,
    "det_sign": linalg.determinant,
    "argsort": sorting.argsort,
    "top_k": sorting.top_k,
    "searchsorted": sorting.searchsorted,
    "nonzero": sorting.nonzero,
}


def lower(graph: Graph, shapes: Sequence[ArgumentShape], dropped: frozenset[Assumption] = frozenset()) -> Plan:
    """The plan of a graph for arguments of such shapes, without the assumptions that are dropped."""
    origins = Origins()
    while True:
        state = State(origins, dropped)
        # A plan that has learned something is of no use, and need not be whole.
        with suppress(Learned):
            plan = _lowered(graph, shapes, state)
            if state.learned == Origins():
                return plan
        before, origins = origins, origins | state.learned
        assert origins != before


def _lowered(graph: Graph, shapes: Sequence[ArgumentShape], state: State) -> Plan:
    """The plan, by a state that knows what is to be expected of stacks."""
    sizes: list[tuple[Register, int, int]] = []
    arguments: list[Numbers | Array | Stack] = []
    known: dict[str, Size] = {}
    for position, (value, shape) in enumerate(zip(graph.inputs, shapes, strict=True)):
        dims = []
        for axis, d in enumerate(shape.dims):
            if isinstance(d, int):
                dims.append(Size(d))
                continue
            if d not in known:
                register = Register(d, INDEX)
                state.scopes[0].names.add(d)
                sizes.append((register, position, axis))
                known[d] = Size(1, (d,))
            dims.append(known[d])
        arguments.append(_argument(state, value, tuple(dims), shape))

    def visit(node: Node) -> None:
        _visit(state, node, visit)

    outputs = state.run(graph, {}, visit)
    results: list[Numbers | Array | Stack] = []
    for item in outputs:
        if isinstance(item, RaggedStack):
            state.needs_list(item)
            item = item.elements
        results.append(item if isinstance(item, tuple | Stack) else state.dense(item))
    return Plan(
        graph.name,
        tuple(arguments),
        tuple(sizes),
        Block(tuple(state.scopes[0].steps)),
        tuple(results),
        tuple(state.constants),
        tuple(state.sites),
        {stack: None if facts.is_listed else facts.shape for stack, facts in state.facts.items()},
    )


def _argument(state: State, value: Value, dims: tuple[Size, ...], shape: ArgumentShape) -> Numbers | Array | Stack:
    if isinstance(value.type, StackType):
        is_listed = shape.is_ragged or value in state.origins.listed
        facts = StackFacts(value.type.element.dtype, None if is_listed else dims, 0, value, is_listed)
        stack = state.stack(facts)
        state.items[value] = stack
        return stack
    assert isinstance(value.type, TensorType)
    if value.type.rank == 0:
        registers = state.registers(value.type.dtype)
        state.items[value] = registers
        return registers
    array = state.array(value.type.dtype, dims)
    state.items[value] = array.view
    return array


def _visit(state: State, node: Node, visit: Callable[[Node], None]) -> None:
    name = node.op.name
    if name in WITH_OTHERS:
        WITH_OTHERS[name](state, node, visit)
    elif Trait.ELEMENTWISE in node.op.traits:
        try:
            arithmetic.elementwise(state, node)
        except NoExpression:
            outside(state, node)
    elif name in RULES:
        RULES[name](state, node)
    else:
        outside(state, node)
