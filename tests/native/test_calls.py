"""A call of compiled code: how arguments are passed, which requests it makes, and who owns the results' memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import tree
from ctrlgrad.engines.native.frame import Request
from ctrlgrad.engines.native.memory import address_of

RNG = np.random.default_rng(0)


def _loss(p, x, y):
    return (((np.tanh(x @ p["w"] + p["b"]) @ p["v"]) - y) ** 2).mean()


def _steps(x):
    return cg.while_loop(lambda c: c[0] < 8, lambda c: (c[0] + 1, c[1] * 1.5), (0, x))[1]


def _outer(x, y):
    return x[:, None] * y, {"sum": x.sum(), "first": x[0] > 0, "turned": y * 2j}


_MLP = {"w": RNG.normal(size=(4, 8)), "b": np.zeros(8), "v": RNG.normal(size=(8, 2))}
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a number": (lambda x: x + 1, (2.0,)),
    "an array of rank 0": (lambda x: x + 1, (np.array(2.0, np.float32),)),
    "a vector": (lambda x: x + 1, (np.ones(8, np.float32),)),
    "an empty matrix": (lambda x: (x + 1, x.sum()), (np.ones((0, 3)),)),
    "a tree": (lambda t: {k: v * 2 for k, v in t.items()}, ({k: RNG.normal(size=3) for k in "abcdefghij"},)),
    "sizes of two arguments": (_outer, (RNG.normal(size=3), RNG.normal(size=4))),
    "what is passed on": (lambda x, y: (x, y, x, y + 0), (RNG.normal(size=3), RNG.normal(size=(2, 2)))),
    "a gradient": (cg.value_and_grad(_loss), (_MLP, RNG.normal(size=(16, 4)), RNG.normal(size=(16, 2)))),
    "a branch": (lambda x: cg.cond(x.sum() > 0, lambda y: y * 2, lambda y: y - 1, x), (np.arange(3.0),)),
    "a loop": (_steps, (np.arange(3.0),)),
}


def _called(f: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
    return tree.leaves(f(*args))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_call_asks_python_for_nothing(requests: list[Request], name: str) -> None:
    fn, args = PROGRAMS[name]
    f = cg.function(fn, engine="native")
    expected = _called(cg.function(fn, engine="reference"), args)
    _called(f, args)
    requests.clear()
    for _ in range(3):
        found = _called(f, args)
        for x, y in zip(found, expected, strict=True):
            assert type(x) is np.ndarray and (x.dtype, x.shape) == (y.dtype, y.shape)
            np.testing.assert_allclose(x, y, rtol=1e-12)
    assert not requests


def test_sizes_that_no_graph_says_are_no_reason_to_ask(requests: list[Request]) -> None:
    """One graph serves all sizes, without requests: the results' shapes are computed before the code is entered."""
    f = cg.function(_outer, engine="native")
    for m, n in ((3, 4), (5, 6), (7, 8)):
        f(np.ones(m), np.ones(n))
    assert f.traces == 2
    requests.clear()
    for m, n in ((3, 9), (12, 2), (1, 5), (0, 3), (2, 0)):
        x, y = RNG.normal(size=m), RNG.normal(size=n)
        if m == 0:
            with pytest.raises(cg.CtrlgradError, match="out of bounds"):
                f(x, y)
            continue
        product, rest = f(x, y)
        np.testing.assert_array_equal(product, np.outer(x, y))
        np.testing.assert_array_equal(rest["turned"], y * 2j)
    assert Request.GROW_BUFFER not in requests


def test_a_result_whose_size_only_the_run_knows_is_asked_for(requests: list[Request]) -> None:
    f = cg.function(lambda x, n: (x[:n] * 2, x + 1), engine="native")
    x = np.arange(9.0)
    for n in (2, 5, 5, 0, 9):
        part, whole = f(x, np.int64(n))
        np.testing.assert_array_equal(part, x[:n] * 2)
        np.testing.assert_array_equal(whole, x + 1)
    assert Request.GROW_BUFFER in requests


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_share_no_memory(name: str) -> None:
    """Results share no memory with each other, with arguments or with another call's results; the caller may change
    them."""
    fn, args = PROGRAMS[name]
    f = cg.function(fn, engine="native")
    f(*args)
    given = [x for x in tree.leaves(args) if isinstance(x, np.ndarray)]
    calls = [_called(f, args), _called(f, args)]
    before = [x.copy() for x in calls[0]]
    for x, y in combinations([*given, *calls[0], *calls[1]], 2):
        assert not np.shares_memory(x, y) or (any(x is g for g in given) and any(y is g for g in given))
    for x in calls[1]:
        assert x.flags.owndata and x.flags.writeable
        x[...] = 77
    _called(f, args)
    for x, y in zip(calls[0], before, strict=True):
        np.testing.assert_array_equal(x, y)


