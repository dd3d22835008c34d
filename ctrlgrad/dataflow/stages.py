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

The length of a chunk follows from a model of the cost. A chunk costs its calls and messages, and reads the captured
arrays again; and a pipeline is idle for about a chunk while it fills and empties. The best length is the square root of
the number of iterations times the cost of a chunk over the work of an iteration. Bytes in flight, and the iterations in
flight if the user limits them, are upper bounds.

A loop that is no pipeline, or that is expected to take longer in chunks, is one plan on one device, where large
products are shared by all threads; the log says why (level INFO). A loop with callbacks stays as it is, and is lowered.

In: any graph. Out: a graph with the same values within rounding, the native engine's instead of the reference engine's;
they do not depend on the length of a chunk.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import field, replace

import numpy as np

from ctrlgrad.dataflow.devices import DEFAULT
from ctrlgrad.dataflow.partition import Choice, Parts, flat_node
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.native.pieces import PART
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
from ctrlgrad.ir.control import Carry, emit_loop, loop_name, step_of
from ctrlgrad.ir.flow import StackFlow
from ctrlgrad.ir.walk import has_effect
from ctrlgrad.passes import inline_calls
from ctrlgrad.passes.recurrence import rows
from ctrlgrad.records import record
from ctrlgrad.stacks.choice import GUESS as SIZE
from ctrlgrad.stacks.choice import bytes_of
from ctrlgrad.threads import UNIT, WORK_TO_SHARE, default_threads

_LOG = logging.getLogger("ctrlgrad")

# The most chunks in flight, and bytes that they hand on: enough that the stages of a pipeline overlap.
IN_FLIGHT, BYTES_IN_FLIGHT = 4, 1 << 26
# In units of work (`ctrlgrad.threads`): a stage of a chunk, from its messages to the call of its plan; a byte of a
# captured array, which each plan reads and packs anew; an element of a result, and a node of an iteration.
CHUNK, CAPTURED_BYTE, ELEMENT, NODE = 25_000_000, 10, 8, 1_000
# Iterations that a loop counts as if their number is unknown: one to be divided, and one inside of its iterations.
GUESS, GUESS_INSIDE = 100, 16
# Part of the time of a whole loop that a divided one may take.
WORTH = 0.9

Maker = Callable[[Value], Node | None]


@record(frozen=False)
class Staged:
    """Plans and loops that a graph has been divided into: the device of each node that must lie on one, and the number
    of loops of several devices that are in stages now."""

    device: dict[Node, str] = field(default_factory=dict)
    divided: int = 0

    def part(
        self, builder: Builder, region: Graph, operands: Sequence[Value], home: str, like: Node | Loop
    ) -> tuple[Value, ...]:
        """Append a region to a graph as one plan on a device; returns its results."""
        results = builder.emit_all(PART, operands, regions=[optimised_graph(region)], source=like.source)
        self.device[builder.nodes[-1]] = home
        return results


def stage_loops(graph: Graph, choose: Choice, window: int | None = None) -> tuple[Graph, Staged] | None:
    """The graph with its loops in stages; None if no loop is divided.

    `choose` says where an ordinary op goes, as for `place`, on threads of this process; `window`, if given, bounds the
    iterations in flight of every loop.
    """
    graph = inline_calls(graph)
    found = Staged()
    result = _Staging(graph, _Homes(graph, choose), window, found).run()
    return (result, found) if found.divided else None


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
        # Constants and transposes by their results, of the builder's first nodes.
        self.makers: dict[Value, Node] = {}
        self.looked_at = 0

    def region(self, node: Node, region: Graph) -> Graph:
        return region if is_loop(node) else self._inside(region)

    def _inside(self, region: Graph) -> Graph:
        return _Staging(region, self.homes, self.window, self.found).run()

    def visit(self, node: Node) -> Sequence[Value] | None:
        if not is_loop(node):
            return None
        if has_effect(node.op, node.regions):
            cond, body = map(self._inside, node.regions)
            _LOG.info("dataflow: %s is lowered: a callback is called in every iteration", loop_name(node))
            return self.builder.keep(replace(node, regions=(cond, body)))
        homes = self.homes.of(node)
        if len(homes) > 1:
            try:
                division = _Division(Loop.of(node), self.homes, self._maker, self.window)
                return division.emit(self.builder, self.found)
            except _CannotDivide as reason:
                _LOG.info("dataflow: %s is one plan on one device: %s", loop_name(node), reason)
        inputs = tuple(dict.fromkeys(node.operands))
        whole = replace(node, results=tuple(Value(v.type, v.hint) for v in node.results))
        region = Graph(inputs, (whole,), whole.results, "loop")
        return self.found.part(self.builder, region, inputs, min(homes, default=DEFAULT), node)

    def _maker(self, value: Value) -> Node | None:
        """The constant or transpose in front of a loop that makes a value."""
        nodes = self.builder.nodes
        while self.looked_at < len(nodes):
            node = nodes[self.looked_at]
            self.looked_at += 1
            if node.op.name in ("constant", "transpose"):
                self.makers[node.result] = node
        return self.makers.get(value)


