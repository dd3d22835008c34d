"""Pullbacks and linear maps under a budget: their saved rows enter a call in blocks with room for more."""

import numpy as np
import pytest
from instruments.sessions import assert_no_chunks

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import memory
from ctrlgrad.memory.residency import Residency

LIMIT = 512 * 1024
X = np.linspace(0.1, 1.0, 100)


def flow(x):
    # 3,000 rows of 800 bytes: 2.3 MiB.
    return cg.while_loop(lambda c: c[0] < 3000, lambda c: (c[0] + 1, c[1] + 1e-3 * np.sin(c[1])), (0, x))[1].sum()


@pytest.fixture(params=["native", "dataflow", "reference"])
def engine(request):
    with cg.options(engine=request.param):
        yield request.param


def within(call):
    with memory.budget(device=LIMIT) as session:
        found = call()
        assert session.manager().stats.peak_bytes["device"] <= LIMIT
    return found


def test_a_pullback_is_made_and_called_in_a_budget(engine):
    def twice():
        _, pullback = cg.vjp(flow, X)
        return pullback(1.0)[0], pullback(2.0)[0]

    slope = cg.grad(flow)(X)
    once, doubled = within(twice)
    np.testing.assert_array_equal(once, slope)
    np.testing.assert_allclose(doubled, 2 * slope, rtol=1e-14)


def test_a_pullback_from_outside_is_called_in_a_budget_and_one_from_inside_after_it(engine):
    _, outside = cg.vjp(flow, X)
    found = within(lambda: outside(1.0)[0])
    _, inside = within(lambda: cg.vjp(flow, X))
    np.testing.assert_array_equal(found, outside(1.0)[0])
    np.testing.assert_array_equal(found, inside(1.0)[0])


def test_forty_pullbacks_are_alive_in_a_budget():
    with cg.options(engine="native"):
        found = within(lambda: [p(1.0)[0] for p in [cg.vjp(flow, (1 + k / 100) * X)[1] for k in range(40)]])
        for k in (0, 39):
            np.testing.assert_array_equal(found[k], cg.grad(flow)((1 + k / 100) * X))


def test_a_linear_map_is_made_and_called_in_a_budget(engine):
    def both():
        _, push = cg.linearize(flow, X)
        return push(np.ones(100)), push(X)

    ones, scaled = within(both)
    slope = cg.grad(flow)(X)
    np.testing.assert_allclose(ones, slope.sum(), rtol=1e-12)
    np.testing.assert_allclose(scaled, (slope * X).sum(), rtol=1e-12)


def test_several_stacks_share_what_a_budget_has_room_for():
    def coupled(x):
        def body(c):
            i, a, b = c
            return i + 1, a + 1e-3 * np.sin(b * a), b - 1e-3 * np.cos(a) * np.exp(-b)

        _, a, b = cg.while_loop(lambda c: c[0] < 3000, body, (0, x, 1 + x))
        return (a * b).sum()

    with cg.options(engine="native"):
        found = within(lambda: cg.vjp(coupled, X)[1](1.0)[0])
        np.testing.assert_array_equal(found, cg.grad(coupled)(X))
    cg.check_grads(coupled, (X[:3],))


def test_a_pullback_that_a_traced_function_closes_over_is_one_constant():
    _, pullback = cg.vjp(flow, X)
    traced = cg.function(lambda ct: pullback(ct)[0])
    np.testing.assert_allclose(traced(2.0), pullback(2.0)[0], rtol=1e-14)
    assert len(traced.graph(2.0).nodes) < 30


def test_a_linear_map_of_a_loop_is_made_and_called_in_a_traced_function(engine):
    def both(x, n):
        f = lambda x: cg.fori_loop(0, n, lambda i, c: np.sin(c) * x, x)
        return cg.linearize(f, x)[1](np.ones_like(x)), cg.jvp(f, (x,), (np.ones_like(x),))[1]

    linear, pushed = cg.function(both)(X, 3)
    np.testing.assert_allclose(linear, pushed, rtol=1e-12)


@pytest.mark.parametrize("carries", [1, 2])
def test_a_pullback_needs_one_row_of_each_carry_more_than_a_gradient(carries):
    """A pullback needs one row of each carry more than a gradient: it recomputes the last chunk's rows, which `grad`
    still has."""
    x = np.ones(1000)

    def f(x):
        start = (0, *[x + j for j in range(carries)])
        return sum(v.sum() for v in cg.while_loop(lambda c: c[0] < 100, body, start)[1:])

    def body(c):
        return c[0] + 1, *[cnp.sin(v) * 1.01 for v in c[1:]]

    gradient = cg.grad(f)(x)
    for rows, runs in ((3, lambda: cg.grad(f)(x)), (4, lambda: cg.vjp(f, x)[1](1.0)[0])):
        with memory.budget(device=rows * carries * x.nbytes + 256):
            np.testing.assert_array_equal(runs(), gradient)
        with memory.budget(device=rows * carries * x.nbytes - 256), pytest.raises(cg.errors.MemoryBudgetError):
            runs()


def test_a_pullback_that_is_never_called_leaves_nothing(tmp_path):
    with memory.budget(device=LIMIT // 4, disk=tmp_path) as session:
        _, pullback = cg.vjp(flow, X)
        manager = session.manager()
        assert manager.index.all() and sum(account.used for account in manager.accounts)
        assert list(tmp_path.iterdir())
        del pullback
        assert_no_chunks(manager)
        assert not any(account.used for account in manager.accounts)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("ways", [{"swap_memory": True}, {"checkpoint": True}])
def test_a_failure_at_any_request_for_bytes_leaves_nothing(ways, error, tmp_path, monkeypatch):
    """A failed request for bytes leaves no memory: every fifth request fails once in a call, and the next call gives
    the same numbers."""

    @cg.function
    @cg.grad
    def slope(x):
        body = lambda c: (c[0] + 1, c[1] + 1e-3 * np.sin(c[1]))
        return cg.while_loop(lambda c: c[0] < 900, body, (0, x), **ways)[1].sum()

    expected, take = slope(X), Residency.take
    asked, failing = 0, 0

    def counted(self, *given):
        nonlocal asked
        asked += 1
        if asked == failing:
            raise error("in the way")
        return take(self, *given)

    monkeypatch.setattr(Residency, "take", counted)
    with memory.budget(device=32 << 10, disk=tmp_path) as session:
        slope(X)
        manager, total = session.manager(), asked
        assert total > 40
        for failing in range(1, total, 5):
            asked = 0
            with pytest.raises(error, match="in the way"):
                slope(X)
            failing = 0
            assert_no_chunks(manager)
            assert not any(account.used for account in manager.accounts), failing
        np.testing.assert_array_equal(slope(X), expected)
    assert not list(tmp_path.iterdir())
