"""Flat graphs as text, one node a line, the same on every run.

    flat count(n: i64[]) {
      zero = constant 0 : i64[]
      i = Enter zero [loop] : i64[]
      i_1 = Merge i, i_2 : i64[]
      ...
    }

`^v` is a control: the node waits for v, and is dead where v is. `>v` is an order. A device stands at the end, as
`@cpu:1`.
"""

from __future__ import annotations

from collections.abc import Iterable

from ctrlgrad.dataflow import graph as flat
from ctrlgrad.dataflow.graph import FlatGraph, FlatNode
from ctrlgrad.ir import Node, Value, attributes
from ctrlgrad.ir.op import OPS
from ctrlgrad.ir.printer import Printer, format_attrs


def format_flat(graph: FlatGraph) -> str:
    """The text of a flat graph."""
    names = Names()
    inputs = ", ".join(f"{names(v)}: {v.type}" for v in graph.inputs)
    lines = [f"flat {graph.name}({inputs}) {{"]
    lines += [f"  {line}" for node in graph.nodes for line in format_flat_node(node, names)]
    lines += [f"  return {names.join(graph.outputs)}".rstrip(), "}"]
    return "\n".join(lines)


class Names:
    """One name per value, from its hint."""

    def __init__(self) -> None:
        self._printer = Printer(sources=False)

    def __call__(self, value: Value) -> str:
        return self._printer.name(value)

    def join(self, values: Iterable[Value]) -> str:
        return ", ".join(map(self, values))

    def call(self, value: Value, name: str) -> None:
        """From now on a value is shown by this name."""
        self._printer.names[value] = name

    def lines(self, node: Node) -> list[str]:
        """The text of a structured node."""
        return self._printer.node(node)

    def indexed(self, node: Node) -> str:
        """What is read or written by a node with an index, as `x[t, 2:5]`."""
        return self._printer.indexed(node)


def format_flat_node(node: FlatNode, names: Names) -> list[str]:
    """The line of a node; a cluster has one more for each op in it."""
    results = names.join(node.results)
    waits = [f"^{names(v)}" for v in node.controls] + [f">{names(v)}" for v in node.orders]
    what = (
        [names.indexed(_structured(node))]
        if isinstance(node.attrs, attributes.Index)
        else [names.join(node.operands), label_of(node)]
    )
    text = " ".join([f"{results} =" if results else "", node.op, *filter(None, what), *waits]).strip()
    types = ", ".join(str(v.type) for v in node.results)
    place = f" @{node.device}" if node.device else ""
    line = text + (f" : {types}" if types else "") + place
    if node.op != flat.CLUSTER:
        return [line]
    return [f"{line} {{", *(f"  {inner}" for inner in _inside(node, names)), "}"]


def _inside(node: FlatNode, names: Names) -> list[str]:
    (region,) = node.regions
    for inner, outer in zip(region.inputs, node.operands, strict=True):
        names.call(inner, names(outer))
    lines = [line for inner in region.nodes for line in names.lines(inner)]
    return [*lines, f"yield {names.join(region.outputs)}".rstrip()]


def _structured(node: FlatNode) -> Node:
    return Node(OPS[node.op], node.operands, node.results, node.attrs, node.regions)


def label_of(node: FlatNode) -> str:
    """What is said of a node beside its operands."""
    if node.op == flat.ENTER:
        window = node.attrs["parallel_iterations"]
        words = [node.attrs["frame"], "constant" if node.attrs["constant"] else ""]
        words.append(f"window {window}" if window != flat.PARALLEL_ITERATIONS else "")
        return f"[{', '.join(filter(None, words))}]"
    if node.op == flat.LOOP_COND:
        maximum = node.attrs.get("maximum_iterations")
        return f"[at most {maximum}]" if maximum is not None else ""
    if node.op == flat.SEND:
        return f"[edge {node.attrs['edge']} to {node.attrs['to']}]"
    if node.op == flat.RECV:
        return f"[edge {node.attrs['edge']} from {node.attrs['from']}]"
    if node.is_primitive or node.op not in OPS:
        return ""
    shown = format_attrs(_structured(node))
    return shown if node.op == "constant" or not shown else f"[{shown}]"


__all__ = ["Names", "format_flat", "format_flat_node", "label_of"]
