"""Machine code of kernels for processors with AVX2 and AVX-512.

Spilled vectors are aligned to cache lines, wherever the caller's stack begins. No blend becomes a masked store, which
is slow on AMD's processors. Extremes beside a constant are one instruction.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from llvmlite import binding

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.native import engine
from ctrlgrad.engines.native.emit import PlanWriter
from ctrlgrad.plan.decisions import with_vectors


def loss(x: Any, w: Any) -> Any:
    """A loss that spills vectors: they are live across calls of elementary functions, and addresses take registers
    too."""

    def body(c: Any) -> Any:
        i, x, total = c
        x = w * cnp.sin(x) + cnp.cos(x) * x
        return i + 1, x, total + x

    return cnp.sum(cg.while_loop(lambda c: (c[0] < 9) & (c[1][0] < 3.0), body, (0, x, x))[2])


def assembly(vector_bytes: int, fn: Callable[..., Any], *given: Any) -> str:
    graph = optimised_graph(cg.function(fn).graph(*given))
    text = PlanWriter(with_vectors(engine.plan_of(graph, engine.shapes_of(graph, given)), vector_bytes)).function(
        "plan"
    )
    features = "+avx,+avx2,+fma" + (",+avx512f,+avx512vl,+avx512dq,+avx512bw" if vector_bytes == 64 else "")
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine = binding.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(
        cpu="x86-64-v4" if vector_bytes == 64 else "x86-64-v3", features=features, opt=2, reloc="pic", codemodel="small"
    )
    module = binding.parse_assembly(text)
    # The passes of `target.USUAL`.
    passes = binding.create_new_module_pass_manager()
    for add in (passes.add_sroa_pass, passes.add_instruction_combine_pass, passes.add_simplify_cfg_pass):
        add()
    passes.run(module, binding.create_pass_builder(machine, binding.create_pipeline_tuning_options()))
    return machine.emit_assembly(module)


@pytest.mark.parametrize(("vector_bytes", "register"), [(64, "zmm"), (32, "ymm")])
def test_vectors_on_the_stack_are_aligned(vector_bytes: int, register: str) -> None:
    x = np.linspace(0.1, 0.9, 64)
    text = assembly(vector_bytes, cg.grad(loss, argnums=(0, 1)), x, x)
    kept = re.findall(rf"v(mov\w+)\s+(?:%{register}\d+, -?\d*\(%r[sb]p\)|-?\d*\(%r[sb]p\), %{register}\d+)", text)
    assert kept and all("movu" not in name for name in kept), kept
    assert f"andq\t$-{vector_bytes}, %rsp" in text


IN_PLACE = {
    "largest of columns": lambda x: cnp.max(x, axis=0),
    "largest of rows": lambda x: cnp.max(x, axis=1),
    "position in columns": lambda x: cnp.argmax(x, axis=0),
    "where, first": lambda x: cg.fori_loop(0, 9, lambda i, x: cnp.where(x > 0.5, x * 0.9, x), x),
    "where, second": lambda x: cg.fori_loop(0, 9, lambda i, x: cnp.where(x > 0.5, x, x * 0.9), x),
    "clip": lambda x: cg.fori_loop(0, 9, lambda i, x: cnp.clip(x, 0.2, 0.7), x),
    "maximum": lambda x: cg.fori_loop(0, 9, lambda i, x: cnp.maximum(x, x * x), x),
    "minimum of integers": lambda x: cg.fori_loop(0, 9, lambda i, k: cnp.minimum(k, k * k), cnp.arange(99)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", IN_PLACE)
def test_no_blend_with_the_stored_array_becomes_a_masked_store(name: str, dtype: str) -> None:
    """No masked store: AMD's processors take twenty times as long for one as for a blend."""
    text = assembly(32, IN_PLACE[name], np.linspace(0.1, 0.9, 32 * 64).reshape(32, 64).astype(dtype))
    assert "ymm" in text and "maskmov" not in text


@pytest.mark.parametrize(("least", "comparisons"), [(0.2, 0), (0.0, 1), (-0.0, 2)], ids=["0.2", "0", "-0"])
def test_extremes_beside_a_constant(least: float, comparisons: int) -> None:
    """One instruction (`maxpd`), or one comparison for 0. The constant -0 takes the general way."""
    text = assembly(32, lambda x: cnp.maximum(x, least), np.linspace(0.1, 0.9, 64))
    assert len(set(re.findall(r"vcmp(\w+)pd", text))) == comparisons
    assert ("vmaxpd" in text) == (comparisons == 0)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_extremes_beside_a_constant_have_the_bits_of_two_arrays(name: str, dtype: str) -> None:
    extreme = getattr(cnp, name)
    special = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 6e-8, -6e-8] * 5, dtype)
    for constant in special[:9]:
        expected = cg.function(extreme)(special, np.full_like(special, constant))
        for fn in (lambda x, c=constant: extreme(x, c), lambda x, c=constant: extreme(c, x)):
            found = cg.function(fn)(special)
            assert np.array_equal(found, expected, equal_nan=True)
            assert np.array_equal(np.signbit(found), np.signbit(expected))


def test_rows_are_read_backwards_in_vectors() -> None:
    text = assembly(32, lambda x: x[::-1] * 2.0, np.linspace(0.1, 0.9, 256))
    assert re.search(r"vpermpd.*ymm|vperm2f128", text) and re.search(r"vaddpd|vmulpd", text)


def test_every_function_with_nests_aligns_its_stack() -> None:
    """Every function with nests aligns its stack: the plan's, repeated nests', and shared parts'."""
    w = np.linspace(-0.1, 0.1, 24 * 24).reshape(24, 24)
    twice = cg.function(lambda w: cnp.tanh(cnp.tanh(w @ w) @ w)).graph(w)
    long = np.linspace(0.1, 0.9, 1 << 20)
    shared = cg.function(lambda x: cnp.tanh(x) * 2).graph(long)
    names = set()
    for graph, argument in ((twice, w), (shared, long)):
        graph = optimised_graph(graph)
        text = PlanWriter(with_vectors(engine.plan_of(graph, engine.shapes_of(graph, [argument])), 32)).function("plan")
        for name, attributes in re.findall(
            r"^define (?:internal )?void @(plan|nest0|part0)\([^)]*\)(.*) \{", text, re.M
        ):
            names.add(name)
            assert "alignstack(32)" in attributes
    assert names == {"plan", "nest0", "part0"}
