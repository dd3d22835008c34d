"""Forward mode: a graph becomes one that computes a tangent beside every value that needs one.

In: a graph and the inputs that have tangents. Out: a graph over (inputs, their tangents) that yields (outputs,
tangents of the varied outputs). A tangent that is zero is not there; a loop carries tangents for its varied
carry (`Activity.varied_carries`), a branch yields one wherever any of its siblings does. Nothing is saved, so a
loop of any length needs the memory of one iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ctrlgrad.errors import NoForwardRuleError
from ctrlgrad.gradients import rules  # noqa: F401  (fills the tables)
from ctrlgrad.gradients.activity import Activity
from ctrlgrad.gradients.calls import Batch, expanded, refuse_captures, rows_call
from ctrlgrad.gradients.manner import current_manner
from ctrlgrad.gradients.row_rules import PushedRows, with_all_tangents
from ctrlgrad.gradients.strong_zeros import StrongZeros
from ctrlgrad.gradients.table import ELEMENTWISE, FORWARD, LINEAR, Map, operand_reached, refusal
from ctrlgrad.ir import (
    INDEX,
    Branch,
    Builder,
    Call,
    Closed,
    Graph,
    Loop,
    Node,
    StackType,
    Value,
    attributes,
    copy_node,
    view,
)
from ctrlgrad.ir.control import Capture, Carry, emit_branch, emit_call
from ctrlgrad.ops.term import Term, broadcast_to, zeros
from ctrlgrad.records import record
from ctrlgrad.stacks.sizes import known_length


@record
class Pushforward:
    """The graph, and which outputs have a tangent (in order, after all outputs)."""

    graph: Graph
    tangents: tuple[int, ...]


def push_forward(graph: Graph, wrt: Sequence[int], batch: Batch) -> Pushforward:
    """Differentiate `graph` forward with respect to the inputs at `wrt`; `batch` as for `reverse`."""
    graph = expanded(graph)
    builder = Builder(name=f"{graph.name}_forward")
    inputs = [builder.input(v.type, v.hint) for v in graph.inputs]
    given = {graph.inputs[i]: builder.input(graph.inputs[i].type, _hint(graph.inputs[i])) for i in wrt}
    strong = StrongZeros.of_tangents(graph) if current_manner().strong_zeros else None
    tangent = _Tangents(builder, graph, inputs, given, Activity(), batch, strong)
    found = tuple(i for i, v in enumerate(graph.outputs) if v in tangent.tangents)
    outputs = [tangent.primals[v] for v in graph.outputs]
    outputs += [tangent.tangents[graph.outputs[i]].value for i in found]
    return Pushforward(builder.finish(outputs), found)


def _hint(value: Value) -> str | None:
    return f"t_{value.hint}" if value.hint else "t"


class _Tangents:
    """The primal copies and the tangents of one graph's values."""

    def __init__(
        self,
        builder: Builder,
        graph: Graph,
        inputs: Sequence[Value],
        given: dict[Value, Value],
        activity: Activity,
        batch: Batch,
        strong: StrongZeros | None,
    ) -> None:
        self.builder = builder
        self.batch = batch
        self.strong = strong
        self.activity = activity
        self.primals: dict[Value, Value] = dict(zip(graph.inputs, inputs, strict=True))
        self.tangents = {v: Term(builder, t) for v, t in given.items()}
        for node in graph.nodes:
            builder.source = node.source
            match view(node):
                case Loop() as loop:
                    self._loop(loop)
                case Branch() as branch:
                    self._branch(branch)
                case Call() as call:
                    self._call(node, call)
                case _:
                    copy_node(self.builder, node, self.primals)
                    self._plain(node)

    def primal(self, value: Value) -> Term:
        return Term(self.builder, self.primals[value])

    def zeros_like(self, value: Value) -> Term:
        primal = self.primal(value)
        if isinstance(value.type, StackType):
            attrs = {"element": value.type.element}
            return Term(self.builder, self.builder.emit("stack_new", [self._length(primal.value)], attrs))
        return zeros(self.builder, value.tensor.dtype, primal.dims)

    def _length(self, stack: Value) -> Value:
        known = known_length(stack, {v: node for node in self.builder.nodes for v in node.results})
        return (
            self.builder.emit("stack_length", [stack]) if known is None else self.builder.constant(known, INDEX.dtype)
        )

    def or_zeros(self, value: Value) -> Term:
        return self.tangents.get(value) or self.zeros_like(value)

    def _plain(self, node: Node) -> None:
        moving = [v in self.tangents and operand_reached(node, i) for i, v in enumerate(node.operands)]
        if not any(moving) or not any(v.type.is_differentiable for v in node.results):
            return
        name, attrs = node.op.name, node.attrs.given()
        operands = [self.primal(v) for v in node.operands]
        if name in ELEMENTWISE:
            self.tangents[node.result] = self._elementwise(node, operands, moving)
        elif name in FORWARD:
            given = [self.tangents[v] if m else None for v, m in zip(node.operands, moving, strict=True)]
            self.tangents[node.result] = FORWARD[name](given, self.primal(node.result), *operands, **attrs)
        elif name in LINEAR:
            positions = LINEAR[name]
            for i, v in enumerate(node.operands):
                if positions is None or i in positions:
                    operands[i] = self.or_zeros(v)
            results = self.builder.emit_all(node.op, [t.value for t in operands], _unpaired(node.attrs))
            for v, t in zip(node.results, results, strict=True):
                self.tangents[v] = Term(self.builder, t)
        else:
            raise refusal(node, "forward")

    def _elementwise(self, node: Node, operands: list[Term], moving: list[bool]) -> Term:
        out = self.primal(node.result)
        total: Term | None = None
        maps = ELEMENTWISE[node.op.name]
        for position, (rule, v, m) in enumerate(zip(maps, node.operands, moving, strict=True)):
            if m and rule is not None:
                push, t = partial(_pushed, rule, out, operands), self.tangents[v]
                part = push(t) if self.strong is None else self.strong.tangent(node, position, push, t)
                total = part if total is None else total + part
        assert total is not None
        if total.type == node.result.type and None not in node.result.tensor.shape:
            return total
        if len(node.operands) == 1:
            return total
        return broadcast_to(total, out.dims)

    def _loop(self, loop: Loop) -> None:
        shared = [c for c in loop.captures if c.outer in self.tangents]
        moving = self.activity.varied_carries(loop, self.tangents)
        both: list[Capture | Carry] = [*shared, *moving]
        inside = {c: Value(c.in_body.type, _hint(c.in_body)) for c in both}
        starts = [self.or_zeros(c.outer).value for c in shared], [self.or_zeros(c.init).value for c in moving]
        builder = Builder(name=loop.body.name)
        given = {c.in_body: tangent for c, tangent in inside.items()}
        inner = _Tangents(builder, loop.body, loop.body.inputs, given, self.activity, self.batch, self.strong)
        moved = [inner.or_zeros(c.next).value for c in moving]
        pushed = loop.rebuilt(
            captures=[
                *(replace(c, outer=self.primals[c.outer]) for c in loop.captures),
                *(Capture.new(start, inside[c]) for c, start in zip(shared, starts[0], strict=True)),
            ],
            carries=[
                *(
                    replace(Carry.new(self.primals[c.init], c.in_body, inner.primals[c.next]), in_cond=c.in_cond)
                    for c in loop.carries
                ),
                *(Carry.new(start, inside[c], t) for c, start, t in zip(moving, starts[1], moved, strict=True)),
            ],
            body=builder.nodes,
        )
        results = self.builder.keep(pushed.node)
        self.primals.update(zip(loop.results, results, strict=False))
        for c, t in zip(moving, results[len(loop.carries) :], strict=True):
            self.tangents[c.result] = Term(self.builder, t)

    def _branch(self, branch: Branch) -> None:
        moving = [v in self.tangents for v in branch.operands]
        found: set[int] = set()
        for region in branch.branches:
            inside = self.activity.varied_values(region, [v for v, m in zip(region.inputs, moving, strict=True) if m])
            found.update(i for i, v in enumerate(region.outputs) if v in inside)
        wanted = sorted(i for i in found if branch.results[i].type.is_differentiable)
        regions = []
        for region in branch.branches:
            builder = Builder(name=region.name)
            inputs = [builder.input(v.type, v.hint) for v in region.inputs]
            given = {v: builder.input(v.type, _hint(v)) for v, m in zip(region.inputs, moving, strict=True) if m}
            inner = _Tangents(builder, region, inputs, given, self.activity, self.batch, self.strong)
            tangents = [inner.or_zeros(region.outputs[i]).value for i in wanted]
            regions.append(builder.finish([*(inner.primals[v] for v in region.outputs), *tangents]))
        operands = [self.primals[v] for v in branch.operands]
        operands += [self.tangents[v].value for v, m in zip(branch.operands, moving, strict=True) if m]
        closed = Closed(tuple(operands), tuple(regions))
        hints = [v.hint for v in branch.results] + [_hint(branch.results[i]) for i in wanted]
        selector = self.primals[branch.selector]
        results = emit_branch(self.builder, selector, closed, source=branch.source, hints=hints)
        self.primals.update(zip(branch.results, results, strict=False))
        for i, t in zip(wanted, results[len(branch.results) :], strict=True):
            self.tangents[branch.results[i]] = Term(self.builder, t)

    def _call(self, node: Node, call: Call) -> None:
        moving = [j for j, v in enumerate(call.operands) if v in self.tangents]
        if call.kind == "checkpoint":
            # Nothing is saved in forward mode, so there is nothing to compute again.
            pushed = push_forward(call.function, moving, self.batch)
            self._arrive(call, pushed, self.builder.inline(pushed.graph, self._with_tangents(call, moving)))
            return
        if call.kind == "rows" and moving:
            mapped, pushed = call.attrs.mapped, push_forward(call.row, moving, self.batch)
            places = [*mapped, *(len(call.operands) + k for k, j in enumerate(moving) if j in mapped)]
            operands = self._with_tangents(call, moving)
            rows = rows_call(self.builder, pushed.graph, places, operands, self.batch, call.attrs.rows)
            self._arrive(call, pushed, rows)
            return
        if call.kind == "custom_vmap" and moving:
            self._custom_vmap(call)
            return
        refuse_captures(call, self.tangents)
        perturbed = tuple(i for i, v in enumerate(call.arguments) if v in self.tangents)
        if not perturbed:
            copy_node(self.builder, node, self.primals)
            return
        push = call.rule.push(perturbed)
        if push is None:
            raise NoForwardRuleError(
                "custom_vjp: forward mode needs a forward rule",
                source=call.source,
                expected="reverse mode",
                got="forward mode (jvp, jacfwd)",
                hint="give the function a forward rule with ctrlgrad.custom_jvp; reverse mode then follows from it;\n"
                "or one beside its reverse rule, by .defjvp(rule)",
            )
        refuse_captures(call, self.tangents, push.graph)
        tangents = [self.or_zeros(call.arguments[i]).value for i in push.given]
        found = self.builder.inline(push.graph, [*(self.primals[v] for v in call.operands), *tangents])
        self._arrive(call, Pushforward(push.graph, push.found), found)

    def _custom_vmap(self, call: Call) -> None:
        refuse_captures(call, self.tangents)
        moving = tuple(i for i, v in enumerate(call.arguments) if v in self.tangents)
        shared = len(call.captures)

        def push(graph: Graph, wrt: Sequence[int]) -> Graph:
            pushed = push_forward(graph, wrt, self.batch)
            return with_all_tangents(pushed.graph, graph.outputs, pushed.tangents)

        graph = push(call.function, [shared + i for i in moving])
        operands = self._with_tangents(call, [shared + i for i in moving])
        closed = Closed(tuple(operands[:shared]), (graph,))
        rule = PushedRows(call, moving, push, self.batch)
        results = emit_call(self.builder, call.kind, closed, operands[shared:], rule=rule, source=call.source)
        floats = tuple(i for i, v in enumerate(call.results) if v.type.is_differentiable)
        self._arrive(call, Pushforward(graph, floats), results)

    def _with_tangents(self, call: Call, moving: Sequence[int]) -> list[Value]:
        """The operands of a call, then the tangents of those that have one."""
        tangents = [self.tangents[call.operands[j]].value for j in moving]
        return [*(self.primals[v] for v in call.operands), *tangents]

    def _arrive(self, call: Call, pushed: Pushforward, results: Sequence[Value]) -> None:
        """Note what stands for the results of a call and for their tangents."""
        self.primals.update(zip(call.results, results, strict=False))
        for i, t in zip(pushed.tangents, results[len(call.results) :], strict=True):
            self.tangents[call.results[i]] = Term(self.builder, t)


def _pushed(rule: Map, out: Term, operands: Sequence[Term], t: Term) -> Term:
    return rule(t, out, *operands)


def _unpaired(attrs: attributes.Attributes) -> attributes.Attributes:
    return replace(attrs, paired=False) if isinstance(attrs, attributes.NewStack) else attrs
