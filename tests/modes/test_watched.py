"""Python values that a compiled function read: changes are noticed, `explain` lists them, and they are released."""

from __future__ import annotations

import functools
import gc
import os
import site
import sys
import threading
import types
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.frontend import watched
from ctrlgrad.ir import interning
from ctrlgrad.source import is_users

rate: Any = 2.0
flag = False
weights: Any = np.ones((40, 40))
count = 0


class Config:
    rate = 2.0


class Layer:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    @cg.function
    def compiled(self, x: Any) -> Any:
        return x * self.scale

    @property
    def doubled(self) -> Any:
        return self.scale * rate

    def __call__(self, x: Any) -> Any:
        return x * self.doubled


@pytest.fixture(autouse=True)
def _as_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("rate", 2.0), ("flag", False), ("weights", np.ones((40, 40))), ("count", 0)):
        monkeypatch.setitem(globals(), name, value)
    monkeypatch.setattr(Config, "rate", 2.0)


def set_rate(to: Any) -> None:
    globals()["rate"] = to


def test_an_object_that_is_called() -> None:
    layer = Layer(3.0)
    f = cg.function(lambda x: layer(x))
    assert f(1.0) == 6.0
    set_rate(5.0)
    assert f(1.0) == 15.0
    layer.scale = 4.0
    assert f(1.0) == 20.0


def test_the_object_of_a_compiled_method() -> None:
    layer, other = Layer(3.0), Layer(7.0)
    assert (layer.compiled(1.0), other.compiled(1.0)) == (3.0, 7.0)
    layer.scale = 4.0
    assert (layer.compiled(1.0), other.compiled(1.0)) == (4.0, 7.0)


def test_an_attribute_of_a_class_and_of_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("settings_of_a_test")
    module.by = 2.0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    f = cg.function(lambda x: x * Config.rate * module.by)
    assert f(1.0) == 4.0
    Config.rate = 3.0
    assert f(1.0) == 6.0
    module.by = 5.0  # type: ignore[attr-defined]
    assert f(1.0) == 15.0


def test_a_function_that_is_an_argument() -> None:
    f = cg.function(lambda act, x: act(x), static_argnums=0)
    act = lambda x: x * rate
    assert f(act, 1.0) == 2.0
    set_rate(3.0)
    assert f(act, 1.0) == 3.0


def test_a_function_that_calls_itself_and_one_behind_decorators() -> None:
    def power(x: Any, n: int) -> Any:
        return x * rate if n == 0 else power(x, n - 1) * rate

    @functools.wraps(power)
    def wrapped(*args: Any) -> Any:
        return power(*args)

    f = cg.function(lambda x: wrapped(x, 2))
    assert f(1.0) == 8.0
    set_rate(3.0)
    assert f(1.0) == 27.0


def test_a_number_becomes_an_array_another_dtype_and_another_shape() -> None:
    f = cg.function(lambda x: (x * rate).sum())
    for value in (2, 2.0, np.float32(2.0), np.full(3, 2.0), np.full((2, 3), 2.0), True, [1.0, 2.0, 3.0]):
        set_rate(value)
        expected = np.sum(1.5 * np.asarray(value) if not isinstance(value, list) else np.multiply(1.5, value))
        np.testing.assert_allclose(f(1.5), expected)


def test_values_that_are_equal_and_not_the_same() -> None:
    f = cg.function(lambda x: cnp.copysign(x, rate))
    results = []
    for value in (0.0, -0.0, 0, float("nan"), -1):
        set_rate(value)
        results.append(float(f(1.0)))
    assert results == [1.0, -1.0, 1.0, 1.0, -1.0]
    g = cg.function(lambda x: x * rate)
    set_rate(1)
    assert g(2).dtype == np.int64
    set_rate(1.0)
    assert g(2).dtype == np.float64


def test_unchanged_closures_are_traced_once() -> None:
    f = cg.function(lambda x: (x @ weights) * rate + Layer(2.0)(x))
    for _ in range(5):
        f(np.ones(40))
    assert f.traces == 1
    set_rate(float("nan"))
    for _ in range(5):
        f(np.ones(40))
    assert f.traces == 2


def test_a_counter_of_the_function_itself_is_no_change() -> None:
    seen: list[int] = []

    @cg.function
    def f(x: Any) -> Any:
        global count
        count += 1
        seen.append(count)
        return x * rate

    assert [float(f(1.0)) for _ in range(4)] == [2.0] * 4
    assert (count, seen, f.traces) == (1, [1], 1)


def test_a_list_of_the_functions_calls_is_no_change_for_other_signatures() -> None:
    seen: list[Any] = []
    f = cg.function(lambda x: (seen.append(x.dtype), x * rate)[1])
    for _ in range(3):
        f(np.float32(1.0))
        f(1.0)
    assert f.traces == len(seen) == 2


