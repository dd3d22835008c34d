"""Reads and updates by indices of the card: NumPy's elements, and its order where positions repeat."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from instruments.comparing import assert_same
from instruments.compiled_kernels import Called, call, compiled, written
from instruments.driver import Driver
from instruments.launch_records import guarded, is_intact
from instruments.stand_in import StandIn
from instruments.stand_in_runs import on_reference, on_stand_in

import ctrlgrad as cg
from ctrlgrad.engines.cuda import indexing as stages
from ctrlgrad.engines.cuda.indexing import (
    BLOCK,
    IndexSpec,
    SortSpec,
    Surroundings,
    UpdateSpec,
    chosen,
    gather,
    scatter,
)
from ctrlgrad.engines.cuda.kernel import Access, KernelLaunch, op_text

NONE, ALL = None, slice(None)
A, B, ROW = np.array([2, 0, 2, -1]), np.array([[1], [1]]), np.array(1)
# Index arrays alone, beside each other, apart, beside numbers, in several integers, and a number on the device.
KEYS: list[tuple[Any, ...]] = [
    (A,),
    (ALL, A),
    (A, A),
    (A, ALL, A),
    (B, A.astype(np.int8)),
    (1, A),
    (ALL, 1, A),
    (1, ALL, A),
    (NONE, A, ALL, B),
    (slice(1, 3), A, NONE, slice(None, None, 2)),
    (slice(None, None, -1), B.astype(np.uint16), A),
    (ROW,),
    (ALL, ROW, A),
    (ROW, slice(0, 0)),
    (np.zeros(0, np.int64),),
]


def around(library: StandIn) -> Surroundings:
    return Surroundings(lambda _: Access(), library.empty, library.take_flag(), -1)


@pytest.mark.parametrize("key", KEYS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "int8", "complex128"])
@pytest.mark.parametrize("is_sorted", [False, True])
def test_keys_name_what_they_name_in_numpy(
    key: tuple[Any, ...], dtype: str, is_sorted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_sorted:
        monkeypatch.setattr(stages, "FEW", 1)
    library, rng = StandIn(), np.random.default_rng(0)
    # An array that lies otherwise.
    x = np.asarray(np.moveaxis(rng.normal(size=(3, 5, 4)), 2, 0), dtype)
    value = (10 * rng.normal(size=x[key].shape)).astype(dtype)
    added, written = x.copy(), x.copy()
    np.add.at(added, key, value)
    written[key] = value
    with library.running():
        on_device = tuple(library.upload(item) if isinstance(item, np.ndarray) else item for item in key)
        arrays = [library.upload(x) for _ in range(3)]
        its = [chosen(3, on_device, library.is_array, lambda basic, array=a: array[(*basic, ...)]) for a in arrays]
        found = library.empty(its[0].shape, x.dtype)
        launches = [
            *gather(its[0], found, around(library)),
            *scatter(its[1], library.upload(value), None, around(library)),
            *scatter(its[2], library.upload(value), op_text("add", [x.dtype] * 2, x.dtype), around(library)),
        ]
        for launch in launches:
            library.launch(launch, False)
    count = int(np.prod(its[0].index_shape))
    # A read, and of each update where it is, the sort, and the update; where nothing is named indices are checked.
    assert len(launches) == (0 if not count else 7 if is_sorted and count > 1 and value.size else 3)
    np.testing.assert_array_equal(found.data, x[key])
    np.testing.assert_array_equal(arrays[1].data, written)
    np.testing.assert_array_equal(arrays[2].data, added)


DTYPES = ["int8", "int16", "float16", "bfloat16", "float32", "float64", "complex64", "complex128"]


@pytest.fixture
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """More positions than are compared one by one are merged."""
    monkeypatch.setattr(stages, "RUN", 4)
    monkeypatch.setattr(stages, "FEW", 5)


def case(dtype: str) -> tuple[Any, list[Any]]:
    """Sums of many sizes, whose last bits depend on the order; of positions that repeat the last is written."""
    rng = np.random.default_rng(1)
    x, value = ((rng.normal(size=(n, 3)) * 10.0 ** rng.integers(-3, 2, (n, 1))).astype(dtype) for n in (7, 42))
    index = rng.integers(-7, 7, 42)
    columns = rng.integers(-3, 3, (6, 7), np.int32)

    def fn(x: Any, v: Any, i: Any, j: Any) -> Any:
        square, row = i.reshape(6, 7), v[:7, 0]
        return (
            x.at[i].add(v),
            x.at[i].set(v),
            x.at[i, 1].add(v[:, 0]),
            x.at[square, j].add(row),
            x.at[square, j].set(v[:6, :1]),
            x.at[:, j].add(x[:, :1, None]),
            x[square, j],
            x[i[0]],
            x.at[i[1]].set(v[2]),
            x.at[i[1], j[0, 0]].add(v[2, 0]),
            # As few as are compared with each other.
            x.at[i[:4] % 2, :].add(v[:4]),
            x.at[:, j[0, :5] % 2].set(x[:, :1]),
        )

    arguments = [x, value, index, columns]
    return cg.function(fn).graph(*arguments), arguments


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_engine_has_the_bits_of_the_reference(dtype: str, short_runs: None) -> None:
    graph, arguments = case(dtype)
    expected = on_reference(graph, arguments)
    for kinds in ("biuf", ""):
        library = StandIn()
        for found, its in zip(on_stand_in(graph, arguments, kinds, library=library).results, expected, strict=True):
            assert_same([found], [its], 0.0)
        assert {spec.merges for spec in library.indexings if isinstance(spec, SortSpec)} == {False, True}


def launches_of(monkeypatch: pytest.MonkeyPatch, graph: Any, arguments: Sequence[Any]) -> list[KernelLaunch]:
    found: list[KernelLaunch] = []
    with monkeypatch.context() as patched:
        patched.setattr(StandIn, "_index", lambda self, launch: found.append(launch))
        on_stand_in(graph, arguments)
    return found


def test_launches_of_an_update_grow_with_its_logarithm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few positions are compared with each other, more in runs that are merged: a launch for each doubling."""
    x = np.zeros(5)
    graph = cg.function(lambda x, i: x.at[i].add(1.0)).graph(x, np.zeros(3, np.int64))
    found = {}
    for count in (1, 64, 65, 256, 257, 512, 513, 5000):
        launches = launches_of(monkeypatch, graph, [x, np.zeros(count, np.int64)])
        assert all(launch.numbers[0] == count for launch in launches)
        found[count] = len(launches)
    # The update, behind where they lie and the sort.
    assert found == {1: 1, 64: 1, 65: 3, 256: 3, 257: 4, 512: 4, 513: 5, 5000: 8}


