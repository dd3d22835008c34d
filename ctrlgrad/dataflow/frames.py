"""Objects of a running graph: steps, the frames and iterations that they fire in, and the tokens between them.

A `Step` is a node, ready to run. It has a slot for each operand, and a count of what it still waits for; both live
in the iteration that it will fire in, so a token needs no tag of its own. A value stands in the slots of its consumers
and nowhere else: when a step has emptied its slots and its kernel finds the only reference to an array, it may
overwrite it, in flight or not. A step knows what runs it as an `Execution`, and nothing more of it.

A node that only hands a carry on is no step. A NextIteration and the Merge that it feeds become targets of the value,
in the following iteration. A Switch on the frame's predicate is a slot, in which a value waits until the LoopCond has
fired; a later value passes it at once (`LoopSwitch`).

A `FrameRun` is one execution of a loop on a device, in one iteration of the loop around it. Its iterations form a list
from the oldest that is not done to the newest. Invariants:

- every step of a frame fires exactly once in every iteration, dead or alive, an Exit where a LoopSwitch has told it
  something; `remaining` counts those that have not, the inner frames that are not released, and in iteration 0 the
  Enters that have not come; an iteration is done when it is at 0 and the one before is done;
- iteration n + 1 begins when a value arrives in it and fewer than `window` iterations are open: n + 1 - floor < window,
  where iterations below `floor` are done here (and, on the device that owns the loop, on all participants). Values that
  come too early wait in `waiting`;
- an iteration whose predicate is not true is the last; a frame is released when that one and all before it are done.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import field
from typing import Any, Protocol

from ctrlgrad.dataflow.devices import DeviceRun
from ctrlgrad.dataflow.graph import FlatNode
from ctrlgrad.dataflow.scopes import describe
from ctrlgrad.engines.reference.control_kernels import in_iteration
from ctrlgrad.errors import ExecutionError
from ctrlgrad.ir import Node, Type
from ctrlgrad.records import record
from ctrlgrad.source import Source

# The number of the iteration of each frame around, the root's 0 first.
Tag = tuple[int, ...]
# Count of a Merge that has fired: later operands are dead and never bring it to zero.
FIRED = -(1 << 30)


class Step(ABC):
    """A prepared node. Its operands are `slots[first:last]` of the iteration in which it fires."""

    __slots__ = ("first", "index", "last", "name", "node", "results", "source")

    def __init__(self, node: FlatNode, index: int, first: int) -> None:
        self.node, self.name, self.source = node, describe(node), node.source
        self.index, self.first = index, first
        self.last = first + len(node.operands)
        # The consumers of each result; filled when all steps are there.
        self.results: list[Targets] = [NOWHERE] * len(node.results)

    @abstractmethod
    def fire(self, iteration: Iteration, execution: Execution) -> None:
        """Empty the slots, which all are full, and deliver the results."""

    def operand(self, iteration: Iteration) -> Any:
        """The only operand; its slot is empty from now on."""
        value = iteration.slots[self.first]
        iteration.slots[self.first] = None
        return value

    def fire_dead(self, iteration: Iteration, dead: Dead, execution: Execution) -> None:
        """An operand or a control is dead, and so are the results."""
        for targets in self.results:
            deliver_dead(iteration, targets, dead, execution)


# Tokens.


@record
class Dead:
    """Why a value is dead: which Switch or LoopCond, in which iteration, chose another side."""

    switch: Step
    tag: Tag
    chosen: int


# A consumer's slot, its index, and itself.
Operand = tuple[int, int, Step]


@record(eq=False)
class Targets:
    """The consumers of one value: operands, controls, operands of Merges, Switches of the frame's predicate, and what
    takes it in the following iteration."""

    data: tuple[Operand, ...] = ()
    controls: tuple[tuple[int, Step], ...] = ()
    merges: tuple[Operand, ...] = ()
    switches: tuple[LoopSwitch, ...] = ()
    following: Targets | None = None

    def __bool__(self) -> bool:
        return bool(self.data or self.controls or self.merges or self.switches or self.following is not None)


NOWHERE = Targets()
# Marker in the slot of a LoopSwitch that has fired.
PASSED = object()


@record(eq=False)
class LoopSwitch:
    """A Switch on its frame's predicate, `condition`: the slot in which its operand waits, and the consumers of its
    sides.

    While the loop goes on, its Exits are dead. They are not told, since no step waits for that.
    """

    node: FlatNode
    condition: Step
    slot: int
    true: Targets
    false: Targets
    exits: Targets

    def fire(self, iteration: Iteration, value: Any, execution: Execution) -> None:
        """Hand a value on, the predicate being there; where that is dead, both sides have been told."""
        iteration.slots[self.slot] = PASSED
        if iteration.predicate is True:
            deliver(iteration, self.true, value, execution)
            if self.false is not NOWHERE:
                deliver_dead(iteration, self.false, Dead(self.condition, iteration.tag, 1), execution)
        elif iteration.predicate is False:
            iteration.remaining += len(self.exits.data)
            deliver(iteration, self.exits, value, execution)
            deliver(iteration, self.false, value, execution)
            deliver_dead(iteration, self.true, Dead(self.condition, iteration.tag, 0), execution)

    def fire_dead(self, iteration: Iteration, dead: Dead, execution: Execution) -> None:
        """The operand or the predicate is dead, and so are both sides."""
        if iteration.slots[self.slot] is PASSED:
            return
        iteration.slots[self.slot] = PASSED
        iteration.remaining += len(self.exits.data)
        for targets in (self.exits, self.false, self.true):
            deliver_dead(iteration, targets, dead, execution)


def deliver(iteration: Iteration, targets: Targets, value: Any, execution: Execution) -> None:
    """Put a value into the slots of its consumers in an iteration; those that wait for nothing more become ready."""
    slots, pending = iteration.slots, iteration.pending
    for slot, index, step in targets.data:
        slots[slot] = value
        count = pending[index] - 1
        pending[index] = count
        if not count:
            execution.ready.append((iteration, step))
    for switch in targets.switches:
        if iteration.predicate is None:
            slots[switch.slot] = value
        else:
            switch.fire(iteration, value, execution)
    if targets.following is not None:
        following = iteration.next or execution.following(iteration.frame)
        if following is None:
            iteration.frame.waiting.append((targets.following, value))
        else:
            deliver(following, targets.following, value, execution)
    for index, step in targets.controls:
        count = pending[index] - 1
        pending[index] = count
        if not count:
            execution.ready.append((iteration, step))
    for slot, index, step in targets.merges:
        if pending[index] < 0:
            raise ExecutionError(
                f"{step.name}: two of its operands are alive",
                source=step.source,
                expected="one operand that is alive in each iteration",
                got=f"another one at {iteration.describe()}",
                hint="a Merge takes the sides of one Switch, or what was computed from them",
            )
        slots[slot] = value
        pending[index] = FIRED
        execution.ready.append((iteration, step))


def deliver_dead(iteration: Iteration, targets: Targets, dead: Dead, execution: Execution) -> None:
    """Tell the consumers that the value is dead. They fire first: nothing is computed, and references are dropped.

    A dead value is not passed to the following iteration.
    """
    slots, pending = iteration.slots, iteration.pending
    for slot, index, _ in targets.data:
        slots[slot] = iteration.dead[index] = dead
    for index, _ in targets.controls:
        iteration.dead[index] = dead
    # A Merge is dead when all of its operands are.
    consumers = [(index, step) for _, index, step in (*targets.data, *targets.merges)]
    for index, step in (*consumers, *targets.controls):
        count = pending[index] - 1
        pending[index] = count
        if not count:
            iteration.dead[index] = dead
            execution.ready.appendleft((iteration, step))
    for switch in targets.switches:
        switch.fire_dead(iteration, dead, execution)


# Frames and their iterations.


@record(frozen=False)
class FramePlan:
    """Data that all executions of one frame on one device share. The frames are numbered; 0 is the root."""

    name: str
    number: int
    # How many iterations may be open.
    window: int = 1
    loop: Node | None = None
    steps: list[Step] = field(default_factory=list)
    # Initial slots and counts of a new iteration, and the number of events until it is done.
    slots: list[Any] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)
    expected: int = 0
    # How many Enters come into it.
    enters: int = 0
    # The Switches of its carries, and the NextIterations that are no steps.
    switches: list[LoopSwitch] = field(default_factory=list)
    backs: list[FlatNode] = field(default_factory=list)
    # The Recvs by edge, with the targets of their messages; the edge for reports, and the edges of reports from other
    # devices.
    receives: dict[int, tuple[Step, Targets]] = field(default_factory=dict)
    report: int | None = None
    reported: tuple[int, ...] = ()

    @property
    def report_every(self) -> int:
        """After how many iterations a participant reports: a few times per window."""
        return max(1, self.window // 4)

    @property
    def has_messages(self) -> bool:
        """Return true if messages must find its iterations."""
        return bool(self.receives or self.reported)


@record(frozen=False)
class DevicePlan:
    """All frames of a device, where its inputs go, and where messages belong."""

    device: str
    frames: list[FramePlan]
    # Type and local consumers of each graph input; root steps that wait for nothing.
    inputs: list[tuple[Type, Targets]]
    starters: list[Step]
    # The frame that each edge is received in, for data and for reports.
    arrivals: dict[int, FramePlan]
    outputs: tuple[int, ...]


class Iteration:
    """One iteration of a frame: the slots of its steps, and what each of them still waits for."""

    __slots__ = (
        "children",
        "dead",
        "frame",
        "is_last",
        "next",
        "number",
        "pending",
        "predicate",
        "remaining",
        "slots",
        "tag",
    )

    def __init__(self, frame: FrameRun, number: int) -> None:
        self.frame, self.number = frame, number
        self.tag: Tag = (*frame.tag, number)
        self.slots: list[Any] = frame.slots.copy()
        self.pending: list[int] = frame.pending.copy()
        self.remaining: int = frame.plan.expected
        self.dead: dict[int, Dead] = {}
        self.next: Iteration | None = None
        # Predicate from the LoopCond; None until it has fired.
        self.predicate: bool | Dead | None = None
        self.is_last = False
        self.children: dict[int, FrameRun] = {}

    def around(self) -> Iterator[Iteration]:
        """The iteration itself and those of the loops around it, the innermost first, without the root's."""
        iteration: Iteration | None = self
        while iteration is not None and iteration.frame.parent is not None:
            yield iteration
            iteration = iteration.frame.parent

    def describe(self) -> str:
        """Position for an error: `iteration 3 of while_1, iteration 0 of while_2`, or the root."""
        parts = [f"iteration {each.number} of {each.frame.plan.name}" for each in self.around()]
        return ", ".join(reversed(parts)) or "the root"

    def numbers(self) -> list[int]:
        """The number of each iteration around, the outermost first; a reversed loop counts down."""
        return [each.counted for each in self.around()][::-1]

    @property
    def counted(self) -> int:
        """The number as the user counts; a reversed loop counts down."""
        start = self.frame.counts_from
        return self.number if start is None else start - 1 - self.number

    def notes(self) -> list[str]:
        """For each loop around, the innermost first, which iteration of it this is: the notes of an error."""
        found = []
        for each in self.around():
            loop, name = each.frame.plan.loop, each.frame.plan.name
            found.append(in_iteration(loop, each.counted) if loop else f"in iteration {each.counted} of the {name}")
        return found


