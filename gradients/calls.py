"""The derivatives of `call`: recomputed inside, or given by the user.

checkpoint   backward: the function's own forward and backward halves, one after the other, from its operands; what
             its policy saves are further results of the call, and stand in the forward half for what makes them
custom_vjp   forward: the user's forward function, whose residuals are saved; backward: his backward function
rows         backward: the rows' own backward function, batched; what all rows share gets the sum of theirs
derivative   both modes: in its place, before anything else is differentiated
custom_vmap  both modes: a call of the same kind, whose rule is the derivative of the user's (see `row_rules.py`)
custom_jvp   forward mode: the results and tangents that the user's rule returns; reverse mode: forward, the results
             that it returns, in place of the call; backward, the transpose of its tangents, which is its own reverse
             mode with respect to the tangents, in which it is linear; functions with forward rules that it calls on
             tangents are transposed themselves, as by JAX: their rules, which may call them, would never end

Source of the last: Frostig et al., "Decomposing reverse-mode automatic differentiation", 2021.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

from ctrlgrad.errors import DifferentiationError
from ctrlgrad.gradients.adjoint import Adjoint, Pullback, has_user_rules, one
from ctrlgrad.gradients.row_rules import PulledRows
from ctrlgrad.ir import (
    Builder,
    Call,
    Closed,
    Graph,
    Node,
    StackType,
    TensorType,
    Trait,
    Value,
    attributes,
    is_call,
    rewrite,
    walk,
)
from ctrlgrad.ir.attributes import Barrier, NamedAxis, Saveable, Saving
from ctrlgrad.ir.builder import copy_node
from ctrlgrad.ir.control import emit_call
from ctrlgrad.ir.rules import Answer, Positions
from ctrlgrad.ops.term import Term, broadcast_to, emit, zeros
from ctrlgrad.records import record
from ctrlgrad.stacks.regions import RegionScope

# Checkpoints with a policy: the values to save, and the nodes to recompute.
#
# The search goes from the residuals of the function's derivative back through their producers, as far as a value that
# the policy saves, or an input. The nodes on the way are recomputed from these values; other nodes are not, effects
# included. A policy sees the values of the function itself, not those inside its loops and branches, whose results are
# values of the function.


_ARRANGING = frozenset({Trait.VIEW, Trait.MOVES})


@record
class Recomputation:
    """The values of the function that are saved, and the graph of (inputs, saved values) to the residuals."""

    inputs: tuple[Value, ...]
    saved: tuple[Value, ...]
    graph: Graph

    @staticmethod
    def of(halves: Pullback, function: Graph, policy: Sequence[Saving]) -> Recomputation:
        """Recomputation for `function`, whose derivative is `halves`."""
        forward = halves.forward
        residuals = forward.outputs[len(forward.outputs) - halves.residuals :]
        producers = {v: node for node in forward.nodes for v in node.results}
        saveable = _saveable(function, policy)
        saved, nodes = dict[Value, None](), set[Node]()
        pending, seen = list(residuals), set[Value]()
        while pending:
            value = pending.pop()
            if value in seen:
                continue
            seen.add(value)
            if value in saveable:
                saved[value] = None
            elif value in producers:
                nodes.add(producers[value])
                pending += producers[value].operands
        inputs = tuple(v for v in forward.inputs if v in seen)
        # A node with a saved result may be computed again for another one.
        renamed = {v: Value(v.type, v.hint) for v in saved}
        body = [
            Node(
                node.op,
                tuple(renamed.get(v, v) for v in node.operands),
                node.results,
                node.attrs,
                node.regions,
                node.source,
            )
            for node in forward.nodes
            if node in nodes
        ]
        outputs = tuple(renamed.get(v, v) for v in residuals)
        graph = Graph((*inputs, *renamed.values()), tuple(body), outputs, f"{function.name}_again")
        return Recomputation(inputs, tuple(saved), graph)


def _saveable(function: Graph, policy: Sequence[Saving]) -> set[Value]:
    """The values of a function that a policy saves; never results of ops without operands, such as constants.

    A name belongs to the value that it was given to: if the derivative uses the named copy too, it is saved once.
    """
    names: dict[Value, set[str]] = {}
    for node in function.nodes:
        barrier = Barrier.find(node)
        if barrier is not None and barrier.name is not None:
            names.setdefault(node.operands[0], set()).add(barrier.name)
    found: set[Value] = set()
    for saving in policy:
        found |= _saved(function, saving, names)
    return {v for v in found if isinstance(v.type, TensorType)}


def _saved(function: Graph, saving: Saving, names: Mapping[Value, set[str]]) -> set[Value]:
    given = set(saving.names)
    nodes = [node for node in function.nodes if node.operands]
    values = [v for node in nodes for v in node.results]
    match saving.kind:
        case Saveable.NAMES:
            return {v for v in values if names.get(v, set()) & given}
        case Saveable.OTHER_NAMES:
            return {v for v in values if names.get(v, set()) - given}
        case Saveable.PRODUCTS:
            return {node.result for node in nodes if node.op.name == "matmul"}
        case Saveable.UNBATCHED_PRODUCTS:
            products = [node for node in nodes if node.op.name == "matmul"]
            return {node.result for node in products if min(v.tensor.rank for v in node.operands) <= 2}
        case Saveable.VALUES:
            refused = {v for v in names if names[v] & given}
            for node in nodes:
                # To save what only arranges a value would be to save it.
                if not _ARRANGING.isdisjoint(node.op.traits) and not refused.isdisjoint(node.operands):
                    refused.update(node.results)
            return set(values) - refused


# Batching of a graph: adds rows along axis 0 to the inputs at some positions (of this number, if known) and to all
# outputs but the first of a further number; the name is that of the rows. The caller of differentiation passes it in,
# since batching and this folder do not import each other.
Batch = Callable[..., Graph]


def rows_call(
    builder: Builder, row: Graph, mapped: Sequence[int], operands: Sequence[Value], batch: Batch, name: NamedAxis | None
) -> tuple[Value, ...]:
    """Emit a call of kind "rows": `row` for each row of the operands at `mapped`, which have that name."""
    size = operands[mapped[0]].tensor.shape[0]
    # No rows at all are left to run time: some ops refuse to be built without elements.
    batched = batch(row, mapped, size or None, name)
    return emit_call(builder, "rows", Closed((), (batched, row)), operands, mapped=tuple(mapped), rows=name)


def expanded(graph: Graph, kept: Callable[[Call], bool] = lambda call: False) -> Graph:
    """The graph with derivatives that are taken later in place, so that they can be differentiated, or run."""
    known: dict[object, object] = {}

    def is_expanded(node: Node) -> bool:
        return is_call(node, "derivative") and not kept(Call.of(node))

    def visit(node: Node, builder: Builder) -> Sequence[Value] | None:
        if not is_expanded(node):
            return None
        call = Call.of(node)
        found: Sequence[Value] = call.rule.emitted(builder, call, known)
        return found

    # A function whose rule takes a derivative has one inside its own.
    while any(map(is_expanded, walk(graph))):
        graph = rewrite(graph, visit)
    return graph


def reverse_call(adjoint: Adjoint, node: Node) -> None:
    seeded = [i for i, v in enumerate(node.results) if v in adjoint.cotangents]
    wanted = [j for j, v in enumerate(node.operands) if v in adjoint.varied]
    call = Call.of(node)
    if call.kind == "custom_vjp":
        _custom_vjp(adjoint, node, call)
    elif call.kind == "custom_jvp" and not adjoint.recursion.linear:
        _custom_jvp(adjoint, node, call, seeded)
    elif not seeded:
        if call.kind == "checkpoint" and wanted:
            function = _differentiated(call.function, adjoint.recursion.reverse(call.function, wanted, ()))
            adjoint.scope.replace(node, replace(call, regions=(function,)).node)
    elif call.attrs.policy:
        _checkpoint_with_policy(adjoint, node, call, seeded, wanted)
    else:
        rules = {"checkpoint": _checkpoint, "custom_jvp": _checkpoint, "rows": _rows, "custom_vmap": _custom_vmap}
        rules[call.kind](adjoint, node, call, seeded, wanted)


def _differentiated(function: Graph, halves: Pullback) -> Graph:
    """The function with the results of users' rules in place of those of their calls, as its forward half has them."""
    return replace(halves.forward, outputs=halves.forward.outputs[: len(function.outputs)])


