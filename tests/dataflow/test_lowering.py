"""Lowering of structured graphs: the whitepaper's examples node for node, and a loop beside its gradient.

`pytest tests/dataflow/test_lowering.py --update-golden` writes `tests/golden/dataflow/*.txt` anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import BY_NAME

import ctrlgrad as cg
from ctrlgrad import dataflow
from ctrlgrad.dataflow import FlatGraph, FlatNode
from ctrlgrad.dataflow.graph import Enter, FlatPrinter, carry_switches, consumers, is_loop_merge, producers
from ctrlgrad.dataflow.scopes import frames_of
from ctrlgrad.ir import Value, attributes

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "dataflow"


def lowered(fn: Callable[..., Any], *arguments: Any, name: str) -> FlatGraph:
    return dataflow.lower(cg.function(fn, name=name).graph(*arguments))


def check(name: str, text: str, update: bool) -> None:
    path = GOLDEN / f"{name}.txt"
    if update:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def counts(graph: FlatGraph) -> Counter[str]:
    return Counter(node.op.name for node in graph.nodes)


def whitepaper_cond(x: Any, y: Any, z: Any) -> Any:
    """The whitepaper's first example: `tf.cond(x < y, lambda: tf.add(x, z), lambda: tf.square(y))`."""
    return cg.cond(x < y, lambda: x + z, lambda: np.square(y))


def whitepaper_while() -> Any:
    """The whitepaper's second example: `tf.while_loop(lambda i: i < 10, lambda i: tf.add(i, 1), [0])`."""
    return cg.while_loop(lambda i: i < 10, lambda i: i + 1, 0)


def test_the_whitepapers_cond(update_golden: bool) -> None:
    graph = lowered(whitepaper_cond, 1.0, 2.0, 3.0, name="whitepaper_cond")
    assert counts(graph) == {"less": 1, "Switch": 3, "add": 1, "square": 1, "Merge": 1}
    assert [(node.op.name, len(node.operands), len(node.results)) for node in graph.nodes] == [
        ("less", 2, 1),
        # Each value that a branch reads goes through a Switch on the predicate.
        *[("Switch", 2, 2)] * 3,
        ("square", 1, 1),
        ("add", 2, 1),
        ("Merge", 2, 1),
    ]
    title = "# tf.cond(x < y, lambda: tf.add(x, z), lambda: tf.square(y))"
    check("whitepaper_cond", f"{title}\n\n{graph}\n", update_golden)


def test_the_whitepapers_while(update_golden: bool) -> None:
    function = cg.function(whitepaper_while, name="whitepaper_while")
    function.graph()
    ((signature,),) = [known.variants for known in function._cache.values()]
    # The graph before simplification, which replaces a loop that only counts by its limit.
    graph = dataflow.lower(signature.graph)
    loop = {"Enter": 1, "Merge": 1, "LoopCond": 1, "Switch": 1, "NextIteration": 1, "Exit": 1}
    assert counts(graph) == loop | {"less": 1, "add": 1, "constant": 3}
    title = "# tf.while_loop(lambda i: i < 10, lambda i: tf.add(i, 1), [0])"
    check("whitepaper_while", f"{title}\n\n{graph}\n", update_golden)


def test_a_nested_loop_has_a_nested_frame(update_golden: bool) -> None:
    graph = dataflow.lower(BY_NAME["nested_data_dependent_counts"].graph())
    frames = frames_of(graph)
    assert frames.path("while_2") == ("while_1", "while_2")
    check("nested_loops", f"{graph}\n", update_golden)


def test_an_n_way_switch_is_one_switch() -> None:
    def choose(i: Any, x: Any) -> Any:
        return cg.switch(i, [lambda: x, lambda: x * x, lambda: np.sin(x), lambda: 1.0])

    graph = lowered(choose, 1, 2.0, name="choose")
    switches = [node for node in graph.nodes if node.op.name == "Switch"]
    assert [len(node.results) for node in switches] == [4]
    (merge,) = (node for node in graph.nodes if node.op.name == "Merge")
    assert len(merge.operands) == 4


