"""A device's flat graph, ready to run: the rule of each node, and per frame its steps and what each of them waits for.

    Switch(p, d)      the side that p chooses gets d, the others are dead; all are, where p or d is
    Merge(d0, d1..)   the operand that is alive, as soon as it is there; dead only when all are
    Enter(d)          d in iteration 0 of the child frame; a constant, in all its iterations
    Exit(d)           d in the parent frame; in an iteration that goes on it is dead and stops here
    NextIteration(d)  d in the next iteration; deadness stops here
    anything else     when all operands are there; a dead one makes the results dead and nothing is computed

What a node does when it fires is a `Step`, one class each. The nodes of a loop's carry only hand a value on: they are
`Targets` of what makes it, see `frames`, and need a step where they wait for something else too. A plan is computed
once and holds nothing of a run.

Sources: "Implementation of Control Flow in TensorFlow" (2017), section 4.2; Yu et al., EuroSys 2018, section 4.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ctrlgrad.dataflow import graph as flat
from ctrlgrad.dataflow.devices import Piece, PieceOf
from ctrlgrad.dataflow.frames import (
    NOWHERE,
    PASSED,
    Dead,
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
from ctrlgrad.ir import Op, Type, Value


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
        if iteration.dead and self.forwards_deadness(iteration, execution):
            return
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
        if iteration.dead and self.forwards_deadness(iteration, execution):
            return
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
        if iteration.dead and self.forwards_deadness(iteration, execution):
            return
        deliver(iteration, self.results[0], self.operand(iteration), execution)


class EnterStep(Step):
    """An Enter; it fires in the frame that it comes from."""

    __slots__ = ("frame", "is_constant", "is_count")

    def __init__(self, node: FlatNode, index: int, first: int, frame: int) -> None:
        super().__init__(node, index, first)
        self.frame = frame
        entered = Enter.of(node)
        self.is_constant = entered.constant
        # Whether this is the number of iterations of a reversed loop.
        self.is_count = entered.count

    def fire(self, iteration: Iteration, execution: Execution) -> None:
        value = self.operand(iteration)
        dead = iteration.dead.pop(self.index, None)
        child = execution.child(iteration, self.frame)
        first = child.oldest
        if dead is not None:
            execution.counts.dead += 1
            deliver_dead(first, self.results[0], dead, execution)
        else:
            if self.is_count:
                child.counts_from = int(execution.device.on_host(value))
            if self.is_constant:
                execution.broadcast(child, self.results[0], value)
            else:
                deliver(first, self.results[0], value, execution)
        # Iteration 0 is not done before all has entered.
        first.remaining -= 1
        if not first.remaining:
            execution.completed(first)


class ExitStep(Step):
    """An Exit that lets something out: the last value, or the deadness of a frame that was entered dead."""

    __slots__ = ()

    def fire(self, iteration: Iteration, execution: Execution) -> None:
        value = self.operand(iteration)
        parent = iteration.frame.parent
        assert parent is not None
        dead = iteration.dead.pop(self.index, None)
        if dead is None:
            deliver(parent, self.results[0], value, execution)
        else:
            execution.counts.dead += 1
            deliver_dead(parent, self.results[0], dead, execution)


class LoopCondStep(Step):
    """The predicate of a frame; what waits for it in the frame's Switches passes."""

    __slots__ = ("loop", "maximum", "switches")

    def __init__(self, node: FlatNode, index: int, first: int) -> None:
        super().__init__(node, index, first)
        condition = LoopCond.of(node)
        self.loop, self.maximum = condition.loop, condition.maximum_iterations
        self.switches: list[LoopSwitch] = []

    def fire(self, iteration: Iteration, execution: Execution) -> None:
        dead = iteration.dead.get(self.index)
        if dead is not None:
            iteration.predicate = dead
            execution.end_at(iteration)
            self.forwards_deadness(iteration, execution)
            for switch in self.switches:
                switch.fire_dead(iteration, dead, execution)
            return
        continues = execution.device.on_host(self.operand(iteration))
        iteration.predicate = bool(continues)
        if not continues:
            execution.end_at(iteration)
        elif iteration.number == self.maximum:
            assert self.loop is not None, "a loop that was lowered has its node"
            raise too_many_iterations(self.loop, self.maximum, iteration.number)
        slots = iteration.slots
        for switch in self.switches:
            value = slots[switch.slot]
            if value is not None and value is not PASSED:
                switch.fire(iteration, value, execution)
        deliver(iteration, self.results[0], continues, execution)


