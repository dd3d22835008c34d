"""The text of prepared kernels as compilers read it: on the processor they are run, by the CUDA compiler compiled."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from instruments.bodies import chosen, joined, multiplied, reduced, updated
from instruments.comparing import assert_same
from instruments.compiled_kernels import Spec, call, compiled, written
from instruments.driver import Driver
from instruments.stand_in import StandIn
from instruments.stand_in_runs import on_reference, on_stand_in
from programs import BY_NAME

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.cuda import indexing as stages
from ctrlgrad.engines.cuda import reductions
from ctrlgrad.engines.cuda.indexing import SortSpec
from ctrlgrad.engines.cuda.kernel import Access, copy_text, source
from ctrlgrad.engines.cuda.prepared.graphs import choice
from ctrlgrad.engines.cuda.reductions import KernelSpec, elementwise
from ctrlgrad.ir import Graph


def mixed(x: Any, k: Any) -> Any:
    """Numbers of the host, bools, an index that goes down, sums, and an array that lies transposed."""

    def body(i: Any, c: Any) -> Any:
        y, large, total = c
        y = y * 0.5 + x[2 - i] * i - k
        return np.where(large, y.T, y) + i, y > 0.1, total + np.sum(y, axis=0)

    return cg.fori_loop(0, 3, body, (x[0], x[0] > 0, x[0, 0] * 0.0))


def many(x: Any) -> Any:
    """As many iterations as make a graph."""
    return cg.fori_loop(0, 41, lambda i, y: y * 0.5 + x * i, x)


def until(x: Any) -> Any:
    """Also, whose end depends on what they compute."""
    return cg.while_loop(lambda x: np.sum(x) < 90.0, lambda x: x + 0.3, x)


def typed(x: Any) -> Any:
    """Floats of 16 bits and complex numbers: computed with, added to in place, and two words of the host's."""
    k = x.dtype.type(0.5 + 0.25j if x.dtype.kind == "c" else 0.5)
    step = lambda i, y: cnp.at(y * k)[i].add(x[2 - i]) * (cnp.asarray(i).astype(x.dtype) + k)
    return cg.fori_loop(0, 3, step, x)


def branching(x: Any) -> Any:
    """Sides of which the card counts how often it goes through them, long enough for a graph."""

    def step(i: Any, y: Any) -> Any:
        return cg.switch(i % 3, [lambda y: cnp.tanh(y @ x), lambda y: y * y * 0.5, lambda y: cnp.sin(y) + 0.5], y)

    return cg.fori_loop(0, 40, step, x)


def ended(x: Any) -> Any:
    """Until what a side has computed says so, by a number that the card computes as well."""

    def step(c: Any) -> Any:
        x, rate = c
        x = cg.cond(x[0, 0] > 0.0, lambda x: x + rate, lambda x: x * 0.5 + rate, x)
        return x, rate * 0.99

    return cg.while_loop(lambda c: np.sum(c[0]) < 60.0, step, (x, 0.4))[0]


def kept(x: Any) -> Any:
    """Rows that are read, written once or again, by counters and by what is computed of them."""

    def step(i: Any, c: Any) -> Any:
        once, again = c
        found = cnp.sin(once.read(i)) + again.read(i * i % 3)
        return once.write(i + 1, found), again.write(i % 2, found * 0.5)

    arrays = (cg.TensorArray(x.dtype, 6, x.shape, rewritable=is_again) for is_again in (False, True))
    once, again = cg.fori_loop(0, 4, step, tuple(array.write(0, x) for array in arrays))
    return once.stack() + again.stack() ** 2


def repeating(x: Any) -> Any:
    """Loops inside, of which the host knows how often one goes on, and the other one asks the card."""

    def step(i: Any, y: Any) -> Any:
        y = cg.fori_loop(0, 3, lambda j, z: cnp.tanh(z @ x) + 0.1 * j, y)
        found, count = cg.while_loop(
            lambda c: cnp.max(c[0]) > 0.5, lambda c: (c[0] * 0.7, c[1] + 1), (cg.stop_gradient(y), 0)
        )
        return y * 0.9 + found + count * 0.01

    return cg.fori_loop(0, 40, step, x)


def pushing(x: Any) -> Any:
    """A loop inside that pushes as often as the data says, and pops as often as its trip count says."""

    def step(i: Any, y: Any) -> Any:
        shrunk = cg.while_loop(lambda y: cnp.max(y) > 0.5, lambda y: cnp.sin(y) * 0.7, y + 0.1 * i)
        return cnp.tanh(shrunk @ x)

    return cg.fori_loop(0, 20, step, x)


def programs() -> list[tuple[Graph, list[Any]]]:
    x = np.linspace(-1.0, 1.0, 27).reshape(3, 3, 3)
    found = [(cg.function(fn).graph(x[2]), [x[2]]) for fn in (many, until)]
    found += [(cg.function(mixed).graph(x, np.float32(2.0)), [x, np.float32(2.0)])]
    found += [(cg.function(fn).graph(x), [x]) for fn in (chosen, updated)]
    found += [(cg.function(typed).graph(y), [y]) for y in (x.astype("f2"), x.astype("bfloat16"), x + 0.5j)]
    for name in ("lstm", "attention_over_a_growing_memory", "conjugate_gradients", "soft_sorting_network"):
        found.append((BY_NAME[name].graph(1), BY_NAME[name].leaves))
    found.append((cg.function(ended).graph(x[0]), [x[0]]))
    for fn in (branching, repeating, pushing, joined, multiplied, reduced, kept):
        loss = lambda x, fn=fn: cnp.sum(cnp.sin(fn(x)))
        found.append((cg.function(cg.grad(loss)).graph(x), [x]))
    return found


