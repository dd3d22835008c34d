"""Forward mode: a graph becomes one that computes a tangent beside every value that needs one.

In: a graph and the inputs that have tangents. Out: a graph over (inputs, their tangents) that yields (outputs,
tangents of the varied outputs). A tangent that is zero is not there; a loop carries tangents for its varied
carry (`Activity.varied_carry`), a branch yields one wherever any of its siblings does. Nothing is saved, so a
loop of any length needs the memory of one iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ctrlgrad.errors import DifferentiationError
from ctrlgrad.gradients import rules  # noqa: F401  (fills the tables)
from ctrlgrad.gradients.activity import Activity
from ctrlgrad.gradients.calls import Batch, refuse_captures, rows_call
from ctrlgrad.gradients.table import ELEMENTWISE, FORWARD, LINEAR, NOT_DIFFERENTIABLE, operand_reached
from ctrlgrad.ir import Builder, Graph, Node, StackType, Value, copy_node
from ctrlgrad.ops.call import rule_regions
from ctrlgrad.ops.term import Term, broadcast_to, zeros


@dataclass(frozen=True)
class Pushforward:
    """The graph, and which outputs have a tangent (in order, after all outputs)."""

    graph: Graph
    tangents: tuple[int, ...]


def push_forward(graph: Graph, wrt: Sequence[int], batch: Batch) -> Pushforward:
    """Differentiate `graph` forward with respect to the inputs at `wrt`; `batch` as for `reverse`."""
    builder = Builder(name=f"{graph.name}_forward")
    inputs = [builder.input(v.type, v.hint) for v in graph.inputs]
    given = {graph.inputs[i]: builder.input(graph.inputs[i].type, _hint(graph.inputs[i])) for i in wrt}
    tangent = _Tangents(builder, graph, inputs, given, Activity(), batch)
    found = tuple(i for i, v in enumerate(graph.outputs) if v in tangent.tangents)
    outputs = [tangent.went[v] for v in graph.outputs]
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
    ) -> None:
        self.builder = builder
        self.batch = batch
        self.activity = activity
        self.went: dict[Value, Value] = dict(zip(graph.inputs, inputs, strict=True))
        self.tangents = {v: Term(builder, t) for v, t in given.items()}
        for node in graph.nodes:
            builder.source = node.source
            self._node(node)

    def primal(self, value: Value) -> Term:
        return Term(self.builder, self.went[value])

    def zeros_like(self, value: Value) -> Term:
        primal = self.primal(value)
        if isinstance(value.type, StackType):
            length = self.builder.emit("stack_length", [primal.value])
            attrs = {"element": value.type.element}
            return Term(self.builder, self.builder.emit("stack_new", [length], attrs))
        return zeros(self.builder, value.tensor.dtype, primal.dims)

    def or_zeros(self, value: Value) -> Term:
        return self.tangents.get(value) or self.zeros_like(value)

    def _node(self, node: Node) -> None:
        if node.op.name == "while":
            self._while(node)
        elif node.op.name == "cond":
            self._cond(node)
        elif node.op.name == "call":
            self._call(node)
        else:
            copy_node(self.builder, node, self.went)
            self._plain(node)

    def _plain(self, node: Node) -> None:
        moving = [v in self.tangents and operand_reached(node, i) for i, v in enumerate(node.operands)]
        if not any(moving) or not any(v.type.is_differentiable for v in node.results):
            return
        name, attrs = node.op.name, dict(node.attrs)
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
            results = self.builder.emit_all(node.op, [t.value for t in operands], _unpaired(attrs))
            for v, t in zip(node.results, results, strict=True):
                self.tangents[v] = Term(self.builder, t)
        else:
            known = name in NOT_DIFFERENTIABLE
            raise DifferentiationError(
                f"{name} has no derivative" if known else f"{name} has no forward rule",
                source=node.source,
                hint="use ctrlgrad.stop_gradient on its operand if the derivative there is meant to be zero",
            )

    def _elementwise(self, node: Node, operands: list[Term], moving: list[bool]) -> Term:
        out = self.primal(node.result)
        total: Term | None = None
        for rule, v, m in zip(ELEMENTWISE[node.op.name], node.operands, moving, strict=True):
            if m and rule is not None:
                part = rule(self.tangents[v], out, *operands)
                total = part if total is None else total + part
        assert total is not None
        if total.type == node.result.type and None not in node.result.tensor.shape:
            return total
        if len(node.operands) == 1:
            return total
        return broadcast_to(total, out.dims)

    def _while(self, node: Node) -> None:
        cond, body = node.regions
        captures = node.attrs["captures"]
        shared = [j for j in range(captures) if node.operands[j] in self.tangents]
        varied = {j for j, v in enumerate(node.operands) if v in self.tangents}
        carried = sorted(self.activity.varied_carry(node, varied))
        positions = [*shared, *(captures + i for i in carried)]
        starts = [self.or_zeros(node.operands[k]) for k in positions]

        builder = Builder(name=body.name)
        inputs = [Value(v.type, v.hint) for v in body.inputs]
        tangent_inputs = {body.inputs[k]: Value(body.inputs[k].type, _hint(body.inputs[k])) for k in positions}
        inner = _Tangents(builder, body, inputs, tangent_inputs, self.activity, self.batch)
        moved = [inner.or_zeros(body.outputs[i]).value for i in carried]
        outputs = [*(inner.went[v] for v in body.outputs), *moved]
        split = len(shared)
        extra = list(tangent_inputs.values())
        order = [*inputs[:captures], *extra[:split], *inputs[captures:], *extra[split:]]
        new_body = Graph(tuple(order), tuple(builder.nodes), tuple(outputs), body.name)
        blank = [Value(v.type, v.hint) for v in extra]
        test_order = [*cond.inputs[:captures], *blank[:split], *cond.inputs[captures:], *blank[split:]]
        new_cond = Graph(tuple(test_order), cond.nodes, cond.outputs, cond.name)

        operands = [self.went[v] for v in node.operands]
        tangents = [t.value for t in starts]
        order = [*operands[:captures], *tangents[:split], *operands[captures:], *tangents[split:]]
        attrs = {**node.attrs, "captures": captures + split}
        hints = [v.hint for v in new_body.inputs[captures + split :]]
        results = self.builder.emit_all(
            "while", order, attrs, regions=(new_cond, new_body), source=node.source, hints=hints
        )
        self.went.update(zip(node.results, results, strict=False))
        for i, t in zip(carried, results[len(node.results) :], strict=True):
            self.tangents[node.results[i]] = Term(self.builder, t)

    def _cond(self, node: Node) -> None:
        moving = [v in self.tangents for v in node.operands[1:]]
        found: set[int] = set()
        for region in node.regions:
            inside = self.activity.varied_values(region, [v for v, m in zip(region.inputs, moving, strict=True) if m])
            found.update(i for i, v in enumerate(region.outputs) if v in inside)
        wanted = sorted(i for i in found if node.results[i].type.is_differentiable)
        regions = []
        for region in node.regions:
            builder = Builder(name=region.name)
            inputs = [builder.input(v.type, v.hint) for v in region.inputs]
            given = {v: builder.input(v.type, _hint(v)) for v, m in zip(region.inputs, moving, strict=True) if m}
            inner = _Tangents(builder, region, inputs, given, self.activity, self.batch)
            tangents = [inner.or_zeros(region.outputs[i]).value for i in wanted]
            regions.append(builder.finish([*(inner.went[v] for v in region.outputs), *tangents]))
        operands = [self.went[v] for v in node.operands]
        operands += [self.tangents[v].value for v, m in zip(node.operands[1:], moving, strict=True) if m]
        hints = [v.hint for v in node.results] + [_hint(node.results[i]) for i in wanted]
        results = self.builder.emit_all("cond", operands, node.attrs, regions=regions, source=node.source, hints=hints)
        self.went.update(zip(node.results, results, strict=False))
        for i, t in zip(wanted, results[len(node.results) :], strict=True):
            self.tangents[node.results[i]] = Term(self.builder, t)

    def _call(self, node: Node) -> None:
        moving = [j for j, v in enumerate(node.operands) if v in self.tangents]
        if node.attrs["kind"] == "checkpoint":
            # Nothing is saved in forward mode, so there is nothing to compute again.
            given = [self.tangents[node.operands[j]].value for j in moving]
            pushed = push_forward(node.regions[0], moving, self.batch)
            results = self.builder.inline(pushed.graph, [*(self.went[v] for v in node.operands), *given])
            self.went.update(zip(node.results, results, strict=False))
            for i, t in zip(pushed.tangents, results[len(node.results) :], strict=True):
                self.tangents[node.results[i]] = Term(self.builder, t)
            return
        if node.attrs["kind"] == "rows" and moving:
            self._rows(node, moving)
            return
        copy_node(self.builder, node, self.went)
        if not moving:
            return
        if node.attrs["kind"] == "custom_vjp":
            raise DifferentiationError(
                "custom_vjp: forward mode needs a forward rule",
                source=node.source,
                expected="reverse mode",
                got="forward mode (jvp, jacfwd)",
                hint="give the function a forward rule with ctrlgrad.custom_jvp; reverse mode then follows from it",
            )
        refuse_captures(node, moving)
        captures = node.attrs["captures"]
        tangents = [self.or_zeros(v).value for v in node.operands[captures:]]
        (push,) = rule_regions(node)
        found = self.builder.inline(push, [*(self.went[v] for v in node.operands), *tangents])
        for v, t in zip(node.results, found, strict=True):
            if v.type.is_differentiable:
                self.tangents[v] = Term(self.builder, t)

    def _rows(self, node: Node, moving: list[int]) -> None:
        pushed = push_forward(node.regions[1], moving, self.batch)
        mapped = node.attrs["mapped"]
        tangents = [self.tangents[node.operands[j]].value for j in moving]
        places = [*mapped, *(len(node.operands) + k for k, j in enumerate(moving) if j in mapped)]
        operands = [*(self.went[v] for v in node.operands), *tangents]
        results = rows_call(self.builder, pushed.graph, places, operands, self.batch)
        self.went.update(zip(node.results, results, strict=False))
        for i, t in zip(pushed.tangents, results[len(node.results) :], strict=True):
            self.tangents[node.results[i]] = Term(self.builder, t)


def _unpaired(attrs: dict[str, object]) -> dict[str, object]:
    return {k: v for k, v in attrs.items() if k != "paired"}
