"""Native products and solves agree with NumPy: all small sizes, every layout of an operand, threads, forks,
failures."""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from native.matrices import FLOATS, dense

import ctrlgrad as cg
from ctrlgrad.engines.native import objects, target
from ctrlgrad.engines.native.objects import ObjectCode
from ctrlgrad.engines.native.products import blocks, kernels, library, pool, real, routines, times, transforms
from ctrlgrad.engines.native.products.library import Products, products
from ctrlgrad.engines.native.products.tiles import heights, tile_name, widths
from ctrlgrad.errors import UserInputError
from ctrlgrad.threads import MOST_THREADS, WORK_TO_SHARE, woken

TOLERANCE = {"f": 2e-5, "d": 1e-12}

LAYOUTS = {
    "rows": lambda rng, m, n, dtype: dense(rng, m, n, dtype),
    "columns": lambda rng, m, n, dtype: dense(rng, n, m, dtype).T,
    "gaps": lambda rng, m, n, dtype: dense(rng, 2 * m, 3 * n, dtype)[::2, ::3],
    "long rows": lambda rng, m, n, dtype: dense(rng, m, n + 5, dtype)[:, 2 : n + 2],
    "backwards": lambda rng, m, n, dtype: dense(rng, m, n, dtype)[::-1, ::-1],
    "repeated": lambda rng, m, n, dtype: np.broadcast_to(dense(rng, 1, n, dtype), (m, n)),
}


def check(native: Products, a: np.ndarray, b: np.ndarray, rng: np.random.Generator, *, packed: bool = False) -> None:
    """Multiply and accumulate into the middle of a larger array; the rest of that array must stay unchanged."""
    (m, k), n, dtype = a.shape, b.shape[1], a.dtype
    for accumulate in (False, True):
        around = dense(rng, m + 2, n + 5, dtype.str)
        before, out = around.copy(), around[1 : m + 1, 2 : n + 2]
        wide = np.float64 if dtype.kind == "f" else dtype
        expected = a.astype(wide) @ b.astype(wide) + (out.astype(wide) if accumulate else 0)
        if packed:
            native.matmul_packed(a, native.pack(b), out, accumulate)
        else:
            native.matmul(a, b, out, accumulate)
        if dtype.kind in "iu":
            assert np.array_equal(out, expected)
        else:
            scale = 16 * max(k, 1) ** 0.5 + 1
            assert np.abs(out - expected).max(initial=0) <= TOLERANCE[dtype.char] * scale, (a.shape, b.shape)
        around[1 : m + 1, 2 : n + 2] = before[1 : m + 1, 2 : n + 2]
        assert np.array_equal(around, before), "written beside the result"


# Values.


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_small_size(dtype: str, native: Products) -> None:
    rng = np.random.default_rng(0)
    for m, n, k in itertools.product((1, 2, 3, 4, 5, 6, 7, 12, 13), (*range(1, 19), 31, 33), (0, 1, 2, 3, 4, 7, 9, 17)):
        check(native, dense(rng, m, k, dtype), dense(rng, k, n, dtype), rng)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
def test_operands_lie_in_any_way(dtype: str, left: str, right: str, native: Products) -> None:
    rng = np.random.default_rng(1)
    for m, n, k in [
        (1, 9, 17),
        (5, 1, 20),
        (2, 33, 9),
        (3, 40, 12),
        (4, 4, 4),
        (8, 70, 33),
        (30, 130, 70),
        (20, 90, 260),
    ]:
        check(native, LAYOUTS[left](rng, m, k, dtype), LAYOUTS[right](rng, k, n, dtype), rng)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("m", "n", "k"), [(257, 1030, 300), (130, 140, 700), (1000, 20, 300), (3, 2500, 600)])
