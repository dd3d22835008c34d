"""PyTorch's own loops and branches (`torch.cond`, `torch.while_loop`, `scan`, `associative_scan`, `map`) as they are
called by code that is being traced. Autograph calls these in the place of PyTorch's functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._higher_order_ops.associative_scan import associative_scan as torch_associative_scan
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan as torch_scan
from torch._higher_order_ops.while_loop import while_loop as torch_while_loop

import ctrlgrad.numpy as cnp
from ctrlgrad import tree
from ctrlgrad.autograph.values import REPRESENTATION, plain, represented
from ctrlgrad.frontend.branches import cond
from ctrlgrad.frontend.loops import associative_scan, scan, while_loop
from ctrlgrad.frontend.loops import map as map_rows
from ctrlgrad.frontend.tensor import Tensor


def _on_values(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of PyTorch's tensors as one of the values that they hold."""
    return lambda *xs: plain(fn(*represented(xs)))


def _scalar(x: Any) -> Any:
    return cnp.reshape(x, ()) if getattr(x, "ndim", 0) else x


def _cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    choice = plain(pred)
    if not isinstance(choice, Tensor):
        return (true_fn if choice else false_fn)(*operands)
    given = plain(tuple(operands))
    return represented(cond(_scalar(choice), _on_values(true_fn), _on_values(false_fn), *given))


def _while_loop(cond_fn: Any, body_fn: Any, carried_inputs: Any) -> Any:
    test, body = _on_values(cond_fn), _on_values(body_fn)

    def step(carry: Any) -> Any:
        found = body(*carry)
        return tuple(found) if isinstance(found, tuple | list) else (found,)

    return represented(while_loop(lambda carry: _scalar(test(*carry)), step, tuple(plain(tuple(carried_inputs)))))


def _rows_first(x: Any, dim: int) -> Any:
    return tree.map(lambda leaf: cnp.moveaxis(leaf, dim, 0), plain(x))


def _scan(combine_fn: Any, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    last, rows = scan(_on_values(combine_fn), plain(init), _rows_first(xs, dim), reverse=reverse)
    return represented(last), represented(rows)


def _associative_scan(
    combine_fn: Any, xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise"
) -> Any:
    found = associative_scan(_on_values(combine_fn), plain(xs), reverse=reverse, axis=dim)
    return represented(found)


def _map(f: Any, xs: Any, *args: Any) -> Any:
    given, call = plain(args), _on_values(f)
    return represented(map_rows(lambda row: call(row, *given), plain(xs)))


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.cond: _cond,
    torch_while_loop: _while_loop,
    torch_scan: _scan,
    torch_associative_scan: _associative_scan,
    torch_map: _map,
}


def _instead(fn: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        return (fn if REPRESENTATION.get() is None else ours)(*args, **kwargs)

    return call


def install() -> None:
    """Tell autograph of these functions: an attribute of PyTorch's own, which nothing else reads."""
    for fn, ours in _FUNCTIONS.items():
        fn.__ctrlgrad_call__ = _instead(fn, ours)
