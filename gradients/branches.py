"""The reverse of a `cond`: a cond on the same selector, each branch reversed in its place.

For `results = cond p captures(x)` whose results have cotangents d:

    forward   results, stacks = cond p captures(x, stacks)
                  each branch: as before, with a push of each value that its reverse needs; the stacks of the
                  other branches pass through
    backward  dx, stacks = cond p captures(what the branches need of the outside, d, dx, stacks)
                  each branch: pops, the branch's nodes reversed

A cotangent that some operand has already is passed in and added to inside the branch, so a branch that
reads one row of a large operand costs a row and the other branch costs nothing.

Source: Yu et al., "Dynamic Control Flow in Large-Scale Machine Learning", EuroSys 2018, section 5.
"""

from __future__ import annotations

from ctrlgrad.gradients.adjoint import Adjoint
from ctrlgrad.ir import OPS, Builder, Graph, Node, Value
from ctrlgrad.ops.term import Term
from ctrlgrad.stacks.saving import RegionScope, Thread


class _Branch:
    """One branch and its mirror image."""

    def __init__(self, adjoint: Adjoint, node: Node, region: Graph, seeded: list[int], given: dict[int, Term]) -> None:
        backward = Builder(name=region.name)
        backward.source = node.source and node.source.derivative_of(node.op.name)
        outer = dict(zip(region.inputs, node.operands[1:], strict=True))
        self.region = region
        self.scope = RegionScope(region, backward, outer=adjoint.scope, captures=outer)
        moving = [v for v in region.inputs if outer[v] in adjoint.varied]
        self.inner = adjoint.inside(self.scope, adjoint.activity.varied_values(region, moving))
        self.seeds = [Value(node.results[i].type, "d") for i in seeded]
        self.shares = {j: Value(region.inputs[j].type, f"d_{region.inputs[j].hint or 'x'}") for j in given}
        for j, share in self.shares.items():
            self.inner.cotangents[region.inputs[j]] = Term(backward, share)
        for i, seed in zip(seeded, self.seeds, strict=True):
            self.inner.add(region.outputs[i], Term(backward, seed))
        self.inner.run()

    def reaches(self, j: int) -> bool:
        """Whether this branch adds to the cotangent of operand j."""
        cotangent = self.inner.cotangents.get(self.region.inputs[j])
        return cotangent is not None and cotangent.value is not self.shares.get(j)

    def cotangent(self, j: int) -> Value:
        value = self.region.inputs[j]
        return (self.inner.take(value) or self.inner.zeros_like(value)).value


def reverse_cond(adjoint: Adjoint, node: Node) -> None:
    seeded = [i for i, v in enumerate(node.results) if v in adjoint.cotangents]
    seeds = [adjoint.cotangents.pop(node.results[i]) for i in seeded]
    given: dict[int, Term] = {}
    seen: set[Value] = set()
    for j, operand in enumerate(node.operands[1:]):
        if operand in adjoint.cotangents and operand not in seen:
            given[j] = adjoint.cotangents[operand]
        seen.add(operand)
    branches = [_Branch(adjoint, node, region, seeded, given) for region in node.regions]
    reached = [j for j in range(len(node.operands) - 1) if any(b.reaches(j) for b in branches)]
    outputs = [[b.cotangent(j) for j in reached] for b in branches]
    for b in branches:
        b.scope.settle()
    threads = [t for b in branches for t in b.scope.threads]
    _emit_forward(adjoint, node, branches, threads)
    if not reached:
        return
    _emit_backward(
        adjoint, node, branches, threads, seeds, {j: t for j, t in given.items() if j in reached}, reached, outputs
    )


def _emit_forward(adjoint: Adjoint, node: Node, branches: list[_Branch], threads: list[Thread]) -> None:
    """Replace the cond by one whose branches push."""
    if not threads:
        regions = tuple(
            Graph(b.region.inputs, b.scope.forward_nodes(b.region.inputs), b.region.outputs, b.region.name)
            for b in branches
        )
        adjoint.scope.replace(node, Node(node.op, node.operands, node.results, node.attrs, regions, node.source))
        return
    regions = ()
    for branch in branches:
        own = set(branch.scope.threads)
        stacks = [t.forward_in if t in own else Value(t.forward_in.type, t.forward_in.hint) for t in threads]
        after = [
            t.forward_out if t in own and t.forward_out is not None else s for t, s in zip(threads, stacks, strict=True)
        ]
        inputs = (*branch.region.inputs, *stacks)
        nodes = branch.scope.forward_nodes(branch.region.inputs)
        regions += (Graph(inputs, nodes, (*branch.region.outputs, *after), branch.region.name),)
    pushed = []
    for thread in threads:
        assert thread.outer is not None
        thread.outer.forward_out = Value(thread.forward_in.type, thread.forward_in.hint)
        pushed.append(thread.outer.forward_out)
    operands = (*node.operands, *(t.outer.forward_in for t in threads if t.outer))
    adjoint.scope.replace(node, Node(OPS["cond"], operands, (*node.results, *pushed), node.attrs, regions, node.source))


def _emit_backward(
    adjoint: Adjoint,
    node: Node,
    branches: list[_Branch],
    threads: list[Thread],
    seeds: list[Term],
    given: dict[int, Term],
    reached: list[int],
    outputs: list[list[Value]],
) -> None:
    """Emit the reversed cond and hand its results to the cotangents of the operands."""
    outer_scope, builder = adjoint.scope, adjoint.scope.backward
    types = {v: inner for b in branches for v, inner in b.scope.needs.items()}
    needs = list(types)
    regions = []
    for branch, cotangents in zip(branches, outputs, strict=True):
        own = set(branch.scope.threads)
        needed = [branch.scope.needs.get(v) or Value(types[v].type, types[v].hint) for v in needs]
        stacks = [t.backward_in if t in own else Value(t.backward_in.type, t.backward_in.hint) for t in threads]
        after = [
            t.backward_out if t in own and t.backward_out is not None else s
            for t, s in zip(threads, stacks, strict=True)
        ]
        inputs = (*needed, *branch.seeds, *(branch.shares[j] for j in given), *stacks)
        regions.append(Graph(inputs, tuple(branch.scope.backward.nodes), (*cotangents, *after), branch.region.name))
    operands = [outer_scope.resolve(node.operands[0]), *(outer_scope.resolve(v) for v in needs)]
    operands += [t.value for t in (*seeds, *given.values())]
    operands += [t.outer.backward_in for t in threads if t.outer]
    hints = [f"d_{node.operands[1 + j].hint or 'x'}" for j in reached] + [t.backward_in.hint for t in threads]
    results = builder.emit_all("cond", operands, node.attrs, regions=regions, source=builder.source, hints=hints)
    for thread, value in zip(threads, results[len(reached) :], strict=True):
        assert thread.outer is not None
        thread.outer.backward_out = value
    for j in given:
        adjoint.cotangents.pop(node.operands[1 + j])
    for j, value in zip(reached, results, strict=False):
        adjoint.add(node.operands[1 + j], Term(builder, value))
