"""What each kind of node does when it fires: the rules of the dataflow model, one class each.

    Switch(p, d)      the side that p chooses gets d, the others are dead; all are, where p or d is
    Merge(d0, d1..)   the operand that is alive, as soon as it is there; dead only when all are
    Enter(d)          d in iteration 0 of the child frame; a constant, in all its iterations
    Exit(d)           d in the parent frame; in an iteration that goes on it is dead and stops here
    NextIteration(d)  d in the next iteration; deadness stops here
    anything else     when all operands are there; a dead one makes the results dead and nothing is computed

Sources: "Implementation of Control Flow in TensorFlow" (2017), section 4.2; Yu et al., EuroSys 2018, section 4.3.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from ctrlgrad.dataflow.graph import FlatNode
from ctrlgrad.dataflow.pieces import Piece
from ctrlgrad.dataflow.scopes import describe
from ctrlgrad.dataflow.tokens import Dead, Targets, give, give_dead
from ctrlgrad.engines.reference.control_kernels import too_many_iterations
from ctrlgrad.errors import ExecutionError

if TYPE_CHECKING:
    from ctrlgrad.dataflow.executor import Executor
    from ctrlgrad.dataflow.running import Iteration

NOWHERE = Targets()


class Step(ABC):
    """A node made ready to run. Its operands stand in `slots[first:last]` of the iteration that it fires in."""

    __slots__ = ("first", "index", "last", "name", "node", "results", "source")

    def __init__(self, node: FlatNode, index: int, first: int) -> None:
        self.node = node
        self.name = describe(node)
        self.source = node.source
        self.index = index
        self.first = first
        self.last = first + len(node.operands)
        # The takers of each result; filled when all steps are there.
        self.results: list[Targets] = [NOWHERE] * len(node.results)

    @abstractmethod
    def fire(self, iteration: Iteration, executor: Executor) -> None:
        """Take the operands, which are all there, and hand on the results."""

    def dies(self, iteration: Iteration, executor: Executor) -> bool:
        """Whether an operand is dead; then the results are too."""
        dead = iteration.dead.pop(self.index, None)
        if dead is None:
            return False
        executor.counts.dead += 1
        iteration.slots[self.first : self.last] = [None] * (self.last - self.first)
        for targets in self.results:
            give_dead(iteration, targets, dead, executor.ready)
        return True


class ClusterStep(Step):
    """Ordinary ops, run as one piece."""

    __slots__ = ("blank", "is_effect", "knows_iterations", "piece")

    def __init__(self, node: FlatNode, index: int, first: int, piece: Piece) -> None:
        super().__init__(node, index, first)
        self.piece = piece
        self.blank = [None] * (self.last - first)
        self.is_effect = bool(node.attrs["effect"])
        # Whether something inside asks which iteration it is in.
        self.knows_iterations = self.is_effect or any(n.regions for n in node.regions[0].nodes)

    def fire(self, iteration: Iteration, executor: Executor) -> None:
        if iteration.dead and self.dies(iteration, executor):
            return
        slots = iteration.slots
        values = slots[self.first : self.last]
        slots[self.first : self.last] = self.blank
        if self.knows_iterations:
            executor.run.iterations = iteration.numbers()
        outputs = self.piece(values, executor.context)
        if self.is_effect:
            outputs.append(True)
        ready = executor.ready
        for targets, value in zip(self.results, outputs, strict=True):
            give(iteration, targets, value, ready)


class SwitchStep(Step):
    """A branch's Switch, with any number of sides."""

    __slots__ = ()

    def fire(self, iteration: Iteration, executor: Executor) -> None:
        if iteration.dead and self.dies(iteration, executor):
            return
        predicate, value = iteration.slots[self.first : self.last]
        iteration.slots[self.first : self.last] = (None, None)
        chosen = min(max(int(executor.device.on_host(predicate)), 0), len(self.results) - 1)
        for side, targets in enumerate(self.results):
            if side == chosen:
                give(iteration, targets, value, executor.ready)
            elif targets:
                give_dead(iteration, targets, Dead(self, iteration.tag, chosen), executor.ready)


class LoopSwitchStep(Step):
    """A carry's Switch. While the loop goes on its Exits are dead, and count as fired without firing."""

    __slots__ = ("exits", "others")

    def __init__(self, node: FlatNode, index: int, first: int) -> None:
        super().__init__(node, index, first)
        self.exits = 0
        # What else takes the false side.
        self.others = NOWHERE

    def settle(self) -> None:
        """Called when the takers are known."""
        false = self.results[0]
        data = tuple(taker for taker in false.data if not isinstance(taker[1], ExitStep))
        self.exits = len(false.data) - len(data)
        self.others = Targets(data, false.controls, false.merges)

    def fire(self, iteration: Iteration, executor: Executor) -> None:
        if iteration.dead and self.dies(iteration, executor):
            return
        slots, first = iteration.slots, self.first
        goes_on, value = slots[first], slots[first + 1]
        slots[first] = slots[first + 1] = None
        if goes_on:
            iteration.left -= self.exits
            if self.others:
                give_dead(iteration, self.others, Dead(self, iteration.tag, 1), executor.ready)
            give(iteration, self.results[1], value, executor.ready)
        else:
            give(iteration, self.results[0], value, executor.ready)
            give_dead(iteration, self.results[1], Dead(self, iteration.tag, 0), executor.ready)


class MergeStep(Step):
    """A Merge of either kind; whichever operand is alive stands in the first slot."""

    __slots__ = ()

    def fire(self, iteration: Iteration, executor: Executor) -> None:
        if iteration.dead and self.dies(iteration, executor):
            return
        value = iteration.slots[self.first]
        iteration.slots[self.first] = None
        give(iteration, self.results[0], value, executor.ready)


