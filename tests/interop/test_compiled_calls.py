"""Compiled programs of JAX call machine code: without Python in between, and with the same results."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import memory
from ctrlgrad.engines.native.entry import MOST, Entry
from ctrlgrad.interop.engine_primitive import JaxProgram, has_typed_calls
from ctrlgrad.memory.pool import POOL

pytestmark = pytest.mark.skipif(not has_typed_calls(), reason="this JAX has no typed foreign functions")

# JAX raises the one in its first call of a compiled function, and the other in the next ones.
FAILURES = (jax.errors.JaxRuntimeError, ValueError)


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    with cg.options(engine="native"), jax.enable_x64(True):
        yield


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the programs that ran in Python."""
    found: list[str] = []
    run = JaxProgram.run
    monkeypatch.setattr(JaxProgram, "run", lambda self, *arrays: (found.append(self.name), run(self, *arrays))[1])
    return found


def root(a: Any) -> Any:
    return cg.while_loop(lambda x: abs(x * x - a) > 1e-13 * a, lambda x: 0.5 * (x + a / x), a)


def summed(x: Any) -> Any:
    """A loop whose gradient saves an array in each of as many iterations as the data say."""
    return cg.while_loop(lambda c: (c * c).sum() > 1.0, lambda c: cnp.sin(c) * 0.9, x).sum()


def test_python_has_no_part_in_a_call_but_the_first_ones(runs: list[str]) -> None:
    value, slope = jax.jit(cg.to_jax(root)), jax.jit(jax.grad(cg.to_jax(root)))
    for x in np.arange(2.0, 30.0):
        np.testing.assert_allclose((value(x), slope(x)), (x**0.5, 0.5 * x**-0.5), rtol=1e-11)
    assert runs == ["root", "vjp of root"]


def test_a_gradient_whose_stacks_grow_from_call_to_call(runs: list[str]) -> None:
    f = cg.to_jax(summed)
    slope, expected = jax.jit(jax.grad(f)), cg.function(cg.grad(summed))
    points = [np.linspace(0.1, scale, 40) for scale in (0.5, 3.0, 1.0, 50.0, 2.0)]
    for x in (*points, *points):
        np.testing.assert_allclose(slope(x), expected(x), rtol=1e-14)
    assert runs == ["vjp of summed"]


def test_higher_orders_and_rows() -> None:
    f, rows = cg.to_jax(root), np.array([2.0, 9.0, 5.0])
    second = jax.jit(jax.vmap(jax.hessian(f)))
    for scale in (1.0, 2.0, 3.0):
        np.testing.assert_allclose(second(rows * scale), -0.25 * (rows * scale) ** -1.5, rtol=1e-11)


@pytest.mark.parametrize("dtype", ["?", "b", "B", "h", "i", "l", "L", "e", "f", "d", "F", "D"])
def test_every_dtype_of_numbers_and_arrays(dtype: str) -> None:
    def fn(x: Any, y: Any) -> Any:
        count, y = cg.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, cnp.flip(c[1])), (0, y))
        return count, x, y, cnp.zeros((0, 3), dtype), y[0]

    f = jax.jit(cg.to_jax(fn))
    for seed in range(3):
        x, *y = (np.random.default_rng(seed).normal(size=4) * 3 + (seed if dtype in "FD" else 0)).astype(dtype)
        found = f(x, np.array(y))
        expected = (3, x, np.array(y)[::-1], np.zeros((0, 3), dtype), y[-1])
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == np.asarray(other).dtype


def test_arguments_without_elements_and_none_at_all() -> None:
    f = jax.jit(cg.to_jax(lambda x: cg.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, 2 * c[1]), (0, x))))
    for _ in range(3):
        count, rows = f(np.zeros((0, 2)))
        assert (int(count), rows.shape) == (3, (0, 2))
    g = jax.jit(cg.to_jax(lambda: cg.while_loop(lambda x: x < 10.0, lambda x: 3 * x, 1.0)))
    assert [float(g()) for _ in range(3)] == [27.0] * 3
    assert jax.jit(cg.to_jax(lambda: ()))() == ()


def test_a_result_that_is_an_argument_and_two_that_are_one() -> None:
    def fn(x: Any) -> Any:
        y = cg.while_loop(lambda c: c.sum() < 10.0, lambda c: 2 * c, x)
        return x, y, y

    f, x = jax.jit(cg.to_jax(fn)), np.array([1.0, 2.0])
    for _ in range(3):
        np.testing.assert_array_equal(np.stack(f(x)), [x, 4 * x, 4 * x])
    donated = jax.jit(cg.to_jax(fn), donate_argnums=0)
    for _ in range(3):
        np.testing.assert_array_equal(np.stack(donated(jnp.asarray(x))), [x, 4 * x, 4 * x])


def test_an_error_has_our_words_and_the_next_call_is_right(runs: list[str]) -> None:
    f = jax.jit(cg.to_jax(lambda x, i: cg.while_loop(lambda c: c < 5.0, lambda c: c + x[i], 0.0)))
    x = jnp.ones(3)
    for _ in range(3):
        assert float(f(x, np.array(2))) == 5.0
        with pytest.raises(FAILURES, match=r"IndexOutOfRangeError: getitem: index 7 is out of bounds"):
            f(x, np.array(7)).block_until_ready()
    # The first call, and those that failed.
    assert len(runs) == 4


