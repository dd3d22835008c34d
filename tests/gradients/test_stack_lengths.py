"""A stack's length, where the graph gives it: the cotangent of such a stack then needs no query and no saved length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from programs import PROGRAMS

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.reference import run_graph
from ctrlgrad.ir import Builder, Graph, StackType, TensorType, Value, close, definitions, verify, walk
from ctrlgrad.ir.control import emit_branch, emit_loop
from ctrlgrad.stacks import regions, sizes
from ctrlgrad.stacks.sizes import known_length

NUMBER = TensorType(np.dtype(np.float64), ())
X = np.linspace(-0.5, 1.0, 9).reshape(3, 3)


def push(b: Builder, s: Value) -> Value:
    return b.emit("stack_push", [s, b.constant(1.0)])


def pop(b: Builder, s: Value) -> Value:
    return b.emit_all("stack_pop", [s])[0]


def new(b: Builder, *rows: Value) -> Value:
    return b.emit("stack_new", rows, {"element": NUMBER})


def repeated(b: Builder, s: Value, trips: Value, body: Callable[[Builder, Value], Value]) -> Value:
    """A loop that counts to a number, and carries a stack."""
    inits, regions = [b.constant(0), s], []
    for name in ("cond", "body"):
        inner = Builder(b, name)
        i, stack = (inner.input(v.type) for v in inits)
        if name == "cond":
            regions.append(inner.finish([inner.emit("less", [i, trips])]))
        else:
            regions.append(inner.finish([inner.emit("add", [i, inner.constant(1)]), body(inner, stack)]))
    return emit_loop(b, close(regions), inits)[1]


def either(b: Builder, *sides: Callable[[Builder], Value]) -> Value:
    regions = []
    for side in sides:
        inner = Builder(b, "side")
        regions.append(inner.finish([side(inner)]))
    return emit_branch(b, b.constant(np.True_), close(regions))[0]


def with_lengths(build: Callable[[Builder, Value, Value], Sequence[Value]]) -> tuple[list[int | None], list[int]]:
    """Of the stacks that are built, of a row count that only the run knows and an array: what is known, and what is."""
    b = Builder()
    n, x = b.input(TensorType(np.dtype(np.int64), ()), "n"), b.input(TensorType(np.dtype(np.float64), (4,)), "x")
    stacks = build(b, n, x)
    graph = b.finish([b.emit("stack_length", [s]) for s in stacks])
    verify(graph)
    found = [known_length(s, definitions(graph)) for s in stacks]
    return found, list(map(int, run_graph(graph, [np.int64(3), X[0, :1].repeat(4)])))


def test_lengths() -> None:
    def build(b: Builder, n: Value, x: Value) -> list[Value]:
        three, rows = b.constant(3), b.emit("stack_from_tensor", [x])
        written = lambda grow: b.emit("stack_write", [rows, three, b.constant(1.0)], {"grow": grow})
        twice = lambda inner, s: repeated(inner, push(inner, s), three, push)
        return [
            *(new(b), new(b, three), new(b, n)),
            *(push(b, new(b)), pop(b, rows), b.emit("stack_clear", [pop(b, rows), b.constant(0)])),
            *(written(False), written(True), b.emit("stack_resize", [rows, three])),
            *(repeated(b, new(b), three, push), repeated(b, new(b), n, push)),
            repeated(b, rows, n, lambda inner, s: pop(inner, push(inner, s))),
            repeated(b, rows, three, pop),
            *(repeated(b, rows, three, twice), repeated(b, push(b, rows), b.constant(2), twice)),
            repeated(b, rows, three, lambda inner, s: rows),
            either(b, lambda inner: push(inner, pop(inner, rows)), lambda inner: rows),
            either(b, lambda inner: push(inner, rows), lambda inner: rows),
            either(b, lambda inner: new(inner), lambda inner: repeated(inner, rows, inner.constant(4), pop)),
        ]

    known, lengths = with_lengths(build)
    expected = [0, 3, None, 1, 3, 3, 4, None, None, 3, None, 4, 1, 16, 13, None, 4, None, 0]
    assert known == expected
    assert all(a is None or a == b for a, b in zip(known, lengths, strict=True))


def test_lengths_in_the_corpus() -> None:
    """Lengths that a graph states for the stacks of gradients are right."""
    asked = 0
    for program in PROGRAMS:
        graph = program.graph(2)
        producers = definitions(graph)
        stacks = [v for node in graph.nodes for v in node.results if isinstance(v.type, StackType)]
        known = {v: n for v in stacks if (n := known_length(v, producers)) is not None}
        asked += len(known)
        probed = Graph(graph.inputs, (*graph.nodes, *(nodes := _asking(list(known)))), tuple(n.result for n in nodes))
        assert list(map(int, run_graph(probed, program.leaves))) == list(known.values())
    assert asked > 100


def _asking(stacks: Sequence[Value]) -> tuple[Any, ...]:
    b = Builder()
    for s in stacks:
        b.emit("stack_length", [s])
    return tuple(b.nodes)


def collected(x: Any) -> Any:
    """A scan that collects, in a loop: in the second derivative of it there are cotangents of stacks."""

    def row(h: Any, row: Any) -> Any:
        h = cnp.tanh(h * row + x[0])
        return h, h * 0.9

    def step(i: Any, y: Any) -> Any:
        return y * 0.5 + cnp.sin(cg.scan(row, y[0], y + 0.1 * i)[1]) * 0.3

    return cnp.sum(cg.fori_loop(0, 5, step, x) ** 2)


def ops(graph: Graph) -> set[str]:
    return {node.op.name for node in walk(graph)}


def test_nothing_is_asked_for_cotangents_of_stacks() -> None:
    second = cg.grad(lambda x: cnp.sum(cnp.sin(cg.grad(collected)(x))))
    tangents = lambda x: cg.jvp(cg.grad(collected), (x,), (cnp.cos(x),))[1]
    for fn in (second, tangents):
        assert "stack_length" not in ops(cg.function(fn).graph(X))


def test_gradients() -> None:
    cg.check_grads(collected, (X,), order=2)


def test_rows_that_only_the_run_counts_are_asked_for() -> None:
    second = cg.grad(lambda x: cnp.sum(cnp.sin(cg.grad(collected)(x))))
    graph = cg.function(second, signature=(cg.TensorSpec((None, 3), "float64"),)).graph(X)
    assert "stack_length" in ops(graph)


# Of arrays that an iteration is given, it reads another version than it carries on.


def written_and_read(x: Any, rows: Any, i: Any) -> Any:
    return x * 0.5 + rows.write(0, cnp.sin(x)).read(i)


def captured(x: Any) -> Any:
    rows = cg.TensorArray("float64", size=3, element_shape=(), rewritable=True).write(1, x)
    return cg.fori_loop(0, 4, lambda i, y: written_and_read(y, rows, i % 2), x)


def carried(x: Any) -> Any:
    def step(i: Any, c: Any) -> Any:
        inner = lambda j, y: written_and_read(y, c[1], j)
        return cg.fori_loop(0, 2, inner, c[0]), c[1].write(i % 3, c[0] * 0.7)

    rows = cg.TensorArray("float64", size=3, element_shape=(), rewritable=True).write(1, x)
    y, rows = cg.fori_loop(0, 4, step, (x, rows))
    return y + cnp.sum(rows.stack())


def longer(x: Any) -> Any:
    step = lambda i, c: (written_and_read(c[0], c[1], i + 1), c[1].push(c[0] * 0.7))
    rows = cg.TensorArray("float64", element_shape=(), rewritable=True).push(x).push(x * 2.0)
    y, rows = cg.fori_loop(0, 4, step, (x, rows))
    return y + cnp.sum(rows.stack())


@pytest.mark.parametrize(("fn", "is_asked"), [(captured, False), (carried, False), (longer, True)])
def test_of_stacks_that_an_iteration_is_given(fn: Callable[[Any], Any], is_asked: bool) -> None:
    """The length of one that grows from iteration to iteration is that of each."""
    assert ("stack_length" in ops(cg.function(cg.grad(fn)).graph(0.4))) == is_asked
    cg.check_grads(fn, (np.float64(0.4),), order=2)


def a_carry_is_as_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "is_as_long", lambda *given: True)


def rows_that_are_added_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes.Length, "plus", lambda self, rows: self)


@pytest.mark.parametrize("mistake", [a_carry_is_as_at_first, rows_that_are_added_are_forgotten])
def test_mistakes_are_found(mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    with pytest.raises((AssertionError, cg.CtrlgradError)):
        for fn in (captured, carried, longer):
            cg.check_grads(lambda x, fn=fn: fn(x), (np.float64(0.4),), order=1)


@pytest.mark.parametrize("depth", [2, 60])
def test_origins_of_sizes_are_found_along_as_many_paths_as_there_are(depth: int) -> None:
    """Each sum of a value and what is computed of it doubles the paths: 2**60 are too many to follow one by one."""

    def loss(x: Any) -> Any:
        for _ in range(depth):
            x = x + 0.01 * cnp.sin(x) * x.mean(0)
        return (x * x).sum()

    compiled = cg.function(cg.grad(loss), signature=[cg.TensorSpec((None, 3))])
    np.testing.assert_allclose(compiled(X), cg.grad(loss)(X), rtol=1e-12)
