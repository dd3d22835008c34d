"""Pushes and pops of the gradient transform's stacks mirror each other after every pass, as the verifier sees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from passes.pass_cases import CASES, DISTRIBUTED, LAYER, recurrent_layer
from programs import PROGRAMS, Program

import ctrlgrad as cg
from ctrlgrad.errors import VerificationError
from ctrlgrad.ir import (
    Builder,
    Graph,
    Node,
    StackType,
    Value,
    attributes,
    count_ops,
    definitions,
    rewrite,
    verify,
    walk,
)
from ctrlgrad.ir.walk import Visit
from ctrlgrad.passes import OPTIMISATIONS, distribute, optimise


def paired(graph: Graph) -> int:
    """Number of stacks whose pushes and pops the verifier must pair."""
    stacks = filter(None, map(attributes.NewStack.find, walk(graph)))
    return sum(stack.paired for stack in stacks)


def chunked(graph: Graph) -> int:
    loops = filter(None, map(attributes.Loop.find, walk(graph)))
    return sum(loop.chunks_of is not None for loop in loops)


@pytest.mark.parametrize("name", CASES)
def test_every_pass_keeps_the_stacks_of_a_gradient_paired(name: str) -> None:
    graph = CASES[name].graph()
    for _, run in OPTIMISATIONS:
        after = verify(run(graph))
        assert paired(after) <= paired(graph)
        graph = after
    assert paired(graph) > 0 or paired(CASES[name].graph()) == 0
    assert chunked(graph) > 0 or name not in DISTRIBUTED


@pytest.mark.parametrize("program", PROGRAMS, ids=repr)
def test_stacks_of_optimised_programs_are_paired(program: Program) -> None:
    graph = program.graph(1)
    assert (paired(verify(optimise(graph))) > 0) == (paired(verify(graph)) > 0)


def layer() -> Graph:
    """The gradient of a layer, its loops split into chunks."""
    graph = distribute(cg.function(cg.grad(recurrent_layer, argnums=(1, 2))).graph(*LAYER), 2)
    assert paired(graph) > 0 and chunked(graph) > 0
    return verify(graph)


def popped_twice(node: Node, builder: Builder) -> Sequence[Value] | None:
    if node.op.name != "stack_pop":
        return None
    stack, *sizes = node.operands
    rest, _ = builder.emit_all("stack_pop", [stack, *sizes])
    return builder.emit_all("stack_pop", [rest, *sizes])


def pushed_twice(node: Node, builder: Builder) -> Sequence[Value] | None:
    if node.op.name != "stack_push":
        return None
    stack, value = node.operands
    return [builder.emit("stack_push", [builder.emit("stack_push", [stack, value]), value])]


def never_popped(node: Node, builder: Builder) -> Sequence[Value] | None:
    if node.op.name != "stack_pop":
        return None
    return [node.operands[0], builder.constant(np.zeros(node.results[1].tensor.shape))]


@pytest.mark.parametrize("mistake", [popped_twice, pushed_twice, never_popped])
def test_a_pass_that_breaks_a_pair_in_a_loop_of_chunks_is_found(mistake: Visit) -> None:
    with pytest.raises(VerificationError, match=r"the pops of the paired stack .* do not mirror its pushes"):
        verify(rewrite(layer(), mistake))


def test_a_pop_by_the_loop_over_chunks_beside_those_of_its_iterations_is_found() -> None:
    def once_more(node: Node, builder: Builder) -> Sequence[Value] | None:
        loop = attributes.Loop.find(node)
        if loop is None or loop.chunk is None or not count_ops(node.regions[1])["stack_pop"]:
            return None
        results = list(builder.keep(node))
        (place,) = (i for i, v in enumerate(results) if isinstance(v.type, StackType) and _is_popped(node, i))
        results[place], _ = builder.emit_all("stack_pop", [results[place]])
        return results

    with pytest.raises(VerificationError, match=r"cannot be mirrored|do not mirror"):
        verify(rewrite(layer(), once_more))


def _is_popped(loop: Node, place: int) -> bool:
    made = definitions(loop.regions[1])[loop.regions[1].outputs[place]]
    return made.op.name == "stack_pop"
