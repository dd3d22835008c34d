"""Loops, branches and calls as parts with names: taken apart, rebuilt, and known by position nowhere else."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
from ctrlgrad.execution import run_on
from ctrlgrad.ir import Branch, Builder, Call, Graph, Loop, Node, TensorType, Value, close, rewrite, verify, view, walk
from ctrlgrad.ir.control import Capture, Carry, emit_call
from ctrlgrad.passes import remove_dead_code

ROOT = Path(__file__).resolve().parents[2]


def powers(x: Any, n: Any) -> Any:
    """x to the n-th power, and the sum of those before it."""
    return cg.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * x, c[2] + c[1]), (0, 1.0, 0.0))[1:]


def chosen(x: Any, y: Any) -> Any:
    return cg.cond(x > y, lambda: x * y, lambda: x - y)


PROGRAMS = {"loop": (powers, (1.5, 4)), "branch": (chosen, (3.0, 2.0)), "call": (None, (0.5, 2.0))}


def scaled() -> Graph:
    """A checkpoint of sin(x) times a value that it captures."""
    inner, outer = Builder(), Builder()
    x, scale = (outer.input(TensorType(np.dtype(np.float64), ()), hint) for hint in ("x", "scale"))
    inner_x = inner.input(x.type, "x")
    region = inner.finish([inner.emit("multiply", [inner.emit("sin", [inner_x]), scale])])
    return outer.finish(emit_call(outer, "checkpoint", close([region]), [x]))


def traced(name: str) -> tuple[Graph, list[Any]]:
    function, args = PROGRAMS[name]
    leaves = [np.asarray(x) for x in args]
    return scaled() if function is None else cg.function(function).graph(*leaves), leaves


def only(graph: Graph) -> Any:
    (found,) = [parts for node in graph.nodes if (parts := view(node)) is not None]
    return found


def with_node(graph: Graph, parts: Loop | Branch | Call) -> Graph:
    """The graph with other parts of its only node that has regions."""
    (old,) = [node for node in graph.nodes if node.regions]
    nodes = tuple(parts.node if node is old else node for node in graph.nodes)
    return verify(Graph(graph.inputs, nodes, graph.outputs, graph.name))


def same_values(graph: Graph, other: Graph, leaves: list[Any]) -> None:
    for a, b in zip(run_on("reference", graph, leaves), run_on("reference", other, leaves), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_view_gives_back_its_node(name: str) -> None:
    graph, leaves = traced(name)
    (node,) = [n for n in graph.nodes if n.regions]
    again = only(graph).node
    assert (again.op, again.operands, again.results, again.source) == (
        node.op,
        node.operands,
        node.results,
        node.source,
    )
    assert again.regions == node.regions
    assert again.attrs == node.attrs
    same_values(graph, with_node(graph, only(graph)), leaves)


def test_nodes_without_regions_have_no_view() -> None:
    assert {type(view(n)) for n in walk(traced("loop")[0])} == {Loop, type(None)}


def test_parts_of_a_loop() -> None:
    loop = only(traced("loop")[0])
    assert len(loop.captures) == 2
    assert [c.in_cond for c in loop.carries] == list(loop.split(loop.cond.inputs)[1])
    assert [c.in_body for c in loop.carries] == list(loop.split(loop.body.inputs)[1])
    assert [c.next for c in loop.carries] == list(loop.body.outputs)
    assert [c.init for c in loop.carries] == list(loop.split(loop.node.operands)[1])
    assert loop.shared + loop.carried == list(loop.body.inputs)


def test_carries_in_another_order() -> None:
    graph, leaves = traced("loop")
    loop = only(graph)
    turned = loop.rebuilt(carries=reversed(loop.carries), captures=reversed(loop.captures))
    assert turned.results == tuple(reversed(loop.results))
    same_values(graph, with_node(graph, turned), leaves)


def test_a_carry_is_dropped_and_one_is_added() -> None:
    graph, leaves = traced("loop")
    loop = only(graph)
    count, power, _ = loop.carries
    without = remove_dead_code(Graph(graph.inputs, graph.nodes, (power.result,), graph.name))
    assert [c.in_body for c in only(without).carries] == [count.in_body, power.in_body]

    double = Value(power.in_body.type, "double")
    builder = Builder()
    following = builder.emit("add", [double, power.next])
    added = Carry.new(power.init, double, following)
    longer = loop.rebuilt(carries=[*loop.carries, added], body=[*loop.body.nodes, *builder.nodes])
    whole = with_node(graph, longer)
    _, found, more = run_on("reference", Graph(whole.inputs, whole.nodes, (*whole.outputs, added.result)), leaves)
    assert found == 1 + 1.5 + 1.5**2 + 1.5**3
    assert more == 1 + 1.5 + 1.5**2 + 1.5**3 + 1.5**4


def test_a_capture_is_added_and_used() -> None:
    graph, leaves = traced("loop")
    loop = only(graph)
    outer = loop.captures[-1].outer
    inside = Value(outer.type, "again")
    swapped = {loop.captures[-1].in_body: inside}
    body = [replace(n, operands=tuple(swapped.get(v, v) for v in n.operands)) for n in loop.body.nodes]
    more = loop.rebuilt(captures=[*loop.captures, Capture.new(outer, inside)], body=body)
    assert Loop.of(more.node).attrs.captures == 3
    same_values(graph, with_node(graph, more), leaves)


def test_a_branch_and_a_call_with_other_parts() -> None:
    graph, leaves = traced("branch")
    branch = only(graph)
    turned = replace(branch, branches=tuple(reversed(branch.branches)))
    assert run_on("reference", with_node(graph, turned), leaves)[0] == 1.0
    graph, leaves = traced("call")
    call = only(graph)
    x, scale = graph.inputs
    assert (call.kind, call.captures, call.arguments, call.rule) == ("checkpoint", (scale,), (x,), None)
    with_one = with_node(graph, replace(call, captures=(x,), arguments=(scale,)))
    assert run_on("reference", with_one, leaves)[0] == np.sin(2.0) * 0.5


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_rewriting_that_changes_nothing_gives_the_same_graph(name: str) -> None:
    graph, _ = traced(name)
    assert rewrite(graph, lambda node, builder: None) is graph


def test_a_rewriting_leaves_what_it_does_not_change() -> None:
    """A change inside one branch makes that branch, its node and the graph anew, and nothing else."""

    def program(x: Any) -> Any:
        y = cg.cond(x > 0, lambda: x * 3.0, lambda: x - 2.0)
        return y + cg.cond(x > 1, lambda: x * x, lambda: x - 1.0)

    graph = cg.function(program).graph(np.float64(1.5))

    def triple(node: Node, builder: Builder) -> Any:
        """x * x * x for x * x."""
        if node.op.name != "multiply" or node.operands[0] is not node.operands[1]:
            return None
        return builder.emit_all("multiply", [node.operands[0], builder.emit("multiply", node.operands)])

    after = verify(rewrite(graph, triple))
    first, second = ([Branch.of(n) for n in g.nodes if n.regions] for g in (graph, after))
    assert after is not graph
    assert second[0].branches == first[0].branches
    assert second[1].branches[0] is first[1].branches[0]
    assert second[1].branches[1] is not first[1].branches[1]
    changed = [b.nodes[-1] for b in (second[1].branches[1],)]
    assert {n.source for n in changed} == {n.source for n in first[1].branches[1].nodes if n.op.name == "multiply"}
    assert run_on("reference", after, [np.float64(1.5)])[0] == 1.5 * 3.0 + 1.5**3


def test_equal_constants_become_one() -> None:
    builder = Builder()
    nodes = [builder.emit("constant", (), {"value": np.float64(2.0).reshape(())}) for _ in range(2)]
    graph = builder.finish([builder.emit("add", nodes)])
    after = verify(rewrite(graph, lambda node, builder: None))
    assert [n.op.name for n in after.nodes] == ["constant", "add"]


# Positions of region ops are known in one place.

# The views, and the attributes that count captures. (An expression's "call" is of an elementary function.)
KNOWING = {"ctrlgrad/ir/control.py", "ctrlgrad/ir/attributes.py", "ctrlgrad/plan/expression.py"}
_NAMES = r"""["'](while|cond|call)["']"""
SIGNS = {
    "counts captures by hand": re.compile(r"(attrs|\.of\([\w.]+\))\.captures"),
    "slices by captures": re.compile(r"\[(?=[^\[\]\n]*:)[^\[\]\n]*\bcaptures\b[^\[\]\n]*\]"),
    "compares the name of a region op": re.compile(
        rf"(op\.name|\bname)\s*(==|!=)\s*{_NAMES}|\bname\s+(not\s+)?in\s*[\[({{][^\])}}]*{_NAMES}|{_NAMES}\s*(==|!=)"
    ),
    "emits a region op by hand": re.compile(rf"emit(_all)?\(\s*{_NAMES}|OPS\[{_NAMES}\]"),
}


def signs(text: str) -> list[str]:
    return [what for what, pattern in SIGNS.items() if pattern.search(text)]


def test_nobody_else_knows_where_the_parts_of_region_ops_are() -> None:
    found = []
    for folder in ("ctrlgrad", "gradients", "stacks", "memory"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if name not in KNOWING:
                found += [f"{name}: {what}" for what in signs(path.read_text(encoding="utf-8"))]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "captures = attributes.Loop.of(node).captures",
        "attrs.captures > 0",
        "operands[captures:]",
        "operands[: len(parts.captures)]",
        'if node.op.name == "while":',
        'if node.op.name in ("while", "cond"):',
        'elif name != "cond":',
        'builder.emit_all("while", operands)',
        'Node(OPS["call"], operands, results)',
    ],
)
def test_the_signs_are_seen(line: str) -> None:
    assert len(signs(line)) == 1
