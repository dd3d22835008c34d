"""The text of generated kernels: golden, as the stand-in runs it, and as compilers read it.

One text serves the card, the stand-in and the C++ compiler; here all of them but the card are held against the
reference engine's kernels, op by op and dtype by dtype.
"""

from __future__ import annotations

import ast
import ctypes
import math
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elementwise_cases import DTYPES, assert_agrees, elementwise_cases
from evaluating import Program as Expressions
from evaluating import compiled
from instruments.compiled_kernels import HALF
from instruments.kernel_functions import MEANING
from instruments.stand_in import StandIn, run_text
from programs import BY_NAME, Program

from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda.engine import explain_on
from ctrlgrad.engines.cuda.kernel import (
    KernelText,
    Parameter,
    definitions,
    kernel_constant,
    literal,
    preamble,
    statements,
)
from ctrlgrad.plan.elementary.table import Elementary, all_elementary
from ctrlgrad.plan.expression import PRIMITIVES, Expression, ExpressionBuilder, Number, call, fma, select

CASES = elementwise_cases()

# Work of a step of the corpus's LSTM after its products, with the pushes of its gradient.
LSTM_STEP = """\
(float64 a0, float64 a1, float64 a2, float64 a3, float64 a4, float64 a5, float64 a6, float64 a7, \
float64 a8, float64 a9, float64 a10, float64 a11, float64 a12, float64 a13) \
-> (float64 o0, float64 o1, float64 o2, float64 o3, float64 o4, float64 o5, float64 o6, float64 o7)
float64 v0 = a2 + a3;
float64 v1 = v0 + a4;
float64 v2 = a5 + a6;
float64 v3 = v2 + a7;
float64 v4 = a8 + a9;
float64 v5 = v4 + a10;
float64 v6 = a11 + a12;
float64 v7 = v6 + a13;
float64 v8 = -v3;
float64 v9 = exp_float64(v8);
float64 v10 = float64(1.0) + v9;
float64 v11 = float64(1.0) / v10;
float64 v12 = v11 * a1;
float64 v13 = -v1;
float64 v14 = exp_float64(v13);
float64 v15 = float64(1.0) + v14;
float64 v16 = float64(1.0) / v15;
float64 v17 = tanh_float64(v5);
float64 v18 = v16 * v17;
float64 v19 = v12 + v18;
float64 v20 = -v7;
float64 v21 = exp_float64(v20);
float64 v22 = float64(1.0) + v21;
float64 v23 = float64(1.0) / v22;
float64 v24 = tanh_float64(v19);
float64 v25 = v23 * v24;
o0 = a0;
o1 = a1;
o2 = v9;
o3 = v14;
o4 = v17;
o5 = v19;
o6 = v21;
o7 = v25;"""


def texts_of(program: Program) -> list[KernelText]:
    """The kernels of a program and of its first and second derivatives."""
    library = StandIn()
    for order in (0, 1, 2):
        explain_on(library, optimised_graph(program.graph(order), is_for_gpu=True), program.leaves)
    return list(library.texts)


def corpus_texts() -> list[KernelText]:
    return list(dict.fromkeys(text for program in BY_NAME.values() for text in texts_of(program)))


def test_golden_text() -> None:
    program = BY_NAME["lstm"]
    leaves = program.leaves
    report = explain_on(StandIn(), optimised_graph(program.graph(1), is_for_gpu=True), leaves)
    forward, _ = report.all_loops()
    assert forward.kernels == [f"a kernel: {LSTM_STEP}"]


def printed(make: Callable[..., Number], *dtypes: str) -> str:
    """The text of an expression of arguments of these dtypes."""
    builder = ExpressionBuilder()
    arguments = [builder.emit("argument", (), dtype, k) for k, dtype in enumerate(dtypes)]
    text = statements(builder.finish(make(*arguments)), lambda leaf: f"a{leaf.value}")
    return "\n".join([*text.lines, text.outputs[0]])