def test_blocks_and_what_is_left_of_them(dtype: str, m: int, n: int, k: int, native: Products) -> None:
    rng = np.random.default_rng(2)
    for left, right in itertools.product(("rows", "columns"), repeat=2):
        check(native, LAYOUTS[left](rng, m, k, dtype), LAYOUTS[right](rng, k, n, dtype), rng)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_packed_operand_gives_the_same(dtype: str, layout: str, native: Products) -> None:
    rng = np.random.default_rng(3)
    sizes = [(1, 1, 1), (1, 100, 70), (6, 16, 0), (7, 15, 9), (64, 250, 80), (13, 33, 300), (300, 200, 300)]
    for m, n, k in sizes:
        b = LAYOUTS[layout](rng, k, n, dtype)
        check(native, dense(rng, m, k, dtype), b, rng, packed=True)
        check(native, dense(rng, k, m, dtype).T, b, rng, packed=True)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
def test_integers_wrap(dtype: str, native: Products) -> None:
    rng = np.random.default_rng(4)
    for m, n, k in [(1, 1, 1), (3, 5, 4), (7, 2, 30), (2, 2, 0)]:
        size = np.iinfo(dtype)
        a, b = (rng.integers(size.min, size.max, shape, dtype) for shape in ((m, k), (n, k)))
        check(native, a, b.T, rng)


