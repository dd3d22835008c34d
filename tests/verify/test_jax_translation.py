"""Control flow in JAX: both forms compute what the reference engine computes, and JAX's gradients are right."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import ctrlgrad.ops
import ctrlgrad.stacks
from ctrlgrad.engines.reference import run_graph
from ctrlgrad.errors import UserInputError
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.apply import apply, apply_all
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.ir import OPS, Builder, Graph, StackType, TensorType, Trait, Value, close, verify
from ctrlgrad.ir.attributes import DYNAMIC
from ctrlgrad.verify.check import sample, slope
from ctrlgrad.verify.jax_judge import JaxDerivative, JaxJudge
from ctrlgrad.verify.jax_translation import ADDED, BOUNDED, LISTS, TENSOR_OPS, translate

# Every op's translation into JAX computes what the reference engine computes.


# Ops that own regions, and ops that only look at values.
CONTROL = {"while", "cond", "call", "callback", "pure_callback", "watch", "barrier", "forget_sizes"}


@dataclass
class Case:
    """One application of an op to arrays."""

    op: str
    operands: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    # Shapes that the graph does not know: an operand's position to its declared shape.
    unknown: dict[int, tuple[int | None, ...]] = field(default_factory=dict)

    def emit(self, b: Builder) -> Value:
        arrays = [np.asarray(x) for x in self.operands]
        shapes = [self.unknown.get(position, x.shape) for position, x in enumerate(arrays)]
        inputs = [b.input(TensorType(x.dtype, shape)) for x, shape in zip(arrays, shapes, strict=True)]
        return b.emit(self.op, inputs, self.attrs)


RNG = np.random.default_rng(7)
FLOATS = (np.float32, np.float64)
INTS = (np.int32, np.int64)


def normal(*shape: int, dtype: Any = np.float64) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def positive(*shape: int, dtype: Any = np.float64) -> Any:
    return RNG.uniform(0.2, 0.9, shape).astype(dtype)


def integers(*shape: int, dtype: Any = np.int64) -> Any:
    return RNG.integers(-5, 6, shape).astype(dtype)


def bools(*shape: int) -> Any:
    return RNG.integers(0, 2, shape).astype(bool)


def index(*values: int) -> Any:
    return np.asarray(values[0] if len(values) == 1 else values, np.int64)


def names(text: str) -> list[str]:
    return text.split()


def cases() -> list[Case]:
    found: list[Case] = []

    def add(op: str, *operands: Any, unknown: Any = None, **attrs: Any) -> None:
        found.append(Case(op, operands, attrs, unknown or {}))

    for dtype in FLOATS:
        for op in names(
            "negative sign square exp exp2 expm1 sin cos tan tanh sinh cosh arctan arcsinh sigmoid abs signbit"
        ):
            add(op, normal(2, 3, dtype=dtype))
        for op in names("log log1p log2 log10 sqrt arcsin arccos arctanh erfinv reciprocal"):
            add(op, positive(4, dtype=dtype))
        add("arccosh", positive(4, dtype=dtype) + 1)
        for op in names("floor ceil trunc rint isnan isinf isfinite float_to_bits"):
            add(op, np.array([-1.5, -0.2, 0.5, 2.5, np.inf, np.nan], dtype))
        for op in names("add subtract multiply divide maximum minimum floor_divide remainder arctan2 logaddexp"):
            add(op, normal(2, 1, dtype=dtype), normal(3, dtype=dtype))
        for op in names("hypot copysign nextafter"):
            add(op, normal(2, 1, dtype=dtype), normal(3, dtype=dtype))
        add("strong_multiply", np.array([0.0, -1.5, 2.0], dtype), np.array([[np.inf, 2.0, 3.0]], dtype))
        add("power", positive(3, dtype=dtype), normal(2, 3, dtype=dtype))
        add("where", bools(3), normal(2, 3, dtype=dtype), normal(3, dtype=dtype))
        add("matmul", normal(2, 3, dtype=dtype), normal(5, 3, 4, dtype=dtype))
    for dtype in INTS:
        for op in names("negative sign square abs"):
            add(op, integers(4, dtype=dtype))
        for op in names("add subtract multiply maximum minimum"):
            add(op, integers(2, 1, dtype=dtype), integers(3, dtype=dtype))
        for op in names("floor_divide remainder"):
            add(op, integers(6, dtype=dtype), np.array([-3, 2, 1, 4, -1, 3], dtype))
        add("bitwise_invert", integers(4, dtype=dtype))
        add("bits_to_float", integers(4, dtype=dtype))
        for op in names("bitwise_and bitwise_or bitwise_xor"):
            add(op, integers(2, 1, dtype=dtype), integers(3, dtype=dtype))
        for op in names("bitwise_left_shift bitwise_right_shift integer_power"):
            add(op, integers(6, dtype=dtype), np.array([0, 1, 2, 3, 4, 5], dtype))
        add("matmul", integers(2, 3, dtype=dtype), integers(3, 2, dtype=dtype))
    for op in names("equal not_equal less less_equal greater greater_equal"):
        add(op, integers(2, 4), integers(4))
        add(op, np.array([1.0, np.nan, 2.0]), np.array([1.0, np.nan, 3.0]))
    add("bits_to_bfloat16", np.array([0x3F80, 0x4049, 16, -0x4000], np.int16))
    add("equal", bools(5), bools(5))
    add("logical_not", bools(4))
    for op in names("logical_and logical_or logical_xor"):
        add(op, bools(2, 4), bools(4))
    add("complex", normal(2, 1), normal(3))
    for op in names("negative exp sqrt tanh abs conj real imag"):
        add(op, normal(3) + 1j * normal(3))
    for source in (normal(4) * 3, integers(4), bools(4), normal(4, dtype=np.float32), normal(2) + 1j * normal(2)):
        for target in ("float32", "float64", "int32", "int64", "bool", "complex128"):
            if source.dtype.kind != "c" or target in ("bool", "complex128"):
                add("cast", source, dtype=np.dtype(target))
    add("stop_gradient", normal(3))

    for x in (normal(2, 3, 4), normal(2, 3, 4, dtype=np.float32), integers(2, 3, 4), integers(2, 3, 4, dtype=np.int32)):
        for axes, keepdims in (((1,), False), ((0, 2), True), ((0, 1, 2), False)):
            # The frontend widens small integers before it sums them; the op itself is used on int64.
            floats = ("sum", "max", "min")
            for op in ("max", "min") if x.dtype == np.int32 else floats if x.dtype.kind == "f" else (*floats, "prod"):
                add(op, x, axes=axes, keepdims=keepdims)
        for op in ("argmax", "argmin"):
            add(op, x, axes=(1,), keepdims=False)
            add(op, x, axes=(2,), keepdims=True)
        for op in ("cumsum",) if x.dtype.kind == "f" else ("cumsum", "cumprod"):
            for reverse in (False, True):
                add(op, x, axis=1, reverse=reverse)
    for op in ("any", "all"):
        add(op, bools(2, 3), axes=(1,), keepdims=False)

    x = normal(2, 3, 4)
    add("constant", value=normal(2, 2))
    add("dim", x, axis=1)
    add("dim", x, axis=1, unknown={0: (2, None, 4)})
    add("iota", shape=(4,))
    add("iota", index(4), shape=(None,))
    add("common_size", index(4, 4, 4), what="a size")
    add("reshape", x, shape=(6, 4))
    said = {"problem": "another size", "hint": "look at it"}
    add("ensure_sizes", x, index(x.shape[0]), axes=(0,), shape=(None,), unknown={0: (None, *x.shape[1:])}, **said)
    add("reshape", x, index(6), index(4), shape=(None, None), unknown={0: (2, None, None)})
    add("broadcast_to", normal(3, 1), shape=(2, 3, 4))
    add("broadcast_to", normal(3, 1), index(5), shape=(2, 3, None))
    add("sum_to", x, shape=(3, 1))
    add("sum_to", x, index(3), shape=(None, 1), unknown={0: (2, None, 4)})
    add("transpose", x, axes=(2, 0, 1))
    add("expand_dims", x, axes=(0, 2))
    add("squeeze", normal(2, 1, 3, 1), axes=(1, 3))
    add("flip", x, axes=(0, 2))
    add("concat", normal(2, 1), normal(2, 3), normal(2, 0), axis=1)

    rows = index(0, 2, -1)
    keys: list[tuple[Any, tuple[Any, ...]]] = [
        ((1, slice(None), -1), ()),
        ((slice(0, 1), None, slice(None, None, -1), slice(1, None, 2)), ()),
        ((DYNAMIC, slice(None), DYNAMIC), (index(-2), index(3))),
        ((slice(None), DYNAMIC, slice(None)), (rows,)),
        ((0, slice(None), DYNAMIC), (rows,)),
        ((slice(None), DYNAMIC, DYNAMIC), (index(0, 1), np.array([[0, 3], [2, 1]]))),
        ((DYNAMIC, slice(None), DYNAMIC), (index(1), rows)),
        ((slice(None), slice(DYNAMIC, DYNAMIC), slice(None)), (index(1), index(3))),
        ((slice(None), slice(DYNAMIC, None), slice(None, DYNAMIC)), (index(-2), index(-1))),
        ((0, slice(None), slice(DYNAMIC, None, DYNAMIC)), (index(3), index(-2))),
        ((slice(None), slice(DYNAMIC, 9), slice(None)), (index(7),)),
        ((slice(DYNAMIC, None), None, DYNAMIC, slice(None)), (index(1), rows)),
    ]
    for key, operands in keys:
        add("getitem", x, *operands, key=key)
        filled = list(operands)
        shape = x[tuple(_filled(item, filled) for item in key)].shape
        for op in ("setitem", "additem"):
            add(op, x, normal(*shape), *operands, key=key)
            add(op, x, normal(), *operands, key=key)
    add("additem", normal(3), normal(4), index(1, 1, 0, 1), key=(DYNAMIC,))
    return found


def _filled(item: Any, rest: list[Any]) -> Any:
    if item is DYNAMIC:
        return rest.pop(0)
    if isinstance(item, slice):
        return slice(*(rest.pop(0) if part is DYNAMIC else part for part in (item.start, item.stop, item.step)))
    return item


CASES = cases()
# How many ops stand in a program of JAX.
PER_PROGRAM = 12


def assert_agree(graph: Graph, arguments: Any, form: Any) -> None:
    expected = run_graph(graph, [np.array(x) for x in arguments])
    translation = translate(graph, arguments, form)
    assert translation.form == form
    by = {result: node.op.name for node in graph.nodes for result in node.results}
    for found, e, value in zip(translation(*arguments), expected, graph.outputs, strict=True):
        e, what = np.asarray(e), by[value]
        assert found.shape == e.shape, what
        assert found.dtype == e.dtype == value.tensor.dtype, what
        if e.dtype.kind in "fc":
            eps = np.finfo(e.dtype).eps
            np.testing.assert_allclose(found, e, rtol=64 * eps, atol=16 * eps, err_msg=what)
        else:
            np.testing.assert_array_equal(found, e, err_msg=what)


OP_NAMES = sorted({case.op for case in CASES})


@pytest.mark.parametrize("first", range(0, len(OP_NAMES), PER_PROGRAM))
def test_ops_agree_with_the_reference_engine(first: int) -> None:
    """All cases of twelve ops stand in one graph, which JAX compiles once."""
    chosen = [case for case in CASES if case.op in OP_NAMES[first : first + PER_PROGRAM]]
    b = Builder()
    graph = b.finish([case.emit(b) for case in chosen])
    assert_agree(graph, [x for case in chosen for x in case.operands], "scan")


def test_ops_with_sizes_agree_when_unrolled() -> None:
    chosen = [case for case in CASES if case.op in ("iota", "reshape", "broadcast_to", "sum_to", "getitem", "additem")]
    b = Builder()
    graph = b.finish([case.emit(b) for case in chosen])
    assert_agree(graph, [x for case in chosen for x in case.operands], "unrolled")


def stack_graph(ops: set[str], element: tuple[int | None, ...] = (2,)) -> Graph:
    """A straight line through every op on stacks; `ops` collects their names."""
    b = Builder()
    rows, v, i = b.input(TensorType("f8", (3, *element))), b.input(TensorType("f8", element)), b.input(TensorType("i8"))
    sizes = [b.emit("dim", [v], {"axis": 0})] if None in element else []
    kept: list[Value] = []

    def emit(op: str, *operands: Value, **attrs: Any) -> Any:
        ops.add(op)
        results = b.emit_all(op, operands, attrs)
        return results if len(results) > 1 else results[0]

    s = emit("stack_from_tensor", rows)
    s = emit("stack_push", s, v)
    s = emit("stack_write", s, i, b.emit("negative", [v]), grow=False)
    kept.append(emit("stack_read", s, b.constant(-1), *sizes))
    s = emit("stack_add", s, i, v)
    s = emit("stack_write", s, b.constant(4), v, grow=True)
    s = emit("stack_clear", s, b.constant(0))
    s, popped = emit("stack_pop", s, *sizes)
    kept += [popped, emit("stack_length", s)]
    longer = emit("stack_resize", s, b.constant(9))
    shorter = emit("stack_resize", s, b.emit("subtract", [b.emit("stack_length", [longer]), b.constant(8)]))
    kept += [b.emit("stack_to_tensor", [part, *sizes], {"size": None}) for part in (longer, shorter)]
    t = emit("stack_new", b.constant(2), element=TensorType("f8", element))
    t = emit("stack_push", t, v)
    t = emit("stack_write", t, b.constant(-2), v, grow=False)
    kept.append(emit("stack_read", t, b.constant(0), *sizes))
    s = emit("stack_sum", s, t)
    kept.append(emit("stack_to_tensor", s, *sizes, size=None))
    empty = b.emit("stack_new", (), {"element": TensorType("f8", element)})
    kept.append(b.emit("stack_to_tensor", [empty, *sizes], {"size": None}))
    return b.finish(kept)


@pytest.mark.parametrize("form", ["scan", "unrolled"])
@pytest.mark.parametrize("element", [(2,), (None,)])
def test_stack_ops_agree_with_the_reference_engine(form: str, element: tuple[int | None, ...]) -> None:
    arguments = (normal(3, 2), normal(2), index(2))
    assert_agree(stack_graph(set(), element), arguments, form)


def test_every_op_has_an_entry_and_a_case() -> None:
    # JAX has no form of an op of a derivative alone.
    # Ops of a function that is being mapped reach no judge: batching puts other ops in their place.
    formless = {"adjugate_along"} | {name for name, op in OPS.items() if Trait.MAPPED in op.traits}
    assert set(TENSOR_OPS) | set(BOUNDED) | CONTROL | formless == set(OPS)
    assert not set(TENSOR_OPS) & formless
    assert set(BOUNDED) == set(LISTS) == {name for name in OPS if name.startswith("stack_")}
    covered: set[str] = {case.op for case in CASES}
    stack_graph(covered)
    # The remaining ops are compared with their derivatives: by tests/gradients/test_rules.py, and these four in whole
    # programs, by the tests of TensorArray and of vmap.
    formless |= {"stack_concat", "stack_split", "stack_rows", "common_size"}
    assert covered <= set(OPS) and set(OPS) - covered - CONTROL - formless <= ADDED


def test_a_stack_type_is_refused_as_argument() -> None:
    b = Builder()
    s = b.input(StackType(TensorType("f8")))
    graph = b.finish([b.emit("stack_length", [s])])
    with pytest.raises(ctrlgrad.errors.UserInputError, match="TensorArray is an argument or a result"):
        translate(graph, [[]])


F8 = np.float64


def graph_of(fn: Callable[..., Any], *arguments: Any, unknown: bool = False) -> Graph:
    """Trace a function of tensors; with `unknown`, no dimension is known."""
    b = Builder()
    with trace.recording(b):
        types = [TensorType(x.dtype, (None,) * x.ndim if unknown else x.shape) for x in map(np.asarray, arguments)]
        results = fn(*(Tensor(b, b.input(t)) for t in types))
        return verify(b.finish([r.value for r in (results if isinstance(results, tuple) else (results,))]))


def loop(
    cond: Callable[..., Any], body: Callable[..., Any], *init: Any, types: Sequence[Any] = ()
) -> tuple[Tensor, ...]:
    """A `while` node straight into the graph, with carries of the given types where they are not the initial ones'."""
    outer = trace.current()
    assert outer is not None
    start = [x if isinstance(x, Tensor) else Tensor(outer, outer.constant(x)) for x in init]
    carried = [t or x.type for t, x in zip(types or [None] * len(start), start, strict=True)]
    regions = [region(fn, carried) for fn in (cond, body)]
    closed = close(regions)
    attrs = {"captures": len(closed.captures)}
    values = outer.emit_all("while", [*closed.captures, *(x.value for x in start)], attrs, regions=closed.regions)
    return tuple(Tensor(outer, v) for v in values)


