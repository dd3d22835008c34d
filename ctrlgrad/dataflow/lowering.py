"""Lowering: a structured graph becomes a flat one, its loops and branches the five primitives.

A `cond` becomes one Switch per value that its branches take and one Merge per result. A Switch has as many sides as
the cond has branches, so an N-way choice is one Switch and one Merge as well, not a chain.

A `while` becomes a frame of its own, with a constant Enter per capture and, per carry,

    Enter -> Merge -> Switch -(true)-> the body -> NextIteration -> back to Merge
                            -(false)-> Exit

What must happen only where a branch is taken, or an iteration follows, takes a value that is dead otherwise. What takes
none, such as a constant, gets a control edge from the region's pivot: a value that is alive exactly when the region is.

Effects are values here too: an op with an effect takes a token and gives the next, which loops carry and branches
switch, so callbacks come in the order in which they stand. An op that may overwrite its operand comes after its readers
(`orders`), where they stand before it: reading costs no copy. `call` nodes are replaced by what they compute.

Source: "Implementation of Control Flow in TensorFlow" (whitepaper, 2017), where it compiles control-flow constructs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from ctrlgrad.dataflow import graph as flat
from ctrlgrad.dataflow.graph import Enter, FlatGraph, FlatNode, LoopCond
from ctrlgrad.dataflow.verifier import verify_flat
from ctrlgrad.errors import VerificationError, locate
from ctrlgrad.ir import BOOL, OPS, Branch, Call, Graph, Loop, Node, Op, TensorType, Type, Value, join, view
from ctrlgrad.ir.attributes import NO_ATTRS, Given
from ctrlgrad.ir.walk import nodes_with_effects
from ctrlgrad.records import record
from ctrlgrad.source import Source, here

# The one way to build a flat graph, by the lowering and by hand.
#
# A loop's Merge is emitted before the NextIteration that closes it: `merge(initial)` leaves its second operand open,
# and `next_iteration(value, into=merged)` fills it.


def _op_of(name: str) -> Op:
    op = flat.PRIMITIVES.get(name) or OPS.get(name)
    if op is None:
        raise VerificationError(
            f"there is no op {name!r}", source=here(), expected="an op of ctrlgrad.ops, or a primitive", got=repr(name)
        )
    return op


class FlatBuilder:
    """Collects the nodes of a flat graph.

    >>> from ctrlgrad.dataflow import FlatBuilder, run_flat
    >>> from ctrlgrad.ir import INDEX
    >>> b = FlatBuilder("count")
    >>> limit = b.enter(b.input(INDEX, "n"), "loop", constant=True)
    >>> i = b.merge(b.enter(b.constant(np.int64(0)), "loop"))
    >>> goes_on = b.loop_cond(b.op("less", [i, limit]))
    >>> last, current = b.switch(goes_on, i)
    >>> one = b.constant(np.int64(1), controls=[current])
    >>> b.next_iteration(b.op("add", [current, one]), into=i)
    >>> print(run_flat(b.finish([b.exit(last)]), [np.int64(5)])[0])
    5
    """

    def __init__(self, name: str = "graph", *, by_hand: bool = True) -> None:
        self.name = name
        # True if a node without a source gets the line of the user's call.
        self.by_hand = by_hand
        self.inputs: list[Value] = []
        self.nodes: list[FlatNode] = []
        # A loop's Merge that waits for its NextIteration: its result, and the operand that is to be defined.
        self._open: dict[Value, Value] = {}

    def input(self, type: Type, hint: str | None = None) -> Value:
        """An input of the graph."""
        value = Value(type, hint)
        self.inputs.append(value)
        return value

    def add(
        self,
        op: Op | str,
        operands: Sequence[Value],
        results: Sequence[Value],
        attrs: Given = NO_ATTRS,
        *,
        controls: Sequence[Value] = (),
        orders: Sequence[Value] = (),
        regions: Sequence[Graph] = (),
        source: Source | None = None,
        device: str | None = None,
    ) -> FlatNode:
        """Append a node as it is; the methods below say what each kind of node is."""
        op = _op_of(op) if isinstance(op, str) else op
        source = source or (here() if self.by_hand else None)
        try:
            given = op.attributes(attrs)
        except VerificationError as error:
            locate(error, op.name, source)
            raise
        node = FlatNode(
            op,
            tuple(operands),
            tuple(results),
            given,
            tuple(regions),
            source,
            controls=tuple(controls),
            orders=tuple(orders),
            device=device,
        )
        self.nodes.append(node)
        return node

    def ops(self, op: str, operands: Sequence[Value], attrs: Given = NO_ATTRS, **more: Any) -> Any:
        """An ordinary op of `ctrlgrad.ops`, its result types by its own rule; all its results."""
        declared = _op_of(op)
        attrs = declared.attributes(attrs)
        types = declared.infer([v.type for v in operands], attrs, ())
        return self.add(declared, operands, [Value(t) for t in types], attrs, **more).results

    def op(self, op: str, operands: Sequence[Value], attrs: Given = NO_ATTRS, **more: Any) -> Value:
        """An ordinary op with one result."""
        (value,) = self.ops(op, operands, attrs, **more)
        result: Value = value
        return result

    def constant(self, array: Any, **more: Any) -> Value:
        """A constant array. Inside a frame it needs `controls`: a value of the iteration that it fires in."""
        array = np.array(array)
        array.flags.writeable = False
        value = Value(TensorType(array.dtype, array.shape))
        return self.add("constant", (), (value,), {"value": array}, **more).result

    def switch(self, predicate: Value, data: Value, sides: int = 2, **more: Any) -> tuple[Value, ...]:
        """The sides of a Switch: (false, true) for a bool predicate; an integer chooses among `sides`, clamped."""
        values = [Value(data.type, data.hint) for _ in range(sides)]
        return self.add(flat.SWITCH, (predicate, data), values, **more).results

    def merge(self, *operands: Value, **more: Any) -> Value:
        """A Merge. With one operand it is the head of a loop's carry: `next_iteration(.., into=it)` gives the other."""
        joined: Type | None = operands[0].type
        for operand in operands[1:]:
            joined = None if joined is None else join(joined, operand.type)
        if joined is None:
            got = ", ".join(str(v.type) for v in operands)
            raise VerificationError("Merge: operands of different types", source=here(), expected="one type", got=got)
        result = Value(joined, operands[0].hint)
        if len(operands) == 1:
            back = Value(joined, operands[0].hint)
            self._open[result] = back
            operands = (*operands, back)
        return self.add(flat.MERGE, operands, (result,), **more).result

    def enter(
        self,
        data: Value,
        frame: str,
        *,
        constant: bool = False,
        parallel_iterations: int = flat.PARALLEL_ITERATIONS,
        type: Type | None = None,
        **more: Any,
    ) -> Value:
        """`data` in iteration 0 of the frame, or in every iteration where it is `constant`.

        `type` is that of the carry, where later iterations have other sizes.
        """
        attrs = Enter(frame=frame, constant=constant, parallel_iterations=parallel_iterations)
        return self.add(flat.ENTER, (data,), (Value(type or data.type, data.hint),), attrs, **more).result

    def exit(self, data: Value, **more: Any) -> Value:
        """`data`, the false side of a loop's Switch, in the parent frame."""
        return self.add(flat.EXIT, (data,), (Value(data.type, data.hint),), **more).result

    def loop_cond(self, predicate: Value, **more: Any) -> Value:
        """The predicate of the frame: whether another iteration follows."""
        return self.add(flat.LOOP_COND, (predicate,), (Value(BOOL, predicate.hint),), **more).result

    def next_iteration(self, data: Value, into: Value, **more: Any) -> None:
        """Hand `data` to the next iteration of the loop's Merge `into`."""
        if into not in self._open:
            raise VerificationError(
                "NextIteration: there is no Merge that waits for it",
                source=here(),
                expected="the result of merge(initial), once",
                got=repr(into),
            )
        self.add(flat.NEXT_ITERATION, (data,), (self._open.pop(into),), **more)

    def finish(self, outputs: Iterable[Value]) -> FlatGraph:
        """The graph. Refused by `verify_flat` where it breaks a rule."""
        for merged in self._open:
            node = next(n for n in self.nodes if merged in n.results)
            raise VerificationError(
                f"the Merge {merged.hint or merged!r} has no NextIteration",
                source=node.source,
                expected="next_iteration(value, into=merged) for every merge of one operand",
                got="a loop that nothing closes",
            )
        graph = FlatGraph(tuple(self.inputs), tuple(self.nodes), tuple(outputs), self.name)
        verify_flat(graph)
        return graph


