"""Loops of several devices in stages: loop distribution by device, before a graph is lowered.

A loop whose devices form a pipeline needs no message in every iteration. It becomes a loop over chunks of iterations;
in its body each device has one or several stages, each a loop over the iterations of the chunk that runs as one plan of
the native engine (a node `PART`):

    while done < trips                 lowered: a frame on all devices
        part @cpu:0                    iterations of the chunk; collects what later stages take, `[rows, *shape]`
        part @cpu:1                    takes it, as one message a chunk

- Units are the strongly connected components of the body's dependences, carries and stacks counted in: what a
  recurrence holds together stays in one stage. So a unit must lie on one device.
- Devices take turns; each takes all units that are ready in one stage. The order with the fewest stages is chosen, and
  of several the one in which the least is collected.
- Constants, and integers that follow from counters alone, are computed in every stage that takes them.

A loop on one device is a plan as well. Other loops stay as they are, and are lowered: the log says why (level INFO).

In: any graph. Out: a graph with the same values within rounding, the native engine's instead of the reference engine's;
they do not depend on the window. The window bounds the iterations in flight as before: a chunk has a quarter of it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import field, replace

import numpy as np

from ctrlgrad.dataflow.devices import DEFAULT, parse_device
from ctrlgrad.dataflow.partition import Choice, Parts, flat_node
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.native.parts import PART
from ctrlgrad.errors import UserInputError
from ctrlgrad.ir import (
    INDEX,
    Builder,
    Closed,
    Counting,
    Graph,
    Loop,
    Node,
    Rewriter,
    StackType,
    TensorType,
    Trait,
    Use,
    Value,
    attributes,
    copy_node,
    definitions,
    is_loop,
    walk,
)
from ctrlgrad.ir.attributes import DYNAMIC
from ctrlgrad.ir.control import Carry, Number, emit_loop, loop_name, step_of
from ctrlgrad.ir.flow import StackFlow
from ctrlgrad.ir.walk import has_effect
from ctrlgrad.passes import inline_calls
from ctrlgrad.passes.recurrence import rows
from ctrlgrad.records import record
from ctrlgrad.stacks.choice import bytes_of

_LOG = logging.getLogger("ctrlgrad")

# Part of the window that a chunk takes: so several chunks are in flight, and the stages of a pipeline overlap.
SHARE = 4
# The least iterations of a chunk; below, the messages that are saved do not pay for the calls of the plans.
LEAST = 4


@record(frozen=False)
class Staged:
    """Plans and loops that a graph has been divided into.

    `device`: the device of each node that must lie on one. `divided`: the number of loops of several devices that are
    in stages now. `reasons`: a line for each one that stays as it was.
    """

    device: dict[Node, str] = field(default_factory=dict)
    divided: int = 0
    reasons: list[str] = field(default_factory=list)

    def part(
        self, builder: Builder, region: Graph, operands: Sequence[Value], home: str, like: Node | Loop
    ) -> tuple[Value, ...]:
        """Append a region to a graph as one plan on a device; returns its results."""
        results = builder.emit_all(PART, operands, regions=[optimised_graph(region)], source=like.source)
        self.device[builder.nodes[-1]] = home
        return results


def stage_loops(graph: Graph, choose: Choice, window: int | None = None) -> tuple[Graph, Staged] | None:
    """The graph with its loops in stages; None if no loop of several devices can be divided.

    `choose` says where an ordinary op goes, as for `place`; `window`, if given, stands for every loop's.
    """
    graph = inline_calls(graph)
    homes, found = _Homes(graph, choose), Staged()
    if not all(map(_is_worker, set(homes.known.values()))):
        return None
    result = _Staging(graph, homes, window, found).run()
    for reason in found.reasons:
        _LOG.info("dataflow: %s", reason)
    return (result, found) if found.divided else None


def _is_worker(name: str) -> bool:
    """True for a thread of this process: its pieces may be plans of the native engine."""
    try:
        device = parse_device(name)
    except UserInputError:
        return False  # the placement says it with the place of the op
    return device.kind == "cpu" and device.rank is None


# Where nodes lie.


class _Homes:
    """The device of each node of a graph, as `place` would choose it: all ops on one stack lie where the values that
    are pushed on it are computed."""

    def __init__(self, graph: Graph, choose: Choice) -> None:
        self.known: dict[Node, str] = {
            node: choose(flat_node(node)) or DEFAULT
            for node in walk(graph)
            if not node.regions and node.op.name != "constant"
        }
        self.stacks = Parts()
        for old, new in StackFlow(graph).steps():
            self.stacks.join(old, new)
        users = [(node, found) for node in self.known if (found := stacks_of(node))]
        for _, found in users:
            for v in found[1:]:
                self.stacks.join(found[0], v)
        makers = {v: node for node in walk(graph) for v in node.results}
        for node in filter(is_loop, walk(graph)):
            carries = Loop.of(node).carries
            makers |= {c.in_body: makers[c.next] for c in carries if c.next in makers}
        wanted: dict[Value, str] = {}
        for node, found in users:
            if node.op.has_use(Use.PUSH):
                maker = makers.get(node.operands[1], node)
                wanted.setdefault(self.stacks.of(found[0]), self.known.get(maker, self.known[node]))
        for node, found in users:
            self.known[node] = wanted.setdefault(self.stacks.of(found[0]), self.known[node])

    def of(self, node: Node) -> set[str]:
        """The devices of a node, and of the nodes inside it."""
        inside = (inner for region in node.regions for inner in walk(region))
        return {self.known[n] for n in (node, *inside) if n in self.known}


def stacks_of(node: Node) -> list[Value]:
    """The versions of stacks that a node takes and gives."""
    return [v for v in (*node.operands, *node.results) if isinstance(v.type, StackType)]


class _CannotDivide(Exception):
    """Why a loop stays as it is."""


class _Staging(Rewriter):
    """Puts the loops of a graph in stages; a loop inside one that is divided, or a plan, belongs to its iterations."""

    def __init__(self, graph: Graph, homes: _Homes, window: int | None, found: Staged) -> None:
        super().__init__(graph)
        self.homes, self.window, self.found = homes, window, found

    def region(self, node: Node, region: Graph) -> Graph:
        return region if is_loop(node) else self._inside(region)

    def _inside(self, region: Graph) -> Graph:
        return _Staging(region, self.homes, self.window, self.found).run()

    def visit(self, node: Node) -> Sequence[Value] | None:
        if not is_loop(node):
            return None
        homes = self.homes.of(node)
        try:
            if has_effect(node.op, node.regions):
                raise _CannotDivide("a callback is called in every iteration")
            if len(homes) > 1:
                division = _Division(Loop.of(node), self.homes, self._number, self.window)
                if len(division.devices) > 1:
                    return division.emit(self.builder, self.found)
                homes = set(division.devices)
            inputs = tuple(dict.fromkeys(node.operands))
            whole = replace(node, results=tuple(Value(v.type, v.hint) for v in node.results))
            region = Graph(inputs, (whole,), whole.results, "loop")
            return self.found.part(self.builder, region, inputs, next(iter(homes), DEFAULT), node)
        except _CannotDivide as reason:
            if len(homes) > 1:
                self.found.reasons.append(f"{loop_name(node)} sends messages in every iteration: {reason}")
        cond, body = map(self._inside, node.regions)
        attrs = attributes.Loop.of(node)
        attrs = replace(attrs, parallel_iterations=self.window or attrs.parallel_iterations)
        return self.builder.keep(replace(node, regions=(cond, body), attrs=attrs))

    def _number(self, value: Value) -> np.ndarray | None:
        node = next((n for n in self.builder.nodes if value in n.results), None)
        constant = None if node is None else attributes.Constant.find(node)
        return None if constant is None else constant.value


# The division of one loop.


@record(frozen=False)
class _Unit:
    """Nodes and carries of a loop's body that one recurrence holds together."""

    nodes: list[Node] = field(default_factory=list)
    carries: list[Carry] = field(default_factory=list)
    before: set[int] = field(default_factory=set)
    home: str = DEFAULT