def choose(selector: Tensor, branches: Sequence[Callable[[], Any]]) -> Any:
    outer = trace.current()
    assert outer is not None
    closed = close([region(fn, ()) for fn in branches])
    values = outer.emit_all("cond", [selector.value, *closed.captures], regions=closed.regions)
    results = tuple(Tensor(outer, v) for v in values)
    return results if len(results) > 1 else results[0]


def region(fn: Callable[..., Any], types: Sequence[Any]) -> Graph:
    b = Builder(trace.current(), "region")
    with trace.recording(b):
        results = fn(*(Tensor(b, b.input(t)) for t in types))
        results = results if isinstance(results, tuple) else (results,)
        return b.finish([(r if isinstance(r, Tensor) else Tensor(b, b.constant(r))).value for r in results])


def op(name: str, *operands: Any, **attrs: Any) -> Any:
    return apply(name, operands, attrs)


def add(a: Any, b: Any) -> Any:
    return op("add", a, b)


def mul(a: Any, b: Any) -> Any:
    return op("multiply", a, b)


def total(x: Any, axes: tuple[int, ...] = (0,)) -> Any:
    return op("sum", x, axes=axes, keepdims=False)


def less(a: Any, b: Any) -> Any:
    return op("less", a, b)


def stack_of(element: tuple[int | None, ...]) -> Tensor:
    return op_in_trace("stack_new", element=TensorType(F8, element))


