"""Compiled code calls a reference kernel for an op in a loop that has no machine code."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.block_kernels import IN_BLOCKS
from ctrlgrad.engines.native.outside import Outside


def factors(a: Any, steps: Any) -> Any:
    """A Cholesky factor, complex eigenvalues, a determinant and a sorted value in each iteration."""

    def body(carry: Any) -> Any:
        i, x, total = carry
        lower = cnp.linalg.cholesky(x @ x.T + 3 * np.eye(3))
        x = cnp.tanh(lower + x * 0.5) + 0.1 * cnp.linalg.eigvalsh(x + x.T + 0j)
        return i + 1, x, total + cnp.sort(x.reshape(-1))[2] * cnp.linalg.det(x + 2 * np.eye(3))

    return cg.while_loop(lambda carry: carry[0] < steps, body, (0, a, 0.0))[2]


A = np.random.default_rng(0).normal(size=(3, 3))


def test_agrees_to_second_order() -> None:
    def twice(a: Any, steps: Any) -> Any:
        return cnp.sum(cg.grad(factors)(a, steps) ** 2)

    for function in (cg.value_and_grad(factors), cg.value_and_grad(twice)):
        expected = cg.function(function, engine="reference")(A, 4)
        found = cg.function(function, engine="native")(A, 4)
        for x, y in zip(expected, found, strict=True):
            np.testing.assert_allclose(y, x, rtol=1e-10)


def test_is_named_in_the_report() -> None:
    report = cg.function(cg.grad(factors)).explain(A, 4)
    assert [loop.engine for loop in report.all_loops()] == ["native", "native"]
    forward, backward = ([op for ops in loop.ops.values() for op in ops] for loop in report.loops)
    assert "eigenvalues" in forward and "adjugate" not in backward
    assert "adjugate of [3,3]" in report.loops[1].products
    assert "cholesky" not in forward
    assert [p for p in report.loops[0].products if "cholesky" in p] == ["cholesky of [3,3]"]


def test_a_failing_kernel_is_the_same_error() -> None:
    def shrinking(a: Any) -> Any:
        def body(carry: Any) -> Any:
            i, x = carry
            return i + 1, cnp.linalg.cholesky(x - i * 2.0 * np.eye(3))

        return cg.while_loop(lambda carry: carry[0] < 5, body, (0, a))[1]

    messages = []
    for engine in ("reference", "native"):
        with pytest.raises(cg.errors.ExecutionError) as caught:
            cg.function(shrinking, engine=engine)(3 * np.eye(3))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "in iteration 1 of the while_loop" in messages[0]


def test_the_next_call_works_after_an_error() -> None:
    function = cg.function(lambda a: factors(a, 3), engine="native")
    before = function(A)
    with pytest.raises(cg.errors.ExecutionError):
        cg.function(lambda a: cg.fori_loop(0, 2, lambda i, x: cnp.linalg.cholesky(x), a), engine="native")(-np.eye(3))
    assert function(A) == before


def test_many_threads_call_back_at_once() -> None:
    function = cg.function(cg.value_and_grad(factors), engine="native")
    arguments = [A * (1 + k / 10) for k in range(4)]
    expected = [function(a, 20) for a in arguments]
    found: dict[int, list[Any]] = {k: [] for k in range(4)}

    def work(k: int) -> None:
        for _ in range(10):
            found[k].append(function(arguments[k], 20))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k in range(4):
        for value, gradient in found[k]:
            assert value == expected[k][0]
            np.testing.assert_array_equal(gradient, expected[k][1])


SCRIPT = """
import numpy as np, ctrlgrad as cg, ctrlgrad.numpy as cnp
f = cg.function(lambda a: cg.fori_loop(0, 9, lambda i, x: cnp.sort(x[::-1] * 0.5 + x) / 2, a), engine="native")
print(f(np.arange(5.0)[::-1].copy()).tolist())
"""


def test_machine_code_from_disk_calls_back_in_another_process(tmp_path: Any) -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={"CTRLGRAD_CACHE_DIR": str(tmp_path / "cache"), "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    ]
    assert outputs[0] == outputs[1] != ""
    assert len([p for p in (tmp_path / "cache").rglob("*") if p.is_file()]) >= 1


def test_a_result_in_the_memory_of_its_operand_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that shares its operand's memory is copied: the program may overwrite that memory before it fetches
    the result."""
    monkeypatch.setitem(IN_BLOCKS.pure, "fft", lambda node: lambda x: x[::-1])
    owns: list[bool] = []
    fetch = Outside.fetch
    monkeypatch.setattr(
        Outside, "fetch", lambda self, n: (owns.append(self.pending[0].flags.owndata), fetch(self, n))[1]
    )
    x = np.arange(1.0, 8.0) * (1.0 + 2.0j)
    np.testing.assert_array_equal(cg.function(lambda x: cnp.fft.fft(x + 1.0), engine="native")(x), (x + 1.0)[::-1])
    assert owns == [True]


def test_a_kernel_that_keeps_nothing_reads_its_operand_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    owns: list[bool] = []

    def noted(node: Any) -> Any:
        return lambda x: (owns.append(x.flags.owndata), np.fft.fft(x))[1]

    monkeypatch.setitem(IN_BLOCKS.pure, "fft", noted)
    x = np.arange(7.0)
    found = cg.function(lambda x: cnp.fft.fft(x * (1.0 + 0.0j)), engine="native")(x)
    np.testing.assert_allclose(found, np.fft.fft(x), atol=1e-12)
    assert owns == [False]