def _checkpoint(adjoint: Adjoint, node: Node, call: Call, seeded: list[int], wanted: list[int]) -> None:
    builder = adjoint.scope.backward
    seeds = [adjoint.cotangents.pop(call.results[i]).value for i in seeded]
    halves = adjoint.recursion.reverse(call.function, wanted, seeded)
    if call.kind == "checkpoint" and has_user_rules(call.function):
        adjoint.scope.replace(node, replace(call, regions=(_differentiated(call.function, halves),)).node)
    results = builder.inline(halves.forward, [_again(adjoint, call, v) for v in call.operands])
    cotangents = builder.inline(halves.backward, [*results[len(results) - halves.residuals :], *seeds])
    for j, cotangent in zip(wanted, cotangents, strict=True):
        adjoint.add(call.operands[j], Term(builder, cotangent))


def _checkpoint_with_policy(adjoint: Adjoint, node: Node, call: Call, seeded: list[int], wanted: list[int]) -> None:
    scope, builder, function = adjoint.scope, adjoint.scope.backward, call.function
    seeds = [adjoint.cotangents.pop(call.results[i]).value for i in seeded]
    halves = adjoint.recursion.reverse(function, wanted, seeded)
    again = Recomputation.of(halves, function, call.attrs.policy)
    further = tuple(v for v in again.saved if v not in function.outputs)
    results = (*call.results, *(Value(v.type, v.hint) for v in further))
    has_rules = has_user_rules(function)
    if further or has_rules:
        region = _differentiated(function, halves) if has_rules else function
        region = replace(region, outputs=(*region.outputs, *further))
        scope.replace(node, replace(call, regions=(region,), results=results).node)
    outside = dict(zip((*function.outputs, *further), results, strict=True))
    operands = dict(zip(function.inputs, call.operands, strict=True))
    given = [_again(adjoint, call, operands.get(v) or outside[v]) for v in (*again.inputs, *again.saved)]
    cotangents = builder.inline(halves.backward, [*builder.inline(again.graph, given), *seeds])
    for j, cotangent in zip(wanted, cotangents, strict=True):
        adjoint.add(call.operands[j], Term(builder, cotangent))