def op_in_trace(name: str, **attrs: Any) -> Tensor:
    """An op without operands: `apply` would compute it at once."""
    builder = trace.current()
    assert builder is not None
    return Tensor(builder, builder.emit(name, (), attrs))


# Programs: scalar functions of a vector x of length 3, and of an integer n.


def plain_loop(x: Any, n: Any) -> Any:
    _, y = loop(lambda i, y: less(i, n), lambda i, y: (add(i, 1), op("sin", mul(y, x))), 0, x)
    return total(y)


def until_large(x: Any, n: Any) -> Any:
    (y,) = loop(lambda y: less(total(mul(y, y)), 50.0), lambda y: add(mul(y, 1.3), op("cos", x)), x)
    return total(mul(y, y))


def nested_with_inner_counts_from_data(x: Any, n: Any) -> Any:
    def outer(i: Any, y: Any) -> Any:
        bound = add(i, op("cast", op("trunc", mul(op("abs", total(y)), 2.0)), dtype=np.dtype(np.int64)))
        _, z = loop(lambda j, z: less(j, bound), lambda j, z: (add(j, 1), op("tanh", add(mul(z, x), 0.3))), 0, y)
        return add(i, 1), add(z, x)

    _, y = loop(lambda i, y: less(i, n), outer, 0, x)
    return total(mul(y, y))