class EnterStep(Step):
    """An Enter; it fires in the frame that it comes from."""

    __slots__ = ("frame", "is_constant", "is_count")

    def __init__(self, node: FlatNode, index: int, first: int, frame: int) -> None:
        super().__init__(node, index, first)
        self.frame = frame
        self.is_constant = bool(node.attrs["constant"])
        # Whether this is the number of iterations of a reversed loop.
        self.is_count = bool(node.attrs.get("count"))

    def fire(self, iteration: Iteration, executor: Executor) -> None:
        value = iteration.slots[self.first]
        iteration.slots[self.first] = None
        dead = iteration.dead.pop(self.index, None)
        child = executor.child(iteration, self.frame)
        first = child.oldest
        if dead is not None:
            executor.counts.dead += 1
            give_dead(first, self.results[0], dead, executor.ready)
        else:
            if self.is_count:
                child.counts_from = int(executor.device.on_host(value))
            if self.is_constant:
                executor.constant(child, self.results[0], value)
            else:
                give(first, self.results[0], value, executor.ready)
        # Iteration 0 is not done before all has entered.
        first.left -= 1
        if not first.left:
            executor.completed(first)


class ExitStep(Step):
    """An Exit that lets something out: the last value, or the deadness of a frame that was entered dead."""

    __slots__ = ()

    def fire(self, iteration: Iteration, executor: Executor) -> None:
        value = iteration.slots[self.first]
        iteration.slots[self.first] = None
        parent = iteration.frame.parent
        assert parent is not None
        dead = iteration.dead.pop(self.index, None)
        if dead is None:
            give(parent, self.results[0], value, executor.ready)
        else:
            executor.counts.dead += 1
            give_dead(parent, self.results[0], dead, executor.ready)


class NextIterationStep(Step):
    """A NextIteration."""

    __slots__ = ()

    def fire(self, iteration: Iteration, executor: Executor) -> None:
        value = iteration.slots[self.first]
        iteration.slots[self.first] = None
        if iteration.dead and iteration.dead.pop(self.index, None) is not None:
            executor.counts.dead += 1
            return
        following = iteration.next or executor.following(iteration.frame)
        if following is None:
            iteration.frame.waiting.append((self.results[0], value))
        else:
            give(following, self.results[0], value, executor.ready)


class LoopCondStep(Step):
    """The predicate of a frame."""

    __slots__ = ("maximum",)

    def __init__(self, node: FlatNode, index: int, first: int) -> None:
        super().__init__(node, index, first)
        self.maximum: int | None = node.attrs.get("maximum_iterations")

    def fire(self, iteration: Iteration, executor: Executor) -> None:
        if iteration.dead and self.dies(iteration, executor):
            executor.last(iteration)
            return
        goes_on = executor.device.on_host(iteration.slots[self.first])
        iteration.slots[self.first] = None
        if not goes_on:
            executor.last(iteration)
        elif iteration.number == self.maximum:
            raise too_many_iterations(self.node.attrs["loop"], self.maximum, iteration.number)
        give(iteration, self.results[0], goes_on, executor.ready)


class SendStep(Step):
    """A Send: a message in every iteration, dead or alive."""

    __slots__ = ("edge",)

    def __init__(self, node: FlatNode, index: int, first: int) -> None:
        super().__init__(node, index, first)
        self.edge: int = node.attrs["edge"]

    def fire(self, iteration: Iteration, executor: Executor) -> None:
        value = iteration.slots[self.first]
        iteration.slots[self.first] = None
        dead = iteration.dead.pop(self.index, None)
        executor.counts.dead += dead is not None
        executor.send(self.edge, iteration.tag, dead, None if dead else value, self.source)


class RecvStep(Step):
    """A Recv; what it brings is put into its slot when the message comes, and may still be on its way to the device."""

    __slots__ = ()

    def __init__(self, node: FlatNode, index: int, first: int) -> None:
        super().__init__(node, index, first)
        self.last = first + 1

    def fire(self, iteration: Iteration, executor: Executor) -> None:
        if iteration.dead and self.dies(iteration, executor):
            return
        value = executor.device.landed(iteration.slots[self.first])
        iteration.slots[self.first] = None
        give(iteration, self.results[0], value, executor.ready)


class OutputStep(Step):
    """An output of the graph: keeps its value. `position` is its place among the outputs."""

    __slots__ = ("position",)

    def __init__(self, node: FlatNode, index: int, first: int, position: int) -> None:
        super().__init__(node, index, first)
        self.position = position

    def fire(self, iteration: Iteration, executor: Executor) -> None:
        dead = iteration.dead.get(self.index)
        if dead is not None:
            raise _dead_output(self, dead, executor)
        executor.outputs[self.position] = iteration.slots[self.first]
        iteration.slots[self.first] = None


def _dead_output(step: OutputStep, dead: Dead, executor: Executor) -> ExecutionError:
    switch = dead.switch
    name = (switch.node.operands and switch.node.operands[0].hint) or "of a Switch"
    sides = ("false", "true") if len(switch.results) == 2 else tuple(map(str, range(len(switch.results))))
    where = "" if len(dead.tag) < 2 else f" at iteration {', '.join(map(str, dead.tag[1:]))}"
    return ExecutionError(
        f"output {step.position} is dead: the predicate {name} was {sides[dead.chosen]}{where}",
        source=switch.source,
        expected="an output that is alive whatever the predicates are",
        got=f"a value from another side of {switch.name}",
        hint="join the sides of a Switch with a Merge before the value leaves the graph",
    )


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
    "Step",
    "SwitchStep",
]
