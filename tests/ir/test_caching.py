"""Caches of graphs: a bounded number of results, kept as long as the graph lives."""

from __future__ import annotations

import gc
import re
import weakref
from itertools import pairwise
from pathlib import Path

import ctrlgrad as cg
from ctrlgrad.engines import optimised_graph, without_passes
from ctrlgrad.ir import Builder, Graph
from ctrlgrad.ir.caching import Cache
from ctrlgrad.passes import OPTIMISATIONS

ROOT = Path(__file__).resolve().parents[2]


class Result:
    """Something that holds the graph that it was made of, as compiled programs do."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph


def test_a_graph_keeps_the_results_that_were_asked_for_last() -> None:
    cache: Cache[int, int] = Cache(2)
    one, other = Builder().finish(()), Builder().finish(())
    made = []

    def make(key: int) -> int:
        made.append(key)
        return 10 * key

    for key in (1, 2, 1, 3):
        assert cache.get(one, key, lambda key=key: make(key)) == 10 * key
    assert cache.get(other, 1, lambda: make(1)) == 10
    assert made == [1, 2, 3, 1]
    assert (cache.of(one).values(), cache.of(other).values()) == ([10, 30], [10])
    cache.get(one, 2, lambda: make(2))
    assert made[-1] == 2 and cache.of(one).values() == [30, 20]


def test_results_that_hold_their_graph_go_with_it() -> None:
    cache: Cache[None, Result] = Cache(1)
    graphs = [Builder().finish(())]
    result = weakref.ref(cache.get(graphs[0], None, lambda: Result(graphs[0])))
    gc.collect()
    assert result() is not None
    graphs.clear()
    gc.collect()
    assert result() is None


def test_however_many_ways_a_graph_is_optimised_in_what_is_kept_of_it_is_bounded() -> None:
    graph = cg.function(lambda x: cg.fori_loop(0, 3, lambda i, y: y * x, x)).graph(2.0)
    names = sorted({name for name, _ in OPTIMISATIONS})
    ways = [*([name] for name in names), *([*two] for two in pairwise(names))]
    for left_out in ways:
        with without_passes(*left_out):
            assert optimised_graph(graph) is optimised_graph(graph)
    assert [(cache.most, len(kept)) for cache, kept in graph.caches.items() if len(kept) > 1] == [(8, 8)]
    assert len(ways) > 8


def test_nothing_is_kept_with_a_graph_but_by_a_cache() -> None:
    """The table is for `Cache` alone: a key of another kind would have no bound and no owner."""
    users = {
        path.relative_to(ROOT).as_posix()
        for folder in ("ctrlgrad", "gradients", "stacks", "memory")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"\.caches\b", path.read_text(encoding="utf-8"))
    }
    assert users == {"ctrlgrad/ir/caching.py"}