@pytest.mark.parametrize(
    ("make", "dtypes", "text"),
    [
        (lambda x, y: x * y, ["float32"] * 2, "float32 v0 = a0 * a1;\nv0"),
        (lambda x, y: x * y, ["float16"] * 2, "float16 v0 = float32(a0) * float32(a1);\nv0"),
        (lambda x: x.convert("float16"), ["int32"], "float16 v0 = float16(float32(a0));\nv0"),
        (lambda x: x.convert("float32"), ["float16"], "float32 v0 = float32(a0);\nv0"),
        (lambda x: x.convert("int8"), ["float16"], "int8 v0 = saturated_int8(float32(a0));\nv0"),
        (lambda x, y: x + y, ["bfloat16"] * 2, "bfloat16 v0 = np_bfloat16(float32(a0) + float32(a1));\nv0"),
        (lambda x: x < 0.5, ["bfloat16"], "bool v0 = float32(a0) < float32(np_bfloat16(float32(0.5)));\nv0"),
        (lambda x: x.convert("bfloat16"), ["float64"], "bfloat16 v0 = np_bfloat16(float32(a0));\nv0"),
        (lambda x: x.convert("bfloat16"), ["float16"], "bfloat16 v0 = np_bfloat16(float32(a0));\nv0"),
        (lambda x: x.convert("float64"), ["bfloat16"], "float64 v0 = float64(a0);\nv0"),
        (lambda x, y: x / y, ["float64"] * 2, "float64 v0 = a0 / a1;\nv0"),
        (lambda x, y: x / y, ["int8"] * 2, "int8 v0 = np_quotient(a0, a1);\nv0"),
        (lambda x, y: x.binary("remainder", y), ["uint8"] * 2, "uint8 v0 = np_remainder(a0, a1);\nv0"),
        (lambda x: -x, ["float64"], "float64 v0 = -a0;\nv0"),
        (lambda x: x.unary("abs"), ["float64"], "float64 v0 = np_abs(a0);\nv0"),
        (lambda x, y: fma(x, y, 0.5), ["float32"] * 2, "float32 v0 = np_fma(a0, a1, float32(0.5));\nv0"),
        (lambda c, x: select(c, x, 1), ["bool", "int64"], "int64 v0 = np_select(a0, a1, int64(1));\nv0"),
        (lambda x: ~x, ["bool"], "bool v0 = a0 == false;\nv0"),
        (lambda x: ~x, ["int32"], "int32 v0 = ~a0;\nv0"),
        (lambda x: x << 3, ["int32"], "int32 v0 = int32(uint32(a0) << uint32(int32(3)));\nv0"),
        (lambda x: x.convert("bool"), ["float64"], "bool v0 = a0 != 0;\nv0"),
        (lambda x: x.convert("float32"), ["bool"], "float32 v0 = float32(a0);\nv0"),
        (lambda x: x.bits("int64") >> 63, ["float64"], "int64 v0 = bits_int64(a0);\nint64 v1 = v0 >> int64(63);\nv1"),
        (lambda x: call("exp", "float32", x), ["float32"], "float32 v0 = exp_float32(a0);\nv0"),
        (lambda x: x.equals(math.inf), ["float32"], "bool v0 = a0 == bits_float32(uint32(0x7f800000));\nv0"),
        (lambda x: x + -(2**63), ["int64"], "int64 v0 = a0 + int64(0x8000000000000000);\nv0"),
    ],
)
def test_statements(make: Callable[..., Number], dtypes: list[str], text: str) -> None:
    assert printed(make, *dtypes) == text


def test_only_what_outputs_need_is_computed() -> None:
    builder = ExpressionBuilder()
    x = builder.emit("argument", (), "float64", 0)
    y = x + 1.0
    _ = y * y
    text = statements(builder.finish(y, x, y), lambda leaf: "a")
    assert text.lines == ("float64 v0 = a + float64(1.0);",) and text.outputs == ("v0", "a", "v0")


@pytest.mark.parametrize("op", sorted(PRIMITIVES))
def test_every_primitive_is_printed(op: str) -> None:
    """With one operand after the other until the printer has what it reads."""
    given = {"call": ("exp", 1), "select": (None, 3), "fma": (None, 3), "constant": (np.float64(2.0), 0)}
    leaves, unary = ("load", "scalar", "index", "argument"), "negative sqrt abs floor ceil trunc rint not convert bits"
    value, count = given.get(op, (0, 0) if op in leaves else (None, 1 if op in unary.split() else 2))
    dtype = "int64" if op in ("remainder", "and", "or", "xor", "not", "shift_left", "shift_right") else "float64"
    builder = ExpressionBuilder()
    x = builder.emit("load", (), dtype, 0)
    arguments = [x.differs(x), x, x] if op == "select" else [x] * count
    found = statements(
        builder.finish(builder.emit(op, arguments, dtype, value)), lambda leaf: f"{leaf.op}_{leaf.value}"
    )
    assert "None" not in "".join([*found.lines, *found.outputs])