def no_nan_from_steps_after_the_end(x: Any, n: Any) -> Any:
    """Inner loops of lengths 0 to n - 1; one step more than a loop takes would have an infinite derivative."""

    def outer(i: Any, y: Any) -> Any:
        def inner(j: Any, left: Any, z: Any) -> Any:
            return add(j, 1), op("subtract", left, 1.0), add(z, mul(total(x), op("sqrt", left)))

        start = op("cast", i, dtype=np.dtype(F8))
        _, _, z = loop(lambda j, left, z: less(j, i), inner, 0, start, 0.0)
        return add(i, 1), add(y, mul(z, z))

    _, y = loop(lambda i, y: less(i, n), outer, 0, 0.0)
    return y


def branch_in_a_loop(x: Any, n: Any) -> Any:
    def body(i: Any, y: Any) -> Any:
        big = less(0.5, op("abs", total(y)))
        return add(i, 1), choose(big, [lambda: mul(op("exp", y), x), lambda: op("sin", add(y, x))])

    _, y = loop(lambda i, y: less(i, n), body, 0, x)
    return total(mul(y, y))


def switch_with_a_branch_never_taken(x: Any, n: Any) -> Any:
    def body(i: Any, y: Any) -> Any:
        which = op("remainder", i, 2)
        # The third branch would give an infinite derivative: it never runs.
        never = lambda: op("sqrt", op("subtract", y, y))
        return add(i, 1), choose(which, [lambda: mul(y, x), lambda: op("cos", y), never])

    _, y = loop(lambda i, y: less(i, n), body, 0, x)
    return total(choose(op("add", n, 7), [lambda: y, lambda: op("tanh", y)]))


