"""Compile work and text of long and wide programs grow with their length, not with its square."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from instruments.python_calls import calls_of_the_engine
from plan.plans import graph_of

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.native import engine, plan_text, sections
from ctrlgrad.engines.native.engine import shapes_of
from ctrlgrad.engines.native.plan_text import MOST_LOADED
from ctrlgrad.frontend.carry import Carry
from ctrlgrad.plan import fusion, outlining, vectors
from ctrlgrad.plan.liveness import After
from ctrlgrad.plan.model import Array, Kernel
from ctrlgrad.plan.outlining import weight_of


def chain(length: int) -> tuple[Callable[..., Any], list[Any]]:
    def f(x: Any, y: Any) -> Any:
        for _ in range(length):
            x = cnp.sin(x) * y + 0.3
        return x

    return f, [np.asarray(0.3), np.asarray(0.7)]


def chain_of_arrays(length: int) -> tuple[Callable[..., Any], list[Any]]:
    """A chain of elementwise ops: one kernel, unless fusion stops at a limit."""

    def f(x: Any, y: Any) -> Any:
        for _ in range(length):
            x = cnp.sin(x) * y + 0.3 * x
        return cnp.sum(x)

    return f, [np.linspace(0.0, 1.0, 16), np.asarray(0.7)]


def products(length: int) -> tuple[Callable[..., Any], list[Any]]:
    def f(a: Any, x: Any) -> Any:
        for _ in range(length):
            x = cnp.concatenate([x[2:], x[:2]]) @ a + x
        return cnp.sum(x * x)

    return f, [np.eye(8) / 8, np.ones((8, 8))]


def inputs_of_a_scan(length: int) -> tuple[Callable[..., Any], list[Any]]:
    def f(*xs: Any) -> Any:
        def step(carry: Any, rows: Any) -> Any:
            for row in rows:
                carry = cnp.tanh(carry + row)
            return carry, None

        return cnp.sum(cg.scan(step, cnp.zeros(4), list(xs))[0])

    return f, [np.full((3, 4), 0.1 * k) for k in range(length)]


def results_of_a_branch(length: int) -> tuple[Callable[..., Any], list[Any]]:
    def f(x: Any, *ys: Any) -> Any:
        found = cg.cond(x > 0.0, lambda: [cnp.sin(y) * x for y in ys], lambda: [cnp.cos(y) + x for y in ys])
        return sum(cnp.sum(y) for y in found)

    return f, [np.asarray(0.3), *(np.full(40, 0.1 * k) for k in range(length))]


PROGRAMS = [
    pytest.param(chain, 40, id="chain"),
    pytest.param(chain_of_arrays, 40, id="chain_of_arrays"),
    pytest.param(products, 10, id="products"),
    pytest.param(inputs_of_a_scan, 8, id="inputs_of_a_scan"),
    pytest.param(results_of_a_branch, 8, id="results_of_a_branch"),
]


def gradient_of(program: Any, length: int) -> tuple[Any, list[Any]]:
    fn, arguments = program(length)
    return graph_of(cg.grad(fn, argnums=tuple(range(len(arguments)))), *arguments), arguments


def text_of(graph: Any, arguments: list[Any]) -> str:
    return engine.text_of(engine.plan_of(graph, shapes_of(graph, arguments), (), frozenset()))[0]


@pytest.fixture
def membership(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Count of placement's queries whether a value is live after a step."""
    asked, right = [0], After.__contains__

    def contains(self: After, value: object) -> bool:
        asked[0] += 1
        return right(self, value)

    monkeypatch.setattr(After, "__contains__", contains)
    yield asked


@pytest.mark.parametrize("program, length", PROGRAMS)
def test_work_grows_with_the_length_of_a_program(program: Any, length: int, membership: list[int]) -> None:
    calls, asked = [], []
    for each in (length, 2 * length, 4 * length):
        graph, arguments = gradient_of(program, each)
        membership[0] = 0
        calls.append(calls_of_the_engine(lambda g=graph, a=arguments: text_of(g, a)))
        asked.append(membership[0])
    for counts in (calls, asked):
        # The second step is twice the first; quadratic work would be four times as much.
        assert counts[2] - counts[1] <= 3.0 * (counts[1] - counts[0])


