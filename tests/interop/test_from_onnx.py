"""`from_onnx`: models of ONNX as functions of this library; their derivatives against finite differences."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx import parser

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import TracingError, UnsupportedPrimitiveError, UserInputError
from ctrlgrad.interop.onnx.operators import TABLE
from ctrlgrad.interop.onnx.reader import Reader
from tests.onnx_models import model, one_node, random


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    with cg.options(engine="reference"):
        yield


NEWTON = """
newton (double a) => (double x, double[n] rows) {
    most = Constant <value_int = 50> ()
    start = Constant <value = bool {1}> ()
    x, rows = Loop (most, start, a) <body = step (int64 i, bool go, double c)
            => (bool more, double d, double row) {
        half = Constant <value = double {0.5}> ()
        small = Constant <value = double {1e-10}> ()
        q = Div (a, c)
        s = Add (c, q)
        d = Mul (half, s)
        dd = Mul (d, d)
        off = Sub (dd, a)
        size = Abs (off)
        more = Greater (size, small)
        row = Mul (d, a)
    }>
}"""

POWERS = """
powers (double[2] x, int64 n) => (double[2] y, double[k, 2] rows) {
    start = Constant <value = bool {1}> ()
    one = Constant <value = double[2] {1.0, 1.0}> ()
    y, rows = Loop (n, start, one) <body = step (int64 i, bool go, double[2] c)
            => (bool more, double[2] d, double[2] row) {
        more = Identity (go)
        d = Mul (c, x)
        row = Sin (d)
    }>
}"""

GROWING = """
growing (double[2] x) => (double s) {
    n = Constant <value_int = 3> ()
    all = Constant <value_ints = [0]> ()
    y = Loop (n, , x) <body = step (int64 i, bool go, double[m] c) => (bool more, double[k] d) {
        more = Identity (go)
        e = Sin (c)
        d = Concat <axis = 0> (c, e)
    }>
    s = ReduceSum <keepdims = 0> (y, all)
}"""

BRANCHES = """
branches (double[3] x) => (double y) {
    all = Constant <value_ints = [0]> ()
    zero = Constant <value = double {0}> ()
    s = ReduceSum <keepdims = 0> (x, all)
    p = Greater (s, zero)
    y = If (p) <
        then_branch = up () => (double a) { xx = Mul (x, x)  a = ReduceSum <keepdims = 0> (xx, all) },
        else_branch = down () => (double b) { e = Exp (x)  b = ReduceSum <keepdims = 0> (e, all) }>
}"""

SCAN = """
running (double[2] h, double[5, 2] xs) => (double[2] last, double[2, 5] rows) {
    last, rows = Scan <num_scan_inputs = 1, scan_input_directions = [1], scan_output_axes = [1], body = step
            (double[2] c, double[2] x) => (double[2] d, double[2] row) {
        s = Mul (c, x)
        d = Tanh (s)
        row = Mul (d, x)
    }> (h, xs)
}"""

MAPPED = """
mapped (seq(double[n]) xs, double w) => (seq(double[n]) ys) {
    ys = SequenceMap (xs, w) <body = scaled (double[n] x, double v) => (double[n] y) {
        s = Sin (x)
        y = Mul (s, v)
    }>
}"""


def test_a_loop_with_a_condition_of_data_and_scan_outputs() -> None:
    f = model(NEWTON)
    x, rows = f(2.0)
    assert float(x) == pytest.approx(np.sqrt(2)) and rows.ndim == 1 and rows[-1] == pytest.approx(2 * np.sqrt(2))
    assert len(f(1.0)[1]) == 1
    cg.check_grads(f, (2.0,), order=2, modes=("rev", "fwd"), against=("finite_differences",))
    assert float(cg.grad(lambda a: f(a)[0])(2.0)) == pytest.approx(0.5 / np.sqrt(2))


def test_rows_of_a_batch_leave_a_loop_when_they_are_done() -> None:
    gradient = cg.vmap(cg.grad(lambda a: model(NEWTON)(a)[0]))(np.array([2.0, 9.0, 100.0]))
    np.testing.assert_allclose(gradient, 0.5 / np.sqrt([2.0, 9.0, 100.0]))


@pytest.mark.parametrize("n", [0, 1, 4])
def test_a_loop_with_a_trip_count_that_is_an_input(n: int) -> None:
    f, x = model(POWERS), np.array([1.5, -0.5])
    y, rows = f(x, n)
    np.testing.assert_allclose(y, x**n)
    np.testing.assert_allclose(rows, np.sin([x ** (i + 1) for i in range(n)]).reshape(n, 2))
    cg.check_grads(lambda x: f(x, np.int64(n)), (x,), modes=("rev", "fwd"), against=("finite_differences",))
    # A trip count that is traced.
    gradient = cg.function(lambda n: cg.grad(lambda x: f(x, n)[0].sum())(x))(np.int64(n))
    np.testing.assert_allclose(gradient, n * x ** max(n - 1, 0))


def test_a_loop_whose_state_grows() -> None:
    f = model(GROWING)
    x = np.array([0.3, -1.0])
    y = x
    for _ in range(3):
        y = np.concatenate([y, np.sin(y)])
    assert float(f(x)) == pytest.approx(y.sum())
    cg.check_grads(f, (x,), against=("finite_differences",))


def test_both_branches_and_their_derivatives() -> None:
    f = model(BRANCHES)
    for x in (np.array([1.0, 2.0, -0.5]), np.array([-1.0, 0.5, -0.5])):
        assert float(f(x)) == pytest.approx((x * x).sum() if x.sum() > 0 else np.exp(x).sum())
        cg.check_grads(f, (x,), order=2, modes=("rev", "fwd"), against=("finite_differences",))


def test_scan_from_the_end_with_outputs_along_another_axis() -> None:
    f, h, xs = model(SCAN), np.array([0.5, -0.3]), random(5, 2)
    state, rows = h, []
    for x in xs[::-1]:
        state = np.tanh(state * x)
        rows.append(state * x)
    last, found = f(h, xs)
    np.testing.assert_allclose(last, state)
    np.testing.assert_allclose(found, np.array(rows).T)
    cg.check_grads(f, (h, xs), order=2, modes=("rev", "fwd"), against=("finite_differences",))


def test_a_function_mapped_over_a_sequence_of_arrays_of_several_sizes() -> None:
    f, xs, w = model(MAPPED), [random(3), random(1, seed=1), random(4, seed=2)], np.float64(1.5)
    for y, x in zip(f(xs, w), xs, strict=True):
        np.testing.assert_allclose(y, w * np.sin(x))
    cg.check_grads(f, (xs, w), modes=("rev", "fwd"), against=("finite_differences",))


def test_sequences_and_optionals() -> None:
    f = model(
        """
        g (double[4] x, int64 k) => (double[m] y, int64 n, bool there) {
            two = Constant <value_int = 2> ()
            one = Constant <value_int = 1> ()
            parts = SplitToSequence (x, two)
            first = SequenceAt (parts, k)
            more = SequenceInsert (parts, first, one)
            fewer = SequenceErase (more)
            own = SequenceConstruct (first, x)
            joined = ConcatFromSequence <axis = 0> (own)
            n = SequenceLength (fewer)
            boxed = Optional (joined)
            there = OptionalHasElement (boxed)
            y = OptionalGetElement (boxed)
        }"""
    )
    x = np.array([1.0, 2.0, 3.0, 4.0])
    y, n, there = f(x, -1)
    assert y.tolist() == [3.0, 4.0, 1.0, 2.0, 3.0, 4.0] and n == 2 and there
    assert cg.grad(lambda x: f(x, 0)[0].sum())(x).tolist() == [2.0, 2.0, 1.0, 1.0]


ATTENTION = {
    "plain": ([random(1, 2, 3, 4), random(1, 2, 5, 4, seed=1), random(1, 2, 5, 4, seed=2)], {}),
    "causal": ([random(1, 2, 3, 4), random(1, 2, 3, 4, seed=1), random(1, 2, 3, 4, seed=2)], {"is_causal": 1}),
    "grouped": ([random(1, 4, 3, 4), random(1, 2, 5, 4, seed=1), random(1, 2, 5, 4, seed=2)], {"softcap": 2.0}),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_by_the_function_that_onnx_defines_it_by(name: str) -> None:
    inputs, attributes = ATTENTION[name]
    assert ("", "Attention") not in TABLE
    f = one_node("Attention", inputs, version=23, **attributes)
    q, k, v = inputs
    k, v = np.repeat(k, q.shape[1] // k.shape[1], 1), np.repeat(v, q.shape[1] // v.shape[1], 1)
    scores = q @ np.swapaxes(k, -1, -2) / 2.0
    scores = 2 * np.tanh(scores / 2) if "softcap" in attributes else scores
    scores = np.where(np.tril(np.ones(scores.shape[-2:])), scores, -np.inf) if "is_causal" in attributes else scores
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(f(*inputs), weights @ v, rtol=1e-6)
    cg.check_grads(f, inputs, modes=("rev", "fwd"), against=("finite_differences",))


PLACES = np.array([[1, 0], [-1, 1]], np.int32)
NODES: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "gather": ("Gather", [random(3, 2), PLACES], {"axis": 0}),
    "gather elements": ("GatherElements", [random(3, 2), PLACES], {"axis": 0}),
    "gather nd": ("GatherND", [random(3, 2), PLACES], {}),
    "scatter elements": ("ScatterElements", [random(3, 2), PLACES, random(2, 2)], {"reduction": "mul"}),
    "scatter nd": ("ScatterND", [random(3, 2), PLACES, random(2)], {"reduction": "add"}),
    "softmax": ("Softmax", [random(3, 2)], {"axis": 0}),
    "layer norm": ("LayerNormalization", [random(3, 4), random(4, seed=1), random(4, seed=2)], {"axis": -1}),
    "instance norm": ("InstanceNormalization", [random(2, 3, 4), random(3, seed=1), random(3, seed=2)], {}),
    "group norm": ("GroupNormalization", [random(2, 4, 3), random(4, seed=1), random(4)], {"num_groups": 2}),
    "gemm": ("Gemm", [random(3, 2), random(4, 3), random(4)], {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    "einsum": ("Einsum", [random(3, 2), random(2, 4)], {"equation": "ij,jk->k"}),
    "convolution": ("Conv", [random(1, 2, 6), random(3, 2, 3)], {"strides": [2], "auto_pad": "SAME_UPPER"}),
    "transposed convolution": ("ConvTranspose", [random(1, 2, 4), random(2, 3, 3)], {"strides": [2], "pads": [1, 0]}),
    "maximum of windows": ("MaxPool", [random(1, 2, 7)], {"kernel_shape": [3], "strides": [2], "ceil_mode": 1}),
    "mean of windows": ("AveragePool", [random(1, 2, 7)], {"kernel_shape": [3], "pads": [1, 1]}),
    "power": ("Pow", [abs(random(3)) + 0.5, random(3, seed=1)], {}),
    "products so far": ("CumProd", [random(4), np.array(0, np.int32)], {"reverse": 1, "exclusive": 1}),
    "padding": ("Pad", [random(3), np.array([2, -1], np.int32)], {"mode": "constant"}),
    "gelu": ("Gelu", [random(5)], {"approximate": "tanh"}),
    "softplus": ("Softplus", [random(5)], {}),
    "lp norm": ("ReduceL2", [random(3, 2)], {"keepdims": 0}),
    "local response": ("LRN", [random(1, 5, 2)], {"size": 3}),
}


@pytest.mark.parametrize("name", NODES)
def test_derivatives_of_operators(name: str) -> None:
    op, inputs, attributes = NODES[name]
    version = 26 if op == "CumProd" else 21
    cases = [x.astype(np.int64) if op == "Pad" and x.dtype == np.int32 else x for x in inputs]
    f = one_node(op, inputs, version=version, **attributes)
    fixed = {f"x{i}": x for i, x in enumerate(cases) if x.dtype.kind != "f"}
    names = [f"x{i}" for i, x in enumerate(cases) if x.dtype.kind == "f"]
    floats = [x for x in cases if x.dtype.kind == "f"]

    def call(*xs: Any) -> Any:
        return f(**dict(zip(names, xs, strict=True)), **fixed)

    cg.check_grads(call, floats, order=2, modes=("rev", "fwd"), against=("finite_differences",))


def test_weights_are_arguments_by_name() -> None:
    f = model("g (double[2] x) => (double[2] y) <double[2] w = {2.0, 3.0}> { y = Mul (w, x) }")
    x = np.array([5.0, 7.0])
    assert (f.inputs, f.outputs, [*f.initializers]) == (("x",), ("y",), ["w"])
    assert f(x).tolist() == [10.0, 21.0] and f(x=x, w=np.ones(2)).tolist() == [5.0, 7.0]
    gradient = cg.grad(lambda weights: f(x, **weights).sum())(f.initializers)
    assert gradient["w"].tolist() == [5.0, 7.0]


RESHAPED = "g (double[n] x, int64[2] shape) => (double[a, b] y) { z = Reshape (x, shape)  y = Exp (z) }"
LARGEST = "g (double[n] x, int64[1] k) => (double[a] y) { y, places = TopK (x, k) }"


def test_an_input_whose_value_an_operator_needs_is_part_of_the_signature() -> None:
    f, x = model(RESHAPED), np.arange(6.0)
    for shape in ([2, 3], [3, -1], [2, 3]):
        assert f(x, np.array(shape)).shape == x.reshape(shape).shape
    assert cg.grad(lambda x: f(x, np.array([2, 3])).sum())(x).tolist() == np.exp(x).tolist()
    # A size may also be computed in the run, a number of results may not.
    assert cg.function(lambda s: f(x, s))(np.array([2, 3])).shape == (2, 3)
    with pytest.raises(TracingError, match=r"TopK needs the value of its input 1(.|\n)*'k'"):
        cg.function(lambda k: model(LARGEST)(x, k))(np.array([2]))
    assert model(LARGEST)(x, np.array([2])).tolist() == [5.0, 4.0]


def test_sizes_are_known_so_shapes_are_computed_when_the_model_is_read() -> None:
    f = model(
        """
        g (double[n, m] x) => (double[k] y) {
            s = Shape (x)
            zero = Constant <value_int = 0> ()
            axes = Constant <value_ints = [0]> ()
            n = Gather (s, zero)
            m = Size (x)
            nn = Mul (n, n)
            both = Div (m, n)
            k = Mul (n, both)
            kk = Unsqueeze (k, axes)
            y = Reshape (x, kk)
        }"""
    )
    assert f(np.ones((2, 3))).shape == (6,) and f(np.ones((4, 3))).shape == (12,)
    graph = cg.function(lambda x: f(x)).graph(np.ones((2, 3)))
    assert [node.op.name for node in graph.nodes] == ["reshape"]


def test_functions_of_the_model_with_attributes() -> None:
    f = model(
        "g (double[2] x) => (double[2] y) { y = own.scaled <alpha = 3> (x) }",
        more="""
        <domain: "own", opset_import: ["" : 21]>
        scaled <alpha> (v) => (w) {
            k = Constant <value_int : int = @alpha> ()
            c = CastLike (k, v)
            w = Mul (v, c)
        }""",
    )
    assert cg.grad(lambda x: f(x).sum())(np.ones(2)).tolist() == [3.0, 3.0]


def test_an_operator_that_is_not_known_names_itself_its_node_and_how_to_add_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctrlgrad.interop.onnx.operators.TABLE", TABLE)
    f = model("g (double[2] x) => (double[2] y) { z = Exp (x)  y = own.Odd <alpha = 2.0> (z) }")
    pattern = r"'own.Odd'(.|\n)*graph 'g', node:1(.|\n)*onnx_op\('Odd', 'own'\)"
    with pytest.raises(UnsupportedPrimitiveError, match=pattern):
        f(np.ones(2))

    @cg.interop.onnx_op("Odd", "own")
    def odd(x: Any, *, alpha: float) -> Any:
        return alpha * cnp.sin(x)

    try:
        np.testing.assert_allclose(f(np.ones(2)), 2 * np.sin(np.exp(np.ones(2))))
    finally:
        del TABLE["own", "Odd"]


@pytest.mark.parametrize(
    ("text", "error", "pattern"),
    [
        ("g (string[2] x) => (string[2] y) { y = Identity (x) }", UnsupportedPrimitiveError, "STRING"),
        (
            "g (float8e4m3fn[2] x) => (float8e4m3fn[2] y) { y = Identity (x) }",
            UnsupportedPrimitiveError,
            "FLOAT8E4M3FN",
        ),
        ("g (float[2] x) => (float[2] y) { y = RandomNormalLike (x) }", UnsupportedPrimitiveError, "RandomNormalLike"),
        ("g (float[1,1,2,2] x) => (float[n] y) { y = RoiAlign (x) }", UnsupportedPrimitiveError, "images"),
    ],
)
def test_unsupported_models_are_refused_by_name(text: str, error: Any, pattern: str) -> None:
    with pytest.raises(error, match=pattern):
        model(text)(np.ones(2, np.float32))


def test_arguments_that_are_not_the_inputs_are_refused() -> None:
    f = model(POWERS)
    for call in (lambda: f(), lambda: f(1, 2, 3), lambda: f(np.ones(2), x=np.ones(2)), lambda: f(np.ones(2), 1, z=1)):
        with pytest.raises(UserInputError, match="expected: x, n"):
            call()
    with pytest.raises(UserInputError, match=r"ModelProto"):
        cg.from_onnx(3)


def test_a_path_bytes_and_a_model_are_the_same(tmp_path: Path) -> None:
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>{BRANCHES}')
    path = tmp_path / "model.onnx"
    onnx.save(proto, str(path))
    x = np.array([1.0, 2.0, 3.0])
    for given in (proto, proto.SerializeToString(), path, str(path)):
        assert float(cg.from_onnx(given)(x)) == 14.0


def nested(kind: str, depth: int) -> str:
    """A model with `If`s or `Loop`s in each other."""
    text = "y0 = Tanh (x)"
    for d in range(1, depth + 1):
        if kind == "If":
            text = f"""c{d} = Greater (s, s)
                y{d} = If (c{d}) <else_branch = e{d} () => (float[3] f{d}) {{ {text} f{d} = Mul (y{d - 1}, x) }},
                                  then_branch = t{d} () => (float[3] u{d}) {{ u{d} = Identity (x) }}>"""
        else:
            text = f"""y{d} = Loop (most, , x) <body = b{d} (int64 i{d}, bool g{d}, float[3] v{d})
                => (bool h{d}, float[3] w{d}) {{ {text} h{d} = Identity (g{d}) w{d} = Mul (y{d - 1}, v{d}) }}>"""
    return f"""nested (float[3] x) => (float[3] y) {{
        most = Constant <value_int = 1> ()
        s = ReduceSum <keepdims = 0> (x)
        {text}
        y = Identity (y{depth})
    }}"""


@pytest.mark.parametrize("kind", ["If", "Loop"])
def test_nested_graphs_are_read_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    node = Reader.node

    def noted(reader: Reader, proto: onnx.NodeProto, *rest: Any) -> Any:
        read.append(proto.output[0])
        return node(reader, proto, *rest)

    monkeypatch.setattr(Reader, "node", noted)
    x = np.array([0.5, -1.0, 2.0], np.float32)
    f = model(nested(kind, 12))
    np.testing.assert_allclose(f(x), np.tanh(x) * x**12, rtol=1e-5)
    assert len(read) == len(set(read)) > 12
    slope = cg.grad(lambda x: f(x).sum())(x)
    np.testing.assert_allclose(slope, x**12 / np.cosh(x) ** 2 + 12 * x**11 * np.tanh(x), rtol=1e-4)


def test_a_cycle_is_refused_by_the_name_of_a_value() -> None:
    with pytest.raises(UserInputError, match=r"'b' is used before a node computes it\n  at: .*node:0 in Add"):
        model("g (float x) => (float a) { a = Add (x, b) b = Add (a, x) }")(np.float32(1))
    with pytest.raises(UserInputError, match="'b' is used before"):
        model("g (float x) => (float b) { a = Add (x, x) }")(np.float32(1))


def test_a_function_that_calls_itself_is_refused() -> None:
    text = """<ir_version: 9, opset_import: ["" : 17, "own" : 1]> g (float x) => (float y) { y = own.f (x) }
        <domain: "own", opset_import: ["" : 17, "own" : 1]> f (x) => (y) { z = own.g (x) y = Add (z, x) }
        <domain: "own", opset_import: ["" : 17, "own" : 1]> g (x) => (y) { y = own.f (x) }"""
    with pytest.raises(UserInputError, match=r"the function 'f' of the model calls itself(.|\n)*f -> g -> f"):
        cg.from_onnx(parser.parse_model(text))(np.float32(1))


def test_a_message_without_a_graph_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "empty.onnx").write_bytes(b"")
    for given in (b"", onnx.ModelProto(), tmp_path / "empty.onnx"):
        with pytest.raises(UserInputError, match="this is no ONNX model"):
            cg.from_onnx(given)


def test_compiled_code_agrees() -> None:
    with cg.options(engine="native"):
        f = model(NEWTON)
        assert float(f(2.0)[0]) == pytest.approx(np.sqrt(2))
        assert float(cg.grad(lambda a: f(a)[0])(2.0)) == pytest.approx(0.5 / np.sqrt(2))


def test_jax_is_not_needed() -> None:
    script = (
        "import sys; sys.modules['jax'] = None\n"
        "import numpy as np, ctrlgrad as cg\nfrom onnx import parser\n"
        "text = '<ir_version: 8, opset_import: [\"\" : 17]> g (float x) => (float y) { y = Mul (x, x) }'\n"
        "with cg.options(engine='reference'): print(cg.grad(cg.from_onnx(parser.parse_model(text)))(np.float32(3)))"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert found.stdout.strip() == "6.0", found.stderr