def _again(adjoint: Adjoint, call: Call, value: Value) -> Value:
    """A value to compute again from: behind a barrier, or common subexpressions would undo the recomputation."""
    resolved = _resolved(adjoint, call, value)
    if not value.type.is_differentiable or isinstance(value.type, StackType):
        return resolved
    return adjoint.scope.backward.emit("barrier", [resolved], hint=value.hint)


def _can_save(adjoint: Adjoint, value: Value) -> bool:
    """True unless it is a stack whose rows, of sizes that only a run tells, make no array to save."""
    return not isinstance(value.type, StackType) or adjoint.scope.keeps(value) or None not in value.type.element.shape


def _resolved(adjoint: Adjoint, call: Call, value: Value) -> Value:
    """An operand or residual on the backward side. A stack as it was in one iteration, or in the branch that was taken,
    is saved as an array of its rows."""
    scope = adjoint.scope
    if not isinstance(value.type, StackType) or scope.keeps(value):
        return scope.resolve(value)
    if not _can_save(adjoint, value):
        what = "a function inside vmap" if call.kind == "rows" else call.kind
        raise DifferentiationError(
            f"{what}: it uses a TensorArray that changes in the loop around, and whose elements have unknown sizes",
            source=call.source,
            expected="a TensorArray from outside of the loop, or one whose element_shape is known, or arrays",
            got=str(value.type),
            hint="read what it needs before the call, or pass array.stack()",
        )
    attrs = {"size": None}
    if isinstance(scope, RegionScope) and value in scope.captures:
        # Saved once in the region around, not in each iteration of this one.
        rows = scope.need(scope.outer.observe("stack_to_tensor", scope.captures[value], attrs))
    else:
        rows = scope.resolve(scope.observe("stack_to_tensor", value, attrs))
    return scope.backward.emit("stack_from_tensor", [rows], hint=value.hint)


def _rows(adjoint: Adjoint, node: Node, call: Call, seeded: list[int], wanted: list[int]) -> None:
    builder, row, mapped = adjoint.scope.backward, _silent(call.row), call.attrs.mapped
    seeds = [adjoint.cotangents.pop(call.results[i]).value for i in seeded]
    pulled = _pull(adjoint, row, wanted, seeded)
    pull = Builder(name=pulled.name)
    found = pull.inline(pulled, [pull.input(v.type, v.hint) for v in pulled.inputs])
    graph = pull.finish([_as_tensor(pull, call, v) for v in found])
    places = [*mapped, *range(len(row.inputs), len(row.inputs) + len(seeds))]
    operands = [*(_resolved(adjoint, call, v) for v in call.operands), *seeds]
    rows = rows_call(builder, graph, places, operands, adjoint.recursion.batch, call.attrs.rows)
    for j, value in zip(wanted, rows, strict=True):
        cotangent = Term(builder, value)
        if j not in mapped:
            cotangent = emit("sum", cotangent, axes=(0,), keepdims=False)
        if isinstance(call.operands[j].type, StackType):
            cotangent = emit("stack_from_tensor", cotangent)
        adjoint.add(call.operands[j], cotangent)


