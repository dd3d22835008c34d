"""Carries that a loop updates in part: the backward loop restores them, bit by bit, and what is saved is the parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from instruments.tables import in_turn

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import lax, memory
from ctrlgrad.engines.reference import Counters, Run, run_graph
from ctrlgrad.errors import IndexOutOfRangeError
from ctrlgrad.execution import run_on
from ctrlgrad.ir import Graph, attributes, walk
from ctrlgrad.stacks.restoring import Restoring

LENGTH, WIDTH = 6, 4
GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "restored_cache.txt"


@dataclass(frozen=True)
class Library:
    """The library in which the programs are written."""

    np: Any
    lax: Any
    softmax: Callable[..., Any]
    at: Callable[[Any], Any]
    vmap: Callable[..., Any]


OURS = Library(cnp, lax, cg.nn.softmax, lambda x: cnp.at(x), cg.vmap)
JAXS = Library(jnp, jax.lax, jax.nn.softmax, lambda x: x.at, jax.vmap)
Body = Callable[[Library, Any, Any, Any, Any], tuple[Any, Any]]
BODIES: dict[str, Body] = {}


def body(fn: Body) -> Body:
    """`(library, w, t, cache, h) -> (cache, h)`, an iteration."""
    BODIES[fn.__name__] = fn
    return fn


def attend(lib: Library, cache: Any, h: Any, t: Any) -> Any:
    scores = lib.np.where(lib.np.arange(LENGTH) <= t, cache @ h, -1e9)
    return 0.5 * h + lib.softmax(scores) @ cache


@body
def a_row_is_set(lib, w, t, cache, h):
    cache = lib.at(cache)[t].set(lib.np.tanh(h @ w))
    return cache, attend(lib, cache, h, t)


@body
def several_updates_and_all_read_in_between(lib, w, t, cache, h):
    h = h + 0.1 * cache.sum(0)
    cache = lib.at(cache)[t].set(lib.np.tanh(h @ w))
    h = attend(lib, cache, h, t)
    cache = lib.at(cache)[2 * t % LENGTH].add(0.3 * h)
    h = h + 0.1 * lib.np.sin(cache).sum(0)
    cache = lib.at(cache)[-1].multiply(0.5)
    return cache, attend(lib, cache, h, t)


@body
def an_element_is_set(lib, w, t, cache, h):
    cache = lib.at(cache)[t, (t + 1) % WIDTH].set((h @ w)[0])
    return cache, attend(lib, cache, h, t)


@body
def a_column_at_a_negative_index_is_set(lib, w, t, cache, h):
    cache = lib.at(cache)[:, -1 - t % WIDTH].set(lib.np.sin((h @ w)[0]))
    return cache, attend(lib, cache, h, t)


@body
def rows_at_a_start_that_is_clamped(lib, w, t, cache, h):
    cache = lib.lax.dynamic_update_slice(cache, lib.np.stack([lib.np.tanh(h @ w), h]), (t + 2, 0))
    return cache, attend(lib, cache, h, t)


@body
def rows_that_are_dropped_at_the_end(lib, w, t, cache, h):
    kinds = lib.lax.ScatterDimensionNumbers((1,), (0,), (0,))
    starts, row = lib.np.stack([t + 3, t])[:, None], lib.np.tanh(h @ w)
    cache = lib.lax.scatter(cache, starts, lib.np.stack([row, 0.5 * row]), kinds, mode="drop")
    return cache, attend(lib, cache, h, t)


@body
def positions_that_stand_twice_are_added_to(lib, w, t, cache, h):
    rows = lib.np.stack([lib.np.tanh(h @ w), h, 0.5 * h])
    cache = lib.at(cache)[np.array([0, 1, 0]) + t % 3].add(0.2 * rows)
    return cache, attend(lib, cache, h, t)


@body
def a_place_that_the_cache_says(lib, w, t, cache, h):
    """The undo of an update cannot use a place that is computed from the restored carry."""
    place = lib.np.argmax(lib.np.sum(cache, axis=1)) + (cache[0, 0] > 0.5)
    cache = lib.at(cache)[place % LENGTH].set(lib.np.tanh(h @ w))
    return cache, attend(lib, cache, h, t)


@body
def in_one_branch(lib, w, t, cache, h):
    write = lambda cache: lib.at(cache)[t].set(lib.np.tanh(h @ w))
    cache = lib.lax.cond(t % 3 != 1, write, lambda cache: cache, cache)
    return cache, attend(lib, cache, h, t)


@body
def in_branches_that_read_it(lib, w, t, cache, h):
    def write(cache, h):
        cache = lib.at(cache)[t].set(lib.np.tanh(h @ w))
        return cache, attend(lib, cache, h, t)

    def add(cache, h):
        h = h + 0.1 * cache.sum(0)
        cache = lib.at(cache)[t // 2, :2].add(h[:2])
        return lib.at(cache)[0].multiply(0.7), lib.np.sin(h)

    return lib.lax.cond(h[0] + t % 2 > 0.6, write, add, cache, h)


@body
def in_a_branch_of_a_branch(lib, w, t, cache, h):
    def some(cache):
        cache = lib.at(cache)[0].add(0.1 * h)
        write = lambda cache: lib.at(cache)[t].set(lib.np.tanh(h @ w))
        return lib.lax.cond(t % 2 == 0, write, lambda cache: lib.at(cache)[1].multiply(0.9), cache)

    cache = lib.lax.cond(t != 2, some, lambda cache: cache, cache)
    return cache, attend(lib, cache, h, t)


@body
def read_row_by_row_in_an_inner_loop(lib, w, t, cache, h):
    cache = lib.at(cache)[t].set(lib.np.tanh(h @ w))
    return cache, lib.lax.fori_loop(0, LENGTH, lambda j, h: 0.9 * h + 0.2 * lib.np.sin(cache[j] * h), h)


@body
def rows_that_an_inner_loop_updates_and_collects(lib, w, t, cache, h):
    """As the layers of a decoder, one cache each."""

    def layer(h, row):
        row = lib.at(row)[t % WIDTH].set(lib.np.tanh(h @ w)[1])
        return 0.5 * h + lib.np.sin(row * h), row

    h, cache = lib.lax.scan(layer, h, cache)
    return cache, attend(lib, cache, h, t)


RESTORED = list(BODIES)
# Rows that take different branches are mixed by more than a mask; an inner loop sees each row through one.
ROWS_RESTORED = [name for name in RESTORED if not name.startswith("in_") and "inner" not in name]


@body
def in_an_inner_loop(lib, w, t, cache, h):
    """The inner loop restores; what it starts from is saved once per iteration of the outer one."""

    def inner(j, carry):
        cache, h = carry
        cache = lib.at(cache)[(t + j) % LENGTH].set(lib.np.tanh(h @ w))
        return cache, attend(lib, cache, h, t)

    cache, h = lib.lax.fori_loop(0, 2, inner, (cache, h))
    return cache, h + 0.1 * lib.np.sin(cache).sum(0)


ARGS = (np.random.default_rng(3).normal(size=(WIDTH, WIDTH)), np.linspace(-0.7, 1.1, WIDTH), np.int64(5))


def program(lib: Library, name: str) -> Callable[..., Any]:
    """The loss of (w, h, count), by a loop that ends with the data."""

    def loss(w: Any, h: Any, count: Any) -> Any:
        def step(carry: Any) -> Any:
            t, cache, h = carry
            return t + 1, *BODIES[name](lib, w, t, cache, h)

        start = 0.1 * lib.np.ones((LENGTH, WIDTH))
        _, cache, h = lib.lax.while_loop(lambda c: c[0] < count, step, (0, start, h))
        return h.sum() + lib.np.sin(cache).sum()

    return loss


def rows(lib: Library, name: str) -> Callable[..., Any]:
    """A sum over examples, each of a length of its own; one of them is empty."""

    def loss(w: Any, h: Any, count: Any) -> Any:
        lengths, starts = lib.np.stack([count, count - 2, count - 5]), lib.np.stack([h, 0.5 * h, -h])
        return lib.vmap(program(lib, name), (None, 0, 0))(w, starts, lengths).sum()

    return loss


def gradient(fn: Callable[..., Any]) -> Graph:
    return cg.function(cg.grad(fn, argnums=(0, 1))).graph(*ARGS)


def run(graph: Graph) -> tuple[list[Any], Counters]:
    found = Run()
    return run_graph(graph, list(ARGS), found), found.counters


def saved_shapes(graph: Graph) -> list[Sequence[int | None]]:
    """Of what the derivative pushes, not the program."""
    stacks = (attributes.NewStack.find(node) for node in walk(graph))
    return [stack.element.shape for stack in stacks if stack is not None and stack.paired]


def assert_close(found: Any, expected: Any) -> None:
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-9, atol=1e-12)


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize(
    ("over", "name"), [*((program, name) for name in RESTORED), *((rows, name) for name in ROWS_RESTORED)]
)
def test_nothing_as_large_as_the_cache_is_pushed(over: Callable[..., Any], name: str) -> None:
    shapes = saved_shapes(gradient(over(OURS, name)))
    assert shapes and all(shape[-2:] != (LENGTH, WIDTH) for shape in shapes)


DIRECTION = np.array([0.3, -1.1, 0.7, 0.4])


@cache
def judge(name: str) -> Callable[..., Any]:
    """JAX's gradients by (w, h), and how they change along the direction of h: compiled once for all counts and rows.

    JAX has no reverse mode of such loops.
    """

    def both(w: Any, h: Any, count: Any) -> Any:
        gradients = lambda h: jax.jacfwd(program(JAXS, name), argnums=(0, 1))(w, h, count)
        return jax.jvp(gradients, (h,), (jnp.asarray(DIRECTION),))

    return jax.jit(both)


@in_turn("name, over", list(BODIES), [program, rows])
def test_gradients_are_those_of_jax(name: str, over: Callable[..., Any], x64: None) -> None:
    found, _ = run(gradient(over(OURS, name)))
    w, h, count = ARGS
    # Of `rows`: each of its examples, by what it is of the arguments.
    examples = [(1.0, count)] if over is program else [(1.0, count), (0.5, count - 2), (-1.0, count - 5)]
    alone = [(factor, judge(name)(w, factor * h, n)[0]) for factor, n in examples]
    assert_close(found, [sum(by_w for _, (by_w, _) in alone), sum(factor * by_h for factor, (_, by_h) in alone)])


@pytest.mark.parametrize("over", [program, rows])
@pytest.mark.parametrize("name", BODIES)
def test_restored_carries_have_the_bits_of_pushed_ones(
    name: str, over: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    restored, _ = run(gradient(over(OURS, name)))
    monkeypatch.setattr(Restoring, "of", staticmethod(lambda *carry: None))
    pushed, _ = run(gradient(over(OURS, name)))
    for a, b in zip(restored, pushed, strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize(
    ("over", "name"), [*((program, name) for name in BODIES), (rows, "a_row_is_set"), (rows, "in_an_inner_loop")]
)
def test_machine_code_agrees(over: Callable[..., Any], name: str) -> None:
    graph = gradient(over(OURS, name))
    assert_close(run_on("native", graph, ARGS), run(graph)[0])


@pytest.mark.parametrize("name", BODIES)
def test_second_derivatives_are_those_of_jax(name: str, x64: None) -> None:
    gradients = lambda h: cg.grad(program(OURS, name), argnums=(0, 1))(ARGS[0], h, 4)
    expected = judge(name)(ARGS[0], ARGS[1], np.int64(4))[1]
    with cg.options(engine="reference"):
        for outer in (cg.jacrev, cg.jacfwd):
            assert_close([x @ DIRECTION for x in outer(gradients)(ARGS[1])], expected)


def test_second_derivatives_push_nothing_as_large_as_the_cache() -> None:
    second = lambda w, h, count: cg.grad(program(OURS, "a_row_is_set"), argnums=1)(w, h, count).sum()
    shapes = saved_shapes(gradient(second))
    pushed = [shape for shape in shapes if shape == (LENGTH, WIDTH)]
    # The cotangents of the cache, which are new in every iteration, and no cache.
    assert len(pushed) <= 1


def test_gradients_of_rows_that_are_differentiated_one_by_one(x64: None) -> None:
    """`vmap` of a gradient: each row restores its own cache, as often as its loop ran."""
    starts, lengths = np.stack([ARGS[1], 0.5 * ARGS[1], -ARGS[1]]), np.array([5, 3, 0])

    def each(lib: Library, grad: Any) -> Any:
        return lib.vmap(grad(program(lib, "a_row_is_set"), 1), (None, 0, 0))(ARGS[0], starts, lengths)

    assert_close([each(OURS, cg.grad)], [each(JAXS, jax.jacfwd)])


@pytest.mark.parametrize("form", ["plain", "checkpoint"])
def test_saved_bytes_grow_with_the_rows(form: str) -> None:
    def pushed(length: int) -> Counters:
        def loss(w: Any, h: Any) -> Any:
            def step(t: Any, carry: Any) -> Any:
                cache, h = carry
                cache = cache.at[t].set(cnp.tanh(h @ w))
                return cache, 0.5 * h + 0.1 * cnp.tanh(cache @ h) @ cache

            return cg.fori_loop(0, length, step, (cnp.zeros((length, WIDTH)), h))[1].sum()

        fn = cg.checkpoint(loss) if form == "checkpoint" else loss
        found = Run()
        run_graph(cg.function(cg.grad(fn)).graph(*ARGS[:2]), list(ARGS[:2]), found)
        return found.counters

    short, long = pushed(30), pushed(120)
    # Per iteration: of w, h and the cache a row each, and a weight for each row.
    assert long.pushed_bytes <= 120 * 8 * (3 * WIDTH + 120)
    # Updated where it lies, on both ways.
    assert long.copied_bytes / 120 == short.copied_bytes / 30


def test_only_what_is_smaller_than_the_carry_is_written_back() -> None:
    """An update of all elements would save as much as the carry itself, and its last value besides."""

    def loss(x: Any, n: Any) -> Any:
        return cg.fori_loop(0, n, lambda t, x: x.at[1:].set(cnp.sin(x)[1:]).at[:2].multiply(x[:2]), x).sum()

    args = (np.linspace(0.1, 1.0, 3), np.int64(4))
    graph = cg.function(cg.grad(loss)).graph(*args)
    assert (3,) in saved_shapes(graph)
    assert cg.check_grads(lambda x: loss(x, 4), args[:1], order=2).ok


def test_an_update_of_an_array_from_outside_is_made_again() -> None:
    """Of an array with one row replaced the row is saved."""

    def loss(h: Any, base: Any, n: Any) -> Any:
        def step(t: Any, h: Any) -> Any:
            seen = base.at[t].set(cnp.sin(h))
            return 0.5 * h + 0.1 * cnp.tanh(seen @ h) @ seen

        return cg.fori_loop(0, n, step, h).sum()

    args = (ARGS[1], np.random.default_rng(5).normal(size=(LENGTH, WIDTH)), ARGS[2])
    graph = cg.function(cg.grad(loss, argnums=(0, 1))).graph(*args)
    assert (LENGTH, WIDTH) not in saved_shapes(graph)
    assert cg.check_grads(lambda h, base: loss(h, base, 5), args[:2], order=1, modes=("rev",)).ok


def test_results_of_a_branch_are_not_pushed() -> None:
    def loss(x: Any, way: Any) -> Any:
        return cg.cond(way, cnp.tanh, lambda x: cnp.exp(-x), x).sum()

    args = (np.linspace(0.1, 1.0, 3), np.True_)
    assert not saved_shapes(cg.function(cg.grad(loss)).graph(*args))
    for way in (True, False):
        assert cg.check_grads(lambda x, way=way: loss(x, way), args[:1], order=2).ok


def test_an_integer_cache_is_restored() -> None:
    def loss(w: Any, n: Any) -> Any:
        def step(t: Any, carry: Any) -> Any:
            seen, total = carry
            seen = seen.at[t * 3 % 7].set(t + 2)
            return seen, 0.9 * total + cnp.sin(w * seen).sum()

        return cg.fori_loop(0, n, step, (cnp.zeros(7, int), 0.0))[1]

    graph = cg.function(cg.grad(loss)).graph(np.float64(0.3), np.int64(5))
    assert (7,) not in saved_shapes(graph)
    assert cg.check_grads(lambda w: loss(w, 5), (np.float64(0.3),), order=2).ok


def test_zeros_keep_their_sign_when_rows_of_a_batch_are_restored() -> None:
    """A batch writes its rows by adding to cleared ones."""

    def loss(x: Any, n: Any) -> Any:
        def step(t: Any, carry: Any) -> Any:
            cache, total = carry
            signs = cnp.copysign(1.0, cache)
            return cache.at[t].set(1.0), total + (cg.stop_gradient(signs) * x * x).sum()

        return cg.fori_loop(0, n, step, (cnp.full(3, -0.0), 0.0))[1]

    x, lengths = np.array([1.0, 2.0, 3.0]), np.array([3, 2, 0])
    found = cg.vmap(cg.grad(loss), (None, 0))(x, lengths)
    signs = [np.array([np.where(np.arange(3) < t, 1.0, -1.0) for t in range(n)]).sum(0) for n in lengths]
    np.testing.assert_array_equal(found, [2 * x * s for s in signs])


def test_an_index_out_of_range_is_the_error_of_the_update() -> None:
    loss = lambda x, n: cg.fori_loop(0, n, lambda t, x: x.at[t].set(cnp.sin(x).sum()), x).sum()
    for engine in ("reference", "native"):
        with cg.options(engine=engine), pytest.raises(IndexOutOfRangeError, match="test_restored_carries"):
            cg.grad(loss)(np.ones(3), 4)


@pytest.mark.parametrize("name", ["a_row_is_set", "in_branches_that_read_it"])
def test_within_less_and_less_memory(name: str) -> None:
    graph = gradient(program(OURS, name))
    expected = run_on("native", graph, ARGS)
    with memory.budget() as session:
        run_on("native", graph, ARGS)
        limit = session.manager().stats.peak_bytes["device"]
    for share in (0.9, 0.7, 0.5):
        with memory.budget(device=int(limit * share)) as session:
            try:
                found = run_on("native", graph, ARGS)
            except cg.errors.MemoryBudgetError:
                continue
            assert_close(found, expected)
            assert session.manager().stats.peak_bytes["device"] <= limit * share


def test_golden_text(update_golden: bool) -> None:
    text = f"{cg.function(cg.grad(program(OURS, 'a_row_is_set')), name='restored_cache').graph(*ARGS)}\n"
    if update_golden:
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")
