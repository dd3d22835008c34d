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

from dataclasses import replace

from ctrlgrad.gradients.adjoint import Adjoint
from ctrlgrad.ir import Branch, Builder, Closed, Graph, Node, TensorType, Value
from ctrlgrad.ir.control import emit_branch
from ctrlgrad.ops.term import Term
from ctrlgrad.stacks.regions import RegionScope
from ctrlgrad.stacks.saving import Thread


class _Side:
    """One of the branches and its mirror image."""

    def __init__(
        self, adjoint: Adjoint, branch: Branch, region: Graph, seeded: list[int], given: dict[int, Term]
    ) -> None:
        backward = Builder(name=region.name)
        backward.source = adjoint.scope.backward.source
        outer = dict(zip(region.inputs, branch.operands, strict=True))
        self.region = region
        # What the branch yields is outside too; where it is to be had there anyway, it is not pushed in here.
        yielded = [pair for pair in zip(region.outputs, branch.results, strict=True) if _is_one_array(*pair)]
        kept = {v: result for v, result in yielded if adjoint.scope.keeps(result)}
        self.scope = RegionScope(region, backward, outer=adjoint.scope, captures={**kept, **outer})
        moving = [v for v in region.inputs if outer[v] in adjoint.varied]
        self.inner = adjoint.inside(self.scope, adjoint.activity.varied_values(region, moving))
        self.seeds = [Value(branch.results[i].type, "d") for i in seeded]
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


def _is_one_array(yielded: Value, result: Value) -> bool:
    return isinstance(yielded.type, TensorType) and yielded.type == result.type


def reverse_cond(adjoint: Adjoint, node: Node) -> None:
    branch = Branch.of(node)
    seeded = [i for i, v in enumerate(branch.results) if v in adjoint.cotangents]
    seeds = [adjoint.cotangents.pop(branch.results[i]) for i in seeded]
    given: dict[int, Term] = {}
    seen: set[Value] = set()
    for j, operand in enumerate(branch.operands):
        if operand in adjoint.cotangents and operand not in seen:
            given[j] = adjoint.cotangents[operand]
        seen.add(operand)
    sides = [_Side(adjoint, branch, region, seeded, given) for region in branch.branches]
    reached = [j for j in range(len(branch.operands)) if any(s.reaches(j) for s in sides)]
    outputs = [[s.cotangent(j) for j in reached] for s in sides]
    for s in sides:
        s.scope.settle()
    threads = [t for s in sides for t in s.scope.threads]
    adjoint.scope.replace(node, _pushing(branch, sides, threads).node)
    if not reached:
        return
    given = {j: t for j, t in given.items() if j in reached}
    _emit_backward(adjoint, branch, sides, threads, seeds, given, reached, outputs)


def _pushing(branch: Branch, sides: list[_Side], threads: list[Thread]) -> Branch:
    """The branch, each side of which pushes."""
    regions: tuple[Graph, ...] = ()
    for side in sides:
        own = set(side.scope.threads)
        stacks = [t.forward_in if t in own else Value(t.forward_in.type, t.forward_in.hint) for t in threads]
        after = [
            t.forward_out if t in own and t.forward_out is not None else s for t, s in zip(threads, stacks, strict=True)
        ]
        inputs = (*side.region.inputs, *stacks)
        nodes = side.scope.forward_nodes(side.region.inputs)
        regions += (Graph(inputs, nodes, (*side.region.outputs, *after), side.region.name),)
    pushed = []
    for thread in threads:
        assert thread.outer is not None
        thread.outer.forward_out = Value(thread.forward_in.type, thread.forward_in.hint)
        pushed.append(thread.outer.forward_out)
    operands = (*branch.operands, *(t.outer.forward_in for t in threads if t.outer))
    return replace(branch, operands=operands, branches=regions, results=(*branch.results, *pushed))


def _emit_backward(
    adjoint: Adjoint,
    branch: Branch,
    sides: list[_Side],
    threads: list[Thread],
    seeds: list[Term],
    given: dict[int, Term],
    reached: list[int],
    outputs: list[list[Value]],
) -> None:
    """Emit the reversed cond and hand its results to the cotangents of the operands."""
    outer_scope, builder = adjoint.scope, adjoint.scope.backward
    types = {v: inner for s in sides for v, inner in s.scope.needs.items()}
    needs = list(types)
    regions = []
    for side, cotangents in zip(sides, outputs, strict=True):
        own = set(side.scope.threads)
        needed = [side.scope.needs.get(v) or Value(types[v].type, types[v].hint) for v in needs]
        stacks = [t.backward_in if t in own else Value(t.backward_in.type, t.backward_in.hint) for t in threads]
        after = [
            t.backward_out if t in own and t.backward_out is not None else s
            for t, s in zip(threads, stacks, strict=True)
        ]
        inputs = (*needed, *side.seeds, *(side.shares[j] for j in given), *stacks)
        regions.append(Graph(inputs, tuple(side.scope.backward.nodes), (*cotangents, *after), side.region.name))
    selector, *operands = [outer_scope.resolve(v) for v in (branch.selector, *needs)]
    operands += [t.value for t in (*seeds, *given.values())]
    operands += [t.outer.backward_in for t in threads if t.outer]
    hints = [f"d_{branch.operands[j].hint or 'x'}" for j in reached] + [t.backward_in.hint for t in threads]
    closed = Closed(tuple(operands), tuple(regions))
    results = emit_branch(builder, selector, closed, hints=hints)
    for thread, value in zip(threads, results[len(reached) :], strict=True):
        assert thread.outer is not None
        thread.outer.backward_out = value
    for j in given:
        adjoint.cotangents.pop(branch.operands[j])
    for j, value in zip(reached, results, strict=False):
        adjoint.add(branch.operands[j], Term(builder, value))
