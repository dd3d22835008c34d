"""Mistakes of a first week: names, keywords and attributes of other libraries, and values that do not fit."""

from __future__ import annotations

import copy
import inspect
import operator
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
from ctrlgrad.errors import CtrlgradError, MissingAttributeError, TracingError, TypeMismatchError, UserInputError

X = np.arange(3.0)
LAYER, OPTIMISER = cg.nn.Linear(3, 2), cg.optim.adam(0.1)


def shown(call: Callable[[], Any], kind: type[CtrlgradError] = CtrlgradError) -> str:
    """The text of the error that a call raises, which names this file."""
    with pytest.raises(kind) as caught:
        call()
    assert Path(__file__).name in str(caught.value), caught.value
    return str(caught.value)


PUBLIC = ("debug", "lax", "nn", "numpy", "numpy.fft", "optim", "random", "scipy.linalg", "scipy.special", "train")
# Stops in a debugger.
OPEN = {"breakpoint"}


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    for path in ("", *PUBLIC):
        module = operator.attrgetter(path)(cg) if path else cg
        for name in module.__all__:
            found = getattr(module, name)
            is_its = inspect.isfunction(found) and found.__module__.startswith("ctrlgrad")
            if is_its and name not in OPEN and name[0] != "_":
                yield f"{path}.{name}".lstrip("."), found


def test_every_public_function_explains_a_keyword_that_it_does_not_have() -> None:
    found = dict(functions())
    assert len(found) > 500
    silent = []
    for name, fn in found.items():
        if any(p.kind == p.VAR_KEYWORD for p in inspect.signature(fn).parameters.values()):
            continue
        try:
            fn(no_such_keyword=1)
        except CtrlgradError as error:
            if Path(__file__).name not in str(error):
                silent.append(name)
        except Exception:
            silent.append(name)
    assert silent == []


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda: cg.random.normal(cg.random.key(0), size=(3,)), "shape=(3,)"),  # type: ignore[call-arg]
        (lambda: cg.random.uniform(cg.random.key(0), (3,), low=-1.0), "minval=-1.0"),  # type: ignore[call-arg]
        (lambda: cg.random.uniform(shape=(3,), seed=0), "key=ctrlgrad.random.key(0)"),  # type: ignore[call-arg]
        (lambda: cg.jacfwd(np.sin, argnum=1), "argnums=1"),  # type: ignore[call-arg]
        (lambda: cg.custom_vjp(np.sin, nondiff_args=(0,)), "nondiff_argnums=(0,)"),  # type: ignore[call-arg]
        (lambda: cg.unknown_dims(X, 0, 1), "unknown_dims(x, axes)"),  # type: ignore[call-arg]
        (lambda: cg.map(np.sin, X, batchsize=2), "batch_size=2"),  # type: ignore[call-arg]
        (lambda: cg.scipy.special.i0(X, k=2), "i0(x)"),
        (
            lambda: cg.train.Trainer(np.sum, X, OPTIMISER, [X], steps=1, epochs=2),  # type: ignore[call-arg]
            "expected: Trainer(loss, params,",
        ),
    ],
)
def test_keywords_of_other_libraries_name_ours(call: Callable[[], Any], advice: str) -> None:
    assert advice in shown(call, TypeMismatchError)


@pytest.mark.parametrize(
    ("read", "advice"),
    [
        (lambda: OPTIMISER.step(), "apply_updates(params, updates)"),  # type: ignore[attr-defined]
        (lambda: OPTIMISER.zero_grad(), "gradients are results"),  # type: ignore[attr-defined]
        (lambda: LAYER.parameters(), "layer.init(ctrlgrad.random.key(0))"),  # type: ignore[attr-defined]
        (lambda: LAYER.forward(X), "layer(params, x)"),  # type: ignore[attr-defined]
        (lambda: LAYER.weight, "params['w']"),  # type: ignore[attr-defined]
        (lambda: cg.nn.LSTM(3, 4).to("cuda"), "arrays go where the function runs"),  # type: ignore[attr-defined]
        (lambda: cg.function(np.sin).lower(X), "fn.graph(*arguments)"),  # type: ignore[attr-defined]
        (lambda: cg.explain, "ctrlgrad.function(fn).explain(*arguments)"),
    ],
)
def test_attributes_of_other_libraries_name_ours(read: Callable[[], Any], advice: str) -> None:
    assert advice in shown(read, MissingAttributeError)