def test_a_run_that_needs_another_plan_gets_it(runs: list[str]) -> None:
    """Sizes that the first run found equal are not in the next."""
    f = jax.jit(cg.to_jax(lambda x: (x[x > 0] + x[x <= 0]).sum()))
    same, broadcast = np.array([1.0, -2.0, 3.0, -5.0]), np.array([1.0, 2.0, 3.0, -1.0])
    for _ in range(3):
        assert float(f(same)) == -3.0
        assert float(f(broadcast)) == 3.0
    assert len(runs) == 2


def test_ops_that_only_python_computes() -> None:
    seen: list[float] = []

    def body(c: Any) -> Any:
        cg.debug.callback(lambda v, _: seen.append(float(v)), c)
        return 2 * c

    f = jax.jit(cg.to_jax(lambda x: cg.while_loop(lambda c: c < 10.0, body, x)))
    for _ in range(3):
        assert float(f(3.0)) == 12.0
    assert seen == [3.0, 6.0] * 3


def test_budgets_of_the_block_around_do_not_reach_a_compiled_call() -> None:
    f = jax.jit(jax.grad(cg.to_jax(summed)))
    x = np.linspace(0.1, 3.0, 40)
    expected = f(x)
    with memory.budget(device="64 MiB") as session:
        for scale in (1.0, 20.0):
            found = f(x * scale)
        assert not session.managers
    np.testing.assert_allclose(found, f(x * 20.0), rtol=1e-14)
    np.testing.assert_allclose(expected, f(x), rtol=1e-14)


def test_memory_that_is_kept_for_the_next_call_can_be_had_back(runs: list[str]) -> None:
    f = jax.jit(jax.grad(cg.to_jax(summed)))
    x = np.linspace(0.1, 3.0, 40)
    first = f(x)
    entry = next(e for e in gc.get_objects() if isinstance(e, Entry) and e.run.__closure__ is not None and e.frames)
    f(x)
    POOL.clear()
    assert entry.frames == 0
    for _ in range(3):
        np.testing.assert_array_equal(f(x), first)
    assert runs == ["vjp of summed"] * 2


def test_threads_run_at_once() -> None:
    """Eight threads call one function, in nested `jit` and `scan` with JAX's own work between, while two threads run
    Python."""
    f = cg.to_jax(root)

    @jax.jit
    def work(a: Any) -> Any:
        step = lambda c, x: (
            jnp.tanh(c) + jax.jit(jax.grad(f))(c + x),
            jnp.sum(jnp.ones((64, 64)) @ jnp.ones((64, 64)) * x),
        )
        return lax.scan(step, f(a), jnp.arange(1.0, 20.0))

    expected = [float(work(1.0 + k)[0]) for k in range(8)]
    done = threading.Event()

    def busy() -> None:
        while not done.is_set():
            sum(range(1000))

    def many(k: int) -> bool:
        with jax.enable_x64(True):
            return all(float(work(1.0 + k)[0]) == expected[k] for _ in range(40))

    others = [threading.Thread(target=busy) for _ in range(2)]
    for thread in others:
        thread.start()
    try:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(many, range(8)))
    finally:
        done.set()
        for thread in others:
            thread.join()


def test_a_compiled_program_keeps_what_it_calls() -> None:
    compiled = jax.jit(cg.to_jax(lambda a: root(a))).lower(2.0).compile()
    jax.clear_caches()
    gc.collect()
    for x in (2.0, 3.0, 4.0):
        np.testing.assert_allclose(compiled(x), x**0.5, rtol=1e-12)


def test_no_process_finds_the_calls_of_another_in_jaxs_cache(tmp_path: Path) -> None:
    """A process does not find another process's calls in JAX's persistent cache, because they hold addresses."""
    program = f"""
        import jax, ctrlgrad as cg
        jax.config.update("jax_compilation_cache_dir", {str(tmp_path)!r})
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
        f = jax.jit(cg.to_jax(lambda a: cg.while_loop(lambda x: x > 1.0, lambda x: 0.5 * x, a)))
        print([float(f(x)) for x in (3.0, 5.0, 9.0)])
    """
    for _ in range(2):
        arguments = [sys.executable, "-c", textwrap.dedent(program)]
        done = subprocess.run(arguments, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[0.75, 0.625, 0.5625]"


def test_as_many_frames_as_calls_at_a_time() -> None:
    made = [e for e in gc.get_objects() if isinstance(e, Entry)]
    assert all(entry.frames <= MOST for entry in made)


def test_a_long_run_can_be_interrupted() -> None:
    f = jax.jit(cg.to_jax(lambda n: cg.while_loop(lambda c: c < n, lambda c: c + 1.0, 0.0)))
    for _ in range(3):
        assert float(f(5.0)) == 5.0
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(FAILURES, match="KeyboardInterrupt"):
            f(1e18).block_until_ready()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert float(f(7.0)) == 7.0
