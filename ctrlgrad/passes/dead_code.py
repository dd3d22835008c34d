"""Dead code: what no output needs is dropped, inside loops and branches too.

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
from dataclasses import replace

from ctrlgrad.ir import (
    Branch,
    Builder,
    Call,
    Graph,
    Loop,
    Node,
    TensorType,
    Value,
    attributes,
    definitions,
    is_branch,
    is_call,
    is_loop,
    rewrite,
    view,
    walk,
)
from ctrlgrad.ir.caching import Cache
from ctrlgrad.ir.control import Carry
from ctrlgrad.ir.walk import must_run
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
