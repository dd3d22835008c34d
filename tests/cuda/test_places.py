"""Scalars and stacks of scalars may lie on the host or on the device: every op takes them in every combination.

What has axes lies on the device always. `SCALARS` has an op with the operands of one call, attributes included; ops
that take no scalar and no stack of scalars are listed in `ARRAYS_ONLY`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.stand_in import StandIn
from instruments.stand_in_runs import on_reference

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.cuda.engine import run_with
from ctrlgrad.engines.cuda.program import Context
from ctrlgrad.errors import CtrlgradError
from ctrlgrad.ir import OPS, Builder, Graph, StackType, TensorType, Trait, verify
from ctrlgrad.ir.attributes import DYNAMIC

X, Y, B, I, NEGATIVE = np.float64(0.7), np.float64(-1.3), np.True_, np.int64(1), np.int64(-1)  # noqa: E741
VECTOR, MATRIX, COUNTS = np.arange(3.0), np.arange(6.0).reshape(2, 3), np.array([1, 2])
SCALAR = TensorType(np.dtype(np.float64), ())


def rows() -> list[Any]:
    return [np.float64(0.5), np.float64(1.5)]


@dataclass(frozen=True)
class Call:
    """One node; a list stands for a stack."""

    op: str
    operands: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)

    def graph(self) -> Graph:
        builder = Builder(name=self.op)
        inputs = [builder.input(_type(x)) for x in self.operands]
        return verify(builder.finish(builder.emit_all(self.op, inputs, self.attrs)))

    def __str__(self) -> str:
        return f"{self.op}({', '.join(map(str, map(_type, self.operands)))})"


def _type(x: Any) -> Any:
    return StackType(_type(x[0])) if isinstance(x, list) else TensorType(np.asarray(x).dtype, np.shape(x))


SCALARS = [
    *(Call(name, (X,)) for name in ("barrier", "stop_gradient")),
    Call("watch", (X,), {"fn": print, "label": "x"}),
    Call("getitem", (VECTOR, I), {"key": (DYNAMIC,)}),
    Call("getitem", (VECTOR, NEGATIVE), {"key": (DYNAMIC,)}),
    Call("getitem", (VECTOR, np.int64(0), I), {"key": (slice(DYNAMIC, DYNAMIC),)}),
    Call("getitem", (MATRIX, I, I), {"key": (DYNAMIC, DYNAMIC)}),
    Call("getitem", (X,), {"key": (None,)}),
    *(Call(name, (VECTOR, X, I), {"key": (DYNAMIC,)}) for name in ("setitem", "additem")),
    *(Call(name, (MATRIX, X, I, I), {"key": (DYNAMIC, DYNAMIC)}) for name in ("setitem", "additem")),
    *(Call(name, (VECTOR, X, np.int64(0), I), {"key": (slice(DYNAMIC, DYNAMIC),)}) for name in ("setitem", "additem")),
    *(Call(name, (X, Y), {"key": ()}) for name in ("setitem", "additem")),
    *(Call(name, (I,), {"axes": (), "keepdims": False}) for name in ("sum", "prod", "max", "min")),
    *(Call(name, (B,), {"axes": (), "keepdims": False}) for name in ("any", "all")),
    Call("forget_sizes", (X,), {"axes": ()}),
    Call("ensure_sizes", (X,), {"axes": (), "shape": (), "problem": "another size", "hint": "look at it"}),
    Call("iota", (np.int64(3),), {"shape": (None,)}),
    Call("reshape", (X,), {"shape": (1, 1)}),
    Call("reshape", (X, I), {"shape": (None,)}),
    Call("broadcast_to", (X,), {"shape": (2, 2)}),
    Call("broadcast_to", (X, np.int64(2)), {"shape": (None,)}),
    Call("sum_to", (X,), {"shape": ()}),
    Call("sum_to", (MATRIX, I), {"shape": (None,)}),
    Call("transpose", (X,), {"axes": ()}),
    Call("expand_dims", (X,), {"axes": (0,)}),
    Call("squeeze", (X,), {"axes": ()}),
    Call("flip", (X,), {"axes": ()}),
    Call("searchsorted", (VECTOR, X), {"side": "left"}),
    Call("pinv", (MATRIX, X)),
    Call("stack_new", (I,), {"element": SCALAR}),
    Call("stack_push", (rows(), X)),
    Call("stack_pop", (rows(),)),
    *(Call("stack_read", (rows(), i)) for i in (I, NEGATIVE)),
    *(
        Call("stack_write", (rows(), i, X), {"grow": g})
        for i, g in ((I, False), (NEGATIVE, False), (np.int64(2), True))
    ),
    *(Call("stack_add", (rows(), i, X)) for i in (I, NEGATIVE)),
    Call("stack_clear", (rows(), I)),
    *(Call("stack_resize", (rows(), n)) for n in (I, np.int64(4))),
    Call("stack_sum", (rows(), rows())),
    Call("stack_length", (rows(),)),
    Call("stack_to_tensor", (rows(),), {"size": None}),
]
# Rows of stacks and values that have axes lie on the device, indices and sizes where they like.
ROWS = [
    Call("stack_read", ([VECTOR, VECTOR + 1], I)),
    Call("stack_write", ([VECTOR, VECTOR + 1], I, VECTOR * 2), {"grow": False}),
    Call("stack_add", ([VECTOR, VECTOR + 1], I, VECTOR * 2)),
    Call("stack_clear", ([VECTOR, VECTOR + 1], I)),
    Call("stack_resize", ([VECTOR, VECTOR + 1], np.int64(4))),
]
ARRAYS_ONLY = {
    *("solve", "cholesky", "det", "adjugate", "adjugate_along", "logabsdet", "det_sign", "orthonormal"),
    *("triangular_solve", "general_eigenvalues", "general_eigenvectors"),
    *(
        *("rfft", "irfft"),
        "eigenvalues",
        "eigenvectors",
        "singular_values",
        "singular_vectors",
        "fft",
        "rfft",
        "irfft",
        "matmul",
        "argmax",
        "argmin",
    ),
    *("cumsum", "cumprod", "dim", "common_size", "concat", "argsort", "top_k", "nonzero", "constant"),
    *("stack_from_tensor", "stack_rows", "stack_concat", "stack_split"),
}
# Tested below, with regions.
WITH_REGIONS = {"while", "cond", "call", "callback", "pure_callback"}


def elementwise() -> Iterator[Call]:
    """Each elementwise op on scalars of a dtype that it takes."""
    for name, op in OPS.items():
        if Trait.ELEMENTWISE not in op.traits or op.arity is None or name in ("cast", "where", "complex"):
            continue
        for sample in (X, B, np.int64(2), np.complex128(1 + 2j)):
            call = Call(name, (sample,) * op.arity)
            try:
                call.graph()
            except CtrlgradError:
                continue
            yield call
    yield Call("bits_to_bfloat16", (np.int16(0x3F80),))
    for dtype in ("float32", "bfloat16", "int32", "bool", "complex64"):
        yield Call("cast", (X,), {"dtype": np.dtype(dtype)})
    yield from (Call("where", (B, X, Y)), Call("where", (B, VECTOR, Y)), Call("complex", (X, Y)))


CALLS = [*elementwise(), *SCALARS, *ROWS]


def placements(call: Call) -> Iterator[tuple[bool, ...]]:
    """Every combination of operands on the device."""
    free = [np.ndim(x[0] if isinstance(x, list) else x) == 0 for x in call.operands]
    yield from itertools.product(*((False, True) if f else (True,) for f in free))


def placed(library: StandIn, x: Any, on_device: bool) -> Any:
    if isinstance(x, list):
        return [placed(library, row, on_device) for row in x]
    return library.upload(x) if on_device else x


def assert_agrees(graph: Graph, operands: tuple[Any, ...], on_device: tuple[bool, ...]) -> None:
    """As the reference engine, stacks row by row; a slot that was never written is one in both."""
    library = StandIn()
    given = [placed(library, x, its) for x, its in zip(operands, on_device, strict=True)]
    found = run_with(Context(library), graph, given)
    expected = on_reference(graph, [list(x) if isinstance(x, list) else x for x in operands])
    for a, b in zip(found, expected, strict=True):
        left, right = (x if isinstance(x, list) else [x] for x in (a, b))
        assert [x is None for x in left] == [x is None for x in right]
        assert_same([x for x in left if x is not None], [x for x in right if x is not None], rtol=1e-14)


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_operands_in_any_place(call: Call) -> None:
    graph = call.graph()
    for on_device in placements(call):
        assert_agrees(graph, call.operands, on_device)


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_results_go_where_they_are_said_to(call: Call) -> None:
    """The next op reads them there: each result goes through a branch that does nothing."""
    builder = Builder(name=call.op)
    inputs = [builder.input(_type(x)) for x in call.operands]
    results = builder.emit_all(call.op, inputs, call.attrs)
    passed = [
        builder.emit("barrier", [v]) if isinstance(v.type, TensorType) else _pushed_on(builder, v) for v in results
    ]
    graph = verify(builder.finish(passed))
    for on_device in placements(call):
        assert_agrees(graph, call.operands, on_device)


def _pushed_on(builder: Builder, stack: Any) -> Any:
    """A stack with a row more."""
    element = stack.type.element
    return builder.emit("stack_push", [stack, builder.constant(np.full(element.shape, 3, element.dtype))])


def test_every_op_is_listed() -> None:
    named = {call.op for call in CALLS}
    mapped = {name for name, op in OPS.items() if Trait.MAPPED in op.traits}
    assert set(OPS) == named | ARRAYS_ONLY | WITH_REGIONS | mapped
    assert not named & ARRAYS_ONLY


def chooses(n: Any, x: Any, y: Any) -> Any:
    return cg.cond(n > 0, lambda: x + 1.0, lambda: y)


def chooses_an_array(n: Any, x: Any, y: Any) -> Any:
    """One branch leaves the stack alone, the other puts something on it."""
    array = cg.TensorArray("float64", element_shape=()).write(0, x)
    return cg.cond(n > 0, lambda: array.write(1, y), lambda: array).stack()


def reads_what_it_writes(n: Any, x: Any, y: Any) -> Any:
    array = cg.TensorArray("float64", size=4, element_shape=(), rewritable=True)

    def body(i: Any, array: Any) -> Any:
        return array.write(i % 2, x + array.read((i + n) % 4)).write(3, y * array.read(n))

    return cg.fori_loop(0, n + 3, body, array).stack()


def calls(n: Any, x: Any, y: Any) -> Any:
    return cg.checkpoint(lambda n, x, y: (n + 1, x * y, x))(n, x, y)


def tells(n: Any, x: Any, y: Any) -> Any:
    cg.debug.print("n {} x {} y {}", n, x, y)
    return x + y


@pytest.mark.parametrize("function", [chooses, chooses_an_array, reads_what_it_writes, calls, tells])
@pytest.mark.parametrize("on_device", list(itertools.product((False, True), repeat=3)), ids=str)
def test_regions(function: Callable[..., Any], on_device: tuple[bool, ...]) -> None:
    """Forwards and, for what has one result, the gradient."""
    arguments = (np.int64(2), X, Y)
    assert_agrees(cg.function(function).graph(*arguments), arguments, on_device)
    if function is not calls:
        loss = lambda n, x, y: cnp.sum(np.sin(function(n, x, y)))
        assert_agrees(cg.function(cg.grad(loss, argnums=(1, 2))).graph(*arguments), arguments, on_device)