def test_a_loop_has_one_of_each_per_carry_and_an_enter_per_capture() -> None:
    program = BY_NAME["lstm"]
    structured = program.graph()
    (loop,) = (node for node in structured.nodes if node.op.name == "while")
    graph = dataflow.lower(structured)
    captures, carry = attributes.Loop.of(loop).captures, len(loop.results)
    assert [n.op.name for n in graph.nodes if n.is_constant_enter] == ["Enter"] * captures
    assert counts(graph)["Enter"] == captures + carry
    for op in ("Merge", "Switch", "NextIteration", "Exit"):
        assert counts(graph)[op] == carry


def test_calls_are_gone() -> None:
    def f(x: Any) -> Any:
        return cg.checkpoint(lambda y: np.sin(y) * y)(x)

    builder_graph = cg.function(f, name="f").graph(2.0)
    assert "call" not in counts(dataflow.lower(builder_graph))


# A loop beside its gradient.


def power(x: Any) -> Any:
    return cg.while_loop(lambda carry: carry[0] < 5, lambda carry: (carry[0] + 1, carry[1] * x), (0, x))[1]


def carries(graph: FlatGraph, frame: str) -> dict[str, dict[str, FlatNode]]:
    """The five nodes of each carry of a loop, by the name of the value."""
    frames, made_by, taken_by = frames_of(graph), producers(graph), consumers(graph)
    (condition,) = (n for n in graph.nodes if n.op.name == "LoopCond" and frames.of_node[n] == frame)
    found = {}
    for head in graph.nodes:
        if is_loop_merge(head, made_by) and frames.of_node[head] == frame:
            (switch,) = carry_switches(head, condition, taken_by)
            (leave,) = (n for n in taken_by[switch.results[0]] if n.op.name == "Exit")
            enter, back = (made_by[v] for v in head.operands)
            found[str(head.result.hint)] = {n.op.name: n for n in (enter, head, switch, back, leave)}
    return found


FACING = (
    (("Exit",), ("Enter",)),
    (("Switch",), ("Merge", "NextIteration")),
    (("Merge",), ("Switch",)),
    (("Enter",), ("Exit",)),
)


@dataclass
class Beside:
    """Lines of a graph side by side, under titles, as its text has them but without types."""

    graph: FlatGraph
    rows: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        printer = FlatPrinter()
        for value in self.graph.inputs:
            printer.name(value)
        self.line = {node: printer.node(node)[0].split(" : ")[0] for node in self.graph.nodes}

    def title(self, text: str) -> None:
        self.rows += ["", f"# {text}"] if self.rows else [f"# {text}"]

    def row(self, left: list[FlatNode], right: list[FlatNode]) -> None:
        here, there = ("; ".join(self.line[node] for node in nodes) for nodes in (left, right))
        self.rows.append(f"{here:<58} | {there}".rstrip())

    def carry(self, forward: dict[str, FlatNode], backward: dict[str, FlatNode]) -> None:
        """A forward carry beside a backward one; the backward nodes are in reverse order."""
        for left, right in FACING:
            self.row([forward[op] for op in left], [backward[op] for op in right])

    def text(self) -> str:
        return "\n".join([*self.rows, "", f"{self.graph}", ""])


