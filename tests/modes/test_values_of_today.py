"""A transform computes with the current Python values at each call, in every form in which Python can hold them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import tree
from ctrlgrad.ir import caching, interning

factor: Any = 2.0
table: dict[str, Any] = {"factor": 2.0}
listed: list[float] = [2.0]
array = np.full(3, 2.0)
large = np.full(2000, 2.0)
square = False


@dataclass
class Module:
    w: Any

    def loss(self, x: Any) -> Any:
        return x * self.w


Change = Callable[[float], None]
Scaled = Callable[[Any], Any]


def a_global() -> tuple[Scaled, Change]:
    def change(to: float) -> None:
        global factor
        factor = to

    return lambda x: x * factor, change


def a_global_of_a_function_called() -> tuple[Scaled, Change]:
    scaled, change = a_global()
    return lambda x: scaled(x), change


def a_closure_variable() -> tuple[Scaled, Change]:
    held = 2.0

    def change(to: float) -> None:
        nonlocal held
        held = to

    return lambda x: x * held, change


def an_attribute() -> tuple[Scaled, Change]:
    module = Module(2.0)
    return lambda x: x * module.w, lambda to: setattr(module, "w", to)


def a_bound_method() -> tuple[Scaled, Change]:
    module = Module(2.0)
    return module.loss, lambda to: setattr(module, "w", to)


def a_default_argument() -> tuple[Scaled, Change]:
    def scaled(x: Any, held: float = 2.0) -> Any:
        return x * held

    return scaled, lambda to: setattr(scaled, "__defaults__", (to,))


def a_default_array() -> tuple[Scaled, Change]:
    held = np.full((), 2.0)

    def scaled(x: Any, *, held: Any = held) -> Any:
        return x * held

    return scaled, lambda to: held.fill(to)


def a_partial_in_a_list() -> tuple[Scaled, Change]:
    layers = [functools.partial(lambda by, x: x * by, 2.0)]
    return lambda x: layers[0](x), lambda to: layers.__setitem__(0, functools.partial(lambda by, x: x * by, to))


def an_element_of_a_dict() -> tuple[Scaled, Change]:
    return lambda x: x * table["factor"], lambda to: table.__setitem__("factor", to)


def an_element_of_a_list() -> tuple[Scaled, Change]:
    return lambda x: x * listed[0], lambda to: listed.__setitem__(0, to)


def a_small_array_in_place() -> tuple[Scaled, Change]:
    return lambda x: x * array.mean(), lambda to: array.fill(to)


def a_captured_array_in_place() -> tuple[Scaled, Change]:
    return lambda x: (x * array).sum() / 3.0, lambda to: array.fill(to)


def a_large_array_in_place() -> tuple[Scaled, Change]:
    return lambda x: (x * large).sum() / 2000.0, lambda to: large.fill(to)


def a_view_of_a_large_array() -> tuple[Scaled, Change]:
    return lambda x: (x * large[::2]).sum() / 1000.0, lambda to: large.fill(to)


FORMS = [
    a_global,
    a_global_of_a_function_called,
    a_closure_variable,
    an_attribute,
    a_bound_method,
    a_default_argument,
    a_default_array,
    a_partial_in_a_list,
    an_element_of_a_dict,
    an_element_of_a_list,
    a_small_array_in_place,
    a_captured_array_in_place,
    a_large_array_in_place,
    a_view_of_a_large_array,
]


def _plain(scaled: Scaled) -> Scaled:
    return lambda x: scaled(x * x)


def _in_a_loop(scaled: Scaled) -> Scaled:
    return lambda x: cg.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, scaled(c[1])), (0, x * 1.0))[1]


def _in_a_branch(scaled: Scaled) -> Scaled:
    return lambda x: cg.cond(x > 0.0, scaled, lambda y: y, x * 1.0)


def _in_a_scan(scaled: Scaled) -> Scaled:
    return lambda x: cg.scan(lambda c, _: (scaled(c), c), x * 1.0, None, 2)[0]


def _checkpointed(scaled: Scaled) -> Scaled:
    return cg.checkpoint(lambda x: scaled(x * x))


def _with_a_rule(scaled: Scaled) -> Scaled:
    @cg.custom_vjp
    def f(x: Any) -> Any:
        return scaled(x * x)

    f.defvjp(lambda x: (f(x), x), lambda x, ct: (ct * scaled(2.0 * x),))
    return f


def _with_a_forward_rule(scaled: Scaled) -> Scaled:
    @cg.custom_jvp
    def f(x: Any) -> Any:
        return scaled(x * x)

    f.defjvp(lambda primals, tangents: (f(*primals), scaled(2.0 * primals[0]) * tangents[0]))
    return f


PROGRAMS = [_plain, _in_a_loop, _in_a_branch, _in_a_scan]


def _of_two(mapped: Callable[[Any], Any]) -> Callable[[float], Any]:
    return lambda x: mapped(np.array([x, x]))


TRANSFORMS: dict[str, Callable[[Scaled], Callable[[float], Any]]] = {
    "grad": cg.grad,
    "value_and_grad": cg.value_and_grad,
    "vmap": lambda f: _of_two(cg.vmap(f)),
    "jvp": lambda f: lambda x: cg.jvp(f, (x,), (1.0,)),
    "vjp": lambda f: lambda x: cg.vjp(f, x)[1](1.0),
    "linearize": lambda f: lambda x: cg.linearize(f, x)[1](1.0),
    "jacrev": cg.jacrev,
    "jacfwd": cg.jacfwd,
    "hessian": lambda f: cg.hessian(lambda x: f(x) * x),
    "vmap of grad": lambda f: _of_two(cg.vmap(cg.grad(f))),
    "function inside": lambda f: cg.grad(cg.function(f)),
    "call": lambda f: f,
    "function": cg.function,
    "function of grad": lambda f: cg.function(cg.value_and_grad(f)),
    "function of vmap": lambda f: _of_two(cg.function(cg.vmap(f))),
    "function by the reference engine": functools.partial(cg.function, engine="reference"),
    "function by autograph": functools.partial(cg.function, autograph=True),
}


def _numbers(result: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in tree.leaves(result)]


def _same(found: Any, expected: Any) -> None:
    for x, y in zip(_numbers(found), _numbers(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12)


def _constant(program: Any, transform: str, by: float) -> Any:
    """The derivative of the program with the number written as a literal."""
    return TRANSFORMS[transform](program(lambda x: x * by))(1.5)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("program", PROGRAMS[:2], ids=lambda f: f.__name__)
def test_a_transform_sees_what_python_holds_now(program: Any, form: Any, transform: str) -> None:
    scaled, change = form()
    change(2.0)
    applied = TRANSFORMS[transform](program(scaled))
    for by in (2.0, 3.0, 5.0, 2.0):
        change(by)
        _same(applied(1.5), _constant(program, transform, by))


@pytest.mark.parametrize("program", [*PROGRAMS[2:], _checkpointed, _with_a_rule, _with_a_forward_rule])
@pytest.mark.parametrize("transform", ["grad", "value_and_grad", "vmap", "jacrev", "call", "function of grad"])
def test_programs_of_all_kinds_see_it(program: Any, transform: str) -> None:
    for form in (a_global, a_large_array_in_place):
        scaled, change = form()
        change(2.0)
        applied = TRANSFORMS[transform](program(scaled))
        for by in (2.0, 3.0, 5.0):
            change(by)
            _same(applied(1.5), _constant(program, transform, by))


@pytest.mark.parametrize("transform", ["grad", "value_and_grad", "jvp", "jacrev", "jacfwd"])
def test_jax_sees_the_same(transform: str) -> None:
    def losses(module: Any) -> Any:
        return lambda x: module.sin(x * factor) * factor

    ours = TRANSFORMS[transform](losses(cnp))
    theirs: Any = {
        "jvp": lambda x: jax.jvp(losses(jnp), (x,), (1.0,)),
    }.get(transform) or getattr(jax, transform)(losses(jnp))
    with jax.enable_x64(True):
        for by in (2.0, 3.0):
            globals()["factor"] = by
            for x, y in zip(_numbers(ours(1.5)), map(np.asarray, jax.tree.leaves(theirs(1.5))), strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-12)


def test_a_function_of_jax_is_read_at_every_call() -> None:
    with jax.enable_x64(True):
        slope = cg.grad(cg.from_jax(lambda x: jnp.sin(x) * factor))
        for by in (2.0, 3.0):
            globals()["factor"] = by
            np.testing.assert_allclose(slope(1.5), by * np.cos(1.5), rtol=1e-12)


def test_a_branch_of_python_goes_by_todays_flag() -> None:
    global square
    slope = cg.grad(lambda x: x * x if square else 3.0 * x)
    for square in (False, True, False):
        assert slope(2.0) == (4.0 if square else 3.0)


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("transform", ["grad", "function of grad"])
def test_changing_numbers_compile_at_most_twice(
    program: Any, form: Any, transform: str, compilations: list[Any]
) -> None:
    """Once with the number in it, once with the number as an argument; arrays of some size are arguments at once."""
    scaled, change = form()
    applied = TRANSFORMS[transform](program(scaled))
    for k in range(10):
        change(2.0 + k)
        applied(1.5)
    assert len(compilations) <= 2 and len(interning._FAMILIES) <= 2 * 2


def test_a_transform_that_is_made_at_each_call_is_compiled_once(compilations: list[Any]) -> None:
    def loss(x: Any) -> Any:
        return cg.fori_loop(0, 3, lambda i, y: y * x, 1.0)

    assert [float(cg.grad(loss)(2.0)) for _ in range(3)] == [12.0] * 3
    assert len(compilations) == 1


def test_a_loop_outside_of_a_function_is_compiled_twice_at_most(compilations: list[Any]) -> None:
    for k in range(6):
        grown = cg.while_loop(lambda c: c[0] < 2, lambda c, by=float(k): (c[0] + 1, c[1] * by + large.sum()), (0, 1.0))
        assert grown[1] == (k + large.sum()) * k + large.sum()
    assert len(compilations) <= 2


def test_negative_zero_and_nan_are_values_of_their_own() -> None:
    held = 0.0
    slope = cg.grad(lambda x: cnp.arctan2(x * held, -1.0) + 0.0 * x)
    signs = []
    for held in (0.0, -0.0, np.nan, -0.0):
        signs.append(float(cg.vmap(lambda x: cnp.copysign(1.0, x * held))(np.ones(1))[0]))  # noqa: B023
        slope(1.0)
    assert signs[:2] == [1.0, -1.0] and signs[3] == -1.0
    assert np.isnan(cg.vmap(lambda x: x * np.nan)(np.ones(1))).all()


def test_a_buffer_that_the_function_itself_fills_is_read_where_it_stands() -> None:
    def loss(x: Any) -> Any:
        buffer = np.zeros(100)
        for k in range(3):
            buffer[:] = k
            x = x + (buffer * x).sum()
        return x

    for _ in range(2):
        assert cg.grad(loss)(1.0) == 1.0 * 101.0 * 201.0


def test_a_result_that_is_a_captured_array_is_the_callers_own() -> None:
    mapped = cg.vmap(lambda x: large, out_axes=None)
    found = mapped(np.ones(2))
    found[:] = -1.0
    assert (large != -1.0).all() and (mapped(np.ones(2)) != -1.0).all()


def test_threads_see_values_of_their_own() -> None:
    """A transform is called by several threads, each with its own number behind a thread-local variable."""
    local = threading.local()
    slope = cg.grad(lambda x: x * x * local.by)
    wrong: list[Any] = []

    def run(by: float) -> None:
        local.by = by
        for _ in range(20):
            found = slope(1.0)
            if found != 2.0 * by:
                wrong.append((by, found))

    threads = [threading.Thread(target=run, args=(float(k),)) for k in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.parametrize("spare", [-1, 0, 1])
def test_graphs_that_later_traces_would_find_are_let_go_by_their_values(
    spare: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled code of functions that are gone does not add up: the oldest graph goes where all have many values."""
    families: Any = caching.Recent(100, 1 << 20, lambda family: family.values)
    monkeypatch.setattr(interning, "_FAMILIES", families)

    def trace(operations: int) -> None:
        def f(x: Any) -> Any:
            for _ in range(operations):
                x = cnp.sin(x)
            return x

        cg.grad(f)(0.5)

    trace(3)
    few = [family.values for family in families.values()]
    trace(5)
    found = [family.values for family in families.values()]
    assert few == found[: len(few)] and 0 < sum(few) < sum(found[len(few) :])
    families.clear()
    families.heaviest = sum(found) + spare
    trace(3)
    trace(5)
    assert [family.values for family in families.values()] == found[spare < 0 :]
    families.heaviest = 1
    trace(4)
    assert len(families) == 1
