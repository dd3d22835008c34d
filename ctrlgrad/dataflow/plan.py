"""A device's flat graph, ready to run: what each node does when it fires, and per frame what its steps wait for.

A step fires when all its operands are there; where one is dead its results are, and nothing is computed. Else:

    Merge of a branch    the operand that is alive, as soon as it is there; dead only when all are
    Exit                 in an iteration that goes on it is dead, and stops there
    Send                 a message in every iteration, dead or alive

The nodes of a loop's carry only hand a value on: they are `Targets` of what makes it, see `frames`. One that waits for
something else too is a step. A plan is computed once and holds nothing of a run.

Sources: "Implementation of Control Flow in TensorFlow" (2017), section 4.2; Yu et al., EuroSys 2018, section 4.3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ctrlgrad.dataflow import graph as flat
from ctrlgrad.dataflow.devices import Piece, PieceOf
from ctrlgrad.dataflow.frames import (
    NOWHERE,
    PASSED,
    Dead,
    DevicePlan,
    Execution,
    FramePlan,
    Iteration,
    LoopSwitch,
    Step,
    Targets,
    deliver,
    deliver_dead,
)
from ctrlgrad.dataflow.graph import (
    Cluster,
    Enter,
    FlatGraph,
    FlatNode,
    LoopCond,
    Recv,
    Send,
    consumers,
    in_order,
    is_loop_merge,
    producers,
)
from ctrlgrad.dataflow.partition import Part
from ctrlgrad.dataflow.scopes import ROOT, Guard, frames_of, guard_of, guards_of
from ctrlgrad.dataflow.verifier import verify_flat
from ctrlgrad.engines.reference.control_kernels import too_many_iterations
from ctrlgrad.errors import ExecutionError
from ctrlgrad.ir import OPS, Graph, Node, Op, StackType, Value

# Clusters: ordinary ops that run as one piece, so that the executor handles few nodes in each iteration.
#
# In: a flat graph with a device on every node. Out: the same with every ordinary op inside a `Cluster`, all of whose
# ops sit in one frame on one device, dead or alive together. Nothing leaves a cluster and comes back: a cluster waits
# for all that it takes.
#
# Two ways to cut, as a setting says:
#
# - "whole": as few pieces as the control nodes allow. Right for one device, where one thread runs everything anyhow.
# - "flowing": two ops share a piece only if they wait for the same values, so no piece waits for more than one of its
#   ops would. A loop's counter then runs ahead of the work, and what another device waits for is not held up.
#
# With "none" every op is a piece of its own.
#
# A carried stack counts as there from the start: a push waits for the last push, which is never late. So does a
# carried total, to which an iteration adds something and which it needs for nothing else: the sum is in one piece
# with what is added. Constants go into the pieces that use them, where something else says when those run.


CUTS = ("whole", "flowing", "none")


def cluster(graph: FlatGraph, cut: str) -> FlatGraph:
    """The graph with its ordinary ops in clusters, cut in one of `CUTS`."""
    cutter = _Cutter(graph, cut)
    groups: dict[Any, list[FlatNode]] = {}
    for node in graph.nodes:
        if _is_clustered(node):
            groups.setdefault(cutter.key(node), []).append(node)
    # The values that some node takes outside of the cluster that makes them.
    group_of = {node: key for key, members in groups.items() for node in members}
    group_of_value = {v: key for node, key in group_of.items() for v in node.results}
    used = set(cutter.graph.outputs)
    for node in cutter.graph.nodes:
        waited = (v for v in node.operands if v not in cutter.copied[node])
        for value in (*waited, *node.controls, *node.orders):
            if node not in group_of or value not in group_of_value or group_of_value[value] != group_of[node]:
                used.add(value)
    nodes = [node for node in graph.nodes if node.is_primitive]
    nodes += [_piece(members, cutter, used) for members in groups.values()]
    nodes += [_piece([n], cutter, used) for n in graph.nodes if n.is_constant and n.result in used]
    position = {v: i for i, node in enumerate(graph.nodes) for v in node.results}
    nodes.sort(key=lambda n: min((position[v] for v in n.results), default=len(position)))
    return FlatGraph(graph.inputs, tuple(in_order(nodes)), graph.outputs, graph.name)


def _is_clustered(node: FlatNode) -> bool:
    """Return true if a node goes into a cluster. A constant has copies in the clusters that take it; for all other
    consumers it stands alone."""
    return not node.is_primitive and not node.is_constant


@dataclass
class _Cutter:
    """Assigns each ordinary op to a cluster; called in the graph's order."""

    graph: FlatGraph
    cut: str
    producer_of: dict[Value, FlatNode] = field(init=False)
    sources: dict[FlatNode, frozenset[Value]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.producer_of = producers(self.graph)
        self.consumers_of = consumers(self.graph)
        self.frames = frames_of(self.graph)
        self.guards = guards_of(self.graph, self.frames)
        self.copied = {node: self._copied(node) for node in self.graph.nodes}
        self.waited = {node: self._waited(node) for node in self.graph.nodes}
        self.levels = self._levels() if self.cut == "whole" else {}

    def key(self, node: FlatNode) -> Any:
        if self.cut == "none" or node.is_effectful:
            return node
        where: tuple[str, str | None, Guard] = self.group(node)
        if self.cut == "whole":
            return (*where, self.levels[node])
        waited = self.waited[node]
        added = [value for value in waited if not self._is_total(value)]
        # A running total waits for the values that are added to it, if anything but a constant is; a counter, to which
        # a constant is added, runs ahead by itself.
        self.sources[node] = self._wait_for(added, node.device) or self._wait_for(waited, node.device)
        return (*where, self.sources[node])

    def group(self, node: FlatNode) -> tuple[str, str | None, Guard]:
        """Properties that all ops of a cluster share."""
        return self.frames.of_node[node], node.device, guard_of(node, self.guards)

    def _wait_for(self, values: Iterable[Value], device: str | None) -> frozenset[Value]:
        return frozenset[Value]().union(*(self._waits_for(value, device) for value in values))

    def _waits_for(self, value: Value, device: str | None) -> frozenset[Value]:
        node = self.producer_of.get(value)
        if node is None or node.is_constant_enter or self._is_carried_stack(value, node):
            return frozenset()
        if node in self.sources and node.device == device:
            return self.sources[node]
        return frozenset([value])

    def _is_carried_stack(self, value: Value, node: FlatNode) -> bool:
        if not isinstance(value.type, StackType):
            return False
        return self._is_loop_switch(node) if node.op is flat.SWITCH else is_loop_merge(node, self.producer_of)

    def _is_loop_switch(self, node: FlatNode) -> bool:
        predicate = self.producer_of.get(node.operands[0])
        return predicate is not None and predicate.op is flat.LOOP_COND

    def _is_total(self, value: Value) -> bool:
        """Return true if a carried value is a running total: an iteration only takes it for one sum on its device,
        which only the next iteration takes."""
        switch, users = self.producer_of.get(value), self.consumers_of.get(value, [])
        if switch is None or switch.op is not flat.SWITCH or not self._is_loop_switch(switch) or len(users) != 1:
            return False
        (total,) = users
        if total.op.name != "add" or total.device != switch.device:
            return False
        return [node.op for node in self.consumers_of.get(total.result, [])] == [flat.NEXT_ITERATION]

    def _levels(self) -> dict[FlatNode, int]:
        """Largest number of control nodes and other clusters on a path to each node.

        Every path from one cluster to another raises the level, so clusters of one level never wait for each other.
        What leaves a loop comes after all that enters it, whichever carry it is of.
        """
        levels: dict[FlatNode, int] = dict.fromkeys(self.graph.nodes, 0)
        entered: dict[str, int] = {}
        changes = True
        while changes:
            changes = False
            for node in self.graph.nodes:
                level = entered.get(self.frames.of_node[node], 0) if node.op is flat.EXIT else 0
                for value in self.waited[node]:
                    producer = self.producer_of.get(value)
                    if producer is not None:
                        level = max(level, levels[producer] + self._is_apart(producer, node))
                if level > levels[node]:
                    levels[node] = level
                    changes = True
                if node.op is flat.ENTER:
                    frame = Enter.of(node).frame
                    entered[frame] = max(entered.get(frame, 0), level)
        return levels

    def _copied(self, node: FlatNode) -> frozenset[Value]:
        """The constants that a node's cluster has copies of: where what else the node takes says when it runs too."""
        constants = {v for v in node.operands if v in self.producer_of and self.producer_of[v].is_constant}
        if not constants or not _is_clustered(node):
            return frozenset()
        others = {*node.operands} - constants | {*node.controls, *node.orders}
        guard: Guard = frozenset[Any]().union(*(self.guards[v] for v in others))
        is_driven = any(v not in self.producer_of or not self.producer_of[v].is_constant_enter for v in others)
        return frozenset(
            v for v in constants if self.guards[v] <= guard and (is_driven or not self.producer_of[v].controls)
        )

    def _waited(self, node: FlatNode) -> Sequence[Value]:
        """Values that a node waits for, without those that come around a loop."""
        if is_loop_merge(node, self.producer_of):
            return node.inputs[:1]
        waited = (v for v in node.operands if v not in self.copied[node])
        return (*waited, *node.controls, *node.orders)

    def _is_apart(self, producer: FlatNode, node: FlatNode) -> bool:
        """Return true if an ordinary op is certainly in another cluster than the producer of its operand."""
        if not _is_clustered(node):
            return False
        if not _is_clustered(producer) or producer.is_effectful or node.is_effectful:
            return True
        return self.group(producer) != self.group(node)


def _piece(members: list[FlatNode], cutter: _Cutter, used: set[Value]) -> FlatNode:
    """Some ops as one Cluster node."""
    inside = {v for node in members for v in node.results}
    body: list[Node] = []
    operands: dict[Value, None] = {}
    copied: dict[Value, Value] = {}
    effect = members[0].is_effectful
    for node in members:
        arguments = []
        for value in node.operands:
            if value in cutter.copied[node]:
                producer = cutter.producer_of[value]
                if value not in copied:
                    copied[value] = Value(value.type, value.hint)
                    constant = Node(OPS["constant"], (), (copied[value],), producer.attrs, (), producer.source)
                    body.append(constant)
                arguments.append(copied[value])
                continue
            if value not in inside:
                operands[value] = None
            arguments.append(value)
        count = len(arguments) - effect
        results = node.results[:-1] if effect else node.results
        body.append(Node(node.op, tuple(arguments[:count]), results, node.attrs, node.regions, node.source))
    results = tuple(v for node in members for v in node.results if v in used or effect)
    outputs = results[:-1] if effect else results
    apart = inside | set(operands)
    controls = dict.fromkeys(v for node in members for v in node.controls if v not in apart)
    orders = dict.fromkeys(v for node in members for v in node.orders if v not in apart and v not in controls)
    region = Graph(tuple(operands), tuple(body), outputs, "cluster")
    first = members[0]
    return FlatNode(
        flat.CLUSTER,
        tuple(operands),
        results,
        Cluster(effect=effect),
        (region,),
        first.source,
        controls=tuple(controls),
        orders=tuple(orders),
        device=first.device,
    )


class ClusterStep(Step):
    """Ordinary ops, run as one piece."""

    __slots__ = ("blank", "has_effect", "needs_iterations", "piece")

    def __init__(self, node: FlatNode, index: int, first: int, piece: Piece) -> None:
        super().__init__(node, index, first)
        self.piece = piece
        self.blank = [None] * (self.last - first)
        self.has_effect = Cluster.of(node).effect
        # True if a node inside asks for its iteration.
        self.needs_iterations = self.has_effect or any(n.regions for n in node.regions[0].nodes)

    def fire(self, iteration: Iteration, execution: Execution) -> None:
        slots = iteration.slots
        values = slots[self.first : self.last]
        slots[self.first : self.last] = self.blank
        if self.needs_iterations:
            execution.device.run.iterations = iteration.numbers()
        outputs = self.piece(values, execution.device.context)
        if self.has_effect:
            outputs.append(True)
        for targets, value in zip(self.results, outputs, strict=True):
            deliver(iteration, targets, value, execution)


class SwitchStep(Step):
    """A branch's Switch, with any number of sides."""

    __slots__ = ()

    def fire(self, iteration: Iteration, execution: Execution) -> None:
        predicate, value = iteration.slots[self.first : self.last]
        iteration.slots[self.first : self.last] = (None, None)
        chosen = min(max(int(execution.device.on_host(predicate)), 0), len(self.results) - 1)
        for side, targets in enumerate(self.results):
            if side == chosen:
                deliver(iteration, targets, value, execution)
            elif targets:
                deliver_dead(iteration, targets, Dead(self, iteration.tag, chosen), execution)


class PassStep(Step):
    """Forwards the live operand of a branch's Merge, or of a node of a carry that has further operands."""

    __slots__ = ()

    def fire(self, iteration: Iteration, execution: Execution) -> None:
        deliver(iteration, self.results[0], self.operand(iteration), execution)


class EnterStep(Step):
    """An Enter; it fires in the frame that it comes from."""

    __slots__ = ("entered", "frame")

    def __init__(self, node: FlatNode, index: int, first: int, frame: int) -> None:
        super().__init__(node, index, first)
        self.entered, self.frame = Enter.of(node), frame

    def fire(self, iteration: Iteration, execution: Execution) -> None:
        value = self.operand(iteration)
        child = execution.child(iteration, self.frame)
        if self.entered.count:
            child.counts_from = int(execution.device.on_host(value))
        if self.entered.constant:
            execution.broadcast(child, self.results[0], value)
        else:
            deliver(child.oldest, self.results[0], value, execution)
        self.has_entered(child.oldest, execution)

    def fire_dead(self, iteration: Iteration, dead: Dead, execution: Execution) -> None:
        first = execution.child(iteration, self.frame).oldest
        deliver_dead(first, self.results[0], dead, execution)
        self.has_entered(first, execution)

    def has_entered(self, first: Iteration, execution: Execution) -> None:
        """Iteration 0 is not done before all has entered."""
        first.remaining -= 1
        if not first.remaining:
            execution.completed(first)


class ExitStep(Step):
    """An Exit that lets something out: the last value, or the deadness of a frame that was entered dead."""

    __slots__ = ()

    def fire(self, iteration: Iteration, execution: Execution) -> None:
        parent = iteration.frame.parent
        assert parent is not None, "the root has no Exit"
        deliver(parent, self.results[0], self.operand(iteration), execution)

    def fire_dead(self, iteration: Iteration, dead: Dead, execution: Execution) -> None:
        parent = iteration.frame.parent
        assert parent is not None, "the root has no Exit"
        deliver_dead(parent, self.results[0], dead, execution)


class LoopCondStep(Step):
    """The predicate of a frame; what waits for it in the frame's Switches passes."""

    __slots__ = ("loop", "maximum")

    def __init__(self, node: FlatNode, index: int, first: int) -> None:
        super().__init__(node, index, first)
        condition = LoopCond.of(node)
        self.loop, self.maximum = condition.loop, condition.maximum_iterations

    def fire(self, iteration: Iteration, execution: Execution) -> None:
        continues = execution.device.on_host(self.operand(iteration))
        iteration.predicate = bool(continues)
        if not continues:
            execution.end_at(iteration)
        elif iteration.number == self.maximum:
            assert self.loop is not None, "a loop that was lowered has its node"
            raise too_many_iterations(self.loop, self.maximum, iteration.number)
        slots = iteration.slots
        for switch in iteration.frame.plan.switches:
            value = slots[switch.slot]
            if value is not None and value is not PASSED:
                switch.fire(iteration, value, execution)
        deliver(iteration, self.results[0], continues, execution)

    def fire_dead(self, iteration: Iteration, dead: Dead, execution: Execution) -> None:
        iteration.predicate = dead
        execution.end_at(iteration)
        super().fire_dead(iteration, dead, execution)
        for switch in iteration.frame.plan.switches:
            switch.fire_dead(iteration, dead, execution)


class SendStep(Step):
    """A Send: a message in every iteration, dead or alive."""

    __slots__ = ("edge",)

    def __init__(self, node: FlatNode, index: int, first: int) -> None:
        super().__init__(node, index, first)
        self.edge = Send.of(node).edge

    def fire(self, iteration: Iteration, execution: Execution) -> None:
        execution.send(self.edge, iteration.tag, None, self.operand(iteration), self.source)

    def fire_dead(self, iteration: Iteration, dead: Dead, execution: Execution) -> None:
        execution.send(self.edge, iteration.tag, dead, None, self.source)


class RecvStep(Step):
    """A Recv. Its message fills its slot on arrival; the copy to the device may still be in progress."""

    __slots__ = ()

    def __init__(self, node: FlatNode, index: int, first: int) -> None:
        super().__init__(node, index, first)
        self.last = first + 1

    def fire(self, iteration: Iteration, execution: Execution) -> None:
        deliver(iteration, self.results[0], execution.device.landed(self.operand(iteration)), execution)


class OutputStep(Step):
    """An output of the graph: keeps its value. `position` is its place among the outputs."""

    __slots__ = ("position",)

    def __init__(self, value: Value, index: int, first: int, position: int) -> None:
        super().__init__(FlatNode(_OUTPUT, (value,), ()), index, first)
        self.position = position

    def fire(self, iteration: Iteration, execution: Execution) -> None:
        execution.outputs[self.position] = self.operand(iteration)

    def fire_dead(self, iteration: Iteration, dead: Dead, execution: Execution) -> None:
        switch = dead.switch
        name = (switch.node.operands and switch.node.operands[0].hint) or "of a Switch"
        sides = ("false", "true") if len(switch.results) <= 2 else tuple(map(str, range(len(switch.results))))
        where = "" if len(dead.tag) < 2 else f" at iteration {', '.join(map(str, dead.tag[1:]))}"
        raise ExecutionError(
            f"output {self.position} is dead: the predicate {name} was {sides[dead.chosen]}{where}",
            source=switch.source,
            expected="an output that is alive whatever the predicates are",
            got=f"a value from another side of {switch.name}",
            hint="join the sides of a Switch with a Merge before the value leaves the graph",
        )


_OUTPUT = Op("output", 1, lambda operands, attrs, regions: ())
_STEPS: Mapping[Op, type[Step]] = {
    flat.SWITCH: SwitchStep,
    flat.MERGE: PassStep,
    flat.EXIT: ExitStep,
    flat.LOOP_COND: LoopCondStep,
    flat.SEND: SendStep,
    flat.RECV: RecvStep,
}


def plan_part(part: Part, piece_of: PieceOf, window: int | None) -> DevicePlan:
    """The plan of a device's part, its clusters as pieces; `window`, if given, stands for every loop's."""
    return _Planner(part, piece_of, window).run()


class _Planner:
    def __init__(self, part: Part, piece_of: PieceOf, window: int | None) -> None:
        self.part, self.graph = part, part.graph
        self.piece_of = piece_of
        self.window = window
        self.frames_of = verify_flat(self.graph)
        self.producer_of = producers(self.graph)
        self.frames = {ROOT: FramePlan(ROOT, 0)}
        self.step_of: dict[FlatNode, Step] = {}
        # Consumers of each value: as an operand, as a control.
        self.users: dict[Value, list[tuple[FlatNode, int]]] = defaultdict(list)
        self.waiting: dict[Value, list[FlatNode]] = defaultdict(list)
        for node in self.graph.nodes:
            for place, value in enumerate(node.operands):
                self.users[value].append((node, place))
            for value in (*node.controls, *node.orders):
                self.waiting[value].append(node)
        self.found: dict[Value, Targets] = {}

    def run(self) -> DevicePlan:
        for node in self.graph.nodes:
            if node.op is flat.ENTER:
                self.open(Enter.of(node)).enters += 1
        for node in self.graph.nodes:
            if self.is_step(node):
                self.put(node, self.frame(node))
        root = self.frames[ROOT]
        for place, value in zip(self.part.outputs, self.graph.outputs, strict=True):
            output = OutputStep(value, len(root.steps), len(root.slots), place)
            self.add(output, root, 1)
            self.users[value].append((output.node, 0))
        for node, step in self.step_of.items():
            step.results = [self.handed_on(node)] if self.is_passing(node) else [self.targets(v) for v in node.results]
            if node.op is flat.RECV:
                self.frame(node).receives[Recv.of(node).edge] = step, Targets(((step.first, step.index, step),))
        frames = list(self.frames.values())
        for frame in frames:
            fired = sum(not isinstance(step, ExitStep) for step in frame.steps)
            frame.expected = fired + list(self.frames_of.parent.values()).count(frame.name)
        starters = [step for step in root.steps if not root.pending[step.index]]
        arrivals = {edge: frame for frame in frames for edge in (*frame.receives, *frame.reported)}
        inputs = [(v.type, self.targets(v)) for v in self.graph.inputs]
        return DevicePlan(self.part.device, frames, inputs, starters, arrivals, self.part.outputs)

    # Frames and steps.

    def open(self, entered: Enter) -> FramePlan:
        """The frame that an Enter leads to."""
        name = entered.frame
        if name not in self.frames:
            report, reported = self.part.reports.get(name), self.part.reported.get(name, ())
            self.frames[name] = frame = FramePlan(name, len(self.frames))
            frame.window = self.window or entered.parallel_iterations
            frame.report = None if report is None else report.number
            frame.reported = tuple(edge.number for edge in reported)
        return self.frames[name]

    def frame(self, node: FlatNode) -> FramePlan:
        return self.frames[self.frames_of.of_node[node]]

    def is_passing(self, node: FlatNode) -> bool:
        """Return true if a node only hands a loop's carry on."""
        if node.op is flat.SWITCH:
            producer = self.producer_of.get(node.operands[0])
            return producer is not None and producer.op is flat.LOOP_COND
        return node.op is flat.NEXT_ITERATION or is_loop_merge(node, self.producer_of)

    def is_step(self, node: FlatNode) -> bool:
        """Return true if a node fires by itself.

        So does a NextIteration of what is handed on: a carry that stays as it is would pass all iterations that have
        begun at once, each inside of the one before.
        """
        if not self.is_passing(node) or node.controls or node.orders:
            return True
        return node.op is flat.NEXT_ITERATION and self.is_passing(self.producer_of[node.operands[0]])

    def put(self, node: FlatNode, frame: FramePlan) -> None:
        """Give a node its step."""
        index, first, pending = len(frame.steps), len(frame.slots), len(node.inputs)
        step: Step
        if node.op is flat.CLUSTER:
            step = ClusterStep(node, index, first, self.piece_of(node.regions[0]))
        elif node.op is flat.ENTER:
            step = EnterStep(node, index, first, self.frames[Enter.of(node).frame].number)
        elif self.is_passing(node):
            # A Merge gets one of its operands; a Switch reads its predicate later.
            step, pending = PassStep(node, index, first), 1 + len(node.controls) + len(node.orders)
        else:
            step = _STEPS[node.op](node, index, first)
        if isinstance(step, LoopCondStep):
            frame.loop = step.loop
        self.add(step, frame, pending + (node.op is flat.RECV))

    def add(self, step: Step, frame: FramePlan, pending: int) -> None:
        self.step_of[step.node] = step
        frame.steps.append(step)
        frame.slots += [None] * (step.last - step.first)
        frame.pending.append(pending)

    # Consumers of a value.

    def targets(self, value: Value) -> Targets:
        """The consumers of a value."""
        if value not in self.found:
            passed = [self.taken(node, place) for node, place in self.users[value]]
            waiting = [self.step_of[node] for node in self.waiting[value]]
            controls = Targets(controls=tuple((step.index, step) for step in waiting))
            self.found[value] = _joined([*passed, controls])
        return self.found[value]

    def taken(self, node: FlatNode, place: int) -> Targets:
        """Targets of a value at one node that has it as an operand."""
        step = self.step_of.get(node)
        if node.op is flat.SWITCH and place == 0 and self.is_passing(node):
            return NOWHERE  # its LoopCond tells it
        if step is None:
            return self.handed_on(node)
        if self.is_passing(node):
            return Targets(((step.first, step.index, step),))
        if node.op is flat.MERGE:
            # All operands in one slot: one of them is alive.
            return Targets(merges=((step.first, step.index, step),))
        return Targets(((step.first + place, step.index, step),))

    def handed_on(self, node: FlatNode) -> Targets:
        """Targets of the operand that a node of a carry forwards."""
        if node.op is flat.NEXT_ITERATION:
            if node not in self.step_of:
                self.frame(node).backs.append(node)
            return Targets(following=self.targets(node.result))
        if node.op is flat.MERGE:
            return self.targets(node.result)
        frame = self.frame(node)
        false, true = map(self.targets, node.results)
        exits = tuple(operand for operand in false.data if isinstance(operand[2], ExitStep))
        rest = tuple(operand for operand in false.data if operand not in exits)
        condition = self.step_of[self.producer_of[node.operands[0]]]
        others = _joined([Targets(rest, false.controls, false.merges, false.switches, false.following)])
        switch = LoopSwitch(node, condition, len(frame.slots), true, others, Targets(exits))
        frame.slots.append(None)
        frame.switches.append(switch)
        return Targets(switches=(switch,))


def _joined(found: Sequence[Targets]) -> Targets:
    """All consumers of several."""
    found = [targets for targets in found if targets]
    if len(found) <= 1:
        return found[0] if found else NOWHERE
    following = [targets.following for targets in found if targets.following is not None]
    return Targets(
        tuple(operand for targets in found for operand in targets.data),
        tuple(control for targets in found for control in targets.controls),
        tuple(operand for targets in found for operand in targets.merges),
        tuple(switch for targets in found for switch in targets.switches),
        _joined(following) if following else None,
    )