def rows_collected_and_read_back(x: Any, n: Any) -> Any:
    def push(i: Any, y: Any, s: Any) -> Any:
        return add(i, 1), op("sin", add(y, x)), op("stack_push", s, mul(y, y))

    _, y, s = loop(lambda i, y, s: less(i, n), push, 0, x, stack_of((3,)))

    def pop(i: Any, z: Any, s: Any) -> Any:
        s, row = apply_two("stack_pop", s)
        return add(i, 1), add(mul(z, 0.5), row), s

    rows = op("stack_to_tensor", s, size=None)
    half = op("floor_divide", n, 2)
    _, z, s = loop(lambda i, z, s: less(i, half), pop, 0, y, s)
    length = op("cast", op("stack_length", s), dtype=np.dtype(F8))
    return add(mul(total(z), length), total(mul(rows, rows), (0, 1)))


def apply_two(name: str, *operands: Any) -> tuple[Any, Any]:
    first, second = apply_all(name, list(operands), {})
    return first, second


def array_written_and_read(x: Any, n: Any) -> Any:
    table = op("stack_new", n, element=TensorType(F8, (3,)))

    def body(i: Any, s: Any) -> Any:
        before = op("stack_read", s, op("subtract", i, 1))
        return add(i, 1), op("stack_write", s, i, op("sin", add(before, x)), grow=False)

    _, s = loop(lambda i, s: less(i, n), body, 0, table)
    return total(op("stack_read", s, -1))