class _Division:
    """Stages of a loop on several devices; raises `_CannotDivide` if it is no pipeline."""

    def __init__(self, loop: Loop, homes: _Homes, number: Number, window: int | None) -> None:
        self.loop, self.homes, self.number = loop, homes, number
        counting = Counting.of(loop, number)
        if counting is None:
            raise _CannotDivide("the number of iterations is not known before it runs")
        self.counting = counting
        self.producers = definitions(loop.body)
        # Carries that are counters, by what an iteration adds, and the integers that follow from them.
        self.steps = {c: step for c in loop.carries if (step := step_of(loop, c, number)) is not None}
        self.repeated = self._repeated()
        self.units, self.flows = self._units()
        self.after: list[list[int]] = [[] for _ in self.units]
        for i, unit in enumerate(self.units):
            for j in unit.before:
                self.after[j].append(i)
        self.devices = self._devices()
        if len(self.devices) > 1:
            self._cut(window or loop.attrs.parallel_iterations)

    def _repeated(self) -> set[Value]:
        """The values that every stage that takes them computes."""
        made = {c.in_body for c in self.steps} | set(self.loop.shared)
        for node in self.loop.body.nodes:
            if node.op.name == "constant" or (
                node.results
                and all(map(_is_integer, node.results))
                and not (node.regions or Trait.EFFECT in node.op.traits or stacks_of(node))
                and made.issuperset(node.operands)
            ):
                made.update(node.results)
        return made

    def _units(self) -> tuple[list[_Unit], list[tuple[_Unit, Value, _Unit]]]:
        """The units, each after those that it depends on; and the values that one takes from another."""
        items: list[Node | Carry] = [c for c in self.loop.carries if c.in_body not in self.repeated]
        items += [n for n in self.loop.body.nodes if not n.results or not self.repeated.issuperset(n.results)]
        maker: dict[Value, int] = {}
        for i, item in enumerate(items):
            maker.update(dict.fromkeys([item.in_body] if isinstance(item, Carry) else item.results, i))
        before: list[set[int]] = [set() for _ in items]
        last: dict[Value, int] = {}
        for i, item in enumerate(items):
            if isinstance(item, Carry):
                # A carry is kept by the stage that computes its next value.
                if item.next in maker:
                    before[i].add(maker[item.next])
                    before[maker[item.next]].add(i)
                touched = [item.in_body] if isinstance(item.in_body.type, StackType) else []
            else:
                before[i].update(maker[v] for v in item.operands if v in maker)
                touched = stacks_of(item)
            for v in touched:
                # So is a stack, by one stage.
                other = last.setdefault(self.homes.stacks.of(v), i)
                if other != i and (v in maker or not isinstance(item, Carry)):
                    before[i].add(other)
                    before[other].add(i)
        masks = _closures(before)
        units: dict[int, _Unit] = {mask: _Unit() for mask in sorted(set(masks), key=int.bit_count)}
        numbers = {mask: number for number, mask in enumerate(units)}
        for i, item in enumerate(items):
            unit = units[masks[i]]
            unit.before.update(numbers[masks[j]] for j in before[i])
            unit.before.discard(numbers[masks[i]])
            (unit.carries if isinstance(item, Carry) else unit.nodes).append(item)  # type: ignore[arg-type]
        flows = [
            (units[masks[maker[v]]], v, units[masks[i]])
            for i, item in enumerate(items)
            for v in ([] if isinstance(item, Carry) else item.operands)
            if v in maker
        ]
        return list(units.values()), flows

    def _devices(self) -> list[str]:
        """Give each unit its device; return them all."""
        for unit, takers in zip(reversed(self.units), reversed(self.after), strict=True):
            for node in unit.nodes:
                if len(several := self.homes.of(node)) > 1:
                    raise _CannotDivide(f"a {node.op.name} in it lies on {' and '.join(sorted(several))}")
            homes = set[str]().union(*(self.homes.of(node) for node in unit.nodes))
            if all(node.op.name == "add" for node in unit.nodes):
                # A running total of terms from several devices, such as the gradient of a shared parameter.
                homes = self.homes.of(unit.nodes[-1]) if unit.nodes else homes
            if len(homes) > 1:
                what = ", ".join(sorted({node.op.name for node in unit.nodes})[:4])
                needs = "need values of each other's last iteration"
                raise _CannotDivide(f"{' and '.join(sorted(homes))} {needs} ({what})")
            unit.home = homes.pop() if homes else self.units[takers[0]].home if takers else DEFAULT
        return sorted({unit.home for unit in self.units})

    def _cut(self, in_flight: int) -> None:
        """Choose the length of a chunk, and the order with the fewest stages, and the fewest bytes collected."""
        count = self.counting.count(self.number)
        maximum: int | None = self.loop.attrs.maximum_iterations
        if maximum is not None and (count is None or count > maximum):
            raise _CannotDivide("maximum_iterations may be exceeded")
        self.chunk = min(in_flight, in_flight if count is None else count) // SHARE
        if self.chunk < LEAST:
            there = "" if count is None else f", of {count} in all"
            raise _CannotDivide(f"chunks of {in_flight} iterations in flight{there}, would be too short")
        self.window = in_flight // self.chunk
        turned = [[*d[k:], *d[:k]] for d in (self.devices, self.devices[::-1]) for k in range(len(d))]
        self.stages = min(map(self._stages, turned), key=lambda stages: (len(stages), self._collected(stages)))

    def _stages(self, devices: Sequence[str]) -> list[list[_Unit]]:
        """The stages if these devices take turns: each takes all units that are ready, as late as that changes
        nothing."""
        place: dict[int, int] = {}
        homes: list[str] = []
        for home in itertools.cycle(devices):
            if len(place) == len(self.units):
                break
            for i, unit in enumerate(self.units):
                if i not in place and unit.home == home and place.keys() >= unit.before:
                    place[i] = len(homes)
            homes.append(home)
        for i in reversed(range(len(self.units))):
            latest = min((place[j] for j in self.after[i]), default=place[i])
            place[i] = max(p for p in range(place[i], latest + 1) if homes[p] == self.units[i].home)
        found = [[unit for i, unit in enumerate(self.units) if place[i] == p] for p in range(len(homes))]
        return [stage for stage in found if stage]

    def _collected(self, stages: Sequence[Sequence[_Unit]]) -> int:
        """Bytes of an iteration that stages hand on."""
        stage_of = {id(unit): number for number, stage in enumerate(stages) for unit in stage}
        moved = {v for maker, v, user in self.flows if stage_of[id(maker)] != stage_of[id(user)]}
        return sum(map(bytes_of, moved))

    # Emission.

    def emit(self, builder: Builder, found: Staged) -> tuple[Value, ...]:
        """Put the loop over chunks into a builder; returns the results of the loop."""
        loop, source = self.loop, self.loop.source
        stages = [_Stage(self, units) for units in self.stages]
        trips = self.counting.trips(builder, self.number)
        body = Builder(name=loop.body.name)
        body.source = source
        # A transposed matrix is transposed in the plans, which need no copy of it.
        makers = {v: node for node in builder.nodes if node.op.name == "transpose" for v in node.results}
        turned = {c.in_body: makers[c.outer] for c in loop.captures if c.outer in makers}
        captured = [makers[c.outer].operands[0] if c.outer in makers else c.outer for c in loop.captures]
        env = {v: body.input(outer.type, v.hint) for v, outer in zip(loop.shared, captured, strict=True)}
        total = body.input(INDEX, "trips")
        env |= {v: body.input(v.type, v.hint) for v in loop.carried}
        done = body.input(INDEX, "done")
        steps = self._steps(body, total, done)
        batches: dict[Value, Value] = {}
        ends: dict[Value, Value] = {}
        for stage in stages:
            operands = [env[v] for v in stage.into]
            operands += [*(batches[v] for v in stage.taken), steps]
            results = found.part(body, stage.region(turned), operands, stage.home, loop)
            ends.update(zip((c.in_body for c in stage.carries), results, strict=False))
            for v, stack in zip(stage.given, results[len(stage.carries) :], strict=True):
                # Outside of the plan: the rows lie in one block, and are not copied.
                batches[v] = body.emit("stack_to_tensor", [stack], {"size": None}, hint=v.hint)
                found.device[body.nodes[-1]] = stage.home
        outputs = []
        for c in loop.carries:
            if c in self.steps:
                outputs.append(_advanced(body, env[c.in_body], self.steps[c], steps))
            else:
                outputs.append(ends[c.in_body])
        outputs.append(body.emit("add", [done, steps]))
        cond = Builder(name=loop.cond.name)
        inputs = [cond.input(v.type, v.hint) for v in body.inputs]
        test = cond.emit("less", [inputs[-1], inputs[len(loop.shared)]], source=source)
        regions = Closed((*captured, trips), (cond.finish([test]), body.finish(outputs)))
        attrs = replace(
            loop.attrs,
            maximum_iterations=None,
            counts_down=False,
            parallel_iterations=self.window,
            chunks_of=self.chunk,
        )
        inits = [*(c.init for c in loop.carries), builder.constant(0, INDEX.dtype)]
        found.divided += 1
        return emit_loop(builder, regions, inits, attrs, source=source)[:-1]

    def _steps(self, body: Builder, total: Value, done: Value) -> Value:
        """Number of iterations of a chunk. A loop that counts down takes from stacks what one chunk has pushed."""
        length, rest = body.constant(self.chunk, INDEX.dtype), body.emit("subtract", [total, done])
        if not self.loop.counts_down:
            return body.emit("minimum", [length, rest])
        one = body.constant(1, INDEX.dtype)
        return body.emit("add", [body.emit("remainder", [body.emit("subtract", [rest, one]), length]), one])


