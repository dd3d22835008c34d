"""The text of generated kernels: golden, as the stand-in runs it, and as compilers read it.

One text serves the card, the stand-in and the C++ compiler; here all of them but the card are held against the
reference engine's kernels, op by op and dtype by dtype.
"""

from __future__ import annotations

import ast
import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from elementwise_cases import DTYPES, assert_agrees, elementwise_cases
from programs import BY_NAME
from stand_in import MEANING, StandIn, run_text

from ctrlgrad import tree
from ctrlgrad.engines import _optimised
from ctrlgrad.engines.cuda.expressions import kernel_expression, kernel_literal, translated
from ctrlgrad.engines.cuda.functions import FUNCTIONS, PREAMBLE
from ctrlgrad.engines.cuda.kernel import KernelText
from ctrlgrad.engines.cuda.report import explain_on
from ctrlgrad.engines.native.expressions import expression

CASES = elementwise_cases()

# What a step of the corpus's LSTM computes after its products, with the pushes of its gradient.
LSTM_STEP = """\
(float64 a0, float64 a1, float64 a2, float64 a3, float64 a4, float64 a5, float64 a6, float64 a7, float64 a8, \
float64 a9) -> (float64 o0, float64 o1, float64 o2, float64 o3, float64 o4, float64 o5, float64 o6, float64 o7)
float64 v0 = a0 + a1;
float64 v1 = a2 + a3;
float64 v2 = a4 + a5;
float64 v3 = a6 + a7;
float64 v4 = -v1;
float64 v5 = float64(exp(v4));
float64 v6 = float64(1.0) + v5;
float64 v7 = float64(1.0) / v6;
float64 v8 = v7 * a8;
float64 v9 = -v0;
float64 v10 = float64(exp(v9));
float64 v11 = float64(1.0) + v10;
float64 v12 = float64(1.0) / v11;
float64 v13 = float64(tanh(v2));
float64 v14 = v12 * v13;
float64 v15 = v8 + v14;
float64 v16 = -v3;
float64 v17 = float64(exp(v16));
float64 v18 = float64(1.0) + v17;
float64 v19 = float64(1.0) / v18;
float64 v20 = float64(tanh(v15));
float64 v21 = v19 * v20;
o0 = a9;
o1 = a8;
o2 = v5;
o3 = v10;
o4 = v13;
o5 = v17;
o6 = v15;
o7 = v21;"""


def corpus_texts() -> list[KernelText]:
    """Every kernel of the corpus's gradients."""
    found: dict[KernelText, None] = {}
    for program in BY_NAME.values():
        library = StandIn()
        leaves = [np.asarray(x) for x in tree.leaves(program.args)]
        explain_on(library, _optimised(program.graph(1), frozenset()), leaves)
        found |= library.texts
    return list(found)


def test_golden_text() -> None:
    program = BY_NAME["lstm"]
    leaves = [np.asarray(x) for x in tree.leaves(program.args)]
    report = explain_on(StandIn(), _optimised(program.graph(1), frozenset()), leaves)
    forward, _ = report.all_loops()
    assert forward.kernels == [f"a kernel: {LSTM_STEP}"]


@pytest.mark.parametrize(
    ("cpu", "kernel"),
    [
        ("a if c else b", "np_select(c, a, b)"),
        ("a and b", "a & b"),
        ("not a", "a == false"),
        ("float32(tanh(a))", "float32(tanh(a))"),
        ("float64(arctan2(a, b))", "float64(atan2(a, b))"),
        ("int8(integer_remainder(a, b))", "int8(np_integer_remainder(a, b))"),
    ],
)
def test_the_translation(cpu: str, kernel: str) -> None:
    assert translated(cpu) == kernel


def calls(text: str) -> set[str]:
    return {node.func.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)}


def test_the_text_comes_from_the_cpus_table() -> None:
    """A kernel calls what the CPU's expression calls, under the names of one table, and a choice besides."""
    by_op = {case.node.op.name: case.node for case in CASES}
    assert len(by_op) > 60
    for node in by_op.values():
        names = [f"a{i}" for i in range(len(node.operands))]
        shared, kernel = expression(node, names), kernel_expression(node, names)
        assert calls(kernel) - {"np_select"} == {FUNCTIONS.get(name, name) for name in calls(shared)}


def test_every_function_has_a_meaning() -> None:
    assert {name for name in FUNCTIONS.values() if MEANING.get(name) is None} == set()


def test_literals() -> None:
    assert kernel_literal(np.array(0.1, np.float32)) == "float32(0.10000000149011612)"
    assert kernel_literal(np.array(True)) == "true"
    assert kernel_literal(np.array(-7, np.int16)) == "int16(-7)"
    assert kernel_literal(np.array(np.inf)) is None
    assert kernel_literal(np.array(2**40)) is None
    assert kernel_literal(np.array(1j)) is None


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
    return "\n".join([before, PREAMBLE, *(_function(i, text) for i, text in enumerate(texts))])


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_as_a_compiler_reads_it(tmp_path: Path) -> None:
    """The same text, compiled: the preamble's functions mean what NumPy's do."""
    before = "#include <cmath>\nusing namespace std;\n#define __device__\n"
    source, library = tmp_path / "kernels.cpp", tmp_path / "kernels.so"
    text = _source([case.text for case in CASES], before).replace("\nvoid kernel_", '\nextern "C" void kernel_')
    source.write_text(text, encoding="utf-8")
    command = ["g++", "-O1", "-fwrapv", "-ffp-contract=off", "-w", "-shared", "-fPIC", str(source), "-o", str(library)]
    subprocess.run(command, check=True, timeout=300)
    loaded = ctypes.CDLL(str(library))
    for number, case in enumerate(CASES):
        result = np.empty(case.operands[0].shape, case.node.result.tensor.dtype)
        pointers = [ctypes.c_void_p(x.ctypes.data) for x in (*case.operands, result)]
        getattr(loaded, f"kernel_{number}")(ctypes.c_longlong(result.size), *pointers)
        assert_agrees(case, result)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no CUDA compiler")
def test_as_the_cuda_compiler_reads_it(tmp_path: Path) -> None:
    """Every kernel of the corpus, and every op, in the CUDA compiler's own judgement."""
    texts = [*(case.text for case in CASES), *corpus_texts()]
    source = tmp_path / "kernels.cu"
    text = _source(texts, "").replace("\nvoid kernel_", '\nextern "C" __global__ void kernel_')
    source.write_text(text, encoding="utf-8")
    command = ["nvcc", "--ptx", "-O0", "-w", str(source), "-o", str(tmp_path / "kernels.ptx")]
    subprocess.run(command, check=True, timeout=600)
    assert (tmp_path / "kernels.ptx").read_text(encoding="utf-8").count(".entry kernel_") == len(texts)
