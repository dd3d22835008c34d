"""Division of the tests: the short suite, which is the README's command, and the rest, which runs in CI besides.

`pytest` runs the short suite: each mechanism on each engine once. `pytest --suite rest` runs what that leaves out, and
`pytest --suite whole` both. A file, a folder, a test or a word (`-k`) that is named on the command line runs whole.

Left out of the short suite are

- the files and tests of `CI_ONLY`, each with the reason;
- of a test with many points (`parametrize`), all but `MOST`: these have each value of each parameter once, as far
  as they go, and are chosen by the names of the points. The tests of `EVERY_POINT` keep all.

Points that are marked `long` are in neither (`instruments.tables`).
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

SUITES = ("short", "rest", "whole")

# Points of a test in the short suite.
MOST = 6

# Reason -> files and tests, `file::test`, below `tests`.
CI_ONLY: dict[str, tuple[str, ...]] = {}

# Tests of which each point is a mechanism of its own: they keep all.
EVERY_POINT: dict[str, tuple[str, ...]] = {}


def suite_of(config: pytest.Config) -> str:
    """The suite that was asked for: of what is named, the whole."""
    chosen = config.getoption("suite")
    named = config.args_source is not pytest.Config.ArgsSource.TESTPATHS or config.getoption("keyword")
    return str(chosen or ("whole" if named else "short"))


def names(table: dict[str, tuple[str, ...]]) -> set[str]:
    return {name for listed in table.values() for name in listed}


def function_of(item: pytest.Item) -> str:
    """File and test of an item, below `tests`, without its point."""
    return item.nodeid.removeprefix("tests/").partition("[")[0]


def are_short(items: Iterable[pytest.Item]) -> list[bool]:
    """Whether each item is of the short suite."""
    items, left_out, whole = list(items), names(CI_ONLY), names(EVERY_POINT)
    kept: set[pytest.Item] = set()
    for function, group in itertools.groupby(items, function_of):
        if function in left_out or function.partition("::")[0] in left_out:
            continue
        points = [item for item in group if item.get_closest_marker("long") is None]
        kept.update(points if function in whole else some_points(points))
    return [item in kept for item in items]


def some_points(points: Sequence[pytest.Item]) -> list[pytest.Item]:
    """At most `MOST` points, each the one that brings most values of parameters that the earlier ones do not have."""
    if len(points) <= 1:
        return list(points)
    by_name = sorted(points, key=lambda point: zlib.crc32(point.name.encode()))
    rest = [(point, _values(point)) for point in by_name]
    chosen: list[pytest.Item] = []
    seen: set[tuple[str, object]] = set()
    while rest and len(chosen) < MOST:
        best = max(rest, key=lambda of_point: len(of_point[1] - seen))
        if chosen and best[1] <= seen:
            break
        rest.remove(best)
        seen |= best[1]
        chosen.append(best[0])
    return chosen


def _values(point: Any) -> set[tuple[str, object]]:
    """Values of a point's parameters, by name: numbers and texts by what they are, other objects each by itself."""
    plain = (bool, int, float, complex, str, type(None))
    return {(name, (type(x), x) if isinstance(x, plain) else id(x)) for name, x in point.callspec.params.items()}
