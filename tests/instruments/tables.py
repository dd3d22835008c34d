"""Tables of more points than a run has time for: each run has every row, at one of the columns in turn.

The other points are marked `long`, and are made only where setup.cfg's choice of tests is replaced by another:
`pytest --suite whole -m "long or not long"` runs all. Which column a row has depends on the test too, so that two tests
of the same programs meet them at different orders.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from programs import PROGRAMS


def in_turn(
    names: str, rows: Sequence[Any], columns: Sequence[Any], share: tuple[int, int] = (0, 1)
) -> Callable[[Callable[..., Any]], Any]:
    """Parametrize a test by two names, `"row, column"`, over all pairs of rows and columns.

    Where several tests ask nearly the same, each run has of each only a `share` of the rows: (k, n) is every n-th from
    the k-th on.
    """

    def decorate(test: Callable[..., Any]) -> Any:
        first = zlib.crc32(f"{test.__module__}.{test.__name__}".encode())
        points = []
        for n, row in enumerate(rows):
            for k, column in enumerate(columns):
                is_its_turn = (first + n // share[1] - k) % len(columns) == 0 and n % share[1] == share[0]
                marks = [] if is_its_turn else [pytest.mark.long]
                name = "-".join(str(getattr(x, "__name__", x)) for x in (row, column))
                points.append(pytest.param(row, column, id=name, marks=marks))
        return pytest.mark.in_turn(names, points)(test)

    return decorate


def parametrize_in_turn(metafunc: pytest.Metafunc) -> None:
    """Parameters of `in_turn` when pytest collects a test: a short run does not even make the `long` points."""
    for mark in metafunc.definition.iter_markers("in_turn"):
        names, points = mark.args
        if not are_whole(metafunc.config):
            points = [point for point in points if not point.marks]
        metafunc.parametrize(names, points)


def are_whole(config: pytest.Config) -> bool:
    """Return true if a run is longer than the short one of setup.cfg."""
    return bool(config.getoption("markexpr") != "not long")


def some(cases: Sequence[Any], most: int, config: pytest.Config, first: int = 0) -> list[Any]:
    """So many of the cases at most, evenly and from the first one on, in a short run; all of them in a whole one.

    A test of many programs that takes a program's number for the first case meets all cases.
    """
    if are_whole(config) or len(cases) <= most:
        return list(cases)
    return [cases[(first + n * len(cases) // most) % len(cases)] for n in range(most)]


def programs_at_orders(*orders: int, share: tuple[int, int] = (0, 1)) -> Callable[[Callable[..., Any]], Any]:
    """Parametrize a test by `program` and `order`, over the corpus or a share of it."""
    return in_turn("program, order", PROGRAMS, orders, share)
