"""Division of the tests into the short suite and the rest: every test is in one of them, and in no more."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import suites

TESTS = Path(__file__).parent


def collected(*arguments: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", *arguments]
    found = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=True).stdout
    return [line for line in found.splitlines() if "::" in line]


def test_every_test_is_in_one_suite() -> None:
    short, rest, whole = (collected("--suite", name) for name in suites.SUITES)
    assert len(short) < len(rest)
    assert sorted(short + rest) == sorted(whole)
    assert len(set(whole)) == len(whole)


def test_named_files_run_whole() -> None:
    file = "tests/ir/test_traits.py"
    short, rest, whole = (collected(file, "--suite", name) for name in suites.SUITES)
    assert 0 < len(short) < len(whole) == len(short) + len(rest)
    assert collected(file) == whole
    assert collected("-k", "test_traits") == whole


@pytest.mark.parametrize("pattern", list(itertools.chain(*suites.CI_ONLY.values(), *suites.EVERY_POINT.values())))
def test_listed_tests_exist(pattern: str) -> None:
    file, _, test = pattern.partition("::")
    tests = [path.read_text() for path in TESTS.glob(file) if path.is_file()]
    wanted = re.compile(f"^def {test.replace('*', '.*')}" + r"\(", re.M) if test else re.compile("^def test_", re.M)
    assert any(map(wanted.search, tests))


def point(**params: object) -> Any:
    return SimpleNamespace(name="-".join(map(str, params.values())), callspec=SimpleNamespace(params=params))


def test_a_table_has_each_value_of_each_parameter_once() -> None:
    points = [point(row=row, column=column) for row in range(suites.MOST) for column in (1, 2.0, "x")]
    chosen = [item.callspec.params for item in suites.some_points(points)]
    assert sorted(x["row"] for x in chosen) == list(range(suites.MOST))
    assert {x["column"] for x in chosen} == {1, 2.0, "x"}


def test_a_long_table_has_so_many_points_at_most() -> None:
    points = [point(n=n, even=n % 2) for n in range(100)]
    chosen = [item.callspec.params for item in suites.some_points(points)]
    assert len(chosen) == suites.MOST and {x["even"] for x in chosen} == {0, 1}
    assert suites.some_points(points[::-1]) == suites.some_points(points)
