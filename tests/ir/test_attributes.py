"""Attributes of nodes: declared, built by name, checked by the verifier, and printed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
from ctrlgrad.errors import VerificationError
from ctrlgrad.ir import OPS, Builder, Graph, Node, TensorType, attributes, verify, walk
from ctrlgrad.ir.attributes import DYNAMIC

ROOT = Path(__file__).resolve().parents[2]
MATRIX = TensorType(np.dtype(np.float64), (2, 3))


def emitted(op: str, attrs: dict[str, Any]) -> Graph:
    """A graph of one op on a matrix."""
    builder = Builder()
    return builder.finish([builder.emit(op, [builder.input(MATRIX)], attrs)])


def changed(graph: Graph, **values: Any) -> Graph:
    """The graph with other attributes of its only node, unchecked."""
    (node,) = graph.nodes
    return replace(graph, nodes=(replace(node, attrs=replace(node.attrs, **values)),))


def test_an_attribute_that_the_op_does_not_declare_is_refused_where_the_node_is_made() -> None:
    with pytest.raises(VerificationError, match="unexpected keyword argument 'axis'") as caught:
        emitted("transpose", {"axis": (1, 0)})
    assert (caught.value.expected, caught.value.got) == ("axes", "axis")


def test_an_attribute_that_is_missing_is_refused_where_the_node_is_made() -> None:
    with pytest.raises(VerificationError, match=r"sum: .* missing .* 'keepdims'") as caught:
        emitted("sum", {"axes": (0,)})
    assert caught.value.expected == "axes, keepdims, all_rows"


@pytest.mark.parametrize(
    ("graph", "values", "expected"),
    [
        (lambda: emitted("transpose", {"axes": (1, 0)}), {"axes": [1, 0]}, "tuple[int, ...]"),
        (lambda: emitted("transpose", {"axes": (1, 0)}), {"axes": (True, False)}, "tuple[int, ...]"),
        (lambda: emitted("sum", {"axes": (0,), "keepdims": False}), {"keepdims": 1}, "bool"),
        (lambda: emitted("cast", {"dtype": np.dtype("int64")}), {"dtype": "int64"}, "np.dtype"),
        (lambda: emitted("getitem", {"key": (0, slice(None))}), {"key": (0.5, slice(None))}, "Key"),
        (lambda: emitted("argsort", {"axis": 0, "descending": False}), {"axis": None}, "int"),
    ],
)
def test_the_verifier_refuses_a_value_of_another_kind(
    graph: Callable[[], Graph], values: dict[str, Any], expected: str
) -> None:
    good = verify(graph())
    (name,) = values
    with pytest.raises(VerificationError, match=f"the attribute '{name}'") as caught:
        verify(changed(good, **values))
    assert (caught.value.expected, caught.value.got) == (expected, repr(values[name]))


def test_the_verifier_refuses_attributes_of_another_family() -> None:
    (node,) = emitted("transpose", {"axes": (1, 0)}).nodes
    alike = attributes.Reduction(axes=(1, 0), keepdims=False)
    graph = Graph((node.operands[0],), (replace(node, attrs=alike),), node.results)
    with pytest.raises(VerificationError, match="attributes of another family") as caught:
        verify(graph)
    assert (caught.value.expected, caught.value.got) == ("Axes", "Reduction")


def test_reading_the_attributes_of_another_family_fails_at_once() -> None:
    (node,) = emitted("transpose", {"axes": (1, 0)}).nodes
    assert attributes.Axes.of(node).axes == (1, 0)
    assert attributes.Axis.find(node) is None
    with pytest.raises(AssertionError, match="has Axes, no Axis"):
        attributes.Axis.of(node)


def test_notes_between_stages_are_fields_that_text_keeps_quiet_about() -> None:
    graph = cg.function(cg.grad(lambda x: cg.fori_loop(0, 3, lambda i, y: y * x, x))).graph(2.0)
    loops = [found for node in walk(graph) if (found := attributes.Loop.find(node)) is not None]
    stacks = [found for node in walk(graph) if (found := attributes.NewStack.find(node)) is not None]
    assert [loop.counts_down for loop in loops] == [False, True]
    assert all(stack.paired for stack in stacks) and stacks
    assert not re.search("counts_down|paired|captures=", str(graph))


def test_every_family_belongs_to_an_op() -> None:
    families = {x for x in vars(attributes).values() if isinstance(x, type) and issubclass(x, attributes.Attributes)}
    assert families == {op.family for op in OPS.values()}


def test_text_shows_what_was_asked_for() -> None:
    graph = cg.function(lambda x: cg.while_loop(lambda c: c < 9, lambda c: c + x, x, maximum_iterations=7)).graph(2.0)
    assert "[maximum_iterations=7]" in str(graph) and "parallel_iterations" not in str(graph)
    assert "axes=(0,), keepdims=True" in str(emitted("sum", {"axes": (0,), "keepdims": True}))
    assert str(emitted("sum", {"axes": (0,), "keepdims": False})).count("keepdims") == 0


def test_a_family_says_its_fields_once() -> None:
    node = Node(OPS["getitem"], (), (), attributes.Index(key=(DYNAMIC,)))
    assert node.attrs.given() == {"key": (DYNAMIC,)}
    assert [f.name for f in fields(attributes.Reduction)] == ["axes", "keepdims", "all_rows"]


BY_NAME = re.compile(r"""attrs(\.get\(|\[)|["']\w+["'] (not )?in (\w+\.)*attrs\b""")


def test_nobody_reads_attributes_by_name() -> None:
    found = [
        f"{path.relative_to(ROOT).as_posix()}: {line.strip()}"
        for folder in ("ctrlgrad", "gradients", "stacks", "memory")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if BY_NAME.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    "line", ['node.attrs["axis"]', "node.attrs.get('chunk')", 'if "fn" in node.attrs:', '"x" not in attrs']
)
def test_reading_by_name_is_seen(line: str) -> None:
    assert BY_NAME.search(line)