def calls(text: str) -> set[str]:
    return {
        node.func.id
        for line in text.split("\n")
        for node in ast.walk(ast.parse(line.split(" = ", 1)[1].rstrip(";")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }


def test_every_function_has_a_meaning() -> None:
    """For the stand-in, which reads the very text."""
    used = set().union(*(calls(case.text.operation) for case in CASES))
    assert len(used) > 60
    assert used - set(MEANING) == set()


def test_literals() -> None:
    assert literal(np.float32(0.1), np.dtype(np.float32)) == "float32(0.10000000149011612)"
    assert literal(np.bool_(True), np.dtype(bool)) == "true"
    assert literal(np.int16(-7), np.dtype(np.int16)) == "int16(-7)"
    assert literal(np.float64(-0.0), np.dtype(np.float64)) == "float64(-0.0)"
    assert literal(np.float64(-np.inf), np.dtype(np.float64)) == "bits_float64(uint64(0xfff0000000000000))"


@pytest.mark.parametrize("value", [math.inf, 2**40, complex(1, math.nan)])
def test_constants_that_are_passed(value: Any) -> None:
    assert kernel_constant(np.array(value)) is None


@pytest.mark.parametrize("value", [np.float32(0.1), True, np.int16(-7), np.float16(1)])
def test_constants_that_are_written(value: Any) -> None:
    assert kernel_constant(np.array(value)) == (value,)


def test_a_complex_constant_is_written_part_by_part() -> None:
    assert kernel_constant(np.array(np.complex64(1 + 2j))) == (np.float32(1), np.float32(2))


@pytest.mark.parametrize("dtype", DTYPES)
def test_as_the_stand_in_runs_it(dtype: str) -> None:
    cases = [case for case in CASES if case.operands[-1].dtype == dtype]
    assert len(cases) > 5
    for case in cases:
        with np.errstate(all="ignore"):
            (found,) = run_text(case.text, case.operands)
        assert_agrees(case, found)


# By compilers.


def _function(number: int, text: KernelText) -> str:
    """A C function that runs a kernel's text over arrays."""
    inputs = [f"const {p.dtype}* p_{p.name}" for p in text.inputs]
    outputs = [f"{p.dtype}* p_{p.name}" for p in text.outputs]
    reads = [f"{p.dtype} {p.name} = p_{p.name}[i];" for p in text.inputs]
    writes = [f"{p.dtype}& {p.name} = p_{p.name}[i];" for p in text.outputs]
    head = f"void kernel_{number}(long long n, {', '.join([*inputs, *outputs])})"
    return "\n".join([f"{head} {{", "for (long long i = 0; i < n; i++) {", *reads, *writes, text.operation, "}", "}"])


def _source(texts: Sequence[KernelText], before: str) -> str:
    functions = definitions(f for text in texts for f in text.functions)
    known = preamble(" ".join(map(str, texts)))
    return "\n".join([before, known, functions, *(_function(i, text) for i, text in enumerate(texts))])


def _compiled(texts: Sequence[KernelText], folder: Path) -> ctypes.CDLL:
    """The same text, by the processor's C++ compiler."""
    before = "#include <cmath>\n#include <cstring>\nusing namespace std;\n#define __device__\n" + HALF
    source, library = folder / "kernels.cpp", folder / "kernels.so"
    source.write_text(_source(texts, before).replace("\nvoid kernel_", '\nextern "C" void kernel_'), encoding="utf-8")
    command = ["g++", "-O0", "-fwrapv", "-ffp-contract=off", "-w", "-shared", "-fPIC"]
    subprocess.run([*command, str(source), "-o", str(library)], check=True, timeout=300)
    return ctypes.CDLL(str(library))


def _run(loaded: ctypes.CDLL, number: int, operands: Sequence[np.ndarray], result: np.ndarray) -> None:
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in (*operands, result)]
    getattr(loaded, f"kernel_{number}")(ctypes.c_longlong(result.size), *pointers)


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_as_a_compiler_reads_it(tmp_path: Path) -> None:
    """The preamble's functions mean what NumPy's do."""
    loaded = _compiled([case.text for case in CASES], tmp_path)
    for number, case in enumerate(CASES):
        result = np.empty(case.operands[0].shape, case.node.result.tensor.dtype)
        _run(loaded, number, case.operands, result)
        assert_agrees(case, result)


def _one_call(function: Elementary) -> tuple[KernelText, Expression]:
    """A kernel that calls an elementary function, and the call as an expression."""
    builder, dtype = ExpressionBuilder(), function.dtype
    operands = [builder.emit("load", (), dtype, k) for k in range(function.arity)]
    expression = builder.finish(call(function.name, dtype, *operands))
    text = statements(expression, lambda leaf: f"a{leaf.value}")
    inputs = tuple(Parameter(dtype.name, f"a{k}") for k in range(function.arity))
    operation = "\n".join([*text.lines, f"o0 = {text.outputs[0]};"])
    return KernelText(inputs, (Parameter(dtype.name, "o0"),), operation, text.functions), expression


def _operands_of(function: Elementary) -> list[np.ndarray]:
    """Of all sizes, and special ones."""
    rng, dtype = np.random.default_rng(0), function.dtype
    if dtype.kind != "f":
        return [rng.integers(0, 100, 256).astype(dtype), rng.integers(0, 90, 256).astype(dtype)]
    special = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e6, 1e-40], dtype)
    spread = (rng.normal(size=503) * 10.0 ** rng.integers(-8, 8, 503)).astype(dtype)
    return [rng.permutation(np.concatenate([special, spread])) for _ in range(function.arity)]


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_elementary_functions_have_the_bits_of_the_processors(tmp_path: Path) -> None:
    """One definition: what machine code computes and what the card's text says differ in no bit."""
    functions = all_elementary()
    kernels, expressions = zip(*map(_one_call, functions), strict=True)
    loaded = _compiled(kernels, tmp_path)
    programs = compiled([Expressions(expression, 1) for expression in expressions])
    for number, (function, run) in enumerate(zip(functions, programs, strict=True)):
        operands = _operands_of(function)
        result = np.empty_like(operands[0])
        _run(loaded, number, operands, result)
        np.testing.assert_array_equal(result, run(operands)[0], f"{function.name} of {function.dtype}")


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_bfloat16_is_rounded_to_the_bits_of_the_processors(tmp_path: Path) -> None:
    """Of floats next to the middle between two, of all sizes, and of NaNs; and every bfloat16 is read as it is."""
    upper = np.arange(2**16, dtype=np.uint32) << 16
    floats = np.concatenate([upper + below for below in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).astype(np.uint32)
    narrow = np.arange(2**16, dtype=np.uint16)
    kernels, expressions = [], []
    for source, target in (("float32", "bfloat16"), ("bfloat16", "float32")):
        builder = ExpressionBuilder()
        expressions.append(builder.finish(builder.emit("load", (), source, 0).convert(target)))
        text = statements(expressions[-1], lambda leaf: "a0")
        operation = "\n".join([*text.lines, f"o0 = {text.outputs[0]};"])
        kernels.append(KernelText((Parameter(source, "a0"),), (Parameter(target, "o0"),), operation))
    loaded = _compiled(kernels, tmp_path)
    programs = compiled([Expressions(expression, 1) for expression in expressions])
    for number, (operand, dtype, word) in enumerate(
        [(floats.view(np.float32), "bfloat16", "u2"), (narrow.view("bfloat16"), "float32", "u4")]
    ):
        found = np.empty(operand.shape, dtype)
        _run(loaded, number, [operand], found)
        np.testing.assert_array_equal(found.view(word), programs[number]([operand])[0].view(word))
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(found.view(word), operand.astype(dtype).view(word))


def _by_nvcc(texts: Sequence[KernelText], folder: Path) -> int:
    """Compiles kernels for compute capability 9.0, warnings being errors; how many there are in the result."""
    source, binary = folder / "kernels.cu", folder / "kernels.cubin"
    text = _source(texts, "").replace("\nvoid kernel_", '\nextern "C" __global__ void kernel_')
    source.write_text(text, encoding="utf-8")
    command = ["nvcc", "--cubin", "-arch=sm_90", "--fmad=false", "-Werror", "all-warnings", "-Xptxas", "-O0"]
    subprocess.run([*command, str(source), "-o", str(binary)], check=True, timeout=900)
    return len(set(re.findall(rb"\.text\.(kernel_\d+)", binary.read_bytes())))


NVCC = pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no CUDA compiler")


@NVCC
def test_a_kernel_of_the_lstm_compiles_for_a_card(tmp_path: Path) -> None:
    texts = texts_of(BY_NAME["lstm"])
    assert _by_nvcc(texts, tmp_path) == len(texts)


@pytest.mark.long
@NVCC
def test_every_kernel_compiles_for_a_card(tmp_path: Path) -> None:
    """Kernels of the corpus with its gradients, and of every op on every dtype."""
    texts = [*(case.text for case in CASES), *corpus_texts()]
    assert _by_nvcc(texts, tmp_path) == len(texts)
