"""Simplifications: dead code, common subexpressions, counters of checkpoints, loop invariants.

Dead code: what no output needs is dropped, inside loops and branches too.

In: any graph. Out: the same inputs and outputs; no node without a used result but those that must run; no loop
carry that only feeds itself; no capture or branch operand that no region uses; no push on a stack of which nothing is
used. A call with a rule of the user's stays whole.

What must run, used or not, is what has an effect (`Trait.EFFECT`: callbacks) and what makes a promise: a loop with
`maximum_iterations` says that it ends within them or fails, and so does all that holds one in a region. Nothing else
stays for the sake of what it may do. An op that is not `Trait.TOTAL` may fail (an index out of range, sizes that do
not fit), and a loop may never end, but neither was asked to: where no result of it is used, it is not run.

Which carries of a loop are needed is a fixpoint that asks the same of the nodes in its body again and again, and each
may be a loop. A node is pruned once for each set of results that is needed, and the answer is kept: a nest of loops
costs what its nodes cost, not twice as much with every level.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import field, replace

import numpy as np

from ctrlgrad.ir import (
    INDEX,
    Branch,
    Builder,
    Call,
    Counting,
    Graph,
    Loop,
    Node,
    Rewriter,
    StackType,
    TensorType,
    Trait,
    Value,
    attributes,
    copy_node,
    definitions,
    is_branch,
    is_call,
    is_loop,
    rewrite,
    view,
    walk,
)
from ctrlgrad.ir.caching import Cache
from ctrlgrad.ir.control import Capture, Carry
from ctrlgrad.ir.interning import fingerprint
from ctrlgrad.ir.walk import has_effect, must_run
from ctrlgrad.ops.arrays import is_total
from ctrlgrad.ops.control import KINDS
from ctrlgrad.records import record

# Forwarding: what every branch, or a loop's body, passes on unchanged is taken from in front of them.
#
# A result that is the same value whichever branch is taken does not depend on the selector: it has no rows of its own
# where only the selector has them (`vmap`), and its derivative goes around the branches.
#
# In: any graph. Out: no used result of a `cond` is, in all of its branches, the same operand (of the result's type)
# or the same constant; none of a `while` is a carry that the body leaves as it is. Stacks stay: their way through the
# branches pairs their pushes with their pops.


def forward_results(graph: Graph) -> Graph:
    """The graph with such results replaced, inner branches first."""
    return rewrite(graph, _forward)


def _forward(node: Node, builder: Builder) -> Sequence[Value] | None:
    if is_loop(node):
        builder.keep(node)
        return [_before(carry) for carry in Loop.of(node).carries]
    if not is_branch(node):
        return None
    branch = Branch.of(node)
    producers = [definitions(region) for region in branch.branches]
    forwarded = []
    for position, result in enumerate(branch.results):
        found = [_passed_on(branch, k, position, producers[k]) for k in range(len(branch.branches))]
        is_forwarded = isinstance(result.type, TensorType) and _are_one(found)
        forwarded.append(_in_front(found[0], builder) if is_forwarded else result)
    builder.keep(node)
    return forwarded


def _before(carry: Carry) -> Value:
    is_kept = carry.next is carry.in_body and carry.init.type == carry.result.type
    return carry.init if is_kept and isinstance(carry.result.type, TensorType) else carry.result


def _passed_on(branch: Branch, k: int, position: int, producers: dict[Value, Node]) -> Value | Node | None:
    """The operand that branch k passes on as a result, or the constant."""
    region = branch.branches[k]
    output = region.outputs[position]
    if output.type != branch.results[position].type:
        return None
    if output in producers:
        return producers[output] if producers[output].op.name == "constant" else None
    operand = branch.operands[region.inputs.index(output)]
    return operand if operand.type == output.type else None


def _are_one(found: list[Value | Node | None]) -> bool:
    first = found[0]
    if isinstance(first, Node):
        value = attributes.Constant.of(first).value
        return all(isinstance(x, Node) and attributes.Constant.of(x).value.tobytes() == value.tobytes() for x in found)
    return first is not None and all(x is first for x in found)


def _in_front(found: Value | Node | None, builder: Builder) -> Value:
    if isinstance(found, Node):
        return builder.constant_again(attributes.Constant.of(found))
    assert found is not None
    return found


# Calls dissolved: what was kept whole for its derivative's sake is put in place before a graph runs.
#
# In: any graph. Out: no `call` node anywhere, or none of the given kinds.


def inline_calls(
    graph: Graph, kinds: Collection[str] = KINDS, kept: Callable[[Call], bool] = lambda call: False
) -> Graph:
    """The graph with every call of these kinds replaced by its function, except for those that are `kept`."""

    def visit(node: Node, builder: Builder) -> Sequence[Value] | None:
        call = Call.of(node) if is_call(node) else None
        if call is None or call.kind not in kinds or kept(call):
            return None
        return builder.inline(call.function, call.operands)

    return rewrite(graph, visit)


_WITHOUT_CALLS: Cache[None, Graph] = Cache(1)


def without_calls(graph: Graph) -> Graph:
    """Return an unsimplified graph with its calls inlined, as an engine runs it; cached."""
    return _WITHOUT_CALLS.get(graph, None, lambda: inline_calls(graph) if any(map(is_call, walk(graph))) else graph)


def remove_dead_code(graph: Graph) -> Graph:
    """The graph without what its outputs do not need."""
    nodes, _ = _Pruning().live_nodes(graph, graph.outputs)
    return Graph(graph.inputs, nodes, graph.outputs, graph.name)


class _Pruning:
    """The nodes that have been pruned, by which of their results were needed."""

    def __init__(self) -> None:
        self._known: dict[tuple[Node, frozenset[int]], Node] = {}

    def live_nodes(self, graph: Graph, outputs: Iterable[Value]) -> tuple[tuple[Node, ...], set[Value]]:
        """The nodes that `outputs` need, pruned themselves, and all values that are needed."""
        live = set(outputs)
        kept: list[Node] = []
        for node in reversed(graph.nodes):
            if live.isdisjoint(node.results) and not must_run(node):
                continue
            if node.regions:
                node = self._node(node, frozenset(i for i, v in enumerate(node.results) if v in live))
            live.update(node.operands)
            kept.append(node)
        return tuple(reversed(kept)), live

    def _node(self, node: Node, needed: frozenset[int]) -> Node:
        if (node, needed) not in self._known:
            match view(node):
                case Loop() as loop:
                    pruned = self._loop(loop, needed).node
                case Branch() as branch:
                    pruned = self._branch(branch, needed).node
                case Call(kind="checkpoint") as call:
                    pruned = self._checkpoint(call, needed).node
                case _:
                    return node
            self._known[node, needed] = pruned
        return self._known[node, needed]

    def _loop(self, loop: Loop, results: frozenset[int]) -> Loop:
        cond, in_cond = self.live_nodes(loop.cond, [loop.predicate])
        needed = {i for i, c in enumerate(loop.carries) if i in results or c.in_cond in in_cond}
        while True:
            carries = [loop.carries[i] for i in sorted(needed)]
            body, in_body = self.live_nodes(loop.body, [c.next for c in carries])
            more = {i for i, c in enumerate(loop.carries) if c.in_body in in_body} - needed
            if not more:
                break
            needed |= more
        captures = [c for c in loop.captures if c.in_body in in_body or c.in_cond in in_cond]
        return loop.rebuilt(captures=captures, carries=carries, cond=cond, body=body)

    def _branch(self, branch: Branch, results: frozenset[int]) -> Branch:
        needed = sorted(results)
        pruned = [self._pruned(region, needed) for region in branch.branches]
        kept = [j for j in range(len(branch.operands)) if any(j in p.used for p in pruned)]
        return replace(
            branch,
            operands=tuple(branch.operands[j] for j in kept),
            branches=tuple(p.over(kept) for p in pruned),
            results=tuple(branch.results[i] for i in needed),
        )

    def _checkpoint(self, call: Call, results: frozenset[int]) -> Call:
        needed = sorted(results)
        pruned = self._pruned(call.function, needed)
        count = len(call.captures)
        return replace(
            call,
            captures=tuple(v for j, v in enumerate(call.captures) if j in pruned.used),
            arguments=tuple(v for j, v in enumerate(call.arguments, count) if j in pruned.used),
            regions=(pruned.over(sorted(pruned.used)),),
            results=tuple(call.results[i] for i in needed),
        )

    def _pruned(self, region: Graph, needed: Sequence[int]) -> _Pruned:
        outputs = tuple(region.outputs[i] for i in needed)
        nodes, live = self.live_nodes(region, outputs)
        used = frozenset(j for j, v in enumerate(region.inputs) if v in live)
        return _Pruned(region, nodes, outputs, used)


@record
class _Pruned:
    """Live part of a region, and the positions of the inputs that it uses."""

    region: Graph
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]
    used: frozenset[int]

    def over(self, inputs: Sequence[int]) -> Graph:
        """The region with these of its inputs alone."""
        return Graph(tuple(self.region.inputs[j] for j in inputs), self.nodes, self.outputs, self.region.name)


# Common subexpressions: of nodes that compute the same from the same values, one is kept.
#
# In: any graph. Out: no two pure nodes of one region have the same op, operands, attributes and regions. Regions are
# treated one by one; nothing moves between regions. A function that is called twice, as by two derivatives, leaves
# its loops twice: of loops and of branches that say the same, one runs. Calls stay as they are, and so do barriers,
# constants of more than `LARGEST` elements, and what makes or takes a stack: two stacks that start alike are still
# two.


# Larger constants are not compared. The zeros that loops begin with are mostly below it.
LARGEST = 4096

_Key = tuple[str, tuple[Value, ...], str | bytes]


def merge_common(graph: Graph) -> Graph:
    """The graph with repeated computations merged."""
    return _Merging(graph).run()


class _Merging(Rewriter):
    def __init__(self, graph: Graph, outer: Rewriter | None = None, owner: Node | None = None) -> None:
        super().__init__(graph, outer, owner)
        self._seen: dict[_Key, list[Node]] = {}

    def visit(self, node: Node) -> Sequence[Value] | None:
        key = _key(node)
        if key is None:
            return None
        alike = self._seen.setdefault(key, [])
        for known in alike:
            if _have_equal_regions(known, node):
                return known.results
        alike.append(node)
        return None


def _have_equal_regions(known: Node, node: Node) -> bool:
    """True if the regions of two nodes are equal and have no effect; nodes without regions have equal ones."""
    if not node.regions:
        return True
    if has_effect(node.op, node.regions) or [v.type for v in known.results] != [v.type for v in node.results]:
        return False
    digests = [fingerprint(region) for region in node.regions]
    return None not in digests and digests == [fingerprint(region) for region in known.regions]


def _key(node: Node) -> _Key | None:
    """Key that two nodes must share to be merged, besides equal regions; None for nodes that are never merged."""
    if Trait.EFFECT in node.op.traits or node.op.name == "barrier":
        return None
    if node.regions and not (is_loop(node) or is_branch(node)):
        return None
    stacks = (*node.operands, *node.results) if node.regions else node.results
    if any(isinstance(v.type, StackType) for v in stacks):
        return None
    if node.op.name == "constant":
        constant = attributes.Constant.of(node)
        value = constant.value
        if value.size > LARGEST or constant.varies:
            return None
        return (f"constant {value.dtype}{value.shape}", (), value.tobytes())
    return (node.op.name, node.operands, repr(node.attrs))


# Counts: what the counter of a loop ends with is computed from the loop's bound, not asked of the loop.
#
# Nothing that comes later then depends on the loop for it, and a gradient that needs it in every iteration of a loop
# around computes it again, where it would have to save a result.
#
# In: any graph. Out: no used result of a loop is its counter, if the loop counts (`ir.Counting`) and has no
# `maximum_iterations`.


def know_counts(graph: Graph) -> Graph:
    """The graph with such results computed beside the loops, in all regions."""
    return _KnowingCounts(graph).run()


class _KnowingCounts(Rewriter):
    def __init__(self, graph: Graph, outer: Rewriter | None = None, owner: Node | None = None) -> None:
        super().__init__(graph, outer, owner)
        self._used = {v for node in graph.nodes for v in node.operands}.union(graph.outputs)

    def visit(self, node: Node) -> Sequence[Value] | None:
        if not is_loop(node) or self._used.isdisjoint(node.results):
            return None
        loop = Loop.of(node)
        # Without a use of its results a loop goes, and with it the error of one that may run too often.
        counting = Counting.of(loop, self._number) if loop.attrs.maximum_iterations is None else None
        if counting is None or counting.carry.result not in self._used:
            return None
        self.builder.keep(node)
        last = counting.last(self.builder, self._number)
        return [last if c.result is counting.carry.result else c.result for c in loop.carries]

    def _number(self, value: Value) -> np.ndarray | None:
        node = next((n for n in self.builder.nodes if value in n.results), None)
        constant = None if node is None else attributes.Constant.find(node)
        return None if constant is None else constant.value


# Counters leave checkpoints: what a function that is computed again only counts is counted beside it.
#
# A loop whose whole body is a checkpoint carries its counter through the call. Counted outside, it is seen to follow
# from the number of the iteration, and the gradient saves nothing for it.
#
# In: any graph. Out: nothing uses a result of a checkpoint that is an int64 scalar and made of its operands and
# constants by sums and differences; such a result stays, unused.


def count_outside(graph: Graph) -> Graph:
    """The graph with counters counted outside of its checkpoints, inside regions too."""
    return rewrite(graph, _count_results)


def _count_results(node: Node, builder: Builder) -> Sequence[Value] | None:
    if not is_call(node, "checkpoint"):
        return None
    call = Call.of(node)
    inside = dict(zip(call.function.inputs, call.operands, strict=True))
    producers = definitions(call.function)
    builder.keep(node)
    return [
        _count(builder, output, producers, inside)
        if output.type == INDEX and _is_counted(output, producers, inside)
        else result
        for result, output in zip(call.results, call.function.outputs, strict=True)
    ]


def _is_counted(value: Value, producers: dict[Value, Node], inside: dict[Value, Value]) -> bool:
    node = producers.get(value)
    if node is None or node.op.name == "constant":
        return value.type == INDEX and (node is not None or value in inside)
    return node.op.name in ("add", "subtract") and all(_is_counted(v, producers, inside) for v in node.operands)


def _count(builder: Builder, value: Value, producers: dict[Value, Node], inside: dict[Value, Value]) -> Value:
    if value not in inside:
        for v in producers[value].operands:
            _count(builder, v, producers, inside)
        copy_node(builder, producers[value], inside)
    return inside[value]


# Loop invariants: what every iteration would compute alike moves in front of the loop and becomes a capture.
#
# In: any graph. Out: in no cond or body of a loop does a total, pure node depend on captures and constants alone, but
# for nodes with regions and what is in branches; no carry is passed through unchanged that starts with its result's
# type. Only ops that cannot fail move, since the loop may take no iteration at all. Constants stay: a region may hold
# its own.


def hoist_invariants(graph: Graph) -> Graph:
    """The graph with invariants hoisted out of all of its loops, inner loops first."""
    return rewrite(graph, _hoist)


def _hoist(node: Node, builder: Builder) -> Sequence[Value] | None:
    if not is_loop(node):
        return None
    loop = Loop.of(node)
    hoisted = _hoist_nodes(_capture_constant_carries(loop), builder)
    if hoisted is loop:
        return None
    builder.keep(hoisted.node)
    results = set(hoisted.results)
    return [c.result if c.result in results else c.init for c in loop.carries]


def _capture_constant_carries(loop: Loop) -> Loop:
    """Turn each carry that the body passes through unchanged into a capture."""
    still = [c for c in loop.carries if c.next is c.in_body and c.init.type == c.result.type]
    if not still:
        return loop
    captures = (*loop.captures, *(Capture(c.init, c.in_cond, c.in_body) for c in still))
    return loop.rebuilt(captures=captures, carries=[c for c in loop.carries if c not in still])


def _hoist_nodes(loop: Loop, builder: Builder) -> Loop:
    """Emit the invariant nodes in front of the loop; returns the loop without them."""
    added: list[Capture] = []
    cond = _hoist_from(loop.cond, {c.in_cond: c.outer for c in loop.captures}, builder)
    added += [Capture(outer, inner, Value(inner.type, inner.hint)) for outer, inner in cond.hoisted]
    body = _hoist_from(loop.body, {c.in_body: c.outer for c in loop.captures}, builder)
    added += [Capture.new(outer, inner) for outer, inner in body.hoisted]
    if not added:
        return loop
    return loop.rebuilt(captures=(*loop.captures, *added), cond=cond.kept, body=body.kept)


@record(frozen=False)
class _Hoisted:
    """The nodes that a region keeps; what left it: each value outside, and the value that it was inside."""

    kept: list[Node] = field(default_factory=list)
    hoisted: list[tuple[Value, Value]] = field(default_factory=list)


def _hoist_from(region: Graph, outside: dict[Value, Value], builder: Builder) -> _Hoisted:
    """`outside`: what stands for an input of the region in front of the loop."""
    found = _Hoisted()
    constants = {n.result: n for n in region.nodes if n.op.name == "constant"}
    for node in region.nodes:
        if not _is_invariant(node, outside, constants):
            found.kept.append(node)
            continue
        for v in node.operands:
            if v not in outside:
                copy_node(builder, constants[v], outside)
        copy_node(builder, node, outside)
        found.hoisted += [(outside[v], v) for v in node.results]
    return found


def _is_invariant(node: Node, outside: dict[Value, Value], constants: dict[Value, Node]) -> bool:
    if node.regions or node.op.name == "constant":
        return False
    if not all(v in outside or v in constants for v in node.operands):
        return False
    # Values that are recomputed behind a barrier are then recomputed once, in front of the loop.
    return node.op.name == "barrier" or is_total(node)