# The rules.

Env = dict[Value, Value]


@record(frozen=False)
class _Region:
    """The region that is being lowered.

    `driven` values are computed in every iteration of its frame and are dead where the region is not reached; `pivot`
    makes one of them. Both are empty in the root frame, where all is alive once. `effect` is the token of the last
    effect, if there was one.
    """

    pivot: Callable[[], Value] | None = None
    driven: set[Value] = field(default_factory=set)
    effect: Value | None = None


def lower(graph: Graph, keeps: Callable[[Node], str | None] | None = None) -> FlatGraph:
    """The flat graph of a structured graph. A node that `keeps` gives a device for stays one node, and lies there.

    >>> from ctrlgrad.dataflow import lower
    >>> f = lambda x: cg.cond(x > 0.0, lambda: x * x, lambda: x)
    >>> print(lower(cg.function(f, name="f").graph(2.0)))
    flat f(x: f64[]) {
      v1 = constant 0. : f64[]
      v2 = greater x, v1 : bool[]
      x_false, x_true = Switch v2, x : f64[], f64[]
      v3 = multiply x_true, x_true : f64[]
      r = Merge x_false, v3 : f64[]
      return r
    }
    """
    lowering = _Lowering(graph, keeps or (lambda node: None))
    builder = lowering.builder
    env = {v: builder.input(v.type, v.hint) for v in graph.inputs}
    outputs = lowering.region(graph, env, _Region())
    return builder.finish(outputs)


