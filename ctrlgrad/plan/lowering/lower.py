"""The lowering of a whole graph, by a table of rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from ctrlgrad.ir import Graph, Node, StackType, TensorType, Trait, Value
from ctrlgrad.plan.arguments import ArgumentShape
from ctrlgrad.plan.elementwise import NoExpression
from ctrlgrad.plan.lowering import (
    arithmetic,
    control,
    factors,
    indexing,
    moving,
    products,
    scans,
    selection,
    sorting,
    stacks,
)
from ctrlgrad.plan.lowering.outside import outside
from ctrlgrad.plan.lowering.stack_facts import Learned, Origins, RaggedStack, StackFacts
from ctrlgrad.plan.lowering.state import INDEX, State
from ctrlgrad.plan.model import Array, Assumption, Block, Numbers, Plan, Register, Stack
from ctrlgrad.plan.sizes import Size

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
    "argmax": scans.extreme_index,
    "argmin": scans.extreme_index,
    "matmul": products.matmul,
    "solve": factors.solve,
    "triangular_solve": factors.triangular_solve,
    "cholesky": factors.cholesky,
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
    "while": control.loop,
    "cond": control.branch,
    "call": control.call,
    "cumsum": scans.scan,
    "cumprod": scans.scan,
    "adjugate": factors.adjugate,
    "det": factors.determinant,
    "logabsdet": factors.determinant,
    "det_sign": factors.determinant,
    "argsort": sorting.argsort,
    "top_k": selection.top_k,
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
