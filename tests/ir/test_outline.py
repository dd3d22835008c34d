"""Graphs drawn for people: the lines of an outline, the picture, and the page."""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as xml
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import PROGRAMS, Program

import ctrlgrad as cg
from ctrlgrad.ir import OPS, Graph, Node
from ctrlgrad.ir.control import is_call, is_loop
from ctrlgrad.ir.op import Use
from ctrlgrad.ir.page import format_page
from ctrlgrad.ir.svg import INFIX, PREFIX, Block, Line, columns, format_svg, outline

DOCS = Path(__file__).resolve().parents[2] / "docs"
SVG = "{http://www.w3.org/2000/svg}"


def root(a: Any) -> Any:
    def improve(x: Any) -> Any:
        return 0.5 * (x + a / x)

    return cg.while_loop(lambda x: abs(x * x - a) > 1e-12, improve, a)


def of_nested(x: Any) -> Any:
    def body(c: Any) -> Any:
        i, y = c
        y = cg.fori_loop(0, i, lambda j, z: z * np.sin(z), y)
        return i + 1, cg.cond(y > 2.0, lambda: 0.5 * y, lambda: y - 0.75 * y * y)

    return cg.while_loop(lambda c: c[0] < 5, body, (0, x))[1]


def graph_of(fn: Any) -> Graph:
    graph: Graph = cg.function(fn).graph(2.0)
    return graph


def texts(block: Block) -> list[str]:
    return [line.text for line in block.lines()]


def pairs(graph: Graph) -> int:
    """Number of pairs of a push and a pop of the same stack."""
    lines = list(outline(graph).lines())
    pops = Counter(line.stack for line in lines if line.role == "pop")
    return sum(pops[line.stack] for line in lines if line.role == "push")


def drawn_nodes(graph: Graph) -> Iterator[Node]:
    """All that an outline shows: of a call, the function and not the rules for its derivatives."""
    for node in graph.nodes:
        yield node
        for region in node.regions[:1] if is_call(node) else node.regions:
            yield from drawn_nodes(region)


def test_a_loop_is_read_as_a_few_formulas() -> None:
    (loop, result) = outline(graph_of(root)).parts
    assert isinstance(loop, Block) and isinstance(result, Line)
    assert texts(loop) == ["c = a", "as long as abs(c * c - a) > 1e-12", "c \N{LEFTWARDS ARROW} 0.5 * (c + a / c)"]
    assert result.text == "return c"


def test_pops_stand_beside_their_pushes() -> None:
    left, right = columns(outline(graph_of(cg.grad(root))))
    (forward,) = left
    backward = right[0]
    assert isinstance(forward, Block) and isinstance(backward, Block)
    assert (forward.order, backward.order) == (0, 1)
    assert [line.text for line in forward.lines() if line.role == "push"] == ["push c"]
    assert "c_1 = pop" in texts(backward)
    assert len(columns(outline(graph_of(cg.grad(cg.grad(root)))))) == 4


def test_signs_bind_as_in_python() -> None:
    def f(x: Any) -> Any:
        return (x - (x - 2.0)) / (x * -(x + 1.0)) ** 2.0

    assert {*INFIX, *PREFIX} <= set(OPS)
    (line,) = outline(graph_of(f)).parts
    assert isinstance(line, Line)
    text = line.text.removeprefix("return ")
    assert eval(text, {"x": 3.0, "square": np.square}) == f(3.0)


@pytest.mark.parametrize("program", PROGRAMS, ids=repr)
def test_every_graph_of_the_corpus_is_drawn(program: Program) -> None:
    """Whole: each push and each pop has a line, a picture is well-formed, and a text of its own stays within it."""
    graph = program.graph(1 if program.argnums else 0)
    nodes = list(drawn_nodes(graph))
    lines = list(outline(graph).lines())
    for use, role in ((Use.PUSH, "push"), (Use.POP, "pop")):
        assert sum(node.op.has_use(use) for node in nodes) == sum(line.role == role for line in lines)
    assert sum(map(is_loop, nodes)) == sum(line.role == "condition" for line in lines)
    picture = xml.fromstring(format_svg(graph))
    width, height = (float(picture.attrib[name]) for name in ("width", "height"))
    for box in picture.iter(f"{SVG}rect"):
        assert float(box.get("x", 0)) + float(box.attrib["width"]) <= width
        assert float(box.get("y", 0)) + float(box.attrib["height"]) <= height
    assert f"<h1>{graph.name}(" in format_page(graph)


def test_a_line_leads_from_each_push_to_its_pop() -> None:
    for fn, least in ((root, 1), (of_nested, 2)):
        graph = graph_of(cg.grad(fn))
        picture = xml.fromstring(format_svg(graph))
        assert len(list(picture.iter(f"{SVG}path"))) == pairs(graph) >= least


def test_a_large_graph_is_closed_inside() -> None:
    def long(x: Any) -> Any:
        def body(i: Any, x: Any) -> Any:
            return cg.fori_loop(0, i, lambda j, y: sum(np.sin(y * k) for k in range(500)), x)

        return cg.fori_loop(0, 3, body, x)

    text = format_svg(graph_of(long))
    assert "\N{BLACK RIGHT-POINTING SMALL TRIANGLE}" in text and text.count("<text") < 60


def test_the_picture_of_the_site_is_up_to_date(update_golden: bool) -> None:
    """Of the page on how loops are differentiated, and of the README."""
    path = DOCS / "pictures" / "root.svg"
    # As it stands on the page: lines and names of files are the page's.
    namespace: dict[str, Any] = {"cg": cg}
    exec(compile(ON_THE_PAGE, "root.py", "exec"), namespace)
    text = format_svg(graph_of(cg.grad(namespace["root"])))
    if update_golden:
        path.write_text(text)
    assert path.read_text() == text


ON_THE_PAGE = """def root(a):
    def improve(x):
        return 0.5 * (x + a / x)
    return cg.while_loop(lambda x: abs(x * x - a) > 1e-12, improve, a)
"""


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs a browser")
def test_a_browser_draws_the_lines_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    graph = graph_of(cg.grad(of_nested))
    page.write_text(format_page(graph))
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", page.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    threads = re.search(r'<svg id="threads".*?</svg>', shown, re.DOTALL)
    assert threads is not None and threads[0].count("<path") == pairs(graph)