def window_that_moves(x: Any, n: Any) -> Any:
    def body(i: Any, y: Any) -> Any:
        window = op("getitem", y, i, add(i, 2), key=(slice(DYNAMIC, DYNAMIC),))
        start = op("subtract", 1, i)
        y = op("additem", y, mul(window, window), start, add(start, 2), key=(slice(DYNAMIC, DYNAMIC),))
        return add(i, 1), op("setitem", y, op("sin", window), i, add(i, 2), key=(slice(DYNAMIC, DYNAMIC),))

    _, y = loop(lambda i, y: less(i, 2), body, 0, x)
    return total(mul(y, y))


def sizes_from_values(x: Any, n: Any) -> Any:
    """The head of x of length n - 2 and an iota of n: sizes that the graph does not know."""
    size = op("subtract", n, 2)
    head = op("getitem", x, size, key=(slice(None, DYNAMIC),))
    weights = op("cast", op("iota", n, shape=(None,)), dtype=np.dtype(F8))
    column = op("reshape", head, size, shape=(None, 1))
    spread = op("broadcast_to", column, size, n, shape=(None, None))
    return total(mul(op("sin", spread), weights), (0, 1))


def carry_that_grows(x: Any, n: Any) -> Any:
    grows = TensorType(F8, (None,))

    def body(i: Any, y: Any) -> Any:
        return add(i, 1), op("concat", y, op("sin", mul(y, 0.7)), axis=0)

    _, y = loop(lambda i, y: less(i, n), body, 0, x, types=(None, grows))
    return total(mul(y, y))


def ragged_elements(x: Any, n: Any) -> Any:
    def body(i: Any, s: Any) -> Any:
        head = op("getitem", x, i, key=(slice(None, DYNAMIC),))
        return add(i, 1), op("stack_push", s, mul(head, head))

    _, s = loop(lambda i, s: less(i, 4), body, 0, stack_of((None,)))
    return add(total(op("stack_read", s, 1)), total(op("sin", op("stack_read", s, 3))))


SCANS = [
    plain_loop,
    until_large,
    nested_with_inner_counts_from_data,
    no_nan_from_steps_after_the_end,
    branch_in_a_loop,
    switch_with_a_branch_never_taken,
    rows_collected_and_read_back,
    array_written_and_read,
    window_that_moves,
    sizes_from_values,
]
UNROLLED = [carry_that_grows, ragged_elements]
X = np.array([0.4, 1.1, -0.6])
N = np.asarray(5)


def differences(graph: Graph, direction: np.ndarray) -> float:
    s = slope(lambda t: sample(graph, [X + t * direction, N]), 0.05, 1e-15)
    assert s.error < 1e-9
    return s.value


V, W = np.array([0.3, -1.2, 0.5]), np.array([1.0, 0.4, -0.2])


@functools.cache
def judged_by(program: Callable[..., Any], form: Any) -> tuple[Graph, JaxJudge, list[JaxDerivative]]:
    """A program's graph, its judge, and by that the derivatives of first and, along V, of second order."""
    graph = graph_of(program, X, N)
    judge = JaxJudge(graph, [X, N], [0], form)
    return graph, judge, judge.derivatives([(V,)])


