"""Every op's translation into JAX computes what the reference engine computes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import ctrlgrad.ops
import ctrlgrad.stacks
from ctrlgrad.engines.reference import run_graph
from ctrlgrad.ir import OPS, Builder, Graph, StackType, TensorType, Trait, Value
from ctrlgrad.ir.attributes import DYNAMIC
from ctrlgrad.verify.jax_translation import ADDED, BOUNDED, LISTS, TENSOR_OPS, translate

# What owns regions, and what only looks in.
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
    # JAX has no form of these: the number of results depends on data; an op of a derivative alone.
    # Ops of a function that is being mapped reach no judge: batching puts others in their place.
    formless = {"nonzero", "adjugate_along"} | {name for name, op in OPS.items() if Trait.MAPPED in op.traits}
    assert set(TENSOR_OPS) | set(BOUNDED) | CONTROL | formless == set(OPS)
    assert not set(TENSOR_OPS) & formless
    assert set(BOUNDED) == set(LISTS) == {name for name in OPS if name.startswith("stack_")}
    covered: set[str] = {case.op for case in CASES}
    stack_graph(covered)
    # The others are compared with their derivatives: by tests/gradients/test_rules.py, and these four in whole
    # programs, by the tests of TensorArray and of vmap.
    formless |= {"stack_concat", "stack_split", "stack_rows", "common_size"}
    assert covered <= set(OPS) and set(OPS) - covered - CONTROL - formless <= ADDED


def test_a_stack_type_is_refused_as_argument() -> None:
    b = Builder()
    s = b.input(StackType(TensorType("f8")))
    graph = b.finish([b.emit("stack_length", [s])])
    with pytest.raises(ctrlgrad.errors.UserInputError, match="TensorArray is an argument or a result"):
        translate(graph, [[]])
