"""The judge of batching: a Python loop over the rows, for values and derivatives of both modes and two orders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import ctrlgrad as cg
from ctrlgrad.engines.reference import Run, run_graph
from ctrlgrad.ir import verify

CLOSE = {"rtol": 1e-10, "atol": 1e-12}


def by_hand(fn: Callable[..., Any], *args: Any, axes: Sequence[int | None] | None = None) -> Any:
    """`fn` called for each row, results stacked."""
    axes = [0] * len(args) if axes is None else axes
    count = next(a.shape[k] for a, k in zip(args, axes, strict=True) if k is not None)
    single = cg.function(fn, engine="reference")
    take = lambda a, k, i: a if k is None else np.take(a, i, axis=k)
    rows = [single(*(take(a, k, i) for a, k in zip(args, axes, strict=True))) for i in range(count)]
    return np.stack([np.asarray(r) for r in rows])


def at_once(*calls: tuple[Any, ...]) -> list[Any]:
    """The results of several calls, each a function and its arguments, by one program: that is compiled once."""
    together = lambda arguments: [fn(*args) for (fn, *_), args in zip(calls, arguments, strict=True)]
    return cg.function(together)([args for _, *args in calls])  # type: ignore[no-any-return]


def checked(fn: Callable[..., Any], *args: Any) -> Any:
    """`fn(*args)` run with every result's type checked, on a graph that the verifier accepts."""
    graph = cg.function(fn).graph(*args)
    verify(graph, "vmap")
    results = run_graph(graph, [np.asarray(a) for a in args], Run(check_types=True))
    return results[0]


def unknown_sizes(fn: Callable[..., Any], *args: Any, engine: str = "native") -> Any:
    """`fn` traced with a batch size that is known at run time alone."""
    specs = [cg.TensorSpec((None, *a.shape[1:]), a.dtype) for a in args]
    return cg.function(fn, signature=specs, engine=engine)(*args)


def check(fn: Callable[[Any], Any], xs: Any, order: int = 2) -> None:
    """Compare vmap of `fn` (one row to a float scalar), and all its derivatives, with the loop over rows.

    All are run by the reference engine, which checks types, and the widest graph, the gradient of vmap, natively too.
    """
    close = lambda a, b, what: np.testing.assert_allclose(a, b, **CLOSE, err_msg=what)
    rows = by_hand(fn, xs)
    assert np.isfinite(rows).all()
    close(checked(cg.vmap(fn), xs), rows, "values")
    close(unknown_sizes(cg.vmap(fn), xs, engine="reference" if order else "native"), rows, "values, batch size unknown")
    if order == 0:
        return
    total = lambda x: cg.vmap(fn)(x).sum()
    first = by_hand(cg.grad(fn), xs)
    assert np.isfinite(first).all()
    close(checked(cg.vmap(cg.grad(fn)), xs), first, "vmap of grad")
    close(checked(cg.grad(total), xs), first, "grad of vmap")
    close(unknown_sizes(cg.vmap(cg.grad(fn)), xs, engine="reference"), first, "vmap of grad, batch size unknown")
    close(unknown_sizes(cg.grad(total), xs), first, "grad of vmap, batch size unknown")
    direction = np.random.default_rng(5).standard_normal(xs.shape)
    push = lambda x, t: cg.jvp(fn, (x,), (t,))[1]
    moved = by_hand(push, xs, direction)
    pushed = lambda x, t: cg.jvp(cg.vmap(fn), (x,), (t,))[1]
    close(checked(pushed, xs, direction), moved, "jvp of vmap")
    close(checked(cg.vmap(push), xs, direction), moved, "vmap of jvp")
    if order == 1:
        return
    slope = lambda x: (cg.grad(fn)(x) ** 2).sum()
    second = by_hand(cg.grad(slope), xs)
    assert np.isfinite(second).all()
    close(checked(cg.vmap(cg.grad(slope)), xs), second, "vmap of grad of grad")
    close(checked(cg.grad(lambda x: cg.vmap(slope)(x).sum()), xs), second, "grad of vmap of grad")
    close(checked(cg.grad(lambda x: (cg.grad(total)(x) ** 2).sum()), xs), second, "grad of grad of vmap")
    over = lambda x, t: cg.jvp(cg.grad(fn), (x,), (t,))[1]
    moved = by_hand(over, xs, direction)
    close(checked(cg.vmap(over), xs, direction), moved, "vmap of forward over reverse")
    across = lambda x, t: cg.jvp(cg.grad(total), (x,), (t,))[1]
    close(checked(across, xs, direction), moved, "forward over reverse of vmap")
    under = lambda x, t: cg.grad(lambda y: cg.jvp(fn, (y,), (t,))[1])(x)
    close(checked(cg.vmap(under), xs, direction), moved, "vmap of reverse over forward")
