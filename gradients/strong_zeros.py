"""Strong zeros: a cotangent that is zero by a selection stays zero, whatever slope it is multiplied by.

The gradient of `where(x > 0, sqrt(x), 0)` at 0 is zero times infinity in IEEE's arithmetic, NaN. The right answer is 0:
`sqrt` has no part in the result. So where both may occur, the pullback of an op multiplies by `strong_multiply`: 0
where the cotangent is 0, else the product. This is an op of its own, whose partial derivatives are those of a product,
and no `where` on the cotangent: the derivative of `where(ct == 0, 0, ct * slope)` by `ct` is 0 at 0, that of the
product is the slope. So further derivatives are right where a cotangent happens to be zero.

A strong zero has a cost, and NaN is right where nothing was selected (`sqrt(x) * sqrt(x)` at 0 has a derivative, but
not by this product). So an analysis of the graph to be differentiated finds where both can occur:

- `selected`: the value's cotangent may be a zero from a selection. Selections are ops that use only a part of the
  elements (`where`, `maximum`, extremes along an axis, reads and updates of a part: `Trait.SELECTS`, `Use.READ`,
  `Use.UPDATE`), factors that are zero whatever is differentiated (a mask, data), branches that are not taken, loops
  that may not run, and seeds that the caller gives. The property flows on to the operands. The cotangent of a value is
  the sum over its uses: it is such a zero only if each summand may be, and reads of parts that together cover the whole
  select nothing.
- `ranges`: the value may be infinite or NaN (wild) though the graph's inputs are finite, since an op in front of it is
  singular (`Trait.SINGULAR`: division, logarithm, power, ...), and the ranges of its operands do not exclude that.
- `zero`: the value may be a zero from a selection; as the factor of a product it stops an infinite cotangent.
- `shown`: if the value is infinite or NaN, so is the differentiated result: sums and products lead from it to there.
  Such a result has no finite gradient to protect, so these values count as finite.
- `hot`: the value's cotangent may be infinite or NaN, since an op behind it has such a partial derivative.

A partial derivative may be infinite or NaN if its op is singular, or if it is computed from a wild value. Only there a
product is strong. For a loop all of these are fixpoints over its carries (least ones, and the greatest for `shown`): a
value that goes round the loop once may be in any carry in the next iteration.

Source of the name: Moses et al., Enzyme, whose switch of that name makes all products strong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ctrlgrad.gradients.activity import Activity
from ctrlgrad.gradients.ranges import FINITE_WITH_ITS_SLOPE, Ranges
from ctrlgrad.gradients.table import LINEAR, operand_reached
from ctrlgrad.ir import Branch, Call, Counting, Graph, Loop, Node, TensorType, Trait, Use, Value, attributes, view
from ctrlgrad.ops.term import Term, constant, emit, where

# Values that show in a result: where one of them is infinite or NaN, the result is, too.


# Ops whose result is infinite or NaN where an operand is, by the positions of such operands; None: all.
_SHOWS: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(("add", "subtract", "multiply", "matmul", "concat", "stack_push", "stack_sum")),
    **dict.fromkeys(("negative", "square", "abs", "sqrt", "log", "log1p", "log2", "log10", "sin", "cos"), (0,)),
    **dict.fromkeys(("divide", "strong_multiply", "cast", "sum", "sum_to", "cumsum", "reshape", "broadcast_to"), (0,)),
    **dict.fromkeys(("transpose", "expand_dims", "squeeze", "flip", "ensure_sizes", "forget_sizes", "barrier"), (0,)),
    **dict.fromkeys(("watch", "stack_to_tensor", "stack_from_tensor"), (0,)),
    "solve": (1,),
}


class Showing:
    """The search for such values in a graph and its regions, from results backwards; `runs`: loops that surely run."""

    def __init__(self, runs: Callable[[Loop], bool]) -> None:
        self.runs = runs
        self._asked: dict[Any, Any] = {}

    def values(self, graph: Graph, outputs: Iterable[Value]) -> set[Value]:
        shown = set(outputs)
        for node in reversed(graph.nodes):
            if shown.isdisjoint(node.results):
                continue
            control = view(node)
            if control is None:
                positions = _SHOWS.get(node.op.name, ())
                given = node.operands if positions is None else [node.operands[i] for i in positions]
                shown.update(v for v in given if _reaches_all(v, node.results[0]))
                continue
            key = (node, frozenset(i for i, v in enumerate(node.results) if v in shown))
            if key not in self._asked:
                match control:
                    case Loop() as loop:
                        self._asked[key] = self._showing_in_loop(loop, shown)
                    case Branch() as branch:
                        self._asked[key] = self._showing_in_branches(branch, shown)
                    case _:
                        self._asked[key] = ()
            shown.update(self._asked[key])
        return shown

    def _showing_in_loop(self, loop: Loop, shown: set[Value]) -> set[Value]:
        found = [c for c in loop.carries if c.result in shown]
        while True:
            inside = self.values(loop.body, [c.next for c in found])
            fewer = [c for c in found if c.in_body in inside]
            if fewer == found:
                break
            found = fewer
        if self.runs(loop):
            inside.update(c.outer for c in loop.captures if c.in_body in inside)
            inside.update(c.init for c in loop.carries if c.in_body in inside)
        else:
            inside.update(c.init for c in found)
        return inside

    def _showing_in_branches(self, branch: Branch, shown: set[Value]) -> set[Value]:
        inside: set[Value] = set()
        for region in branch.branches:
            ends = zip(region.outputs, branch.results, strict=True)
            inside |= self.values(region, [v for v, result in ends if result in shown])
        for j, operand in enumerate(branch.operands):
            if all(region.inputs[j] in inside for region in branch.branches):
                inside.add(operand)
        return inside


def _reaches_all(operand: Value, result: Value) -> bool:
    """Return true if a result is known to hold each element of an operand, or to have no dimension of size 0."""
    if not isinstance(operand.type, TensorType) or not isinstance(result.type, TensorType):
        return True
    return operand.type.shape == result.type.shape or all(d is not None and d > 0 for d in result.type.shape)


# Singular ops whose value is infinite or NaN wherever one of their derivatives is.
_SHOWN_BY_VALUE = {"divide", "reciprocal", "log", "log2", "log10", "log1p", "arctanh", "erfinv", *FINITE_WITH_ITS_SLOPE}

# Values with a cotangent; true if the cotangent may be a zero from a selection.
_State = dict[Value, bool]


class StrongZeros:
    """The analysis of a graph and its regions; see the module's docstring."""

    def __init__(self, activity: Activity) -> None:
        self.activity = activity
        self.varied: set[Value] = set()
        self.selected: set[Value] = set()
        self.shown: frozenset[Value] = frozenset()
        self.ranges = Ranges()
        self.zero: set[Value] = set()
        self.hot: set[Value] = set()
        # Answers for nodes with regions, keyed by the facts about their operands or results.
        self._asked: dict[Any, Any] = {}

    @classmethod
    def of_tangents(cls, graph: Graph) -> StrongZeros:
        """Analyse a graph for forward mode, where each tangent may be zero, since the caller gives them."""
        found = cls(Activity())
        found._values(graph)
        return found

    @classmethod
    def of_cotangents(
        cls, graph: Graph, wrt: Sequence[int], seeded: Sequence[int], selected: bool, activity: Activity
    ) -> StrongZeros:
        """Analyse a graph for reverse mode; `selected`: the seeds may be zeros."""
        found = cls(activity)
        found._values(graph)
        if not found.ranges.some_are_wild:
            return found
        if not selected:
            found.show(graph, {graph.outputs[i] for i in seeded})
            if not found.ranges.some_are_wild:
                return found
        varied = activity.varied_values(graph, [graph.inputs[i] for i in wrt])
        found._cotangents(graph, varied, {graph.outputs[i]: selected for i in seeded})
        return found

    def tangent(self, node: Node, position: int, rule: Callable[[Term], Term], t: Term) -> Term:
        """Return the part of an elementwise result's tangent that an operand adds: `rule(t)`, or a strong product."""
        return self._product(node, position, rule, t, selected=True, hot=True)

    def cotangent(self, node: Node, position: int, rule: Callable[[Term], Term], ct: Term) -> Term:
        """The same for the cotangent of its result."""
        result = node.result
        return self._product(node, position, rule, ct, selected=result in self.selected, hot=result in self.hot)

    def _product(
        self, node: Node, position: int, rule: Callable[[Term], Term], t: Term, selected: bool, hot: bool
    ) -> Term:
        stops = hot and Trait.PRODUCT in node.op.traits and node.operands[1 - position] in self.zero
        stopped = selected and self._may_be_wild(node, position)
        if not stops and not stopped:
            return rule(t)
        slope = rule(constant(t.builder, 1, t.dtype))
        if not stops:
            return emit("strong_multiply", t, slope)
        # Either factor may be a zero that stops the other.
        return emit("strong_multiply", _where_finite(t.equals(0), slope) if stopped else slope, t)

    def cotangent_of_arrays(
        self, node: Node, position: int, rule: Callable[[Sequence[Term]], Term], ct: Term, operands: Sequence[Term]
    ) -> Term:
        """The same for an op that is not elementwise; `rule` is given the operands.

        Of a product, elements of the other operand that are not finite are left out where the cotangents that they
        would be multiplied by are all zero. What else is not finite is left out of the result where the cotangent is
        zero there, of a matrix where it is zero in all of the matrix.
        """
        if node.results[0] not in self.selected or not self._may_be_wild(node, position):
            return rule(operands)
        if Trait.PRODUCT in node.op.traits:
            along, across = (ct.rank - 2, ct.rank - 1) if position == 0 else (ct.rank - 1, ct.rank - 2)
            # Along a vector that would cost as much as the product: there only a matrix as a whole is left out.
            if ct.tensor.shape[along] != 1 or ct.tensor.shape[across] == 1:
                given = list(operands)
                dead = emit("all", ct.equals(0), axes=(along,), keepdims=True)
                given[1 - position] = _where_finite(dead, operands[1 - position])
                return rule(given)
        found, x = rule(operands), operands[position]
        reduction = attributes.Reduction.find(node)
        # Singular values are bounded, and have fewer axes than their matrix.
        of_matrices = Trait.SINGULAR in node.op.traits or Trait.PRODUCT in node.op.traits or ct.rank != x.rank
        if reduction is None and of_matrices:
            lanes, dead = min(x.rank, ct.rank) - 2, ct.equals(0)
            if ct.rank > lanes or ct.rank > x.rank:
                first = ct.rank - x.rank if ct.rank > x.rank else 0
                axes = (*range(first), *range(first + x.rank - 2, ct.rank))
                dead = emit("all", dead, axes=axes, keepdims=False)
            return _where_finite(emit("expand_dims", dead, axes=(dead.rank, dead.rank + 1)), found)
        if reduction is not None and not reduction.keepdims and reduction.axes:
            ct = emit("expand_dims", ct, axes=reduction.axes)
        return _where_finite(ct.equals(0), found)

    def _may_be_wild(self, node: Node, position: int) -> bool:
        """Return true if a partial derivative may be infinite or NaN."""
        traits, ranges = node.op.traits, self.ranges
        if Trait.BOUNDED in traits or node.op.name in LINEAR:
            return False
        if Trait.PRODUCT in traits:
            return ranges.is_wild(node.operands[1 - position])
        if any(map(ranges.is_wild, node.operands)):
            return True
        if Trait.SINGULAR not in traits or ranges.is_tame(node):
            return False
        return not (node.op.name in _SHOWN_BY_VALUE and node.results[0] in self.shown)

    # Backward: which values show in the result.

    def show(self, graph: Graph, outputs: set[Value]) -> None:
        """Have values that show in these outputs count as finite."""
        self.shown = frozenset(Showing(self._runs).values(graph, outputs))
        self.ranges, self.zero = Ranges(self.shown), set()
        self._asked.clear()
        self._values(graph)
        self._asked.clear()

    def _runs(self, loop: Loop) -> bool:
        """Return true if constants say that a loop runs at least once."""
        counting = Counting.of(loop, self.ranges.number)
        return counting is not None and (counting.count(self.ranges.number) or 0) > 0

    # Forward: what values may be.

    def _values(self, graph: Graph) -> None:
        for node in graph.nodes:
            match view(node):
                case Loop() as loop:
                    self._once(node, node.operands, lambda loop=loop: self._values_of_loop(loop))  # type: ignore[misc]
                case Branch() as branch:
                    for region in branch.branches:
                        self._enter(zip(branch.operands, region.inputs, strict=True))
                    self._once(node, node.operands, lambda branch=branch: self._values_inside(branch.branches))  # type: ignore[misc]
                    for region in branch.branches:
                        self._enter(zip(region.outputs, branch.results, strict=True))
                case Call() as call:
                    function = call.row if call.kind == "rows" else call.function
                    self._enter(zip(call.operands, function.inputs, strict=True))
                    self._values(function)
                    self._enter(zip(function.outputs, call.results, strict=True))
                case _:
                    self._values_of(node)

    def _once(self, node: Node, values: Sequence[Value], ask: Callable[[], None]) -> None:
        key = (node, tuple((self.ranges[v], v in self.zero) for v in values))
        if key not in self._asked:
            self._asked[key] = True
            ask()

    def _values_inside(self, regions: Iterable[Graph]) -> None:
        for region in regions:
            self._values(region)

    def _enter(self, pairs: Iterable[tuple[Value, Value]], widens: bool = False) -> bool:
        """Have the second of each pair be what the first may be; return true if one of them was not yet."""
        pairs = list(pairs)
        new = {inner for outer, inner in pairs if outer in self.zero} - self.zero
        self.zero |= new
        return self.ranges.enter(pairs, widens) or bool(new)

    def _values_of_loop(self, loop: Loop) -> None:
        self._enter((c.outer, c.in_body) for c in loop.captures)
        self._enter((c.init, c.in_body) for c in loop.carries)
        while True:
            self._values(loop.body)
            if not self._enter(((c.next, c.in_body) for c in loop.carries), widens=True):
                break
        self._enter((c.in_body, c.result) for c in loop.carries)

    def _values_of(self, node: Node) -> None:
        self.ranges.visit(node)
        results = [v for v in node.results if v.type.is_differentiable]
        is_constant = attributes.Constant.find(node) is not None
        if results and (self._may_be_zero(node.result) if is_constant else self._is_zero(node)):
            self.zero.update(results)

    def _may_be_zero(self, value: Value) -> bool:
        low, high = self.ranges[value]
        return low <= 0.0 <= high

    def _is_zero(self, node: Node) -> bool:
        zeros = [v in self.zero for v in node.operands]
        traits = node.op.traits
        if Trait.PRODUCT in traits or Trait.SELECTS in traits:
            return any(zeros)
        if Trait.BOUNDED in traits:
            return all(zeros)
        if attributes.Cast.find(node) is not None:
            return zeros[0] or not node.operands[0].type.is_differentiable
        positions = LINEAR.get(node.op.name, ())
        given = zeros if positions is None else [zeros[i] for i in positions if i < len(zeros)]
        return any(given)

    # Backward: what cotangents may be.

    def _cotangents(self, graph: Graph, varied: set[Value], state: _State) -> _State:
        """Follow the cotangents of a graph's values, given those of its outputs; the same state, with its inputs'."""
        self.varied |= varied
        parts: dict[tuple[Value, int], list[tuple[int, int]]] = {}
        for node in reversed(graph.nodes):
            given = {v: state[v] for v in node.results if v in state}
            if not given:
                continue
            self.selected.update(v for v, selected in given.items() if selected)
            for operand, selected in self._operands(node, varied, given):
                if selected and not any(given.values()):
                    selected = not _completes(node, operand, parts)
                state[operand] = selected and state.get(operand, True)
        return state

    def _operands(self, node: Node, varied: set[Value], given: _State) -> list[tuple[Value, bool]]:
        control = view(node)
        if control is None:
            selected, hot = all(given.values()), any(v in self.hot for v in given)
            found = []
            for i, v in enumerate(node.operands):
                if v in varied and operand_reached(node, i):
                    found.append((v, selected or self._selects(node, i)))
                    if hot or self._may_be_wild(node, i):
                        self.hot.add(v)
            return found
        known = tuple((given.get(v), v in self.hot) for v in node.results)
        key = (node, frozenset(v for v in node.operands if v in varied), known)
        if key not in self._asked:
            match control:
                case Loop() as loop:
                    self._asked[key] = self._of_loop(loop, varied, given)
                case Branch() as branch:
                    self._asked[key] = self._of_branch(branch, varied, given)
                case Call() as call:
                    # The derivative of a function is asked for by itself, and looked at then; see `Recursion.reverse`.
                    self.hot.update(call.operands)
                    self._asked[key] = [(v, True) for v in call.operands if v in varied]
        return self._asked[key]  # type: ignore[no-any-return]

    def _selects(self, node: Node, position: int) -> bool:
        """Return true if the op makes a cotangent zero where the operand, or a part of it, is not in the result."""
        if Trait.SELECTS in node.op.traits:
            return True
        if node.op.use(position) in (Use.READ, Use.UPDATE):
            return Trait.WHOLE not in node.op.traits
        if Trait.PRODUCT not in node.op.traits:
            return False
        other = node.operands[1 - position]
        return other in self.zero or (other not in self.varied and self._may_be_zero(other))

    def _of_loop(self, loop: Loop, varied: set[Value], given: _State) -> list[tuple[Value, bool]]:
        active = self.activity.active_loop(loop, varied, given)
        # A carry whose result has no cotangent has that of the next iteration, and none in the last one.
        carried = {c: given.get(c.result, True) for c in active.carries}
        self._heat((c.result, c.next) for c in active.carries)
        in_last: _State | None = None
        while True:
            state: _State = {}
            for c, selected in carried.items():
                if c.next in active.varied:
                    state[c.next] = selected and state.get(c.next, True)
            state = self._cotangents(loop.body, active.varied, state)
            in_last = state if in_last is None else in_last
            following = {c: selected or state.get(c.in_body, True) for c, selected in carried.items()}
            if not self._heat((c.in_body, c.next) for c in active.carries) and following == carried:
                break
            carried = following
        self._heat(pair for c in active.carries for pair in ((c.in_body, c.init), (c.result, c.init)))
        self._heat((c.in_body, c.outer) for c in active.captures)
        if self._runs(loop):
            # A capture's cotangent is the sum of those of all iterations.
            return [
                *((c.init, state.get(c.in_body, True)) for c in active.carries),
                *((c.outer, in_last.get(c.in_body, True)) for c in active.captures),
            ]
        return [*((c.init, selected) for c, selected in carried.items()), *((c.outer, True) for c in active.captures)]

    def _heat(self, pairs: Iterable[tuple[Value, Value]]) -> bool:
        """Have the cotangent of the second of each pair be what that of the first may be; whether one was not yet."""
        found = {second for first, second in pairs if first in self.hot} - self.hot
        self.hot |= found
        return bool(found)

    def _of_branch(self, branch: Branch, varied: set[Value], given: _State) -> list[tuple[Value, bool]]:
        states = []
        for region in branch.branches:
            moving = [v for v, outer in zip(region.inputs, branch.operands, strict=True) if outer in varied]
            inside = self.activity.varied_values(region, moving)
            state: _State = {}
            for v, result in zip(region.outputs, branch.results, strict=True):
                if result in given and v in inside:
                    state[v] = given[result] and state.get(v, True)
            self._heat(zip(branch.results, region.outputs, strict=True))
            states.append(self._cotangents(region, inside, state))
            self._heat(zip(region.inputs, branch.operands, strict=True))
        found = []
        for j, operand in enumerate(branch.operands):
            inputs = [region.inputs[j] for region in branch.branches]
            if any(v in state for v, state in zip(inputs, states, strict=True)):
                found.append((operand, any(state.get(v, True) for v, state in zip(inputs, states, strict=True))))
        return found


def _completes(node: Node, operand: Value, parts: dict[tuple[Value, int], list[tuple[int, int]]]) -> bool:
    """Return true if a read of a part of an operand, and those seen before, are the whole operand."""
    index = attributes.Index.find(node)
    if index is None or node.op.use(0) is not Use.READ or len(node.operands) > 1:
        return False
    items = [item for item in index.key if item is not None]
    partial = [k for k, item in enumerate(items) if item not in (slice(None), slice(None, None, -1))]
    if not partial:
        return True
    axis, shape = partial[0], operand.tensor.shape
    size, item = shape[axis], items[axis]
    if len(partial) > 1 or size is None:
        return False
    if isinstance(item, int):
        first = item % size
        item = slice(first, first + 1)
    assert isinstance(item, slice)
    start, stop, step = item.indices(size)
    if step != 1:
        return False
    known = parts.setdefault((operand, axis), [])
    known.append((start, stop))
    end = 0
    for start, stop in sorted(known):
        if start > end:
            return False
        end = max(end, stop)
    return end >= size


def _where_finite(dead: Term, x: Term) -> Term:
    """x, and 0 where it is not finite and counts for nothing."""
    return where(emit("logical_and", dead, emit("logical_not", emit("isfinite", x))), 0, x)