def test_results_outlive_the_function() -> None:
    f = cg.function(lambda x: (x + 1, x[:, None] * x), engine="native")
    results = [f(np.full(50, k)) for k in range(20)]
    del f
    for k, (x, y) in enumerate(results):
        np.testing.assert_array_equal(x, np.full(50, k + 1))
        np.testing.assert_array_equal(y, np.full((50, 50), k * k))


def _read_only(x: np.ndarray) -> np.ndarray:
    x.flags.writeable = False
    return x


@pytest.mark.parametrize(
    "array",
    [
        np.array(3.0),
        np.empty((0, 4)),
        np.arange(6.0).reshape(2, 3)[1:],
        np.arange(6.0)[::-1],
        _read_only(np.arange(3)),
        cnp.asarray(np.arange(5)),
        np.ones((3, 2), order="F"),
        np.zeros(3, bool),
    ],
    ids=["rank 0", "empty", "a part", "backwards", "read-only", "of ctrlgrad", "by columns", "bool"],
)
def test_where_the_elements_of_an_array_lie(array: np.ndarray) -> None:
    """The engine finds an array's elements through NumPy's binary interface."""
    assert address_of(array) == array.ctypes.data


def test_arguments_as_they_lie() -> None:
    """One function takes slices, transposed arrays, read-only arrays and arrays at unaligned addresses."""
    f = cg.function(lambda x, y: (x * 2, x @ y), engine="native")
    base = RNG.normal(size=(6, 6))
    odd = np.zeros(9 * 8 + 1, np.uint8)[1:].view(np.float64).reshape(3, 3)
    odd[...] = base[:3, :3]
    y = np.arange(3.0)
    f(base[:3, :3].copy(), y)
    for x in (base[::2, ::2], base.T[:3, :3], base[3:, :3], _read_only(base[:3, :3].copy()), odd):
        for _ in range(2):
            doubled, product = f(x, y[::-1])
            np.testing.assert_array_equal(doubled, x * 2)
            np.testing.assert_allclose(product, x @ y[::-1], rtol=1e-12)


def test_copies_of_arguments_stay_alive_while_the_code_runs() -> None:
    f = cg.function(lambda x, y, z: (x - y, z - x), engine="native")
    x, y, z = (np.full((n, 20), float(n))[:, ::2] for n in (8, 8, 8))
    y, z = y + 1.0, z * 3.0
    given = [np.repeat(a, 2, axis=1)[:, ::2] for a in (x, y, z)]
    for _ in range(3):
        first, second = f(*given)
        np.testing.assert_array_equal(first, x - y)
        np.testing.assert_array_equal(second, z - x)


def test_calls_that_differ_in_their_tree_alone_are_not_taken_for_each_other() -> None:
    def fn(*args, **kwargs):
        return tree.reduce(lambda x, y: 10 * x + y, (args, kwargs))

    f, x, y = cg.function(fn, engine="native"), np.array([1.0]), np.array([2.0])
    for _ in range(3):
        assert f(x) == 1 and f(x, y) == 12 and f(y, x) == 21 and f((x, y)) == 12 and f([x, y]) == 12
        assert f(x, a=y) == 12 and f(a=x, b=y) == 12 and f(x, (y, x)) == 121 and f((x, y), x) == 121
        assert f(2.0) == 2 and f(np.float32(3)) == 3 and f(4) == 4
    assert f.traces == 11
    integer, real = f(4), f(4.0)
    assert (integer.dtype, real.dtype) == (np.int64, np.float64)


def test_static_arguments_decide_which_code_runs() -> None:
    f = cg.function(lambda x, n, y: x * n - y, engine="native", static_argnums=1)
    for _ in range(2):
        for n in (2, 3, 2.0):
            np.testing.assert_array_equal(f(np.ones(2), n, 1), n * np.ones(2) - 1)
    assert f.traces == 3


def test_two_threads_have_their_own_frames() -> None:
    f = cg.function(lambda x, k: (x + k, _steps(x * k)), engine="native")
    f(np.ones(1000), 1)
    wrong: list[int] = []

    def work(k: int) -> None:
        for _ in range(300):
            first, second = f(np.ones(1000), k)
            if not ((first == 1 + k).all() and np.allclose(second, k * 1.5**8)):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_call_that_fails_leaves_the_next_one_as_it_was() -> None:
    f = cg.function(lambda x, i: (x[i], x + 1), engine="native")
    x = np.arange(4.0)
    f(x, np.int64(1))
    for _ in range(3):
        with pytest.raises(cg.CtrlgradError, match="out of bounds"):
            f(x, np.int64(9))
        row, whole = f(x, np.int64(2))
        assert row == 2
        np.testing.assert_array_equal(whole, x + 1)
