"""What each node of a flat graph does when it fires: the rule of each primitive, one class each.

    Switch(p, d)      the side that p chooses gets d, the others are dead; all are, where p or d is
    Merge(d0, d1..)   the operand that is alive, as soon as it is there; dead only when all are
    Enter(d)          d in iteration 0 of the child frame; a constant, in all its iterations
    Exit(d)           d in the parent frame; in an iteration that goes on it is dead and stops here
    NextIteration(d)  d in the next iteration; deadness stops here
    anything else     when all operands are there; a dead one makes the results dead and nothing is computed

Sources: "Implementation of Control Flow in TensorFlow" (2017), section 4.2; Yu et al., EuroSys 2018, section 4.3.
"""

from __future__ import annotations

from ctrlgrad.dataflow.devices import Piece
from ctrlgrad.dataflow.frames import Dead, Execution, Iteration, Step, Targets, deliver, deliver_dead
from ctrlgrad.dataflow.graph import Cluster, Enter, FlatNode, LoopCond, Send
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
        ready = execution.ready
        for targets, value in zip(self.results, outputs, strict=True):
            deliver(iteration, targets, value, ready)


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
                deliver(iteration, targets, value, execution.ready)
            elif targets:
                deliver_dead(iteration, targets, Dead(self, iteration.tag, chosen), execution.ready)


class LoopSwitchStep(Step):
    """A carry's Switch. While the loop goes on its Exits are dead, and count as fired without firing."""

    __slots__ = ("exits", "others")

    def link(self) -> None:
        """Tell the Exits from the other consumers of the false side, when all are known."""
        false = self.results[0]
        data = tuple(target for target in false.data if not isinstance(target[1], ExitStep))
        self.exits = len(false.data) - len(data)
        self.others = Targets(data, false.controls, false.merges)

    def fire(self, iteration: Iteration, execution: Execution) -> None:
        if iteration.dead and self.forwards_deadness(iteration, execution):
            return
        slots, first = iteration.slots, self.first
        continues, value = slots[first], slots[first + 1]
        slots[first] = slots[first + 1] = None
        if continues:
            iteration.remaining -= self.exits
            if self.others:
                deliver_dead(iteration, self.others, Dead(self, iteration.tag, 1), execution.ready)
            deliver(iteration, self.results[1], value, execution.ready)
        else:
            deliver(iteration, self.results[0], value, execution.ready)
            deliver_dead(iteration, self.results[1], Dead(self, iteration.tag, 0), execution.ready)


class MergeStep(Step):
    """A Merge of either kind; whichever operand is alive stands in the first slot."""

    __slots__ = ()

    def fire(self, iteration: Iteration, execution: Execution) -> None:
        if iteration.dead and self.forwards_deadness(iteration, execution):
            return
        deliver(iteration, self.results[0], self.operand(iteration), execution.ready)


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
            deliver_dead(first, self.results[0], dead, execution.ready)
        else:
            if self.is_count:
                child.counts_from = int(execution.device.on_host(value))
            if self.is_constant:
                execution.broadcast(child, self.results[0], value)
            else:
                deliver(first, self.results[0], value, execution.ready)
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
            deliver(parent, self.results[0], value, execution.ready)
        else:
            execution.counts.dead += 1
            deliver_dead(parent, self.results[0], dead, execution.ready)


class NextIterationStep(Step):
    """A NextIteration."""

    __slots__ = ()

    def fire(self, iteration: Iteration, execution: Execution) -> None:
        value = self.operand(iteration)
        if iteration.dead and iteration.dead.pop(self.index, None) is not None:
            execution.counts.dead += 1
            return
        following = iteration.next or execution.following(iteration.frame)
        if following is None:
            iteration.frame.waiting.append((self.results[0], value))
        else:
            deliver(following, self.results[0], value, execution.ready)


class LoopCondStep(Step):
    """The predicate of a frame."""

    __slots__ = ("loop", "maximum")

    def __init__(self, node: FlatNode, index: int, first: int) -> None:
        super().__init__(node, index, first)
        condition = LoopCond.of(node)
        self.loop, self.maximum = condition.loop, condition.maximum_iterations

    def fire(self, iteration: Iteration, execution: Execution) -> None:
        if iteration.dead and self.forwards_deadness(iteration, execution):
            execution.end_at(iteration)
            return
        continues = execution.device.on_host(self.operand(iteration))
        if not continues:
            execution.end_at(iteration)
        elif iteration.number == self.maximum:
            assert self.loop is not None, "a loop that was lowered has its node"
            raise too_many_iterations(self.loop, self.maximum, iteration.number)
        deliver(iteration, self.results[0], continues, execution.ready)


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
        deliver(iteration, self.results[0], execution.device.landed(self.operand(iteration)), execution.ready)


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
        sides = ("false", "true") if len(switch.results) == 2 else tuple(map(str, range(len(switch.results))))
        where = "" if len(dead.tag) < 2 else f" at iteration {', '.join(map(str, dead.tag[1:]))}"
        return ExecutionError(
            f"output {self.position} is dead: the predicate {name} was {sides[dead.chosen]}{where}",
            source=switch.source,
            expected="an output that is alive whatever the predicates are",
            got=f"a value from another side of {switch.name}",
            hint="join the sides of a Switch with a Merge before the value leaves the graph",
        )


_OUTPUT = Op("output", 1, lambda operands, attrs, regions: ())


__all__ = [
    "ClusterStep",
    "EnterStep",
    "ExitStep",
    "LoopCondStep",
    "LoopSwitchStep",
    "MergeStep",
    "NextIterationStep",
    "OutputStep",
    "RecvStep",
    "SendStep",
    "SwitchStep",
]
