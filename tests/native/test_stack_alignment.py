"""Spilled vectors are aligned to cache lines, wherever the caller's stack begins."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from llvmlite import binding

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.native import engine
from ctrlgrad.engines.native.emit import PlanWriter


def loss(x: Any, w: Any) -> Any:
    """A loss that spills vectors: they are live across calls of elementary functions, and addresses take registers
    too."""

    def body(c: Any) -> Any:
        i, x, total = c
        x = w * cnp.sin(x) + cnp.cos(x) * x
        return i + 1, x, total + x

    return cnp.sum(cg.while_loop(lambda c: (c[0] < 9) & (c[1][0] < 3.0), body, (0, x, x))[2])


def assembly(vector_bytes: int) -> str:
    x = np.linspace(0.1, 0.9, 64)
    graph = optimised_graph(cg.function(cg.grad(loss, argnums=(0, 1))).graph(x, x))
    text = PlanWriter(engine.plan_of(graph, engine.shapes_of(graph, [x, x])), vector_bytes).function("plan")
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
    text = assembly(vector_bytes)
    kept = re.findall(rf"v(mov\w+)\s+(?:%{register}\d+, -?\d*\(%r[sb]p\)|-?\d*\(%r[sb]p\), %{register}\d+)", text)
    assert kept and all("movu" not in name for name in kept), kept
    assert f"andq\t$-{vector_bytes}, %rsp" in text


def test_every_function_with_nests_aligns_its_stack() -> None:
    """Every function with nests aligns its stack: the plan's, repeated nests', and shared parts'."""
    w = np.linspace(-0.1, 0.1, 24 * 24).reshape(24, 24)
    twice = cg.function(lambda w: cnp.tanh(cnp.tanh(w @ w) @ w)).graph(w)
    long = np.linspace(0.1, 0.9, 1 << 20)
    shared = cg.function(lambda x: cnp.tanh(x) * 2).graph(long)
    names = set()
    for graph, argument in ((twice, w), (shared, long)):
        graph = optimised_graph(graph)
        text = PlanWriter(engine.plan_of(graph, engine.shapes_of(graph, [argument])), 32).function("plan")
        for name, attributes in re.findall(
            r"^define (?:internal )?void @(plan|nest0|part0)\([^)]*\)(.*) \{", text, re.M
        ):
            names.add(name)
            assert "alignstack(32)" in attributes
    assert names == {"plan", "nest0", "part0"}