@pytest.fixture
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split every plan into several functions."""
    monkeypatch.setattr(outlining, "WHOLE", 0)
    monkeypatch.setattr(outlining, "PIECE", 100)
    monkeypatch.setattr(vectors, "MOST_IN_ONE", 60)
    monkeypatch.setattr(sections, "SECTION", 30)


def test_fusion_finds_what_reads_an_array_by_the_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fusion compares an update only with the readers of its own array, so its work is linear in the number of
    arrays."""
    compared, right = [0], Array.__eq__

    def counted(self: Array, other: object) -> bool:
        compared[0] += 1
        return right(self, other)

    def comparisons(inputs: int) -> int:
        graph, arguments = gradient_of(inputs_of_a_scan, inputs)
        with monkeypatch.context() as patched:
            patched.setattr(Array, "__eq__", counted)
            compared[0] = 0
            engine.plan_of(graph, shapes_of(graph, arguments), (), frozenset())
        return compared[0]

    few, many = comparisons(20), comparisons(80)
    assert few > 0 and many <= 5 * few, (few, many)


def test_a_plan_is_cut_where_its_weight_is_more_than_that_of_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, arguments = gradient_of(products, 10)
    weight = sum(map(weight_of, engine.plan_of(graph, shapes_of(graph, arguments), (), frozenset()).body.steps))
    monkeypatch.setattr(outlining, "PIECE", 100)
    for limit, is_cut in ((weight - 1, True), (weight, False), (weight + 1, False)):
        monkeypatch.setattr(outlining, "WHOLE", limit)
        assert ("define internal i1 @piece" in text_of(graph, arguments)) == is_cut


def test_a_function_takes_steps_up_to_its_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function takes steps up to a weight. All products here weigh the same, so a slightly lower limit takes one
    step less."""
    graph, arguments = gradient_of(products, 10)
    monkeypatch.setattr(outlining, "WHOLE", 0)

    def functions(limit: int) -> int:
        monkeypatch.setattr(outlining, "PIECE", limit)
        return text_of(graph, arguments).count("define internal i1 @piece")

    steps = engine.plan_of(graph, shapes_of(graph, arguments), (), frozenset()).body.steps
    weight = sum(map(weight_of, steps))
    assert functions(weight - 1) == 2
    assert functions(weight) == functions(weight + 1) == 1


def test_no_function_grows_with_the_length_of_a_program(short_pieces: None) -> None:
    def longest(each: int) -> int:
        texts = re.split(r"^define", text_of(*gradient_of(chain, each)), flags=re.M)[1:]
        return max(text.count("\n") for text in texts if "@piece" in text.partition("(")[0])

    assert longest(320) <= 1.2 * longest(80)


def remembered(length: int) -> tuple[Callable[..., Any], list[Any]]:
    """Numbers that are read at the program's end, by other functions than the ones that compute them."""

    def f(x: Any) -> Any:
        found = [x]
        for _ in range(length):
            found.append(found[-1] * x + 0.1)
        return functools.reduce(lambda total, y: 0.5 * total + y, found)

    return f, [np.asarray(0.3)]


def test_numbers_that_functions_leave_for_each_other_lie_in_the_frame_and_not_on_the_stack(short_pieces: None) -> None:
    """Numbers that functions exchange lie in the frame: 12,000 of them run on a stack of 64 KiB."""

    def on_the_stack(length: int) -> int:
        fn, arguments = remembered(length)
        text = text_of(graph_of(fn, *arguments), arguments)
        assert text.count("define internal i1 @piece") > 1
        return max(
            sum(int(count or 1) for count in re.findall(r"alloca (?:\[(\d+) x)?", function))
            for function in re.split(r"^define", text, flags=re.M)
        )

    assert on_the_stack(320) == on_the_stack(80)
    fn, arguments = remembered(200)
    assert float(cg.function(fn, engine="native")(*arguments)) == pytest.approx(float(fn(*arguments)), rel=1e-12)


def carried_numbers(length: int) -> tuple[Callable[..., Any], list[Any]]:
    """A loop whose carried numbers rotate, with a flag and an integer among them."""

    def f(n: Any, *xs: Any) -> Any:
        def body(i: Any, carry: Any) -> Any:
            flag, count, (first, *rest) = carry
            return ~flag, count + i, [*(x * x * 0.1 + 0.3 for x in rest), cnp.where(flag, first, first + 0.5)]

        flag, count, found = cg.fori_loop(0, n, body, (True, 3, list(xs)))
        return functools.reduce(lambda total, x: 0.5 * total + x, found, cnp.where(flag, 1.0, 2.0) + count)

    return f, [np.asarray(5), *np.linspace(0.1, 0.9, length)]


def numbers_of_a_branch(length: int) -> tuple[Callable[..., Any], list[Any]]:
    def f(n: Any, *xs: Any) -> Any:
        found = cg.cond(n > 0, lambda: [0.1 * x + x * x for x in reversed(xs)], lambda: [cnp.sin(x) * x for x in xs])
        return functools.reduce(lambda total, x: 0.5 * total + x, found)

    return f, [np.asarray(5), *np.linspace(0.1, 0.9, length)]