def work_of(node: Node, threads: int) -> float:
    """Units of work (`ctrlgrad.threads`) that a node takes on so many threads, unknown sizes and numbers of iterations
    guessed."""
    inside = [sum(work_of(inner, threads) for inner in region.nodes) for region in node.regions]
    if inside:
        return GUESS_INSIDE * sum(inside) if is_loop(node) else max(inside)
    elements = sum(bytes_of(v) / v.tensor.dtype.itemsize for v in node.results if isinstance(v.type, TensorType))
    each = node.operands[0].tensor.shape[-1] or SIZE if node.op.name == "matmul" else ELEMENT
    return NODE + min(elements * each, elements * each / threads + WORK_TO_SHARE)


# The division of one loop.


@record(frozen=False)
class _Unit:
    """Nodes and carries of a loop's body that one recurrence holds together."""

    nodes: list[Node] = field(default_factory=list)
    carries: list[Carry] = field(default_factory=list)
    before: set[int] = field(default_factory=set)
    home: str = DEFAULT


class _Division:
    """Stages of a loop on several devices; raises `_CannotDivide` if it is no pipeline, or one that does not pay."""

    def __init__(self, loop: Loop, homes: _Homes, maker: Maker, window: int | None) -> None:
        self.loop, self.homes, self.maker = loop, homes, maker
        counting = Counting.of(loop, self.number)
        if counting is None:
            raise _CannotDivide("the number of iterations is not known before it runs")
        self.counting = counting
        self.producers = definitions(loop.body)
        # Carries that are counters, by what an iteration adds, and the integers that follow from them.
        self.steps = {c: step for c in loop.carries if (step := step_of(loop, c, self.number)) is not None}
        # The values that every stage that takes them computes.
        made = {c.in_body for c in self.steps} | set(self.loop.shared)
        for node in self.loop.body.nodes:
            if node.op.name == "constant" or (
                node.results
                and all(map(_is_integer, node.results))
                and not (node.regions or Trait.EFFECT in node.op.traits or stacks_of(node))
                and made.issuperset(node.operands)
            ):
                made.update(node.results)
        self.repeated = made
        self.units, self.flows = self._units()
        self.after: list[list[int]] = [[] for _ in self.units]
        for i, unit in enumerate(self.units):
            for j in unit.before:
                self.after[j].append(i)
        self.devices = self._devices()
        if len(self.devices) == 1:
            raise _CannotDivide(f"all of it lies on {self.devices[0]}")
        maximum: int | None = loop.attrs.maximum_iterations
        self.count = counting.count(self.number)
        if maximum is not None and (self.count is None or self.count > maximum):
            raise _CannotDivide("maximum_iterations may be exceeded")
        turned = [[*d[k:], *d[:k]] for d in (self.devices, self.devices[::-1]) for k in range(len(d))]
        self.stages = min(map(self._stages, turned), key=lambda stages: (len(stages), self._collected(stages)))
        self._choose_length(window or loop.attrs.parallel_iterations)

    def number(self, value: Value) -> np.ndarray | None:
        """A constant in front of the loop."""
        node = self.maker(value)
        constant = None if node is None else attributes.Constant.find(node)
        return None if constant is None else constant.value

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

    def _choose_length(self, window: int | None) -> None:
        """Choose the length of a chunk, a power of 2: chunks of a loop and of its gradient begin at the same places."""
        threads, devices = default_threads(), len(self.devices)
        nodes = [(node, unit.home) for unit in self.units for node in unit.nodes]
        own = dict.fromkeys(self.devices, 0.0)
        for node, home in nodes:
            own[home] += work_of(node, max(1, threads // devices))
        busiest = max(*own.values(), sum(own.values()) / threads)
        native = sum(work_of(node, threads) for node, _ in nodes)
        by_rows = {row.array for row in rows(self.loop).values()}
        again = [v for v in (*self.loop.shared, *self.loop.carried) if isinstance(v.type, TensorType)]
        read = CAPTURED_BYTE * sum(bytes_of(v) for v in again if v not in by_rows)
        self.cost, self.fill = CHUNK * len(self.stages) + read / devices, sum(own.values()) - busiest
        self.most = max(1, BYTES_IN_FLIGHT // IN_FLIGHT // max(1, self._collected(self.stages)))
        self.in_flight = IN_FLIGHT if window is None else min(IN_FLIGHT, window)
        if window is not None:
            self.most = min(self.most, max(1, window // IN_FLIGHT))
        trips = GUESS if self.count is None else self.count
        power = np.floor(np.log2(max(2.0 * trips * self.cost / max(self.fill, 1.0), 1.0)) / 2)
        self.length = 1 << int(min(power, np.floor(np.log2(self.most))))
        chunks = -(-trips // self.length)
        divided = trips * busiest + chunks * self.cost + min(self.length, trips) * self.fill
        if divided >= WORTH * trips * native:
            times = (
                f"{divided * UNIT / 1e6:.2g} ms in chunks of {self.length}, {trips * native * UNIT / 1e6:.2g} ms whole"
            )
            raise _CannotDivide(f"{trips} iterations on {threads} threads are expected to take {times}")

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
        length = self._length(builder, trips)
        body = Builder(name=loop.body.name)
        body.source = source
        # A transposed matrix is transposed in the plans, which need no copy of it.
        makers = [(c, self.maker(c.outer)) for c in loop.captures]
        turned = {c.in_body: node for c, node in makers if node is not None and node.op.name == "transpose"}
        captured = [turned[c.in_body].operands[0] if c.in_body in turned else c.outer for c in loop.captures]
        env = {v: body.input(outer.type, v.hint) for v, outer in zip(loop.shared, captured, strict=True)}
        total, chunk = body.input(INDEX, "trips"), body.input(INDEX, "length")
        env |= {v: body.input(v.type, v.hint) for v in loop.carried}
        done = body.input(INDEX, "done")
        steps = self._steps(body, chunk, body.emit("subtract", [total, done]))
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
        regions = Closed((*captured, trips, length), (cond.finish([test]), body.finish(outputs)))
        attrs = replace(
            loop.attrs,
            maximum_iterations=None,
            counts_down=False,
            parallel_iterations=self.in_flight,
            chunks_of=self.length,
        )
        inits = [*(c.init for c in loop.carries), builder.constant(0, INDEX.dtype)]
        found.divided += 1
        return emit_loop(builder, regions, inits, attrs, source=source)[:-1]

    def _length(self, builder: Builder, trips: Value) -> Value:
        """The length of a chunk, which follows from the number of iterations when it is known."""
        if self.count is not None:
            return builder.constant(self.length, INDEX.dtype)
        wide = builder.emit("cast", [trips], {"dtype": np.dtype(np.float64)})
        two, one, most = (builder.constant(x) for x in (2.0 * self.cost / max(self.fill, 1.0), 1.0, float(self.most)))
        square = builder.emit("maximum", [builder.emit("multiply", [wide, two]), one])
        powers = [builder.emit("log2", [v]) for v in (builder.emit("sqrt", [square]), most)]
        found = builder.emit("exp2", [builder.emit("floor", [builder.emit("minimum", powers)])])
        return builder.emit("cast", [found], {"dtype": INDEX.dtype}, hint="length")

    def _steps(self, body: Builder, length: Value, rest: Value) -> Value:
        """Number of iterations of a chunk. A loop that counts down takes from stacks what one chunk has pushed."""
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
