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
from collections.abc import Mapping, Sequence

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
from ctrlgrad.dataflow.graph import Cluster, Enter, FlatNode, LoopCond, Recv, Send, is_loop_merge, producers
from ctrlgrad.dataflow.partition import Part
from ctrlgrad.dataflow.scopes import ROOT
from ctrlgrad.dataflow.verifier import verify_flat
from ctrlgrad.engines.reference.control_kernels import too_many_iterations
from ctrlgrad.errors import ExecutionError
from ctrlgrad.ir import Op, Value


class ClusterStep(Step):
    """Ordinary ops, run as one piece."""

    __slots__ = ("blank", "has_effect", "needs_iterations", "piece")

    def __init__(self, node: FlatNode, index: int, first: int, piece: Piece) -> None:
        super().__init__(node, index, first)
        self.piece = piece
        self.blank = [None] * (self.last - first)
        self.has_effect = Cluster.of(node).effect
        # Whether something inside asks which iteration it is in.
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
    """Hands on the operand that is there: of a branch's Merge, or of a node of a carry that waits for more than it."""

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
    """A Recv; what it brings is put into its slot when the message comes, and may still be on its way to the device."""

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
        # Who takes each value: as an operand, as a control.
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
        """Whether a node only hands a loop's carry on."""
        if node.op is flat.SWITCH:
            producer = self.producer_of.get(node.operands[0])
            return producer is not None and producer.op is flat.LOOP_COND
        return node.op is flat.NEXT_ITERATION or is_loop_merge(node, self.producer_of)

    def is_step(self, node: FlatNode) -> bool:
        """Whether a node fires by itself.

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
            # Of a Merge's operands one comes; a Switch's predicate is asked for later.
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

    # Who takes a value.

    def targets(self, value: Value) -> Targets:
        """The consumers of a value."""
        if value not in self.found:
            passed = [self.taken(node, place) for node, place in self.users[value]]
            waiting = [self.step_of[node] for node in self.waiting[value]]
            controls = Targets(controls=tuple((step.index, step) for step in waiting))
            self.found[value] = _joined([*passed, controls])
        return self.found[value]

    def taken(self, node: FlatNode, place: int) -> Targets:
        """What a node that has a value as an operand does with it."""
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
        """Where a node of a carry hands its operand."""
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
