"""Reads by indices from the card in prepared iterations: what NumPy reads, and the error of one out of range."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda.test_prepared_bodies import launching_of
from instruments.bodies import chosen
from instruments.comparing import assert_same
from instruments.compiled_kernels import Called, Spec, call, compiled, written
from instruments.driver import Driver
from instruments.order import Judge
from instruments.recorded import recorded_run
from instruments.stand_in import StandIn
from instruments.stand_in_runs import on_reference, on_stand_in

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.engines.cuda.indexing import ChoiceSpec
from ctrlgrad.engines.cuda.sites import FLAG_WORDS
from ctrlgrad.errors import ExecutionError, IndexOutOfRangeError
from ctrlgrad.execution import run_on
from ctrlgrad.ir import Graph

X = np.linspace(-1.0, 1.0, 60).reshape(3, 4, 5)
ROWS, COLUMNS = np.array([[2, 0], [-1, 1]]), np.array([3, -4], np.int32)


def from_a_list(fn: Callable[[Any, Any, Any], Any]) -> bool:
    """A loop that reads so in each iteration, by indices that it is given."""

    def loop(x: Any, rows: Any, columns: Any) -> Any:
        return cg.fori_loop(0, 3, lambda i, total: total * 0.5 + cnp.sum(cnp.sin(fn(x + total, rows, columns))), 0.0)

    return all(text.startswith("from a list") for text in launching_of(loop, X, ROWS, COLUMNS))


@pytest.mark.parametrize(
    "read",
    [
        lambda x, rows, columns: x[rows],
        lambda x, rows, columns: x[:, columns],
        lambda x, rows, columns: x[rows, columns],
        lambda x, rows, columns: x[rows, :, columns],
        lambda x, rows, columns: x[1, :, columns],
        lambda x, rows, columns: x[:, columns, 2],
        lambda x, rows, columns: x[None, ::-1, columns, 1:4:2],
        lambda x, rows, columns: x[rows[0, 0]],
        lambda x, rows, columns: x[:, columns[0], rows[1, 1]],
        lambda x, rows, columns: x.swapaxes(0, 2)[columns],
        lambda x, rows, columns: (x > 0.3)[rows] * 1.0,
        lambda x, rows, columns: cnp.take_along_axis(x, (cnp.abs(cnp.sin(x)) * 3).astype("int64"), axis=1),
    ],
)
def test_reads(read: Callable[[Any, Any, Any], Any]) -> None:
    assert from_a_list(read)
    order = lambda x, rows, columns: cnp.arange(read(x, rows, columns).size * 1.0).reshape(read(x, rows, columns).shape)
    # Position of each element in the result.
    assert from_a_list(lambda *given: read(*given) * order(*given))


def test_the_loops_counter_and_an_array_choose_together() -> None:
    def loop(x: Any, columns: Any) -> Any:
        return cg.fori_loop(0, 3, lambda i, total: total + x[i, columns] + x[columns - columns, i + 1], x[0, columns])

    assert launching_of(loop, X, COLUMNS)[0].startswith("from a list")


def test_a_whole_body() -> None:
    assert launching_of(chosen, X[:, :3, :3])[0].startswith("from a list")


def test_an_index_that_the_card_computes_of_a_counter() -> None:
    """In a loop that follows data."""

    def loop(x: Any) -> Any:
        step = lambda c: (c[0] + 1, c[1] * 0.5 + x[c[0] * c[0] % 3] * 0.0)
        return cg.while_loop(lambda c: cnp.sum(c[1]) > 1e-3, step, (0, x[0] + 9.0))[1]

    for text in launching_of(loop, X):
        assert text.startswith("from a list") and "the loop's end" in text


@pytest.mark.parametrize("size", [3, 40], ids=["list", "graph"])
@pytest.mark.parametrize("bad", [4, -5, 2**40])
def test_an_index_out_of_range_is_named_with_its_line(bad: int, size: int) -> None:
    rows = np.ones((size, 2), np.int64)
    rows[size - 2, 1] = bad

    def loop(x: Any, rows: Any) -> Any:
        def body(i: Any, total: Any) -> Any:
            fine = x[rows[i] - rows[i]]
            return total + fine + x[rows[i]]

        return cg.fori_loop(0, size, body, np.zeros((2, 5)))

    arguments = X[0], rows
    graph = cg.function(loop).graph(*arguments)
    with pytest.raises(ExecutionError) as plain:
        run_on("reference", graph, arguments)
    for _ in range(2):
        with pytest.raises(
            IndexOutOfRangeError, match=f"index {bad} is out of bounds for an axis with size 4"
        ) as found:
            on_stand_in(graph, arguments)
        assert found.value.source == plain.value.source


def test_runs_of_one_list_note_indices_in_their_own_memory() -> None:
    """A list is kept from run to run: each has a flag and numbers of sites."""
    library, rows = StandIn(), np.ones((3, 2), np.int64)
    graph = cg.function(
        lambda x, rows: cg.fori_loop(0, 3, lambda i, total: total + x[rows[i]], np.zeros((2, 5)))
    ).graph(X[0], rows)
    bad = rows * 7
    for given in (rows, bad, rows, bad):
        if given is bad:
            with pytest.raises(IndexOutOfRangeError):
                on_stand_in(graph, [X[0], given], library=library)
        else:
            assert np.array_equal(on_stand_in(graph, [X[0], given], library=library).results[0], X[0][[1, 1]] * 3.0)


def test_a_recorded_run_of_reads_that_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each notes in the flag if nothing has been noted."""
    arguments = [X[:, :3, :3]]
    graph = cg.function(chosen).graph(*arguments)
    results, entries, _ = recorded_run(monkeypatch, graph, arguments, None, 0.3)
    assert_same(results, on_reference(graph, arguments), 1e-11)
    Judge().judge(entries)
    launches = [entry for entry in entries if entry[0] == "launched"]
    both = [set(reads) & set(writes) for _, _, reads, writes in launches]
    assert sum(any(size == 8 * FLAG_WORDS for _, size in spans) for spans in both) == 3 * 6