def test_a_loop_faces_its_gradient(update_golden: bool) -> None:
    graph = lowered(cg.grad(power), 1.5, name="grad_power")
    made_by = producers(graph)
    forward, backward = carries(graph, "while_1"), carries(graph, "while_2")
    (shared,) = (n for n in graph.nodes if n.is_constant_enter and Enter.of(n).frame == "while_1")
    beside = Beside(graph)
    beside.title("the product, and its cotangent")
    beside.carry(forward["c1"], backward["d_c1"])
    beside.title("what the body takes of each iteration: pushed forward, popped backward")
    beside.carry(forward["c1_stack"], backward["c1_stack"])
    beside.title("the counter, which counts down again")
    beside.carry(forward["c0"], backward["trips"])
    beside.title("the factor, which enters all iterations, and its cotangent, a sum over them that begins at 0")
    beside.row([shared], [backward["d_x"]["Exit"]])
    beside.row([], [backward["d_x"]["Enter"]])
    check("grad_power", beside.text(), update_golden)
    # The forward loop's stack enters the backward loop; the trip count is a constant.
    assert made_by[backward["c1_stack"]["Enter"].operands[0]] is forward["c1_stack"]["Exit"]
    assert attributes.Constant.of(made_by[backward["trips"]["Enter"].operands[0]]).value == 5
    start = made_by[backward["d_x"]["Enter"].operands[0]]
    assert start.op.name == "constant" and attributes.Constant.of(start).value == 0.0


def test_a_branch_faces_its_gradient(update_golden: bool) -> None:
    """A branch beside its gradient: a Merge faces its cotangent's Switch and a Switch its cotangent's Merge, on one
    predicate."""

    def f(x: Any, y: Any, z: Any) -> Any:
        return np.sin(whitepaper_cond(x, y, z))

    graph = lowered(cg.grad(f, argnums=(0, 1, 2)), 1.0, 2.0, 3.0, name="grad_cond")
    merge, *merges = (n for n in graph.nodes if n.op.name == "Merge")
    switches = {str(n.operands[1].hint): n for n in reversed(graph.nodes) if n.op.name == "Switch"}
    cotangents = {str(n.result.hint): n for n in merges}
    (seed,) = (n for n in graph.nodes if n.op.name == "Switch" and n.operands[1].hint is None)
    beside = Beside(graph)
    beside.title("the result, and its cotangent")
    beside.row([merge], [seed])
    beside.title("what the branches take, and its cotangents")
    for name in ("x", "y", "z"):
        beside.row([switches[name]], [cotangents[f"d_{name}"]])
    check("grad_cond", beside.text(), update_golden)
    predicates = {n.operands[0] for n in graph.nodes if n.op.name == "Switch"}
    assert len(predicates) == 1


def test_ungated_nodes_get_a_control() -> None:
    """A node without gated operands gets a control: a constant in a branch or a body is made only where that is
    reached."""

    def f(x: Any) -> Any:
        return cg.while_loop(lambda y: y < 9.0, lambda y: cg.cond(y > 2.0, lambda: 10.0, lambda: y + x), x)

    graph = lowered(f, 1.0, name="f")
    frames = frames_of(graph)
    inside = [n for n in graph.nodes if n.op.name == "constant" and frames.of_node[n]]
    assert len(inside) == 3 and all(len(n.controls) == 1 for n in inside)


def test_readers_come_before_what_overwrites_their_operand() -> None:
    def f(x: Any) -> Any:
        def body(carry: Any) -> Any:
            i, table, total = carry
            total = total + table.sum()
            return i + 1, table.at[i].set(0.5), total

        return cg.while_loop(lambda carry: carry[0] < 3, body, (0, x, 0.0))[1:]

    graph = lowered(f, np.arange(4.0), name="f")
    (update,) = (n for n in graph.nodes if n.op.name == "setitem")
    (reader,) = (n for n in graph.nodes if n.op.name == "sum")
    assert update.orders == (reader.result,)


def test_the_text_shows_controls_and_devices() -> None:
    b = dataflow.FlatBuilder("f")
    x = b.input(Value(cg.TensorSpec((), "float64").type).type, "x")
    one = b.constant(1.0, controls=[x], device="cpu:1")
    text = str(b.finish([b.op("add", [x, one])]))
    assert "v1 = constant 1. ^x : f64[] @cpu:1" in text


@pytest.mark.parametrize("name", ["lstm", "tensor_array_updated_two_ways"])
def test_the_text_is_the_same_every_time(name: str) -> None:
    program = BY_NAME[name]
    first, second = (str(dataflow.lower(program.traced_again(1))) for _ in range(2))
    assert first == second
