"""A loop's body that may run past the loop's end: then what it carries stays as it was.

A loop whose predicate is on the device would wait for the device before every iteration. Where it is allowed, a
chunk of iterations runs without asking, each with a bool `alive` on the device:

    new = body(carry)
    carry' = where(alive, new, carry)
    trips' = trips + alive
    alive' = alive and cond(carry')

and the host reads `alive` and `trips` once per chunk. The carry after the loop is that of the last iteration that
counts. Rows that later ones pushed are dropped; carries on the host come from a history of the chunk.

It is allowed where running an iteration too many changes nothing but those, cannot fail and does not wait:

- neither cond nor body has a loop, a branch or a callback inside;
- every op is total, or reads by an index of the host that goes by whole steps (a failure past the end is forgotten:
  the host knows of it);
- no op goes through the host, and none needs on the host (a size, a bound, an index) what is on the device;
- stacks that are carried are only pushed on;
- no carried array is updated in place: it would be copied in each iteration;
- the sizes of what is carried are known.

Elsewhere the body is followed by the predicate (`asked_graph`), and no iteration runs past the end: who puts them on
the stream asks behind each one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ctrlgrad.engines.cuda.expressions import is_fusible
from ctrlgrad.engines.cuda.kernels import DEVICE
from ctrlgrad.engines.cuda.placement import DEVICE as ON_DEVICE
from ctrlgrad.engines.cuda.placement import HOST, Place, place
from ctrlgrad.engines.cuda.prepared.operands import Affine
from ctrlgrad.engines.cuda.prepared.steps import is_integer, stepping
from ctrlgrad.ir import BOOL, INDEX, Builder, Graph, Loop, Node, StackType, TensorType, Trait, Use, Value
from ctrlgrad.ir.flow import StackFlow
from ctrlgrad.ops.arrays import is_total


@dataclass(frozen=True)
class Masked:
    """The body of a masked loop: (captures, carry, alive, trips) to (carry, alive, trips)."""

    graph: Graph
    # Rows that one iteration pushes on each stack that is carried, by the carry's position.
    pushes: Mapping[int, int]


def masked_body(node: Node, shared: Sequence[Place], carry: Sequence[Place]) -> Masked | str:
    """The masked body of a loop whose operands live where they are said to, or why there is none."""
    cond, body = node.regions
    for region in (cond, body):
        places = place(region, (*shared, *carry))
        carried = set(region.inputs[len(shared) :])
        integers = {v: Affine(0, ((slot, 1),)) for slot, v in enumerate(region.inputs) if is_integer(v)}
        steady = stepping(region, {v: its for v, its in integers.items() if places[v] is HOST})
        for inner in region.nodes:
            reason = _obstacle(inner, places, carried, steady)
            if reason is not None:
                return reason
    pushes: dict[int, int] = {}
    flow = StackFlow(body)
    for position, value in enumerate(body.inputs[len(shared) :]):
        if isinstance(value.type, StackType):
            if flow.origin(body.outputs[position]) is not value:
                return "stacks change places"
            # All that is done to a stack that is carried is to push on it.
            pushes[position] = len(flow.earlier(body.outputs[position])) - 1
        elif carry[position] is ON_DEVICE and not value.tensor.is_static:
            return "the size of what it carries is not known"
    return Masked(_masked_graph(node, carry), pushes)


def _obstacle(
    node: Node, places: Mapping[Value, Place], carried: set[Value], steady: Mapping[Value, Affine]
) -> str | None:
    """Why a node must not run past the end, or cannot run without waiting."""
    name = node.op.name
    if node.regions:
        return f"{name} inside"
    if Trait.EFFECT in node.op.traits:
        return f"{name} has an effect"
    if name == "constant" or node.op.has_use(Use.PUSH):
        return None
    stacks = [v for v in node.operands if isinstance(v.type, StackType)]
    if any(v in carried for v in stacks):
        return f"{name} of a stack that it carries"
    if stacks or any(isinstance(v.type, StackType) for v in node.results):
        return f"{name} inside"
    if all(places[v] is HOST for v in node.results):
        return None if is_total(node) else f"{name} may fail"
    if not is_fusible(node) and name not in DEVICE:
        return f"{name} goes through the host"
    if node.op.updates and node.operands[0] in carried:
        return "a carried array is updated in place"
    if any(places[v] is ON_DEVICE for v in node.used_as(Use.INDEX)):
        return "an index is on the device"
    if any(v not in steady for v in node.used_as(Use.INDEX)):
        return "an index of the host does not go by whole steps"
    if any(places[v] is ON_DEVICE for v in node.used_as(Use.SIZE)):
        return f"a size of {name} is on the device"
    if node.op.has_use(Use.READ):
        return None
    return None if is_total(node) and name != "nonzero" else f"{name} may fail"


def asked_graph(node: Node) -> Graph:
    """The body with the predicate: (captures, carry, predicate) to (carry, predicate)."""
    loop = Loop.of(node)
    builder, inputs = _begun(loop)
    shared, _ = loop.split(inputs)
    builder.input(BOOL, "goes_on")
    following = builder.inline(loop.body, inputs)
    (test,) = builder.inline(loop.cond, [*shared, *following])
    return builder.finish([*following, test])


def _begun(loop: Loop) -> tuple[Builder, list[Value]]:
    """The inputs of a loop's body in a graph that begins."""
    builder = Builder(name=loop.body.name)
    builder.source = loop.source
    return builder, [builder.input(v.type, v.hint) for v in loop.body.inputs]


def _masked_graph(node: Node, places: Sequence[Place]) -> Graph:
    loop = Loop.of(node)
    builder, inputs = _begun(loop)
    shared, carry = loop.split(inputs)
    alive = builder.input(BOOL, "alive")
    trips = builder.input(INDEX, "trips")
    following = []
    for old, new, its in zip(carry, builder.inline(loop.body, inputs), places, strict=True):
        is_kept = new is old or its is HOST or not isinstance(new.type, TensorType)
        following.append(new if is_kept else builder.emit("where", [alive, new, old]))
    (test,) = builder.inline(loop.cond, [*shared, *following])
    one = builder.emit("cast", [alive], {"dtype": np.dtype(np.int64)})
    after = builder.emit("logical_and", [alive, test])
    return builder.finish([*following, after, builder.emit("add", [trips, one])])