def specs_of(cases: Sequence[tuple[Graph, list[Any]]]) -> list[Spec]:
    found: dict[Spec, None] = {}
    for graph, arguments in cases:
        library = StandIn()
        on_stand_in(graph, arguments, library=library)
        found |= dict.fromkeys(library.driver.specs)
    return list(found)


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_as_a_compiler_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole programs, each prepared kernel by its compiled text, which finds all elements by itself."""
    # Some updates are at positions that are sorted.
    monkeypatch.setattr(stages, "FEW", 4)
    cases = programs()
    specs = specs_of(cases)
    functions = dict(zip(specs, compiled(specs, tmp_path), strict=True))
    interpret, launched = Driver.run, set()

    def run(self: Driver, spec: Spec, words: Sequence[bytes], blocks: int, threads: int) -> None:
        launched.add(spec)
        # The stand-in checks that all addresses lie in live arrays; the compiled text computes.
        with monkeypatch.context() as patched:
            patched.setattr(self, "indexed", lambda *given: Driver.indexed(self, *given, computes=False))
            patched.setattr(self, "reduced", lambda spec, arrays, its: None)
            interpret(self, spec, words, blocks, threads)
        assert call(functions[spec], words, blocks, threads, len(launched) % 2 == 0)

    monkeypatch.setattr(Driver, "run", run)
    for graph, arguments in cases:
        assert_same(on_stand_in(graph, arguments).results, on_reference(graph, arguments), 1e-9)
    assert launched == set(specs) and len(specs) > 30
    assert any(isinstance(spec, KernelSpec) and not spec.is_elementwise for spec in specs)
    assert any(isinstance(spec, SortSpec) for spec in specs)
    assert {choice((1,)), choice((0, 1, 2))} <= launched


def test_a_launch_has_threads_for_all_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reductions, "MOST_BLOCKS", 2)
    found = {}
    for size in (2, 256, 257, 1000):
        x = np.ones(size)
        (launch,) = elementwise(copy_text(x.dtype), x.shape, [x], [x], lambda _: Access())
        found[size] = launch.blocks
    assert found == {2: 1, 256: 1, 257: 2, 1000: 2}


def test_kernels_that_differ_in_their_words_are_one() -> None:
    """The word with a row's address, and the distance to the next row, are no part of the text."""
    rows = np.linspace(-1.0, 1.0, 24).reshape(8, 3)

    def loop(rate: int, others: int) -> tuple[Graph, list[Any]]:
        def fn(x: Any, y: Any) -> Any:
            def body(i: Any, c: Any) -> Any:
                y, *rest = c
                return (y * 0.5 + x[rate * i], *(cnp.tanh(z + x[2 * i + k]) for k, z in enumerate(rest)))

            return cg.fori_loop(0, 3, body, (y, *[x[:3]] * others))

        return cg.function(fn).graph(rows, rows[0]), [rows, rows[0]]

    first, other, more = (
        {spec for spec in specs_of([loop(*given)]) if spec.is_moving} for given in ((1, 0), (2, 0), (1, 2))
    )
    assert first and first == other and first < more


NVCC = pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no CUDA compiler")


@NVCC
def test_a_graphs_condition_compiles_for_a_card(tmp_path: Path) -> None:
    """To machine code, as CUDA's compiler knows the function that stores it."""
    specs = [choice((0, 1, 2)), choice((1,))]
    (tmp_path / "kernels.cu").write_text(written(specs), encoding="utf-8")
    command = ["nvcc", "--cubin", "-arch=sm_90", "-Werror", "all-warnings", str(tmp_path / "kernels.cu")]
    subprocess.run([*command, "-o", str(tmp_path / "kernels.cubin")], check=True, timeout=300)
    assert len(set(re.findall(rb"\.text\.(\w*launched\w*)", (tmp_path / "kernels.cubin").read_bytes()))) == len(specs)


def test_the_text_of_a_condition() -> None:
    first = "(long long)blockIdx.x * 256 + threadIdx.x"
    assert source(choice((1,))).partition("extern")[2].split("\n") == [
        ' "C" __device__ void cudaGraphSetConditional(unsigned long long handle, unsigned int value);',
        'extern "C" __global__ void launched('
        + "".join(f"char* b_a{k}, " for k in range(3))
        + "const unsigned long long h_o0, const long long results, const long long count, const long long span) {",
        *(f"char* const p_a{k} = b_a{k};" for k in range(3)),
        f"for (long long result = {first}; result < results; result += (long long)gridDim.x * 256) {{",
        *(f"const int64 a{k} = *(const int64*)(p_a{k});" for k in range(3)),
        "bool o0;",
        "o0 = (a0 == int64(1)) & (a1 != a2);",
        "cudaGraphSetConditional(h_o0, o0);",
        "}",
        "}",
        "",
    ]


@pytest.mark.long
@NVCC
def test_as_the_cuda_compiler_reads_it(tmp_path: Path) -> None:
    specs = specs_of(programs())
    (tmp_path / "kernels.cu").write_text(written(specs), encoding="utf-8")
    command = ["nvcc", "--ptx", "-arch=sm_90", "-Werror", "all-warnings", "-diag-suppress", "177"]
    subprocess.run(
        [*command, str(tmp_path / "kernels.cu"), "-o", str(tmp_path / "kernels.ptx")], check=True, timeout=600
    )
    assert (tmp_path / "kernels.ptx").read_text(encoding="utf-8").count(".entry") == len(specs)