def test_a_flag_that_goes_back_and_forth_is_compiled_once_each(compilations: list[Any]) -> None:
    f = cg.function(lambda x: cnp.sin(x) if flag else cnp.cos(x))
    for k in range(8):
        globals()["flag"] = bool(k % 2)
        np.testing.assert_allclose(f(1.0), np.sin(1.0) if k % 2 else np.cos(1.0), rtol=1e-12)
    assert len(compilations) == 2


def test_an_array_of_the_weights_size_is_exchanged_without_compiling(compilations: list[Any]) -> None:
    f = cg.function(cg.value_and_grad(lambda x: (x @ weights).sum()))
    for k in range(6):
        globals()["weights"] = np.full((40, 40), float(k))
        assert f(np.ones(40))[0] == 1600.0 * k
        weights[0, 0] += 1.0
        assert f(np.ones(40))[0] == 1600.0 * k + 1.0
    assert len(compilations) == 1


@pytest.mark.parametrize("size", [1, 63, 64, 65, 511, 512, 513])
@pytest.mark.parametrize("transform", [cg.function, cg.vmap, lambda f: cg.function(cg.vmap(f))])
def test_arrays_of_sizes_beside_the_bounds_change_in_place(transform: Any, size: int, compilations: list[Any]) -> None:
    held = np.zeros(size)
    f = transform(lambda x: (x * held).sum())
    for k in range(5):
        held[-1] = k
        np.testing.assert_array_equal(f(np.ones(2) if transform is not cg.function else 1.0), float(k))
    assert len(compilations) <= 2


@pytest.mark.parametrize("length", [0, 1, 63, 64])
def test_containers_up_to_the_bound(length: int) -> None:
    held = list(range(length))
    table = {k: k for k in held}
    chosen = set(held)
    f = cg.function(lambda x: x + sum(held) + sum(table.values()) + len(chosen))
    f(1.0)
    if length:
        held[-1] += 1
        assert f(1.0) == 1.0 + sum(held) + sum(table.values()) + length
        table[0] = 7
        assert f(1.0) == 1.0 + sum(held) + sum(table.values()) + length
    chosen.add(-1)
    assert f(1.0) == 1.0 + sum(held) + sum(table.values()) + length + 1


def test_an_array_that_gets_another_shape_in_place() -> None:
    held = np.arange(1600.0)
    f = cg.function(lambda x: (x * held.reshape(-1)[:2]).sum() + (x * held).sum())
    first = f(2.0)
    held.resize((40, 40), refcheck=False)
    assert f(2.0) == first


def test_the_constant_of_masked_arrays() -> None:
    masked = np.ma.masked
    f = cg.function(lambda x: x if x is masked else 2 * x)
    assert f(3.0) == f(3.0) == 6.0


@pytest.mark.parametrize("folder", [*site.getsitepackages(), site.getusersitepackages()])
def test_packages_of_every_site_are_not_the_users(folder: str) -> None:
    assert not is_users(os.path.join(folder, "jax", "core.py"))
    assert is_users(__file__)


def test_sizes_that_differ_notice_it_too() -> None:
    f = cg.function(lambda x: (x * rate).sum())
    for n in (2, 3, 4, 5, 2):
        set_rate(float(n))
        assert f(np.ones(n)) == n * n


def test_replaced_globals_are_released() -> None:
    class Held:
        pass

    f = cg.function(lambda x: (x * weights).sum())
    f(1.0)
    old = weakref.ref(weights)
    globals()["weights"] = np.zeros((40, 40))
    assert f(1.0) == 0.0
    gc.collect()
    assert old() is None


