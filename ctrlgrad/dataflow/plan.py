"""A device's flat graph made ready to run: per frame its steps, their slots, and what each waits for.

A plan is made once and holds nothing of a run; `running` makes iterations from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ctrlgrad.dataflow import graph as flat
from ctrlgrad.dataflow import steps
from ctrlgrad.dataflow.graph import FlatNode, is_loop_merge, makers
from ctrlgrad.dataflow.partition import Part
from ctrlgrad.dataflow.pieces import PieceOf
from ctrlgrad.dataflow.scopes import ROOT
from ctrlgrad.dataflow.steps import Step
from ctrlgrad.dataflow.tokens import Targets
from ctrlgrad.dataflow.verifier import verify_flat
from ctrlgrad.ir import Node, Type, Value


@dataclass
class FramePlan:
    """One frame on one device. The frames are numbered; 0 is the root."""

    name: str
    number: int
    parent: int
    # How many iterations may be open.
    window: int = 1
    loop: Node | None = None
    steps: list[Step] = field(default_factory=list)
    # What the slots and counts of a new iteration start as, and how much must happen until it is done.
    slots: list[Any] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)
    expected: int = 0
    # How many Enters come into it.
    enters: int = 0
    # The Recvs by edge; the edge to report on and those that others report on.
    receives: dict[int, Step] = field(default_factory=dict)
    report: int | None = None
    reported: tuple[int, ...] = ()

    @property
    def report_every(self) -> int:
        """After how many iterations a participant reports: a few times per window."""
        return max(1, self.window // 4)

    @property
    def is_looked_up(self) -> bool:
        """Whether messages must find its iterations."""
        return bool(self.receives or self.reported)


@dataclass
class DevicePlan:
    """All frames of a device, where its inputs go, and where messages belong."""

    device: str
    frames: list[FramePlan]
    # Of each input of the graph its type, and who takes it on this device.
    inputs: list[tuple[Type, Targets]]
    # Steps of the root that wait for nothing.
    starters: list[Step]
    # The frame that each edge is received in, for data and for reports.
    arrivals: dict[int, FramePlan]
    outputs: tuple[int, ...]


def make_plan(part: Part, piece_of: PieceOf, window: int | None) -> DevicePlan:
    """The plan of a device's part, its clusters as pieces; `window`, if given, stands for every loop's."""
    return _Planner(part, piece_of, window).run()


class _Planner:
    def __init__(self, part: Part, piece_of: PieceOf, window: int | None) -> None:
        self.part = part
        self.graph = part.graph
        self.piece_of = piece_of
        self.window = window
        self.frames_of = verify_flat(self.graph)
        self.made_by = makers(self.graph)
        self.numbers: dict[str, int] = {}
        self.frames: list[FramePlan] = []
        self.step_of: dict[FlatNode, Step] = {}
        self.outputs: list[tuple[Value, Step]] = []

    def run(self) -> DevicePlan:
        self.open(ROOT, -1)
        for node in self.graph.nodes:
            if node.op == flat.ENTER and node.attrs["frame"] not in self.numbers:
                self.open(node.attrs["frame"], self.numbers[self.frames_of.of_node[node]], node)
        for node in self.graph.nodes:
            self.add(node)
            if node.op == flat.ENTER:
                self.frames[self.numbers[node.attrs["frame"]]].enters += 1
        root = self.frames[0]
        for place, value in zip(self.part.outputs, self.graph.outputs, strict=True):
            output = FlatNode("output", (value,), ())
            kept = steps.OutputStep(output, len(root.steps), len(root.slots), place)
            self.put(root, kept, 1)
            self.outputs.append((value, kept))
        targets = self.targets()
        for node, step in self.step_of.items():
            step.results = [targets.get(v, steps.NOWHERE) for v in node.results]
            if isinstance(step, steps.LoopSwitchStep):
                step.settle()
        for frame in self.frames:
            frame.expected = len(frame.steps) + sum(f.parent == frame.number for f in self.frames)
        starters = [step for step in root.steps if not root.pending[step.index]]
        arrivals = {edge: frame for frame in self.frames for edge in (*frame.receives, *frame.reported)}
        inputs = [(v.type, targets.get(v, steps.NOWHERE)) for v in self.graph.inputs]
        return DevicePlan(self.part.device, self.frames, inputs, starters, arrivals, self.part.outputs)

    def open(self, name: str, parent: int, enter: FlatNode | None = None) -> None:
        frame = FramePlan(name, len(self.frames), parent)
        self.numbers[name] = frame.number
        self.frames.append(frame)
        if enter is not None:
            frame.window = self.window or enter.attrs["parallel_iterations"]
            report = self.part.reports.get(name)
            frame.report = None if report is None else report.number
            frame.reported = tuple(edge.number for edge in self.part.reported.get(name, ()))

    def put(self, frame: FramePlan, step: Step, pending: int) -> None:
        frame.steps.append(step)
        frame.slots += [None] * (step.last - step.first)
        frame.pending.append(pending)

    def add(self, node: FlatNode) -> None:
        frame = self.frames[self.numbers[self.frames_of.of_node[node]]]
        index, first = len(frame.steps), len(frame.slots)
        pending = len(node.operands) + len(node.controls) + len(node.orders)
        step: Step
        if node.op == flat.CLUSTER:
            step = steps.ClusterStep(node, index, first, self.piece_of(node.regions[0]))
        elif node.op == flat.SWITCH:
            maker = self.made_by.get(node.operands[0])
            of_loop = maker is not None and maker.op == flat.LOOP_COND
            step = (steps.LoopSwitchStep if of_loop else steps.SwitchStep)(node, index, first)
        elif node.op == flat.MERGE:
            step = steps.MergeStep(node, index, first)
            # Of a loop's Merge only one operand comes in any iteration.
            pending = 1 if is_loop_merge(node, self.made_by) else pending
        elif node.op == flat.ENTER:
            step = steps.EnterStep(node, index, first, self.numbers[node.attrs["frame"]])
        elif node.op == flat.LOOP_COND:
            step = steps.LoopCondStep(node, index, first)
            frame.loop = node.attrs.get("loop")
        elif node.op == flat.RECV:
            step = steps.RecvStep(node, index, first)
            frame.receives[node.attrs["edge"]] = step
            pending += 1
        else:
            simple: dict[str, Callable[[FlatNode, int, int], Step]] = {
                flat.EXIT: steps.ExitStep,
                flat.NEXT_ITERATION: steps.NextIterationStep,
                flat.SEND: steps.SendStep,
            }
            step = simple[node.op](node, index, first)
        self.step_of[node] = step
        self.put(frame, step, pending)

    def targets(self) -> dict[Value, Targets]:
        """The takers of each value."""
        data: dict[Value, list[tuple[int, Step]]] = {}
        controls: dict[Value, list[Step]] = {}
        merges: dict[Value, list[tuple[int, Step]]] = {}
        for node, step in self.step_of.items():
            for place, value in enumerate(node.operands):
                if node.op == flat.MERGE:
                    # All operands in one slot: one of them is alive.
                    merges.setdefault(value, []).append((step.first, step))
                else:
                    data.setdefault(value, []).append((step.first + place, step))
            for value in (*node.controls, *node.orders):
                controls.setdefault(value, []).append(step)
        for value, step in self.outputs:
            data.setdefault(value, []).append((step.first, step))
        every = {*data, *controls, *merges}
        return {v: Targets(tuple(data.get(v, ())), tuple(controls.get(v, ())), tuple(merges.get(v, ()))) for v in every}


__all__ = ["DevicePlan", "FramePlan", "make_plan"]