class _Lowering:
    def __init__(self, graph: Graph, keeps: Callable[[Node], str | None]) -> None:
        self.builder = FlatBuilder(graph.name, by_hand=False)
        self.keeps = keeps
        self.frame_names: Counter[str] = Counter()
        self.effectful = nodes_with_effects(graph)
        self.updates = _Updates()

    def region(self, graph: Graph, env: Env, region: _Region) -> list[Value]:
        """Lower a graph's nodes; returns its outputs."""
        readers = _Readers(graph, self.updates)
        for node in graph.nodes:
            orders = readers.before(node, env)
            results: Sequence[Value]
            match view(node):
                case Loop() as loop if self.keeps(node) is None:
                    results = self.loop(node, loop, env, region, orders)
                case Branch() as branch:
                    results = self.branches(node, branch, env, region, orders)
                case Call() as call:
                    inside = dict(zip(call.function.inputs, (env[v] for v in call.operands), strict=True))
                    results = self.region(call.function, inside, region)
                case _:
                    results = self.op(node, env, region, orders)
            env.update(zip(node.results, results, strict=True))
        return [env[v] for v in graph.outputs]

    def emit(
        self,
        region: _Region,
        op: Op,
        operands: Sequence[Value],
        results: Sequence[Value],
        attrs: Given = NO_ATTRS,
        *,
        source: Source | None,
        orders: Sequence[Value] = (),
        regions: Sequence[Graph] = (),
        device: str | None = None,
    ) -> tuple[Value, ...]:
        """A node that fires exactly when the region is reached."""
        controls: tuple[Value, ...] = ()
        if region.pivot is not None and not any(v in region.driven for v in operands):
            controls = (region.pivot(),)
        self.builder.add(
            op,
            operands,
            results,
            attrs,
            controls=controls,
            orders=orders,
            regions=regions,
            source=source,
            device=device,
        )
        if op.name != "constant":
            region.driven.update(results)
        return tuple(results)

    def op(self, node: Node, env: Env, region: _Region, orders: Mapping[Value, list[Value]]) -> Sequence[Value]:
        results = [Value(v.type, v.hint) for v in node.results]
        before = [v for values in orders.values() for v in values]
        operands = [env[v] for v in node.operands]
        token = [Value(BOOL, "effect")] if node in self.effectful else []
        if token:
            operands.append(self.token(region, node.source))
        self.emit(
            region,
            node.op,
            operands,
            [*results, *token],
            node.attrs,
            source=node.source,
            orders=before,
            regions=node.regions,
            device=self.keeps(node),
        )
        if token:
            (region.effect,) = token
        return results

    def token(self, region: _Region, source: Source | None) -> Value:
        """The token of the effects so far."""
        if region.effect is None:
            region.effect = self.constant(region, np.True_, source)
        return region.effect

    def constant(self, region: _Region, array: Any, source: Source | None) -> Value:
        array = np.array(array)
        array.flags.writeable = False
        return self.emit(region, OPS["constant"], (), [Value(BOOL)], {"value": array}, source=source)[0]

    def branches(
        self, node: Node, branch: Branch, env: Env, region: _Region, orders: Mapping[Value, list[Value]]
    ) -> Sequence[Value]:
        predicate, sides = env[branch.selector], len(branch.branches)
        switched: dict[Value, tuple[Value, ...]] = {}

        def switch(value: Value, before: Sequence[Value] = ()) -> tuple[Value, ...]:
            if value not in switched:
                results = [Value(value.type, _side(value.hint, k, sides)) for k in range(sides)]
                given = (predicate, value)
                switched[value] = self.emit(region, flat.SWITCH, given, results, source=node.source, orders=before)
            return switched[value]

        captured = [switch(env[v], orders.get(v, ())) for v in branch.operands]
        effect = switch(self.token(region, node.source)) if node in self.effectful else None
        yields: list[list[Value]] = []
        for k, side in enumerate(branch.branches):
            inside = _Region(lambda k=k: (captured[0] if captured else switch(predicate))[k])  # type: ignore[misc]
            inside.driven = {values[k] for values in captured}
            if effect is not None:
                inside.effect = effect[k]
                inside.driven.add(effect[k])
            env_inside = dict(zip(side.inputs, (values[k] for values in captured), strict=True))
            outputs = self.region(side, env_inside, inside)
            yields.append(outputs)
            if effect is not None:
                assert inside.effect is not None
                yields[-1].append(inside.effect)
        results = [Value(v.type, v.hint) for v in node.results]
        for given, result in zip(zip(*yields, strict=True), results, strict=False):
            self.builder.add(flat.MERGE, given, (result,), source=node.source)
            region.driven.add(result)
        if effect is not None:
            region.effect = Value(BOOL, "effect")
            self.builder.add(flat.MERGE, [y[-1] for y in yields], (region.effect,), source=node.source)
            region.driven.add(region.effect)
        return results

    def loop(
        self, node: Node, loop: Loop, env: Env, region: _Region, orders: Mapping[Value, list[Value]]
    ) -> Sequence[Value]:
        source = loop.source
        window = loop.attrs.parallel_iterations or flat.PARALLEL_ITERATIONS
        wish = str(Loop.of(node).attrs.name or "while")
        self.frame_names[wish] += 1
        frame = f"{wish}_{self.frame_names[wish]}"

        def enter(value: Value, like: Value, constant: bool, before: Sequence[Value] = ()) -> Value:
            counts = loop.counts_down and like is loop.carries[0].in_body
            attrs = Enter(frame=frame, constant=constant, parallel_iterations=window, count=counts)
            result = [Value(like.type, like.hint)]
            return self.emit(region, flat.ENTER, [value], result, attrs, source=source, orders=before)[0]

        shared = [enter(env[c.outer], c.in_body, True) for c in loop.captures]
        carried = loop.carried
        entered = [enter(env[c.init], c.in_body, False, orders.get(c.init, ())) for c in loop.carries]
        has_token = node in self.effectful or not carried
        if has_token:
            token = Value(BOOL, "effect")
            entered.append(enter(self.token(region, source), token, False))
            carried.append(token)
        backs = [Value(v.type, v.hint) for v in carried]
        heads = [Value(v.type, v.hint) for v in carried]
        for first, back, head in zip(entered, backs, heads, strict=True):
            self.builder.add(flat.MERGE, (first, back), (head,), source=source)

        test = _Region(lambda: heads[0], set(heads), heads[-1] if has_token else None)
        (wanted,) = self.region(loop.cond, dict(zip(loop.cond.inputs, [*shared, *heads], strict=False)), test)
        predicate = Value(BOOL, "predicate")
        limit = LoopCond(loop=node, maximum_iterations=loop.attrs.maximum_iterations)
        self.emit(test, flat.LOOP_COND, [wanted], [predicate], limit, source=source)
        if has_token:
            assert test.effect is not None
            heads[-1] = test.effect
        sides = [(Value(v.type, _side(v.hint, 0, 2)), Value(v.type, _side(v.hint, 1, 2))) for v in carried]
        for head, pair in zip(heads, sides, strict=True):
            self.builder.add(flat.SWITCH, (predicate, head), pair, source=source)

        current = [true for _, true in sides]
        inside = _Region(lambda: current[0], set(current), current[-1] if has_token else None)
        following = self.region(loop.body, dict(zip(loop.body.inputs, [*shared, *current], strict=False)), inside)
        if has_token:
            assert inside.effect is not None
            following.append(inside.effect)
        for value, back in zip(following, backs, strict=True):
            self.emit(inside, flat.NEXT_ITERATION, [value], [back], source=source)
        results = [Value(v.type, v.hint) for v in node.results]
        lasts = [Value(BOOL, "effect")] if has_token else []
        for (false, _), result in zip(sides, [*results, *lasts], strict=True):
            self.builder.add(flat.EXIT, (false,), (result,), source=source)
        region.driven.update((*results, *lasts))
        if has_token:
            (region.effect,) = lasts
        return results