@pytest.mark.parametrize("program", [carried_numbers, numbers_of_a_branch])
def test_carried_numbers_of_a_long_plan_lie_in_the_frame(program: Any, short_pieces: None) -> None:
    """20,000 numbers of a loop, of a branch or of the arguments need no more of a thread's stack than 20."""

    def on_the_stack(length: int) -> tuple[int, int]:
        functions = re.split(r"^define", text_of(*gradient_or_value(program, length)), flags=re.M)[1:]
        own = next(text for text in functions if "@plan(" in text.partition("\n")[0])
        parameters = max(text.partition("\n")[0].count(",") for text in functions)
        # A number that the own function loads, and does not store at once, is live from there to its use.
        loads = len(re.findall(r"load double.*\n(?!  %\S+ = getelementptr.*\n  store|  store)", own))
        return max(text.count("alloca") for text in functions), parameters + loads

    def gradient_or_value(program: Any, length: int) -> tuple[Any, list[Any]]:
        fn, arguments = program(length)
        return graph_of(fn, *arguments), arguments

    assert on_the_stack(300) == on_the_stack(80)
    fn, arguments = program(60)
    slope = cg.value_and_grad(fn, argnums=tuple(range(1, len(arguments))))
    for trips in (0, 1, 5):
        given = [np.asarray(trips), *arguments[1:]]
        found, expected = (cg.function(slope, engine=engine)(*given) for engine in ("native", "reference"))
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-12)
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-12)


def test_types_of_carried_numbers_are_found_once_for_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    made, right = [0], Carry.types.fget

    def counted(self: Carry) -> Any:
        made[0] += 1
        return right(self)

    monkeypatch.setattr(Carry, "types", property(counted))
    asked = []
    for length in (10, 40):
        made[0] = 0
        fn, arguments = carried_numbers(length)
        graph_of(fn, *arguments)
        asked.append(made[0])
    assert 0 < asked[1] == asked[0]