class SendStep(Step):
    """A Send: a message in every iteration, dead or alive."""

    __slots__ = ("edge",)

    def __init__(self, node: FlatNode, index: int, first: int) -> None:
        super().__init__(node, index, first)
        self.edge = Send.of(node).edge

    def fire(self, iteration: Iteration, execution: Execution) -> None:
        value = self.operand(iteration)
        dead = iteration.dead.pop(self.index, None)
        execution.counts.dead += dead is not None
        execution.send(self.edge, iteration.tag, dead, None if dead else value, self.source)


class RecvStep(Step):
    """A Recv; what it brings is put into its slot when the message comes, and may still be on its way to the device."""

    __slots__ = ()

    def __init__(self, node: FlatNode, index: int, first: int) -> None:
        super().__init__(node, index, first)
        self.last = first + 1

    def fire(self, iteration: Iteration, execution: Execution) -> None:
        if iteration.dead and self.forwards_deadness(iteration, execution):
            return
        deliver(iteration, self.results[0], execution.device.landed(self.operand(iteration)), execution)


class OutputStep(Step):
    """An output of the graph: keeps its value. `position` is its place among the outputs."""

    __slots__ = ("position",)

    def __init__(self, value: Value, index: int, first: int, position: int) -> None:
        super().__init__(FlatNode(_OUTPUT, (value,), ()), index, first)
        self.position = position

    def fire(self, iteration: Iteration, execution: Execution) -> None:
        dead = iteration.dead.get(self.index)
        if dead is not None:
            raise self._dead_output(dead)
        execution.outputs[self.position] = self.operand(iteration)

    def _dead_output(self, dead: Dead) -> ExecutionError:
        switch = dead.switch
        name = (switch.node.operands and switch.node.operands[0].hint) or "of a Switch"
        sides = ("false", "true") if len(switch.results) <= 2 else tuple(map(str, range(len(switch.results))))
        where = "" if len(dead.tag) < 2 else f" at iteration {', '.join(map(str, dead.tag[1:]))}"
        return ExecutionError(
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
    flat.NEXT_ITERATION: PassStep,
    flat.LOOP_COND: LoopCondStep,
    flat.SEND: SendStep,
    flat.RECV: RecvStep,
}


@dataclass
class DevicePlan:
    """All frames of a device, where its inputs go, and where messages belong."""

    device: str
    frames: list[FramePlan]
    # Of each input of the graph its type, and its consumers on this device.
    inputs: list[tuple[Type, Targets]]
    # Steps of the root that wait for nothing.
    starters: list[Step]
    # The frame that each edge is received in, for data and for reports.
    arrivals: dict[int, FramePlan]
    outputs: tuple[int, ...]


def plan_part(part: Part, piece_of: PieceOf, window: int | None) -> DevicePlan:
    """The plan of a device's part, its clusters as pieces; `window`, if given, stands for every loop's."""
    return _Planner(part, piece_of, window).run()