def test_rows_of_small_integers_are_touched_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The array is neither converted nor written as a whole."""
    x, index = np.zeros((1000, 2), np.int8), np.array([3, 3, 5])
    graph = cg.function(lambda x, i: x.at[i].add(np.int8(100))).graph(x, index)
    (update,) = (
        launch for launch in launches_of(monkeypatch, graph, [x, index]) if isinstance(launch.spec, UpdateSpec)
    )
    assert update.spec.element == "int8" and update.numbers[:2] == (3, 2)
    (found,) = on_stand_in(graph, [x, index]).results
    assert found[3].tolist() == [-56, -56] and found[5].tolist() == [100, 100]


def test_one_compiled_kernel_serves_all_shapes_of_a_rank() -> None:
    library = StandIn()
    fn = lambda x, i: (x[i], x.at[i].add(1.0), x.at[i].set(2.0))
    for shape, count in (((4, 3), 5), ((9, 2), 70), ((2, 6), 3), ((7, 4), 99)):
        given = [np.ones(shape), np.arange(count) % shape[0]]
        on_stand_in(cg.function(fn).graph(*given), given, library=library)
    # A read, where rows lie, the sort, and the two updates, by few indices and by sorted ones.
    assert len(library.indexings) == 7


# The text, by the processor's C++ compiler and by CUDA's.


def specs_of(dtypes: Sequence[str]) -> list[IndexSpec]:
    found: dict[IndexSpec, None] = {}
    for dtype in dtypes:
        library = StandIn()
        on_stand_in(*case(dtype), library=library)
        found |= library.indexings
    return list(found)


def by_compiled(functions: dict[IndexSpec, Called], backwards: bool) -> Callable[[KernelLaunch, Any], None]:
    def index(launch: KernelLaunch, arrays: Sequence[np.ndarray]) -> None:
        copies = [guarded(x) for x in arrays]
        words = [int(x.ctypes.data) for x in copies] + list(launch.numbers)
        given = [word.to_bytes(8, "little", signed=True) for word in words]
        assert call(functions[launch.spec], given, launch.blocks, BLOCK, backwards)
        for x, copy in zip(arrays, copies, strict=True):
            assert is_intact(copy)
            x[...] = copy

    return index


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_the_compiled_text_in_any_order_of_threads_and_mistakes_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_runs: None
) -> None:
    dtypes = ["float32", "int8", "complex128"]
    specs, cases = specs_of(dtypes), [case(dtype) for dtype in dtypes]
    expected = [on_reference(*its) for its in cases]

    def is_right(number: int, *mistake: str) -> bool:
        def changed(text: str) -> str:
            assert not mistake or mistake[0] in text
            return text.replace(*mistake) if mistake else text

        folder = tmp_path / str(number)
        folder.mkdir()
        functions = dict(zip(specs, compiled(specs, folder, changed), strict=True))
        for backwards in (False, True):
            monkeypatch.setattr(Driver, "index", staticmethod(by_compiled(functions, backwards)))
            for its, results in zip(cases, expected, strict=True):
                try:
                    found = on_stand_in(*its).results
                except AssertionError:
                    return False
                if any(x.tobytes() != np.asarray(y).tobytes() for x, y in zip(found, results, strict=True)):
                    return False
        return True

    assert is_right(0)
    mistakes = [
        ("if (index < 0) index += n;", "if (index < 0) index = 0;"),
        ("places[k] == mine && k < i", "places[k] == mine && k > i"),
        ("begin = i / run * run", "begin = 0"),
        ("!is_first && places[half] == mine", "is_first && places[half] == mine"),
        ("found[rank] = order[i];", "found[rank] = i;"),
        ("is_mine = j == 0 || places[j - 1] != place", "is_mine = true"),
        ("is_mine = j == count - 1 || places[j + 1] != place", "is_mine = j == 0 || places[j - 1] != place"),
        ("k < j && is_mine; k++", "k < j - 1 && is_mine; k++"),
        ("k = j + 1; k < count && is_mine; k++", "k = j; k < count && is_mine && k == j; k++"),
        ("if (place_of(k) != place) continue;", ""),
        ("row = order[k];", "row = k;"),
        ("k < count && places[k] == place", "k < count && k == j"),
    ]
    for number, mistake in enumerate(mistakes, 1):
        assert not is_right(number, *mistake), mistake


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_an_index_out_of_range_writes_nowhere_else(tmp_path: Path) -> None:
    """Memory behind an array is not written, by texts without the check neither."""
    x, index, value = np.zeros((4, 3)), np.array([1, 4, -5, 0]), np.ones((4, 3))

    def run(library: StandIn, launched: Callable[[KernelLaunch], None]) -> None:
        with library.running():
            array, key = library.upload(x), (library.upload(index),)
            its = chosen(2, key, library.is_array, lambda basic: array[basic])
            for launch in scatter(its, library.upload(value), None, around(library)):
                launched(launch)

    library, specs = StandIn(), list[IndexSpec]()
    run(library, lambda launch: (specs.append(launch.spec), library.launch(launch, False))[1])
    for number, mistake in enumerate([("", ""), ("index = 0;", ""), ("index >= n", "index > n")]):
        (tmp_path / str(number)).mkdir()
        found = compiled(
            specs, tmp_path / str(number), lambda text, its=mistake: text.replace(*its) if its[0] else text
        )
        launched = by_compiled(dict(zip(specs, found, strict=True)), False)
        with nullcontext() if not number else pytest.raises(AssertionError):
            run(library, lambda launch, its=launched: its(launch, [array.data for array in launch.arguments]))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no CUDA compiler")
def test_the_text_compiles_for_a_card(tmp_path: Path, short_runs: None) -> None:
    specs = specs_of(DTYPES)
    (tmp_path / "kernels.cu").write_text("#include <cuda_fp16.h>\n" + written(specs), encoding="utf-8")
    command = ["nvcc", "--ptx", "-arch=sm_90", "-Werror", "all-warnings", "-diag-suppress", "177"]
    subprocess.run(
        [*command, str(tmp_path / "kernels.cu"), "-o", str(tmp_path / "kernels.ptx")], check=True, timeout=300
    )
    assert (tmp_path / "kernels.ptx").read_text(encoding="utf-8").count(".entry") == len(specs)


# Failures, and what is kept from run to run.


def test_the_flag_of_a_run_is_kept_for_the_next_one_if_nothing_was_noted() -> None:
    library, x = StandIn(), np.arange(3.0)
    graph = cg.function(lambda x, i: (x[i], x.at[i].set(0.0))).graph(x, np.array([0]))
    given: list[Any] = []
    library.flag_taken = given.append  # type: ignore[method-assign]
    for bad in (False, False, True, False):
        index = np.array([7 if bad else 1])
        if bad:
            with pytest.raises(cg.errors.IndexOutOfRangeError):
                on_stand_in(graph, [x, index], library=library)
        else:
            on_stand_in(graph, [x, index], library=library)
    assert [flag is given[0] for flag in given] == [True, True, True, False]


@pytest.mark.parametrize("shape", [(0, 2), (3, 0)])
def test_where_there_is_no_element_an_index_may_be_out_of_range(shape: tuple[int, int]) -> None:
    x, index = np.zeros(shape), np.array([7])
    for fn in (lambda x, i: x[i], lambda x, i: x.at[i].set(1.0), lambda x, i: x.at[i].add(1.0)):
        graph = cg.function(fn).graph(x, index)
        with pytest.raises(cg.errors.ExecutionError):
            on_reference(graph, [x, index])
        with pytest.raises(cg.errors.IndexOutOfRangeError, match="index 7 is out of bounds"):
            on_stand_in(graph, [x, index], "biuf")


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
