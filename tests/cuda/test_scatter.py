"""Positions that repeat: what is added and written there, in the order that is listed, by any order of threads."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.stand_in import StandIn
from instruments.stand_in_runs import on_reference, on_stand_in

import ctrlgrad as cg
from ctrlgrad.engines.cuda.index_check import CHECK
from ctrlgrad.engines.cuda.scatter import ADD, WRITE, rows_of

NONE, ALL = None, slice(None)
A, B, ROW = np.array([2, 0, 2, -1]), np.array([[1], [1]]), np.array(1)
# Index arrays alone, beside each other, apart, beside numbers, and a number on the device.
KEYS: list[tuple[Any, ...]] = [
    (A,),
    (ALL, A),
    (A, A),
    (A, ALL, A),
    (B, A),
    (1, A),
    (ALL, 1, A),
    (1, ALL, A),
    (NONE, A, ALL, B),
    (slice(1, 3), A, NONE, slice(None, None, 2)),
    (slice(None, None, -1), B, A),
    (ROW,),
    (ALL, ROW, A),
    (np.zeros(0, np.int64),),
]


@pytest.mark.parametrize("key", KEYS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_keys_name_what_they_name_in_numpy(key: tuple[Any, ...], dtype: str) -> None:
    library, rng = StandIn(), np.random.default_rng(0)
    x = rng.normal(size=(4, 3, 5)).astype(dtype)
    value = (10 * rng.normal(size=x[key].shape)).astype(dtype)
    added, written = x.copy(), x.copy()
    np.add.at(added, key, value)
    written[key] = value
    with library.running():
        arrays = [library.upload(x), library.upload(x)]
        on_device = tuple(library.upload(item) if isinstance(item, np.ndarray) else item for item in key)
        for array, write in zip(arrays, (library.add_rows, library.write_rows), strict=True):
            rows = rows_of(library, array, on_device, library.upload(value))
            assert (rows is None) == (value.size == 0)
            if rows is not None:
                write(rows)
    np.testing.assert_array_equal(arrays[0].data, added)
    np.testing.assert_array_equal(arrays[1].data, written)


@pytest.mark.parametrize("dtype", ["int8", "int16", "float16", "float32", "float64", "complex64"])
def test_the_engine_has_the_bits_of_the_reference(dtype: str) -> None:
    """Sums of many sizes, whose last bits depend on the order; of positions that repeat the last is written."""
    rng = np.random.default_rng(1)
    x, value = ((rng.normal(size=(n, 3)) * 10.0 ** rng.integers(-3, 2, (n, 1))).astype(dtype) for n in (7, 40))
    index = rng.integers(-7, 7, 40)
    graph = cg.function(lambda x, v, i: (x.at[i].add(v), x.at[i].set(v), x.at[i, 1].add(v[:, 0]))).graph(
        x, value, index
    )
    expected = on_reference(graph, [x, value, index])
    for kinds in ("biuf", ""):
        for found, its in zip(on_stand_in(graph, [x, value, index], kinds).results, expected, strict=True):
            assert_same([found], [its], 0.0)


def test_rows_of_small_integers_are_touched_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The array is neither converted nor written as a whole."""
    library = StandIn()
    sizes: list[int] = []
    add = library.add_rows

    def recorded(rows: Any) -> None:
        sizes.append(rows.value.size)
        add(rows)

    monkeypatch.setattr(library, "add_rows", recorded)
    x, index = np.zeros((1000, 2), np.int8), np.array([3, 3, 5])
    graph = cg.function(lambda x, i: x.at[i].add(np.int8(100))).graph(x, index)
    (found,) = on_stand_in(graph, [x, index], library=library).results
    assert sizes == [6] and found[3].tolist() == [-56, -56] and found[5].tolist() == [100, 100]