class _Stage:
    """One stage of a loop: its iterations of one chunk."""

    def __init__(self, division: _Division, units: Sequence[_Unit]) -> None:
        self.division, self.home, self.loop = division, units[0].home, division.loop
        self.nodes = {node for unit in units for node in unit.nodes}
        self.carries = [c for c in self.loop.carries if any(c in unit.carries for unit in units)]
        own = {v for node in self.nodes for v in node.results} | {c.in_body for c in self.carries}
        # The values that it takes, and nodes that it computes though other stages do too.
        self.copies: set[Node] = set()
        taken: dict[Value, None] = {}
        waiting = [*(v for node in self.nodes for v in node.operands), *(c.next for c in self.carries)]
        while waiting:
            v = waiting.pop()
            if v in own:
                continue
            maker = division.producers.get(v)
            if maker is None or v not in division.repeated:
                taken[v] = None
            elif maker not in self.copies:
                self.copies.add(maker)
                waiting += maker.operands
        counters = [c for c in division.steps if c.in_body in taken]
        self.counters = [c for c in self.loop.carries if c in counters]
        shared = set(self.loop.shared)
        order = [*self.loop.body.inputs, *(v for node in self.loop.body.nodes for v in node.results)]
        self.shared = [v for v in order if v in taken and v in shared]
        counted = {c.in_body for c in self.counters}
        self.taken = [v for v in order if v in taken and v not in shared and v not in counted]
        users = [n for n in self.loop.body.nodes if n not in self.nodes and n not in self.copies]
        used = {v for n in users for v in n.operands} | {c.next for c in self.loop.carries if c not in self.carries}
        self.given = [v for v in order if v in own and v in used]
        for v in self.given:
            if not (isinstance(v.type, TensorType) and v.type.is_static):
                raise _CannotDivide(f"the size of {v.hint or 'a value'} that {self.home} hands on may change")

    @property
    def into(self) -> list[Value]:
        """The values that a chunk begins with, as the loop's body sees them."""
        return [*self.shared, *(c.in_body for c in (*self.counters, *self.carries))]

    def region(self, turned: Mapping[Value, Node]) -> Graph:
        """The plan: slices of captured arrays, the loop; its results are the carries, and stacks of what it hands on.

        Captures in `turned` come as the operand of that transpose.
        """
        outer = Builder(name="stage")
        outer.source = self.loop.source
        env = {v: outer.input(turned[v].operands[0].type if v in turned else v.type, v.hint) for v in self.into}
        for v in filter(turned.get, self.shared):
            env[v] = outer.emit("transpose", [env[v]], turned[v].attrs, source=turned[v].source)
        batches = {v: outer.input(_batch_type(v), v.hint) for v in self.taken}
        steps = outer.input(INDEX, "steps")
        batches |= self._slices(outer, env, steps)
        stacks = [outer.emit("stack_new", (), {"element": v.type}) for v in self.given]
        carried = [c.in_body for c in (*self.counters, *self.carries)]
        captures = [*self.shared, *batches]
        regions = self._loop(captures, carried, batches.keys())
        inits = [*(env[v] for v in carried), outer.constant(0, INDEX.dtype), *stacks]
        shared = [*(env[v] for v in self.shared), *batches.values(), steps]
        results = emit_loop(outer, Closed(tuple(shared), regions), inits, attributes.Loop(name=self.loop.attrs.name))
        return outer.finish([*results[len(self.counters) : len(carried)], *results[len(carried) + 1 :]])

    def _slices(self, outer: Builder, env: Mapping[Value, Value], steps: Value) -> dict[Value, Value]:
        """The rows of captured arrays that the chunk's iterations take, where their numbers go up from 0 or more."""
        found = {}
        starts = {c.in_body: self.division.number(c.init) for c in self.counters}
        for v, row in rows(self.loop).items():
            maker = self.division.producers[v]
            start = starts.get(row.counter)
            goes_up = not row.counts_down and start is not None and start >= 0
            if goes_up and maker in self.nodes and maker.op.name == "getitem":
                key = (slice(DYNAMIC, DYNAMIC), *[slice(None)] * (row.array.tensor.rank - 1))
                first = env[row.counter]
                ends = [first, outer.emit("add", [first, steps])]
                found[v] = outer.emit("getitem", [env[row.array], *ends], {"key": key}, source=maker.source)
        return found

    def _loop(self, captures: Sequence[Value], carried: Sequence[Value], batches: Set[Value]) -> tuple[Graph, Graph]:
        """The condition and the body of the loop over the iterations of a chunk."""
        graphs = []
        for is_condition in (True, False):
            inner = Builder(name="cond" if is_condition else "body")
            inner.source = self.loop.source
            copies = {v: inner.input(_batch_type(v) if v in batches else v.type, v.hint) for v in captures}
            limit = inner.input(INDEX, "steps")
            copies |= {v: inner.input(v.type, v.hint) for v in carried}
            step = inner.input(INDEX, "step")
            stacks = [inner.input(StackType(v.tensor), v.hint) for v in self.given]
            if is_condition:
                graphs.append(inner.finish([inner.emit("less", [step, limit])]))
                continue
            for v in batches:
                key = (DYNAMIC, *[slice(None)] * v.tensor.rank)
                copies[v] = inner.emit("getitem", [copies[v], step], {"key": key})
            for node in self.loop.body.nodes:
                if (node in self.nodes and batches.isdisjoint(node.results)) or node in self.copies:
                    copy_node(inner, node, copies)
            stacks = [inner.emit("stack_push", [s, copies[v]]) for s, v in zip(stacks, self.given, strict=True)]
            following = inner.emit("add", [step, inner.constant(1, INDEX.dtype)])
            counted = [
                _advanced(inner, copies[c.in_body], self.division.steps[c], inner.constant(1, INDEX.dtype))
                for c in self.counters
            ]
            graphs.append(inner.finish([*counted, *(copies[c.next] for c in self.carries), following, *stacks]))
        return graphs[0], graphs[1]


def _advanced(builder: Builder, counter: Value, step: int, times: Value) -> Value:
    """A counter after so many iterations."""
    if not step:
        return counter
    if abs(step) != 1:
        times = builder.emit("multiply", [times, builder.constant(abs(step), INDEX.dtype)])
    if counter.type != INDEX:
        times = builder.emit("cast", [times], {"dtype": counter.tensor.dtype})
    return builder.emit("add" if step > 0 else "subtract", [counter, times])


def _batch_type(value: Value) -> TensorType:
    """The type of one value for each iteration of a chunk."""
    return TensorType(value.tensor.dtype, (None, *value.tensor.shape))


def _is_integer(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.rank == 0 and dtype_kind(value.type.dtype) in "biu"


def _closures(before: Sequence[Collection[int]]) -> list[int]:
    """For each item, as bits, itself and all that it depends on. Items of one recurrence have the same."""
    found = [1 << i for i in range(len(before))]
    changes = True
    while changes:
        changes = False
        for i, others in enumerate(before):
            mask = found[i]
            for j in others:
                mask |= found[j]
            if mask != found[i]:
                found[i], changes = mask, True
    return found