def test_other_attributes_are_missing_as_python_says_it() -> None:
    for x in (LAYER, OPTIMISER, cg.function(np.sin)):
        with pytest.raises(AttributeError, match="has no attribute 'nothing'") as caught:
            _ = x.nothing  # type: ignore[union-attr]
        assert caught.value.name == "nothing" and not isinstance(caught.value, CtrlgradError)
        assert not hasattr(x, "__array_interface__")
    assert copy.deepcopy({"optimiser": OPTIMISER, "layer": LAYER}) == {"optimiser": OPTIMISER, "layer": LAYER}
    assert copy.copy(OPTIMISER) is OPTIMISER


def test_internal_modules_are_no_advice() -> None:
    """Found: `ctrlgrad.explain` was told to be `ctrlgrad.plan`, a package inside of the library."""
    assert "ctrlgrad.plan" not in shown(lambda: cg.plans, MissingAttributeError)


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda: cg.grad(lambda x: (x > 0).sum())(X), "have no slope: return a loss of floats"),
        (lambda: cg.grad(lambda x: x > 0)(X), "have no slope: return a loss of floats"),
        (lambda: cg.grad(lambda p: p["w"] * 1.0)({"w": 1.0, "n": 3}), "pass it alone, outside of argnums"),
        (lambda: cg.function(lambda x: x.at[0])(X), "x[index] reads the part"),
        (lambda: cg.debug.callback(lambda x: None, X), "lambda values, iterations: ..."),
        (lambda: cg.debug.watch_cotangent(X, lambda ct: None), "lambda cotangent, iterations: ..."),
        (lambda: cg.function(lambda x: cg.debug.print(x))(X), "debug.print('{}', x)"),
    ],
)
def test_advice_fits_the_mistake(call: Callable[[], Any], advice: str) -> None:
    assert advice in shown(call)


def test_a_traced_array_of_jax_in_a_loop_names_to_jax() -> None:
    jax = pytest.importorskip("jax")
    text = shown(lambda: jax.grad(lambda x: cg.while_loop(lambda c: c < 3.0, lambda c: c * 2.0, x))(1.0), TracingError)
    assert "ctrlgrad.to_jax(fn)" in text and "register_pytree_node" not in text


def test_numpys_comprehensions_are_no_functions_of_its() -> None:
    """Found: `numpy.<listcomp> needs a number`, where NumPy's class calls a private function."""
    text = shown(lambda: cg.function(lambda x: np.vectorize(lambda a: a)(x))(X), TracingError)
    assert re.search(r"numpy\.<", text) is None


def test_a_list_that_grows_says_which_loop_is_pythons() -> None:
    pytest.importorskip("gast", reason="the extra autograph")

    def rows(xs: Any) -> Any:
        out = []
        for x in xs:
            out.append(x * 2)
        return sum(out)

    def counted(xs: Any) -> Any:
        out = []
        for i in range(len(xs)):
            out.append(xs[i] * 2)
        return sum(out)

    assert "for i in range(len(xs))" in shown(lambda: cg.function(rows, autograph=True)(X), TracingError)
    assert cg.function(counted, autograph=True)(X) == 6.0


def test_a_callback_that_raises_stop_iteration_is_named(tmp_path: Path) -> None:
    """Found: "generator raised StopIteration", of a generator around the run."""

    def stop(step: Any) -> None:
        raise StopIteration

    trainer = cg.train.Trainer(
        lambda p: (p - 1.0) ** 2, np.array(0.0), OPTIMISER, [()], steps=3, out=tmp_path / "run", callbacks=[stop]
    )
    with pytest.raises(UserInputError, match="a callback raised StopIteration"):
        trainer.run()