def _side(hint: str | None, side: int, sides: int) -> str | None:
    if hint is None:
        return None
    return f"{hint}_{('false', 'true')[side]}" if sides == 2 else f"{hint}_{side}"


class _Readers:
    """For each op that may overwrite an operand, the earlier readers of it that it does not follow from anyway."""

    def __init__(self, graph: Graph, updates: Callable[[Node], frozenset[Value]]) -> None:
        self.readers: dict[Node, dict[Value, list[Node]]] = {}
        updated = {v for node in graph.nodes for v in updates(node)}
        seen: dict[Value, list[int]] = {}
        # Nodes that read a value which is overwritten later; and for each value, as bits, those of them that it depends
        # on.
        watched: list[Node] = []
        above: dict[Value, int] = {}
        for node in graph.nodes if updated else ():
            mine = 0
            for v in node.operands:
                mine |= above.get(v, 0)
            for v in updates(node):
                late = [i for i in seen.get(v, ()) if not mine >> i & 1]
                if late:
                    self.readers.setdefault(node, {})[v] = [watched[i] for i in late]
            read = [v for v in node.operands if v in updated]
            for v in read:
                seen.setdefault(v, []).append(len(watched))
            if read:
                mine |= 1 << len(watched)
                watched.append(node)
            above.update((v, mine) for v in node.results)

    def before(self, node: Node, env: Env) -> dict[Value, list[Value]]:
        """By operand, the values that say that its readers are done."""
        return {
            v: list(dict.fromkeys(env[r] for reader in readers for r in reader.results))
            for v, readers in self.readers.get(node, {}).items()
        }


class _Updates:
    """The operands that a node may overwrite; each node is looked at once, however deep branches are nested."""

    def __init__(self) -> None:
        self.known: dict[Node, frozenset[Value]] = {}

    def __call__(self, node: Node) -> frozenset[Value]:
        if node not in self.known:
            self.known[node] = self.found(node)
        return self.known[node]

    def found(self, node: Node) -> frozenset[Value]:
        if node.op.updates:
            return frozenset(node.operands[:1])
        match view(node):
            case Loop() as loop:
                return frozenset(c.init for c in loop.carries)
            case Branch() as branch:
                inside = {v for region in branch.branches for n in region.nodes for v in self(n)}
                pairs = (zip(branch.operands, region.inputs, strict=True) for region in branch.branches)
                return frozenset(outer for entered in pairs for outer, inner in entered if inner in inside)
        return frozenset()