@pytest.mark.parametrize("count", [MOST_LOADED - 1, MOST_LOADED, MOST_LOADED + 1])
def test_a_function_loads_a_bounded_count_of_numbers_where_it_starts(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def f(*xs: Any) -> Any:
        return functools.reduce(lambda total, x: 0.5 * total + x, xs)

    monkeypatch.setattr(outlining, "WHOLE", 0)
    monkeypatch.setattr(outlining, "PIECE", 1 << 20)
    arguments = list(np.linspace(0.1, 0.9, count))
    functions = re.split(r"^define", text_of(graph_of(f, *arguments), arguments), flags=re.M)
    assert max(len(re.findall(r"%e\d+ = load double", text)) for text in functions) == min(count, MOST_LOADED)
    assert float(cg.function(f, engine="native")(*arguments)) == pytest.approx(float(f(*arguments)), rel=1e-12)


@pytest.mark.parametrize("program, length", PROGRAMS)
def test_a_plan_of_several_functions_computes_the_same(program: Any, length: int, short_pieces: None) -> None:
    fn, arguments = program(20)
    slope = cg.grad(fn, argnums=tuple(range(len(arguments))))
    expected = cg.function(slope, engine="reference")(*arguments)
    graph, given = gradient_of(program, 20)
    assert text_of(graph, given).count("define internal i1 @piece") > 1
    for found, wanted in zip(cg.function(slope, engine="native")(*arguments), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def long_kernel(length: int) -> tuple[Callable[..., Any], list[Any]]:
    """Values, gradients, sums, a scatter and a flag of one long kernel over numbers of several dtypes."""

    def f(x: Any, y: Any) -> Any:
        z, total = x, cnp.zeros(3)
        for k in range(length):
            z = cnp.where(z > 0.1 * k, cnp.sin(z) * y, z + cnp.astype(cnp.astype(0.3 * x, "float32"), "float64"))
        return cnp.sum(z) + cnp.max(z), z, z > 0.2, cnp.astype(z, "float16"), total.at[1].add(z[0])

    return f, [np.linspace(0.0, 1.0, 37), np.asarray(0.7)]


@pytest.mark.parametrize("points", [1, 3, 8, 37])
@pytest.mark.parametrize("most", [1, 7, 40])
def test_a_kernel_of_several_functions_computes_the_same(
    monkeypatch: pytest.MonkeyPatch, points: int, most: int
) -> None:
    fn, (x, y) = long_kernel(12)
    arguments = [x[:points], y]
    slope = lambda x, y: (fn(x, y), cg.grad(lambda x, y: fn(x, y)[0], argnums=(0, 1))(x, y))
    graph, expected = graph_of(slope, *arguments), cg.tree.leaves(cg.function(slope, engine="reference")(*arguments))
    monkeypatch.setattr(vectors, "MOST_IN_ONE", 20)
    monkeypatch.setattr(sections, "SECTION", most)
    assert text_of(graph, arguments).count("define internal void @section") > 2
    for found, wanted in zip(engine.Patterns(graph).run(arguments), expected, strict=True):
        found = np.asarray(found)
        np.testing.assert_allclose(found, wanted, rtol=1e-3 if found.dtype == np.float16 else 1e-12)


def test_a_kernel_is_cut_where_its_weight_is_more_than_that_of_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    fn, arguments = chain_of_arrays(20)
    graph = graph_of(fn, *arguments)
    kernel = next(s for s in engine.plan_of(graph, shapes_of(graph, arguments)).body.steps if isinstance(s, Kernel))
    views = len(kernel.operands) + len(kernel.writes)
    weight = len(kernel.expression.instructions) + vectors.MEMORY_WEIGHT * views
    for limit, is_cut in ((weight - 1, True), (weight, False), (weight + 1, False)):
        monkeypatch.setattr(vectors, "MOST_IN_ONE", limit)
        assert ("@section" in text_of(graph, arguments)) == is_cut


@pytest.mark.parametrize("most", [7, 8, 9])
def test_sections_take_instructions_up_to_their_weight(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    fn, arguments = chain_of_arrays(20)
    graph = graph_of(fn, *arguments)
    kernel = next(s for s in engine.plan_of(graph, shapes_of(graph, arguments)).body.steps if isinstance(s, Kernel))
    monkeypatch.setattr(sections, "SECTION", most)
    found, slots = sections.sections_of(kernel.expression)
    assert [s.start for s in found] == [0, *(s.end for s in found[:-1])]
    assert found[-1].end == len(kernel.expression.instructions)
    for section in found[:-1]:
        inside = kernel.expression.instructions[section.start : section.end]
        weights = [vectors.MEMORY_WEIGHT if i.op == "load" else 1 for i in inside]
        assert sum(weights[:-1]) < most <= sum(weights)
    # A slot holds one value at a time, from the section that writes it to the last section that reads it.
    until = {n: max((k for k, s in enumerate(found) if n in s.before), default=len(found)) for n in slots}
    since = {n: k for k, s in enumerate(found) for n in s.kept}
    for a in slots:
        for b in slots:
            if a < b and slots[a] == slots[b]:
                assert a not in kernel.expression.outputs and until[a] <= since[b]


def test_compiled_text_of_a_long_kernel_is_linear_and_its_functions_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def functions(length: int) -> list[int]:
        texts = re.split(r"^define", text_of(*gradient_of(chain_of_arrays, length)), flags=re.M)[1:]
        return [text.count("\n") for text in texts]

    monkeypatch.setattr(vectors, "MOST_IN_ONE", 100)
    monkeypatch.setattr(sections, "SECTION", 100)
    short, long = functions(80), functions(320)
    assert max(long) <= 1.5 * max(short)
    assert sum(long) <= 5 * sum(short)


def test_kernels_join_up_to_a_number_of_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels fuse up to a number of operands: LLVM's time grows with the square of a function's addresses."""

    def f(*xs: Any) -> Any:
        return functools.reduce(lambda total, x: cnp.tanh(total + x), xs)

    arguments = [np.full(40, 0.1 * k) for k in range(6)]
    graph = graph_of(f, *arguments)
    counts = []
    for most in (5, 6, 7):
        monkeypatch.setattr(fusion, "MOST_READ", most)
        steps = engine.plan_of(graph, shapes_of(graph, arguments)).body.steps
        counts.append(sum(isinstance(step, Kernel) for step in steps))
    assert counts[0] == 2 and counts[2] == 1


def test_numbers_and_arrays_are_exchanged_in_functions_of_some_each(
    monkeypatch: pytest.MonkeyPatch, short_pieces: None
) -> None:
    """Numbers and arrays are exchanged in functions of a few each, so a long plan's own function does not grow by
    them."""

    def own(most: int) -> int:
        monkeypatch.setattr(plan_text, "MOST_APART", most)
        text = text_of(*gradient_of(inputs_of_a_scan, 40))
        return next(f.count("\n") for f in re.split(r"^define", text, flags=re.M) if "@body(ptr" in f[:30])

    lines = [own(most) for most in (39, 40, 41)]
    assert lines[0] < lines[1] == lines[2]