class _Planner:
    def __init__(self, part: Part, piece_of: PieceOf, window: int | None) -> None:
        self.part = part
        self.graph = part.graph
        self.piece_of = piece_of
        self.window = window
        self.frames_of = verify_flat(self.graph)
        self.producer_of = producers(self.graph)
        self.numbers: dict[str, int] = {}
        self.frames: list[FramePlan] = []
        self.step_of: dict[FlatNode, Step] = {}
        # Of each frame the step of its LoopCond. Of each value who takes it: nodes with the operand's place, and waits.
        self.conditions: dict[str, LoopCondStep] = {}
        self.users: dict[Value, list[tuple[FlatNode, int]]] = {}
        self.waiting: dict[Value, list[FlatNode]] = {}
        self.found: dict[Value, Targets] = {}

    def run(self) -> DevicePlan:
        self.open(ROOT, -1)
        for node in self.graph.nodes:
            if node.op is flat.ENTER and Enter.of(node).frame not in self.numbers:
                self.open(Enter.of(node).frame, self.numbers[self.frames_of.of_node[node]], node)
        for node in self.graph.nodes:
            if self.is_step(node):
                self.put(node, self.frame(node))
            if node.op is flat.ENTER:
                self.frames[self.numbers[Enter.of(node).frame]].enters += 1
            self.use(node)
        root = self.frames[0]
        for place, value in zip(self.part.outputs, self.graph.outputs, strict=True):
            output = OutputStep(value, len(root.steps), len(root.slots), place)
            self.add(output, root, 1)
            self.use(output.node)
        for node, step in self.step_of.items():
            step.results = [self.handed_on(node)] if self.is_passing(node) else [self.targets(v) for v in node.results]
        for node in self.graph.nodes:
            if node.op is flat.RECV:
                step = self.step_of[node]
                self.frame(node).receives[Recv.of(node).edge] = step, Targets(((step.first, step.index, step),))
        for frame in self.frames:
            fired = sum(not isinstance(step, ExitStep) for step in frame.steps)
            frame.expected = fired + sum(f.parent == frame.number for f in self.frames)
        starters = [step for step in root.steps if not root.pending[step.index]]
        arrivals = {edge: frame for frame in self.frames for edge in (*frame.receives, *frame.reported)}
        inputs = [(v.type, self.targets(v)) for v in self.graph.inputs]
        return DevicePlan(self.part.device, self.frames, inputs, starters, arrivals, self.part.outputs)

    # Frames and steps.

    def open(self, name: str, parent: int, enter: FlatNode | None = None) -> None:
        frame = FramePlan(name, len(self.frames), parent)
        self.numbers[name] = frame.number
        self.frames.append(frame)
        if enter is not None:
            frame.window = self.window or Enter.of(enter).parallel_iterations
            report = self.part.reports.get(name)
            frame.report = None if report is None else report.number
            frame.reported = tuple(edge.number for edge in self.part.reported.get(name, ()))

    def frame(self, node: FlatNode) -> FramePlan:
        return self.frames[self.numbers[self.frames_of.of_node[node]]]

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
        index, first = len(frame.steps), len(frame.slots)
        if node.op is flat.CLUSTER:
            self.add(ClusterStep(node, index, first, self.piece_of(node.regions[0])), frame, len(node.inputs))
        elif node.op is flat.ENTER:
            self.add(EnterStep(node, index, first, self.numbers[Enter.of(node).frame]), frame, len(node.inputs))
        elif self.is_passing(node):
            # One operand: that of its two which comes, or not the predicate.
            self.add(PassStep(node, index, first), frame, 1 + len(node.controls) + len(node.orders))
        else:
            step = _STEPS[node.op](node, index, first)
            self.add(step, frame, len(node.inputs) + (node.op is flat.RECV))
            if isinstance(step, LoopCondStep):
                frame.loop, self.conditions[frame.name] = step.loop, step

    def add(self, step: Step, frame: FramePlan, pending: int) -> None:
        self.step_of[step.node] = step
        frame.steps.append(step)
        frame.slots += [None] * (step.last - step.first)
        frame.pending.append(pending)

    # Who takes a value.

    def use(self, node: FlatNode) -> None:
        for place, value in enumerate(node.operands):
            if not (place == 0 and node.op is flat.SWITCH and self.is_passing(node)):
                self.users.setdefault(value, []).append((node, place))
        for value in (*node.controls, *node.orders):
            self.waiting.setdefault(value, []).append(node)

    def targets(self, value: Value) -> Targets:
        """The consumers of a value."""
        if value not in self.found:
            passed = [self.taken(node, place) for node, place in self.users.get(value, ())]
            waiting = [self.step_of[node] for node in self.waiting.get(value, ())]
            controls = Targets(controls=tuple((step.index, step) for step in waiting))
            self.found[value] = _joined([*passed, controls])
        return self.found[value]

    def taken(self, node: FlatNode, place: int) -> Targets:
        """What a node that has a value as an operand does with it."""
        step = self.step_of.get(node)
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
        condition = self.conditions[frame.name]
        others = Targets(rest, false.controls, false.merges, false.switches, false.following)
        switch = LoopSwitch(node, condition, len(frame.slots), true, others, Targets(exits))
        frame.slots.append(None)
        frame.switches.append(switch)
        condition.switches.append(switch)
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


__all__ = ["ClusterStep", "DevicePlan", "plan_part"]