@pytest.mark.parametrize("kind", [list, dict, set, tuple])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_containers_are_watched_up_to_a_length(kind: Any, more: int) -> None:
    """Containers are watched up to a length; a longer one is read during tracing and listed as such."""
    count = watched.LONGEST + more
    array = np.array([2.0])
    items = [*([None] * (count - 1)), array] if kind in (list, tuple) else range(count)
    held: Any = dict.fromkeys(map(str, items), 2.0) if kind is dict else kind(items)

    def scale() -> float:
        match held:
            case dict():
                return next(iter(held.values()))
            case set():
                return 2.0 if 0 in held else 3.0
            case _:
                return float(held[-1][0])

    f = cg.function(lambda x: x * scale())
    assert f(1.0) == 2.0
    if kind is dict:
        held["0"] = 3.0
    elif kind is set:
        held.remove(0)
    else:
        array[0] = 3.0
    assert f(1.0) == (3.0 if more <= 0 else 2.0)
    assert any("elements, read when traced" in line for line in f.explain(1.0).captured) == (more > 0)


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_so_many_objects_are_looked_at(monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    """A chain of lists, at whose end an array lies: it is noticed while no more objects than `MOST` come before it."""
    depth = 40
    last = held = [np.array([2.0])]
    for _ in range(depth - 1):
        held = [held]

    def inner() -> Any:
        return held

    f = cg.function(lambda x: x * float(last[0][0]) + 0.0 * len(inner()))
    walk = watched._Walk([f.fn])
    assert any(x is last[0] for x, _ in walk.found.arrays)
    needed = len(walk.seen)
    monkeypatch.setattr(watched, "MOST", needed + more)
    found = watched.watch([f.fn])
    assert (len(watched._Walk([f.fn]).seen) == needed) == (more >= 0)
    assert len(found.containers) <= depth


def test_many_changes_leave_nothing_behind() -> None:
    f = cg.function(lambda x: (x * weights).sum() * rate)
    for k in range(50):
        globals()["weights"] = np.full((40, 40), 1.0 + k)
        set_rate(float(k))
        f(1.0)
    assert len(interning._FAMILIES) == 1 and len(f._known) == 1


def test_a_variable_that_is_deleted_is_an_error_until_it_is_back() -> None:
    f = cg.function(lambda x: x * rate)
    assert f(1.0) == 2.0
    del globals()["rate"]
    with pytest.raises(NameError):
        f(1.0)
    set_rate(3.0)
    assert f(1.0) == 3.0


def test_threads_that_rebind() -> None:
    """Each thread rebinds a closure variable of its own function; all functions share one code object."""
    wrong: list[Any] = []

    def run(start: float) -> None:
        by = start
        f = cg.function(lambda x: x * by)
        for k in range(50):
            by = start + k
            if f(1.0) != by:
                wrong.append(by)

    threads = [threading.Thread(target=run, args=(100.0 * k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_callback_is_compiled_once(compilations: list[Any]) -> None:
    seen: list[float] = []

    def loss(x: Any) -> Any:
        cg.debug.callback(lambda value, at: seen.append(float(value)), x)
        y = cg.pure_callback(lambda v: np.asarray(v) * 1.0, cg.TensorSpec(()), cg.stop_gradient(x))
        return x * y

    slope = cg.grad(loss)
    assert [float(slope(float(k))) for k in range(4)] == [0.0, 1.0, 2.0, 3.0]
    assert seen == [0.0, 1.0, 2.0, 3.0] and len(compilations) == 1


def test_a_callback_with_state_of_its_own_is_not_taken_for_an_earlier_one() -> None:
    def loss(x: Any) -> Any:
        calls, mine = 0, []

        def state(value: Any, at: Any) -> None:
            nonlocal calls
            calls += 1
            mine.append(calls)

        cg.debug.callback(state, x)
        made.append(mine)
        return x * x

    made: list[list[int]] = []
    for _ in range(3):
        cg.grad(loss)(2.0)
    assert made == [[1], [1], [1]]


def test_to_jax_and_from_jax() -> None:
    with jax.enable_x64(True):
        ours = cg.to_jax(lambda x: cg.while_loop(lambda y: y < 10.0, lambda y: y * rate, x))
        read = cg.from_jax(jax.jit(lambda x: jnp.sin(x) * rate))
        inside = cg.function(lambda x: read(x))
        for by in (2.0, 3.0):
            set_rate(by)
            jax.clear_caches()
            expected = {2.0: 16.0, 3.0: 27.0}[by]
            assert ours(1.0) == expected
            np.testing.assert_allclose([read(1.0), inside(1.0)], by * np.sin(1.0), rtol=1e-12)


def test_explain_lists_what_was_read() -> None:
    table = [np.zeros(3), 4]
    layer = Layer(3.0)

    def f(x: Any) -> Any:
        return ((x @ weights) * layer.scale + table[0].sum() + table[1] * rate).sum()

    report = cg.function(f).explain(np.ones(40))
    assert sorted(report.captured) == [
        "global rate: 2.0, compared at each call",
        "global weights: float64[40, 40], read at each call",
        "variable layer around f.scale: 3.0, compared at each call",
        "variable table around f[0]: float64[3], compared at each call",
        "variable table around f[1]: 4, compared at each call",
    ]
    assert "captured:\n  " in str(report)


def test_explain_says_what_is_not_noticed() -> None:
    many = list(range(65))
    report = cg.function(lambda x: x * weights.sum() + many[0]).explain(1.0)
    assert "global weights: float64[40, 40], read when traced" in report.captured
    assert any(line.endswith("65 elements, read when traced") for line in report.captured)


def test_an_attribute_that_covers_that_of_a_class_is_noticed() -> None:
    """An object gets an attribute of its own, which its class or a base class had until then; or loses it again."""

    class Base:
        rate = 2.0

        def cost(self, x: Any) -> Any:
            return x * self.rate

    class Model(Base):
        pass

    model = Model()
    slope = cg.function(cg.grad(lambda x: model.cost(x)))
    assert slope(1.0) == 2.0
    model.rate = 5.0
    assert slope(1.0) == 5.0
    del model.rate
    assert slope(1.0) == 2.0
    Model.rate = 7.0
    assert slope(1.0) == 7.0
    model.cost = lambda x: x * 9.0  # type: ignore[method-assign]
    assert slope(1.0) == 9.0
    traces = slope.traces
    model.other = 1.0  # type: ignore[attr-defined]
    assert slope(1.0) == 9.0 and slope.traces == traces
