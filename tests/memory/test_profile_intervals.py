"""Intervals, from which the numbers of a recording are computed."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ctrlgrad.memory.profile.summary import Interval, covered, on_top, union

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=12).map(
    lambda spans: [Interval(start, start + length, key) for key, (start, length) in enumerate(spans)]
)


@given(SPANS)
def test_the_last_interval_that_began_is_on_top(spans: list[Interval]) -> None:
    parts = on_top(spans)
    assert all(a.end <= b.start for a, b in pairwise(parts))
    for moment in np.arange(0.5, 41):
        around = [s for s in spans if s.start < moment < s.end]
        found = [p.key for p in parts if p.start < moment < p.end]
        assert found == ([max(around, key=lambda s: (s.start, s.key)).key] if around else [])


@given(SPANS, SPANS)
def test_unions_and_what_they_cover(spans: list[Interval], others: list[Interval]) -> None:
    moments = np.arange(0.5, 41)

    def inside(intervals: list[Interval]) -> set[float]:
        return {m for m in moments if any(i.start < m < i.end for i in intervals)}

    joined = union(others)
    assert all(a.end < b.start for a, b in pairwise(joined))
    assert inside(joined) == inside(others)
    for span in spans:
        assert covered(span, joined) == len(inside([span]) & inside(others))