def _texts() -> list[tuple[Graph, list[Any]]]:
    """Reads by several indices, some below zero, and loops that fail: just below the least index, and just above."""
    found = [(cg.function(chosen).graph(X[:, :3, :3]), [X[:, :3, :3]])]
    for bad in (4, -5):
        rows = np.array([[0, 1], [1, 0], [1, bad], [9, -9]])
        loop = lambda x, rows: cg.fori_loop(0, 4, lambda i, total: total + x[rows[i]], np.zeros((2, 5)))
        found.append((cg.function(loop).graph(X[0], rows), [X[0], rows]))
    return found


def _outcomes(monkeypatch: pytest.MonkeyPatch, functions: Mapping[Spec, Called] | None) -> list[str]:
    """Results or errors of loops: on the stand-in, or by compiled text."""
    interpret = Driver.run

    def run(self: Driver, spec: Spec, words: Sequence[bytes], blocks: int, threads: int) -> None:
        # The order of what a kernel notes is that of threads.
        if not isinstance(spec, ChoiceSpec) or functions is None:
            interpret(self, spec, words, blocks, threads)
            return
        assert call(functions[spec], words, blocks, threads, False)

    found = []
    with monkeypatch.context() as patched:
        patched.setattr(Driver, "run", run)
        for graph, arguments in _texts():
            try:
                found.append(repr([x.tobytes() for x in on_stand_in(graph, arguments).results]))
            except IndexOutOfRangeError as error:
                found.append(str(error))
    return found


def _gathers() -> list[Spec]:
    specs: dict[Spec, None] = {}
    for graph, arguments in _texts():
        library = StandIn()
        with suppress(IndexOutOfRangeError):
            on_stand_in(graph, arguments, library=library)
        specs |= {spec: None for spec in library.driver.specs if isinstance(spec, ChoiceSpec)}
    assert len(specs) > 5
    return list(specs)


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_the_compiled_text_and_mistakes_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    specs, expected = _gathers(), _outcomes(monkeypatch, None)
    assert ["out of bounds" in text for text in expected] == [False, True, True]

    def is_right(number: int, *mistake: str) -> bool:
        def changed(text: str) -> str:
            assert not mistake or mistake[0] in text
            return text.replace(*mistake) if mistake else text

        folder = tmp_path / str(number)
        folder.mkdir()
        return _outcomes(monkeypatch, dict(zip(specs, compiled(specs, folder, changed), strict=True))) == expected

    assert is_right(0)
    mistakes = [
        ("if (index < 0) index += n;", "if (index < 0) index = 0;"),
        ("index >= n", "index > n"),
        ("index < -n", "index < -n - 1"),
        ("atomicCAS(word, 0ULL, (unsigned long long)site) == 0ULL", "(*word = site)"),
        ("flag[1] = index; flag[2] = n;", "flag[1] = n; flag[2] = index;"),
        ("chosen += ", "chosen = "),
        (" + chosen)", ")"),
    ]
    for number, mistake in enumerate(mistakes, 1):
        assert not is_right(number, *mistake), mistake


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no CUDA compiler")
def test_the_text_compiles_for_a_card(tmp_path: Path) -> None:
    specs = _gathers()
    (tmp_path / "kernels.cu").write_text(written(specs), encoding="utf-8")
    command = ["nvcc", "--ptx", "-arch=sm_90", "-Werror", "all-warnings", "-diag-suppress", "177"]
    subprocess.run(
        [*command, str(tmp_path / "kernels.cu"), "-o", str(tmp_path / "kernels.ptx")], check=True, timeout=300
    )
    assert (tmp_path / "kernels.ptx").read_text(encoding="utf-8").count(".entry") == len(specs)