def _silent(graph: Graph) -> Graph:
    """The graph without callbacks: what is computed again does not show itself again."""
    return rewrite(graph, lambda node, builder: node.results if node.op.name == "callback" else None)


def _as_tensor(builder: Builder, call: Call, cotangent: Value) -> Value:
    """The cotangent of one row; that of a TensorArray as an array, which can have rows."""
    if isinstance(cotangent.type, TensorType):
        return cotangent
    if None in cotangent.type.element.shape:
        raise DifferentiationError(
            "vmap: the derivative with respect to a TensorArray whose elements have unknown sizes",
            source=call.source,
            expected="a TensorArray whose element_shape is known",
            got=str(cotangent.type),
            hint="pass array.stack() into the mapped function and unstack it inside",
        )
    return builder.emit("stack_to_tensor", [cotangent], {"size": None})


def refuse_captures(call: Call, varied: Container[Value], *rules: Graph) -> None:
    """A derivative given by the user says nothing about values that his function, or these rules, close over."""
    wrong = [v for v in call.captured_by(call.function, *rules) if v in varied]
    if wrong:
        raise DifferentiationError(
            f"{call.kind}: the function closes over a value that is being differentiated",
            source=call.source,
            expected="a function whose result depends on its arguments alone",
            got=", ".join(str(v.type) for v in wrong),
            hint="pass the value as an argument, or cut it with ctrlgrad.stop_gradient",
        )


def _perturbed(adjoint: Adjoint, call: Call) -> Positions:
    return tuple(i for i, v in enumerate(call.arguments) if v in adjoint.varied)


def _custom_vmap(adjoint: Adjoint, node: Node, call: Call, seeded: list[int], wanted: list[int]) -> None:
    refuse_captures(call, adjoint.varied)
    builder, places = adjoint.scope.backward, list(_perturbed(adjoint, call))
    seeds = [adjoint.cotangents.pop(call.results[i]).value for i in seeded]
    shared = len(call.captures)
    pull = _pull(adjoint, call.function, [shared + i for i in places], seeded)
    operands = [_resolved(adjoint, call, v) for v in call.operands]
    rule = PulledRows(call, tuple(places), tuple(seeded), adjoint.recursion.reverse)
    closed = Closed(tuple(operands[:shared]), (pull,))
    found = emit_call(builder, call.kind, closed, [*operands[shared:], *seeds], rule=rule, source=call.source)
    for i, cotangent in zip(places, found, strict=True):
        adjoint.add(call.arguments[i], Term(builder, cotangent))


def _pull(adjoint: Adjoint, function: Graph, wanted: Sequence[int], seeded: Sequence[int]) -> Graph:
    """The cotangents of a function's inputs, of (inputs, cotangents of outputs): both halves of its derivative."""
    halves = adjoint.recursion.reverse(function, wanted, seeded)
    pull = Builder(name=halves.backward.name)
    inputs = [pull.input(v.type, v.hint) for v in function.inputs]
    given = [pull.input(function.outputs[i].type) for i in seeded]
    results = pull.inline(halves.forward, inputs)
    return pull.finish(pull.inline(halves.backward, [*results[len(results) - halves.residuals :], *given]))


def _custom_vjp(adjoint: Adjoint, node: Node, call: Call) -> None:
    refuse_captures(call, adjoint.varied)
    scope, builder, rule, perturbed = adjoint.scope, adjoint.scope.backward, call.rule, _perturbed(adjoint, call)
    if not perturbed:
        return
    seeded = tuple(i for i, v in enumerate(call.results) if v in adjoint.cotangents)
    forward = rule.forward(perturbed)
    if not seeded:
        # The rule's results count, as in JAX, and nothing is kept for the backward rule.
        refuse_captures(call, adjoint.varied, forward)
        alone = replace(forward, outputs=forward.outputs[: len(call.results)])
        scope.replace(node, replace(call, regions=(alone,), attrs=attributes.Call(kind="checkpoint")).node)
        return
    backward = rule.backward(perturbed, seeded)
    refuse_captures(call, adjoint.varied, forward, backward.graph)
    residuals = tuple(Value(v.type, v.hint) for v in forward.outputs[len(call.results) :])
    kept = replace(
        call, regions=(forward,), results=(*call.results, *residuals), attrs=attributes.Call(kind="checkpoint")
    )
    scope.replace(node, kept.node)
    taken = {i: adjoint.take(v) for i, v in enumerate(call.results)}
    cotangents = [(taken[i] or adjoint.zeros_like(call.results[i])).value for i in backward.given]
    captures = [_resolved(adjoint, call, v) for v in call.captures]
    if all(_can_save(adjoint, v) for v in residuals):
        given = [_resolved(adjoint, call, v) for v in residuals]
    else:
        again = builder.inline(_silent(forward), [_again(adjoint, call, v) for v in call.operands])
        given = [*again[len(call.results) :]]
    found = builder.inline(backward.graph, [*captures, *given, *cotangents])
    for i, cotangent in zip(backward.found, found, strict=True):
        adjoint.add(call.arguments[i], Term(builder, cotangent))