@record(eq=False, frozen=False)
class FrameRun:
    """One execution of a loop; see the module's invariants."""

    plan: FramePlan
    parent: Iteration | None
    tag: Tag = field(init=False)
    # Initial slots of a new iteration; constants are put in as they come.
    slots: list[Any] = field(init=False)
    pending: list[int] = field(init=False)
    oldest: Iteration = field(init=False)
    newest: Iteration = field(init=False)
    # How many iterations are done on this device, from the first; how many there are, once that is known.
    floor: int = 0
    total: int | None = None
    # How many each participant has reported to be done, and how many reports have come. Messages may overtake each
    # other, so a frame waits for every one of them.
    reported: dict[int, int] = field(init=False)
    reports: int = 0
    # Where the iterations of a reversed loop count down from.
    counts_from: int | None = None
    # Values that wait for the next iteration to begin.
    waiting: list[tuple[Targets, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        plan = self.plan
        self.tag = () if self.parent is None else self.parent.tag
        self.slots, self.pending = plan.slots, plan.pending
        self.reported = dict.fromkeys(plan.reported, 0)
        self.oldest = self.newest = Iteration(self, 0)
        self.oldest.remaining += plan.enters

    @property
    def may_advance(self) -> bool:
        """Return true if the window lets another iteration begin."""
        floor = min((self.floor, *self.reported.values())) if self.reported else self.floor
        return self.newest.number + 1 - floor < self.plan.window

    @property
    def expected_reports(self) -> int:
        """Number of reports that come; the number of iterations must be known."""
        assert self.total is not None
        return len(self.reported) * -(-self.total // self.plan.report_every)

    def begin_next(self) -> Iteration:
        """The iteration after the newest."""
        following = Iteration(self, self.newest.number + 1)
        self.newest.next = following
        self.newest = following
        return following


# Interface of the executor that runs the steps.


Entry = tuple[Iteration, Step]


class Ready(Protocol):
    """Queue of ready steps; `appendleft` puts a step before all steps that wait."""

    def __len__(self) -> int: ...
    def append(self, entry: Entry, /) -> None: ...
    def appendleft(self, entry: Entry, /) -> None: ...
    def popleft(self) -> Entry: ...


class Execution(Protocol):
    """Services of the executor that a step may use when it fires."""

    device: DeviceRun
    ready: Ready
    outputs: dict[int, Any]

    def child(self, iteration: Iteration, number: int) -> FrameRun:
        """The frame that an iteration enters; opened by the first Enter."""

    def broadcast(self, frame: FrameRun, targets: Targets, value: Any) -> None:
        """Deliver a constant to all iterations, present and future."""

    def following(self, frame: FrameRun) -> Iteration | None:
        """Begin the iteration after the newest; None where the window is full, or values wait for it already."""

    def end_at(self, iteration: Iteration) -> None:
        """No iteration follows this one."""

    def completed(self, iteration: Iteration) -> None:
        """All has happened in an iteration."""

    def send(self, edge: int, tag: Tag, dead: Dead | None, value: Any, source: Source | None) -> None:
        """Send a message, as soon as its value is on the host."""