@pytest.mark.parametrize("dtype", FLOATS)
def test_non_finite_numbers_stay_in_their_row_and_column(dtype: str, native: Products) -> None:
    """NaN and infinity stay in their row and column: neither the zeros that fill panels nor masked lanes reach a
    result."""
    rng = np.random.default_rng(6)
    for m, n, k in [(5, 9, 7), (1, 21, 13), (21, 1, 13), (70, 90, 40)]:
        a, b = dense(rng, m, k, dtype), dense(rng, n, k, dtype).T
        a[m // 2, 0] = np.nan
        b[k - 1, n // 2] = np.inf
        for right in (b, np.ascontiguousarray(b)):
            out = native.matmul(a, right, np.zeros((m, n), dtype))
            expected = np.ones((m, n), bool)
            expected[m // 2] = expected[:, n // 2] = False
            assert np.array_equal(np.isfinite(out), expected)


def test_scratch_is_enough(native: Products) -> None:
    """The kernel writes nothing past the scratch size that it asks for."""
    rng, guard = np.random.default_rng(7), 4096
    native.set_threads(1)
    prototype = library._prototype("pnpnnpnnnnnnp")
    for dtype, (m, n, k) in itertools.product(FLOATS, [(20, 17, 9), (40, 130, 33), (300, 140, 300), (9, 1500, 100)]):
        for left, right in itertools.product(("rows", "columns", "gaps"), repeat=2):
            a, b = LAYOUTS[left](rng, m, k, dtype), LAYOUTS[right](rng, k, n, dtype)
            out, size = np.empty((m, n), dtype), native.scratch_bytes(dtype, m, n, k)
            # A first product compiles the kernels that the routine needs.
            native.matmul(a, b, out)
            scratch = np.full(size + guard, 0xA5, np.uint8)
            operands = (a.ctypes.data, *library._strides(a), b.ctypes.data, *library._strides(b))
            routine = prototype(native.address(f"cg_gemm_{real.KINDS[a.dtype.char]}"))
            routine(out.ctypes.data, n, *operands, m, n, k, 0, scratch.ctypes.data)
            assert (scratch[size:] == 0xA5).all(), (dtype, m, n, k, left, right)


@pytest.mark.parametrize("bytes_", [16, 64])
def test_other_widths_of_vectors_and_masks_give_the_same(bytes_: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vector widths and masks of other processors (SSE2, NEON, AVX-512 with 32 registers), compiled here, agree with
    NumPy."""

    def kinds(machine: target.Target) -> tuple[real.Real, real.Real]:
        rows, masks = (12, True) if bytes_ == 64 else (6, False)
        return real.Real("f32", 4, bytes_ // 4, rows, masks), real.Real("f64", 8, bytes_ // 8, rows, masks)

    monkeypatch.setattr(real, "reals", kinds)
    made = kinds(target.host())
    monkeypatch.setattr(objects, "key_of", lambda *_: None)  # keep these objects off the disk
    native = Products(routines.Routines(target.host()), {"f": made[0], "d": made[1]})
    native._forget()
    rng = np.random.default_rng(8)
    for dtype in FLOATS:
        for m, n, k in itertools.product((1, 3, 13, 25), (1, 5, 16, 37, 63), (1, 15, 40)):
            for left, right in itertools.product(("rows", "columns"), repeat=2):
                check(native, LAYOUTS[left](rng, m, k, dtype), LAYOUTS[right](rng, k, n, dtype), rng)
            check(native, dense(rng, m, k, dtype), dense(rng, k, n, dtype), rng, packed=True)
        check(native, dense(rng, 300, 300, dtype), dense(rng, 300, 200, dtype), rng)
        a, b = dense(rng, 19, 19, dtype), dense(rng, 19, 3, dtype)
        x, status = native.lu_solve(a, b)
        assert status == 0 and np.allclose(a @ x, b, atol=1e-2 if dtype == "float32" else 1e-9)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("left", ["rows", "columns"])
@pytest.mark.parametrize("n", [1, 5, 37, 200])
def test_products_in_order_have_the_same_bits_wherever_they_are_cut(
    dtype: str, left: str, n: int, native: Products
) -> None:
    """Products in order have the same bits however they are cut by terms and rows, packed or not, at tile heights
    and beside them."""
    rng, depth = np.random.default_rng(12), blocks.depth_of_panel(native.reals[np.dtype(dtype).char])
    for m, k in [(1, 3), (7, 2 * depth + 9), (25, 70), (300, depth + 1)]:
        a, b, start = LAYOUTS[left](rng, m, k, dtype), dense(rng, k, n, dtype), dense(rng, m, n, dtype)
        whole = native.matmul(a, b, start.copy(), accumulate=True, in_order=True)
        np.testing.assert_allclose(whole, start + a.astype("f8") @ b, rtol=0, atol=TOLERANCE[np.dtype(dtype).char] * k)
        for cut in {1, 2, k // 2, k - 1, min(depth, k - 1)}:
            parts = start.copy()
            for part in (slice(0, cut), slice(cut, k)):
                native.matmul(a[:, part], b[part], parts, accumulate=True, in_order=True)
            assert np.array_equal(parts, whole), (m, n, k, cut)
        whole = native.matmul(a, b, np.empty((m, n), dtype), in_order=True)
        assert np.array_equal(native.matmul_packed(a, native.pack(b), np.empty((m, n), dtype), in_order=True), whole)
        for cut in {1, m // 2, m - 1} - {0, m}:
            found = [native.matmul(p, b, np.empty((len(p), n), dtype), in_order=True) for p in (a[:cut], a[cut:])]
            assert np.array_equal(np.concatenate(found), whole), (m, n, k, cut)


# Threads.


def test_threads_give_bit_for_bit_what_one_gives(native: Products) -> None:
    rng = np.random.default_rng(9)
    for m, n, k in [(64, 2048, 256), (2000, 33, 400), (97, 1601, 300), (1, 4099, 1024), (4097, 1, 1024)]:
        assert m * n * k >= WORK_TO_SHARE
        a, b = dense(rng, m, k, "float32"), dense(rng, k, n, "float32")
        packed, found = native.pack(b), []
        for threads in (1, 2, 5):
            native.set_threads(threads)
            assert native.threads == threads
            found.append(native.matmul(a, b, np.zeros((m, n), "float32")))
            found.append(native.matmul_packed(a, packed, np.zeros((m, n), "float32")))
        for out in found[2::2]:
            assert np.array_equal(out, found[0])
        for out in found[3::2]:
            assert np.array_equal(out, found[1])
        check(native, a, b, rng)


MUCH = 1 << 40


def _panels(native: Products, routine: object, panels: int, work: int = MUCH) -> None:
    pointer = ctypes.cast(routine, ctypes.c_void_p)
    library._prototype("ppnn")(native.address("cg_parallel"))(pointer, None, panels, work)


_PANEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def test_every_panel_is_done_once_and_by_several_threads(native: Products) -> None:
    native.set_threads(3)
    meeting = threading.Barrier(3, timeout=60)
    done: list[tuple[int, int, int]] = []

    @_PANEL
    def routine(context: object, panel: int, worker: int) -> None:
        if panel < 3:
            meeting.wait()  # passes only when three threads meet
        done.append((panel, worker, threading.get_ident()))

    for panels in (3, 50):
        done.clear()
        _panels(native, routine, panels)
        assert sorted(panel for panel, _, _ in done) == list(range(panels))
        assert {worker for _, worker, _ in done} == {0, 1, 2}
        assert len({(worker, thread) for _, worker, thread in done}) == 3
    done.clear()
    _panels(native, routine, 0)
    assert done == []


def test_a_panel_that_shares_its_own_work_does_it_alone(native: Products) -> None:
    native.set_threads(2)
    inner: list[tuple[int, int]] = []

    @_PANEL
    def small(context: object, panel: int, worker: int) -> None:
        inner.append((panel, worker))

    @_PANEL
    def large(context: object, panel: int, worker: int) -> None:
        _panels(native, small, 3)

    _panels(native, large, 4)
    assert sorted(inner) == [(panel, 0) for panel in range(3) for _ in range(4)]


def test_two_python_threads_multiply_at_once(native: Products) -> None:
    native.set_threads(2)
    rng = np.random.default_rng(10)
    a, b = dense(rng, 64, 256, "float32"), dense(rng, 256, 512, "float32")
    expected = native.matmul(a, b, np.zeros((64, 512), "float32"))
    wrong: list[int] = []

    def work() -> None:
        for k in range(200):
            if not np.array_equal(native.matmul(a, b, np.zeros((64, 512), "float32")), expected):
                wrong.append(k)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_threads_of_its_own(native: Products) -> None:
    native.set_threads(2)
    rng = np.random.default_rng(11)
    a, b = dense(rng, 64, 256, "float32"), dense(rng, 256, 512, "float32")
    expected = native.matmul(a, b, np.zeros((64, 512), "float32"))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            meeting = threading.Barrier(2, timeout=60)
            _panels(native, _PANEL(lambda context, panel, worker: meeting.wait() and None), 2)
            status = 0 if np.array_equal(native.matmul(a, b, np.zeros((64, 512), "float32")), expected) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert np.array_equal(native.matmul(a, b, np.zeros((64, 512), "float32")), expected)


def _own_pool(**settings: bool) -> Products:
    """A thread pool of the test's own."""
    text = pool.pool(target.host(), 1 << 16, **settings)
    compiled = target.compiled("\n".join([*routines._INTRINSICS, text]))
    return Products(objects.loaded(ObjectCode(pool.SYMBOLS, compiled)).kept(), {})


def _workers(native: Products, work: int) -> set[int]:
    """Numbers of the threads that ran a panel; each panel takes so long that every thread that is awake gets one."""
    done: list[int] = []

    def routine(context: object, panel: int, worker: int) -> None:
        time.sleep(0.02)
        done.append(worker)

    _panels(native, _PANEL(routine), 4, work)
    return set(done)


def _are_soon(found: Callable[[], set[int]], expected: set[int]) -> bool:
    end = time.monotonic() + 20
    return any(found() == expected for _ in iter(lambda: time.monotonic() < end, False))


def test_work_that_is_soon_done_wakes_nobody(native: Products) -> None:
    native.set_threads(3)
    assert _are_soon(lambda: _workers(native, MUCH), {0, 1, 2})
    assert _are_soon(lambda: _workers(native, 0), {0})
    assert _workers(native, 0) == {0}
    assert _are_soon(lambda: _workers(native, MUCH), {0, 1, 2})


@pytest.mark.parametrize("shares", [1, 2, 3, 4, 100])
def test_as_many_sleeping_threads_are_woken_as_the_work_is_worth(native: Products, shares: int) -> None:
    """As many threads wake as the work is worth. Each panel sleeps, so each thread that is awake takes one of the
    four."""
    native.set_threads(7)
    _workers(native, MUCH)
    expected = 1 + woken(shares * WORK_TO_SHARE, 4, 6)
    assert expected == min(shares, 4)

    def awake() -> set[int]:
        assert _are_soon(lambda: _workers(native, 0), {0})
        count = len(_workers(native, shares * WORK_TO_SHARE))
        assert count <= expected
        return {count}

    assert _are_soon(awake, {expected})
    words = [_job_word(native, word) for word in (2, 4, 5, 5)]
    assert words[:2] == [4, shares * WORK_TO_SHARE] and words[2] == words[3]
    _workers(native, 0)
    assert _job_word(native, 5) == words[2] + 1


def _job_word(native: Products, word: int) -> int:
    found: int = library._prototype("n", ctypes.c_int64)(native.address("cg_pool_job"))(word)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell on which processor a thread runs")
def test_a_thread_on_the_callers_processor_does_not_look_for_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker on the caller's processor goes to sleep at once. If it span, it would keep the caller off for longer
    than the test waits."""
    monkeypatch.setattr(pool, "SPIN", int(60e9))
    own, found = _own_pool(), []

    def on_one_processor() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # for this thread and the threads that it starts
        own.set_threads(2)
        found.append(_are_soon(lambda: _workers(own, MUCH), {0, 1}))
        found.append(_are_soon(lambda: _workers(own, 0), {0}))
        own.set_threads(1)

    thread = threading.Thread(target=on_one_processor)
    thread.start()
    thread.join()
    assert found == [True, True]


def test_without_threads_the_caller_does_all_panels() -> None:
    alone = _own_pool(threads=False)
    done: list[tuple[int, int]] = []
    _panels(alone, _PANEL(lambda context, panel, worker: done.append((panel, worker))), 3)
    alone.set_threads(5)
    assert done == [(0, 0), (1, 0), (2, 0)] and alone.threads == 1


SCRIPT = """
import os, threading, numpy as np
from ctrlgrad.engines.native.products.library import products
p = products()
a = np.ones((64, 256), "float32")
b = np.ones((256, 1024), "float32")
out = np.zeros((64, 1024), "float32")
p.matmul(a, b, out)
assert (out == 256).all()
print(p.threads, len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else p.threads)
def forever():
    while True:
        p.matmul(a, b, np.zeros((64, 1024), "float32"))
{more}
"""


def run_script(more: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-c", SCRIPT.format(more=more)]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)


def test_the_environment_says_how_many_threads(native: Products) -> None:
    found = run_script(CTRLGRAD_THREADS="3")
    assert (found.stdout.split(), found.returncode, found.stderr) == (["3", "3"], 0, "")
    found = run_script(CTRLGRAD_THREADS="none")
    assert found.returncode == 1 and "CTRLGRAD_THREADS is not a number of threads" in found.stderr


def test_a_process_ends_while_another_thread_multiplies(native: Products) -> None:
    found = run_script("threading.Thread(target=forever, daemon=True).start()", CTRLGRAD_THREADS="2")
    assert (found.returncode, found.stderr) == (0, "")


def test_a_number_of_threads_that_cannot_be_is_refused(native: Products) -> None:
    for wrong in (0, MOST_THREADS + 1):
        with pytest.raises(UserInputError, match="number of threads is out of range"):
            native.set_threads(wrong)


# Text of the object.


def test_parts_are_compiled_when_they_are_needed_and_once(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTRLGRAD_CACHE_DIR", str(tmp_path))
    compiled, make = [], routines.compiled

    def noted(machine: target.Target, part: routines.Part) -> bytes:
        compiled.append((part.name, [kind.name for kind in part.kinds]))
        return make(machine, part)

    monkeypatch.setattr(routines, "compiled", noted)
    for _ in range(2):
        found = routines.Routines(target.host())
        assert found["cg_lu_solve_small_f64"] and found["cg_gemm_f32"] != found["cg_gemm_packed_f32"]
        assert compiled == [("solves", ["f64"]), ("pool", ["f32", "f64"]), ("products", ["f32"])]


def test_a_product_needs_the_kernels_of_its_sizes_only() -> None:
    kind = real.Real("f64", 8, 4, 6, False)

    def found(m: int | None, n: int | None, packed: bool, rows_of_b: bool = False, in_order: bool = False) -> list[str]:
        names = blocks.needed(kind, m, n, packed, rows_of_b, in_order)
        return [name.removeprefix("cg_").replace("_f64", "") for name in names]

    # 64 rows are ten tiles of 6 and one of 4; 64 columns are tiles of 8.
    assert found(64, 64, False) == ["tile_4x2", "tile_6x2", "pack_b"]
    assert found(64, 64, True) == ["tile_4x2", "tile_6x2"]
    # 11 columns are 8 and 3 lanes; 13 are 8, 4 and one lane, which are one tile of two vectors.
    assert found(5, 11, True) == ["tile_1x2", "tile_1x1t", "tile_4x2", "tile_4x1t"]
    assert found(6, 13, True) == ["tile_6x2", "tile_6x2t"]
    # A is packed if it exceeds the second-level cache and meets many columns.
    assert found(193, 128, True) == ["tile_1x2", "tile_6x2", "pack_a"]
    assert found(193, 120, True) == ["tile_1x2", "tile_6x2"]
    # For few rows B is read in place if it lies in rows; for fewer rows it is multiplied row by row if it lies in
    # columns.
    assert found(8, 8, False, rows_of_b=True) == ["tile_2x2", "tile_6x2"]
    assert found(3, 8, False) == ["tile_1x2", "tile_2x2", "pack_b", "by_vectors", "times_rows"]
    # In order, a tile has one chain of additions per element, even if registers allow several.
    assert found(5, 11, False, in_order=True) == ["tile_1x2s", "tile_1x1ts", "tile_4x2", "tile_4x1ts", "pack_b"]
    all_of_them = {*found(None, None, False), *found(None, None, False, in_order=True)}
    assert len(all_of_them) == len(kernels.kernels(kind)) + len(times.names(kind))


def test_programs_of_matrices_and_vectors_wait_for_no_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    addresses = library.addresses
    monkeypatch.setattr(library, "addresses", lambda names: (asked.extend(names), addresses(names))[1])
    rng = np.random.default_rng(0)
    a, x = dense(rng, 37, 29, "float64"), rng.standard_normal(29)
    product = cg.function(lambda a, x: cg.numpy.tanh(a @ x), engine="native")
    np.testing.assert_allclose(product(a, x), np.tanh(a @ x), rtol=1e-12)
    assert set(asked) == {"cg_times_rows_f64"}


def test_every_routine_has_its_name() -> None:
    names, kind = list(routines.Routines(target.host())), real.reals(target.host())[0]
    sizes = [(rows, *width) for rows in heights(kind) for width in widths(kind)]
    tiles = len({tile_name(kind, *size, in_order) for size in sizes for in_order in (False, True)})
    lanes = sum(len(transforms.lanes_of(one)) for one in real.reals(target.host())[:2])
    assert len(names) == len(set(names))
    assert len(names) == 2 * (3 + 2 + 4 + 2) + 2 * tiles + 4 * (6 + 8 + 2) + 2 * 8 + 8 * lanes + 4 + 6
    assert all(name.startswith("cg_") and products().address(name) for name in names)
