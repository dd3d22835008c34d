"""The rules that every graph keeps. The verifier is their definition; a stage's result passes it.

1. Single assignment: a value is defined once in its graph, before its uses.
2. A region is closed: it uses only its own values; its inputs and outputs have the types that the node's
   operands and results declare.
3. Attributes: those that the node's op declares, each of the kind that is declared.
4. Types: a node's result types are what its op's rule gives for its operands.
5. Pairing: a stack made by the gradient transform (`paired`) is taken at most once at a time, and its pops
   mirror its pushes through every loop and branch, so it is empty in the end. Passes keep that.
"""

from __future__ import annotations

from itertools import takewhile

from ctrlgrad.errors import CtrlgradError, VerificationError
from ctrlgrad.ir.attributes import NewStack
from ctrlgrad.ir.flow import OUTERMOST, StackFlow, mirrored
from ctrlgrad.ir.graph import Graph, Node, Value
from ctrlgrad.ir.types import Type


def verify(graph: Graph, stage: str = "graph") -> Graph:
    """Return the graph, or raise a `VerificationError` that names the stage, the rule and the node."""
    _Verifier(stage).graph(graph)
    return graph


class _Verifier:
    def __init__(self, stage: str) -> None:
        self.stage = stage

    def fail(self, problem: str, node: Node | None, **details: str) -> VerificationError:
        return VerificationError(
            f"{self.stage}: {problem}" + (f" (node {node.op.name})" if node else ""),
            source=node.source if node else None,
            **details,
        )

    def graph(self, graph: Graph) -> None:
        defined: set[Value] = set()
        self.define(graph.inputs, defined, None)
        for node in graph.nodes:
            self.used(node.operands, defined, node)
            self.node(node)
            self.define(node.results, defined, node)
        self.used(graph.outputs, defined, None)
        self.paired_stacks(graph)

    def define(self, values: tuple[Value, ...], defined: set[Value], node: Node | None) -> None:
        for value in values:
            if value in defined:
                raise self.fail(f"value {value!r} is defined twice", node)
            defined.add(value)

    def used(self, values: tuple[Value, ...], defined: set[Value], node: Node | None) -> None:
        for position, value in enumerate(values):
            if value not in defined:
                raise self.fail(
                    f"operand {position} ({value!r}) is used where it is not defined",
                    node,
                    hint="a region sees only its own inputs: pass outer values as captures",
                )

    def node(self, node: Node) -> None:
        if node.op.arity is not None and len(node.operands) != node.op.arity:
            raise self.fail("wrong number of operands", node, expected=str(node.op.arity), got=str(len(node.operands)))
        self.attributes(node)
        for region in node.regions:
            self.graph(region)
        try:
            types = tuple(node.op.infer([v.type for v in node.operands], node.attrs, [r.type for r in node.regions]))
        except CtrlgradError as error:
            raise self.fail(f"operands break the type rule: {error.problem}", node) from error
        declared = tuple(v.type for v in node.results)
        if types != declared:
            raise self.fail("result types", node, expected=_list(types), got=_list(declared))

    def attributes(self, node: Node) -> None:
        if type(node.attrs) is not node.op.family:
            expected, got = node.op.family.__name__, type(node.attrs).__name__
            raise self.fail("attributes of another family", node, expected=expected, got=got)
        wrong = node.attrs.complaint()
        if wrong is not None:
            name, expected, got = wrong
            raise self.fail(f"the attribute {name!r}", node, expected=expected, got=got)

    def paired_stacks(self, graph: Graph) -> None:
        begun = [node for node in graph.nodes if (stack := NewStack.find(node)) is not None and stack.paired]
        flow = StackFlow(graph) if begun else StackFlow()
        for node in begun:
            obstacle = flow.obstacle(graph, node.result)
            if obstacle is not None:
                raise self.fail(f"the paired stack {node.result.hint!r} cannot be mirrored: {obstacle}", node)
            versions = flow.versions(node.result)
            if not versions.isdisjoint((OUTERMOST, v) for v in graph.outputs):
                continue  # a half of a derivative: its other half pops
            events = flow.events(graph, versions)
            pushes = tuple(takewhile(lambda event: event.kinds() == {"push"}, events))
            expected = (*pushes, *mirrored(pushes))
            if events != expected:
                raise self.fail(
                    f"the pops of the paired stack {node.result.hint!r} do not mirror its pushes",
                    node,
                    expected=", ".join(map(str, expected)) or "a push before the first pop",
                    got=", ".join(map(str, events)),
                )


def _list(types: tuple[Type, ...]) -> str:
    return ", ".join(str(t) for t in types)