def _custom_jvp(adjoint: Adjoint, node: Node, call: Call, seeded: list[int]) -> None:
    refuse_captures(call, adjoint.varied)
    perturbed = _perturbed(adjoint, call)
    if not perturbed:
        return
    builder, push = adjoint.scope.backward, call.rule.push(perturbed)
    refuse_captures(call, adjoint.varied, push.graph)
    adjoint.scope.replace(node, *_returned(call, push))
    if not seeded:
        return
    taken = {i: adjoint.cotangents.pop(call.results[i]).value for i in seeded}
    places = [len(call.results) + place for place, i in enumerate(push.found) if i in taken]
    count = len(call.operands)
    halves = adjoint.recursion.reverse(push.graph, range(count, len(push.graph.inputs)), places, linear=True)
    if not halves.is_of_linear_map:
        raise _not_linear(call)
    # Linear in the tangents: any tangents do that are no strong zeros, which could stop a factor that is not finite.
    tangents = [_tangent(adjoint, call.arguments[i]).value for i in push.given]
    results = builder.inline(halves.forward, [*(_resolved(adjoint, call, v) for v in call.operands), *tangents])
    seeds = [taken[i] for i in push.found if i in taken]
    cotangents = builder.inline(halves.backward, [*results[len(results) - halves.residuals :], *seeds])
    for i, cotangent in zip(push.given, cotangents, strict=True):
        adjoint.add(call.arguments[i], Term(builder, cotangent))


def _tangent(adjoint: Adjoint, value: Value) -> Term:
    if isinstance(value.type, StackType):
        return adjoint.zeros_like(value)
    return broadcast_to(one(adjoint.scope, value.tensor.dtype), adjoint.primal(value).dims)


def _returned(call: Call, push: Answer) -> list[Node]:
    """Nodes that compute the results of a call as its forward rule returns them, without the tangents.

    JAX differentiates these results: the second derivative of a rule that is not exact depends on them.
    """
    outputs, count = push.graph.outputs[: len(call.results)], len(call.operands)
    needed, nodes = set(outputs), []
    for node in reversed(push.graph.nodes):
        if not needed.isdisjoint(node.results):
            needed.update(node.operands)
            nodes.append(node)
    builder = Builder()
    builder.source = call.source
    copies = dict(zip(push.graph.inputs, call.operands, strict=False))
    for i, v in zip(push.given, push.graph.inputs[count:], strict=True):
        if v in needed:  # a loop may have both
            like = call.arguments[i]
            copies[v] = zeros(builder, like.tensor.dtype, Term(builder, like).dims).value
    for node in reversed(nodes):
        copy_node(builder, node, copies)
    # The values that the rest of the graph reads.
    place = dict[Value, Value]()

    def renamed(value: Value) -> Value:
        return place.get(value, value)

    for result, output in zip(call.results, outputs, strict=True):
        made = copies[output]
        if made in place or not any(made in node.results for node in builder.nodes):
            made = builder.emit("barrier", [made])
        place[made] = result
    return [
        replace(node, operands=tuple(map(renamed, node.operands)), results=tuple(map(renamed, node.results)))
        for node in builder.nodes
    ]


def _not_linear(call: Call) -> DifferentiationError:
    return DifferentiationError(
        f"{call.rule.label}: the tangent that the rule returns is not linear in the tangents that it takes",
        source=call.source,
        expected="sums of tangents, and products of tangents with values that do not depend on tangents",
        got="a rule whose own derivative with respect to the tangents depends on them",
        hint="reverse mode transposes the rule, so tangents are not multiplied, compared or asked when a loop ends;\n"
        "iterate for a tangent in ctrlgrad.custom_linear_solve(..., transpose_solve=...), or give a reverse rule by\n"
        "ctrlgrad.custom_vjp",
    )