@pytest.mark.parametrize("form", ["scan", "unrolled"])
@pytest.mark.parametrize("program", SCANS)
def test_value_and_gradient(program: Callable[..., Any], form: Any) -> None:
    graph, _, (judged, _) = judged_by(program, form)
    (expected,) = run_graph(graph, [X, N])
    assert judged.form == form
    np.testing.assert_allclose(judged.value, expected, rtol=1e-13)
    for direction in np.eye(3):
        np.testing.assert_allclose(judged.gradient[0] @ direction, differences(graph, direction), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("program", SCANS)
def test_both_forms_and_both_modes_agree_to_second_order(program: Callable[..., Any]) -> None:
    (_, scan, (_, second)), (_, _, (_, of_unrolled)) = (judged_by(program, form) for form in ("scan", "unrolled"))
    np.testing.assert_allclose(of_unrolled.gradient[0], second.gradient[0], rtol=1e-11, atol=1e-11)
    _, along = scan.directional((W,), [(V,)])
    np.testing.assert_allclose(along, second.gradient[0] @ W, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("program", UNROLLED)
def test_sizes_that_change_are_unrolled(program: Callable[..., Any]) -> None:
    graph = graph_of(program, X, N)
    (expected,) = run_graph(graph, [X, N])
    judged = JaxJudge(graph, [X, N], [0]).derivative()
    assert judged.form == "unrolled"
    np.testing.assert_allclose(judged.value, expected, rtol=1e-13)
    for direction in np.eye(3):
        np.testing.assert_allclose(judged.gradient[0] @ direction, differences(graph, direction), rtol=1e-7)
    with pytest.raises(UserInputError, match="no form with fixed sizes"):
        translate(graph, [X, N], "scan")


@pytest.mark.parametrize("program", [plain_loop, until_large, branch_in_a_loop])
@pytest.mark.parametrize("form", ["scan", "unrolled"])
def test_unknown_dimensions(program: Callable[..., Any], form: Any) -> None:
    known, unknown = (graph_of(program, X, N, unknown=u) for u in (False, True))
    assert unknown.inputs[0].tensor.shape == (None,)
    expected = translate(known, [X, N], form)(X, N)
    np.testing.assert_allclose(translate(unknown, [X, N], form)(X, N), expected, rtol=1e-14)


@pytest.mark.parametrize("form", ["scan", "unrolled"])
def test_zero_iterations_give_the_initial_carry(form: Any) -> None:
    none = np.asarray(0)
    graph = graph_of(plain_loop, X, none)
    judged = JaxJudge(graph, [X, none], [0], form).derivative()
    np.testing.assert_array_equal(judged.value, X.sum())
    np.testing.assert_array_equal(judged.gradient[0], np.ones(3))


def test_one_and_two_dimensional_arrays_keep_float32() -> None:
    x = X.astype(np.float32)
    graph = graph_of(lambda x: total(op("sin", mul(x, x))), x)
    judged = JaxJudge(graph, [x], [0]).derivative()
    assert judged.value.dtype == judged.gradient[0].dtype == np.float32


def test_the_users_jax_setting_stays() -> None:
    import jax
    import jax.numpy as jnp

    before = jax.config.jax_enable_x64
    JaxJudge(graph_of(plain_loop, X, N), [X, N], [0]).derivative()
    assert jax.config.jax_enable_x64 == before
    assert jnp.zeros(1, float).dtype == (np.float64 if before else np.float32)


def test_stacks_are_joined_through_regions() -> None:
    """One capacity for a stack on its way through two loops; one of its own for another stack."""

    def two(x: Any, n: Any) -> Any:
        def push(i: Any, s: Any) -> Any:
            return add(i, 1), op("stack_push", s, x)

        _, long = loop(lambda i, s: less(i, n), push, 0, stack_of((3,)))
        _, long = loop(lambda i, s: less(i, 3), push, 0, long)
        short = op("stack_push", stack_of((3,)), x)
        return add(total(op("stack_read", long, 0)), total(op("stack_read", short, 0)))

    graph = graph_of(two, X, N)
    capacity = translate(graph, [X, N]).recording.capacity
    by_value = {v: capacity[v] for node in graph.nodes for v in node.results if isinstance(v.type, StackType)}
    assert sorted(by_value.values()) == [1, 1, 8, 8, 8]