HARNESS = """
#include <complex>
#include <cmath>
typedef long long int64;
static unsigned long long atomicCAS(unsigned long long* at, unsigned long long expected, unsigned long long with) {
    unsigned long long before = *at;
    if (before == expected) *at = with;
    return before;
}
template <class T, int writes>
static void rows(int64 n, const int64* thread, T* x, const int64* places, const int64* order, const T* value,
                 int64 count, int64 width) {
    for (int64 t = 0; t < n; t++) {
        const int64 i = thread[t];
        if (writes) { %s } else { %s }
    }
}
extern "C" void add_float(int64 n, const int64* t, float* x, const int64* p, const int64* o, const float* v, int64 c,
                          int64 w) { rows<float, 0>(n, t, x, p, o, v, c, w); }
extern "C" void write_float(int64 n, const int64* t, float* x, const int64* p, const int64* o, const float* v, int64 c,
                            int64 w) { rows<float, 1>(n, t, x, p, o, v, c, w); }
extern "C" void add_int8(int64 n, const int64* t, signed char* x, const int64* p, const int64* o, const signed char* v,
                         int64 c, int64 w) { rows<signed char, 0>(n, t, x, p, o, v, c, w); }
extern "C" void check(int64 count, const int64* indices, int64 n, int64 site, int64* flag) {
    for (int64 t = 0; t < count; t++) {
        const int64 index = indices[t];
        %s
    }
}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernels' text by the processor's C++ compiler, threads one after the other."""
    if shutil.which("g++") is None:
        pytest.skip("there is no C++ compiler")
    folder = tmp_path_factory.mktemp("scatter")
    (folder / "rows.cpp").write_text(HARNESS % (WRITE, ADD, CHECK), encoding="utf-8")
    library = folder / "rows.so"
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-shared", "-fPIC"]
    subprocess.run(["g++", *flags, str(folder / "rows.cpp"), "-o", str(library)], check=True, timeout=120)
    return ctypes.CDLL(str(library))


def address(x: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.ctypes.data)


@pytest.mark.parametrize(
    ("name", "dtype"), [("add_float", "float32"), ("write_float", "float32"), ("add_int8", "int8")]
)
def test_no_order_of_threads_changes_a_bit(compiled: ctypes.CDLL, name: str, dtype: str) -> None:
    rng = np.random.default_rng(2)
    count, width = 60, 3
    x = rng.normal(size=(5, width)).astype(dtype)
    value = (rng.normal(size=(count, width)) * 10.0 ** rng.integers(-4, 2, (count, 1))).astype(dtype)
    index = rng.integers(0, 5, count)
    expected = x.copy()
    if name.startswith("add"):
        np.add.at(expected, index, value)
    else:
        expected[index] = value
    order = np.argsort(index, kind="stable")
    places = index[order]
    for _ in range(5):
        found, threads = x.copy(), rng.permutation(count * width)
        pointers = [address(a) for a in (threads, found, places, order, value)]
        sizes = [ctypes.c_longlong(n) for n in (count, width)]
        getattr(compiled, name)(ctypes.c_longlong(count * width), *pointers, *sizes)
        np.testing.assert_array_equal(found, expected)


def test_what_is_noted_of_a_failure_is_of_one_index(compiled: ctypes.CDLL) -> None:
    """The first launch that fails, whatever fails after it."""
    flag = np.zeros(3, np.int64)
    for site, size, indices in ((4, 5, [0, 9, -6]), (7, 3, [8])):
        given = np.array(indices)
        numbers = [ctypes.c_longlong(n) for n in (size, site)]
        compiled.check(ctypes.c_longlong(len(given)), address(given), *numbers, address(flag))
    assert flag.tolist() == [4, 9, 5]


def test_the_first_failure_is_told() -> None:
    """Of two reads that fail, by a run that looks at the end."""
    x, i, j = np.arange(3.0), np.array([0, 7]), np.array([9, 0])
    graph = cg.function(lambda x, i, j: (x[i], x[j])).graph(x, i, j)
    with pytest.raises(cg.errors.IndexOutOfRangeError, match="index 7 is out of bounds"):
        on_stand_in(graph, [x, i, j], "biuf")


def test_an_array_of_rows_is_looked_at_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing n rows asks of as many rows where they are, and not of all at each write."""

    def filled(n: Any) -> Any:
        array = cg.TensorArray("float64", size=n, element_shape=(2,))
        loop = cg.fori_loop(0, n, lambda i, a: a.write(i, np.ones(2) * i), array)
        return cg.fori_loop(0, n, lambda i, total: total + loop.read(i), np.zeros(2))

    graph = cg.function(filled).graph(np.int64(3))
    asked = []
    for size in (20, 40):
        library = StandIn()
        count = 0
        is_array = library.is_array

        def counted(x: Any, is_array: Any = is_array) -> bool:
            nonlocal count
            count += 1
            return bool(is_array(x))

        monkeypatch.setattr(library, "is_array", counted)
        (found,) = on_stand_in(graph, [np.int64(size)], library=library).results
        np.testing.assert_array_equal(found, np.full(2, sum(range(size))))
        asked.append(count)
    assert asked[1] < 2.2 * asked[0]
