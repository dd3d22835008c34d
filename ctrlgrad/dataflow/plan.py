"""A device's flat graph, ready to run: per frame its steps, and what each of them waits for.

A plan is computed once and holds nothing of a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ctrlgrad.dataflow import graph as flat
from ctrlgrad.dataflow.devices import PieceOf
from ctrlgrad.dataflow.frames import NOWHERE, FramePlan, Step, Targets
from ctrlgrad.dataflow.graph import Enter, FlatNode, LoopCond, Recv, is_loop_merge, producers
from ctrlgrad.dataflow.partition import Part
from ctrlgrad.dataflow.scopes import ROOT
from ctrlgrad.dataflow.steps import (
    ClusterStep,
    EnterStep,
    ExitStep,
    LoopCondStep,
    LoopSwitchStep,
    MergeStep,
    NextIterationStep,
    OutputStep,
    RecvStep,
    SendStep,
    SwitchStep,
)
from ctrlgrad.dataflow.verifier import verify_flat
from ctrlgrad.ir import Op, Type, Value

_STEPS: Mapping[Op, type[Step]] = {
    flat.MERGE: MergeStep,
    flat.EXIT: ExitStep,
    flat.NEXT_ITERATION: NextIterationStep,
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

    def run(self) -> DevicePlan:
        self.open(ROOT, -1)
        for node in self.graph.nodes:
            if node.op is flat.ENTER and Enter.of(node).frame not in self.numbers:
                self.open(Enter.of(node).frame, self.numbers[self.frames_of.of_node[node]], node)
        for node in self.graph.nodes:
            frame = self.frames[self.numbers[self.frames_of.of_node[node]]]
            self.step_of[node] = step = self.step(node, frame, len(frame.steps), len(frame.slots))
            self.put(frame, step, self.pending(node))
            if node.op is flat.ENTER:
                self.frames[self.numbers[Enter.of(node).frame]].enters += 1
        root = self.frames[0]
        for place, value in zip(self.part.outputs, self.graph.outputs, strict=True):
            output = OutputStep(value, len(root.steps), len(root.slots), place)
            self.put(root, output, 1)
            self.step_of[output.node] = output
        targets = self.targets()
        for node, step in self.step_of.items():
            step.results = [targets.get(v, NOWHERE) for v in node.results]
            if isinstance(step, LoopSwitchStep):
                step.link()
        for frame in self.frames:
            frame.expected = len(frame.steps) + sum(f.parent == frame.number for f in self.frames)
        starters = [step for step in root.steps if not root.pending[step.index]]
        arrivals = {edge: frame for frame in self.frames for edge in (*frame.receives, *frame.reported)}
        inputs = [(v.type, targets.get(v, NOWHERE)) for v in self.graph.inputs]
        return DevicePlan(self.part.device, self.frames, inputs, starters, arrivals, self.part.outputs)

    def open(self, name: str, parent: int, enter: FlatNode | None = None) -> None:
        frame = FramePlan(name, len(self.frames), parent)
        self.numbers[name] = frame.number
        self.frames.append(frame)
        if enter is not None:
            frame.window = self.window or Enter.of(enter).parallel_iterations
            report = self.part.reports.get(name)
            frame.report = None if report is None else report.number
            frame.reported = tuple(edge.number for edge in self.part.reported.get(name, ()))

    def put(self, frame: FramePlan, step: Step, pending: int) -> None:
        frame.steps.append(step)
        frame.slots += [None] * (step.last - step.first)
        frame.pending.append(pending)

    def pending(self, node: FlatNode) -> int:
        """How many tokens a node waits for; of a loop's Merge only one operand comes in any iteration."""
        return 1 if is_loop_merge(node, self.producer_of) else len(node.inputs) + (node.op is flat.RECV)

    def step(self, node: FlatNode, frame: FramePlan, index: int, first: int) -> Step:
        if node.op is flat.CLUSTER:
            return ClusterStep(node, index, first, self.piece_of(node.regions[0]))
        if node.op is flat.SWITCH:
            producer = self.producer_of.get(node.operands[0])
            is_of_loop = producer is not None and producer.op is flat.LOOP_COND
            return (LoopSwitchStep if is_of_loop else SwitchStep)(node, index, first)
        if node.op is flat.ENTER:
            return EnterStep(node, index, first, self.numbers[Enter.of(node).frame])
        step = _STEPS[node.op](node, index, first)
        if node.op is flat.LOOP_COND:
            frame.loop = LoopCond.of(node).loop
        elif node.op is flat.RECV:
            frame.receives[Recv.of(node).edge] = step
        return step

    def targets(self) -> dict[Value, Targets]:
        """The consumers of each value."""
        data: dict[Value, list[tuple[int, Step]]] = {}
        controls: dict[Value, list[Step]] = {}
        merges: dict[Value, list[tuple[int, Step]]] = {}
        for node, step in self.step_of.items():
            for place, value in enumerate(node.operands):
                if node.op is flat.MERGE:
                    # All operands in one slot: one of them is alive.
                    merges.setdefault(value, []).append((step.first, step))
                else:
                    data.setdefault(value, []).append((step.first + place, step))
            for value in (*node.controls, *node.orders):
                controls.setdefault(value, []).append(step)
        every = {*data, *controls, *merges}
        return {v: Targets(tuple(data.get(v, ())), tuple(controls.get(v, ())), tuple(merges.get(v, ()))) for v in every}


__all__ = ["DevicePlan", "plan_part"]
