"""Training on the card: parameters, gradients and the optimiser's state stay there from step to step."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from instruments.stand_in import StandIn
from typer.testing import CliRunner

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import nn, optim, tree
from ctrlgrad.cli import app
from ctrlgrad.engines.cuda import cupy_library
from ctrlgrad.engines.device_array import DeviceArray
from ctrlgrad.train.checkpoint import read
from ctrlgrad.train.folder import CHECKPOINT


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """A stand-in in the place of the first device; `reads` are the sizes of what was copied from it."""
    found = StandIn()
    monkeypatch.setattr(cupy_library, "cupy_library", lambda number=0: found)
    return found


@pytest.fixture
def reads(card: StandIn, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sizes: list[int] = []
    read = card.read

    def recorded(arrays: Any) -> Any:
        sizes.extend(x.size for x in arrays)
        return read(arrays)

    monkeypatch.setattr(card, "read", recorded)
    return sizes


def params_and_grads(scale: float = 1.0) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(3, 4)).astype("f4"), "b": [rng.normal(size=4)]}
    return params, tree.map(lambda p: (scale * rng.normal(size=p.shape)).astype(p.dtype), params)


def step(optimiser: optim.GradientTransformation, grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
    updates, state = optimiser.update(grads, state, params)
    return optim.apply_updates(params, updates), state


def on_card(pytree: Any) -> Any:
    return cg.function(lambda t: tree.map(lambda x: x * x.dtype.type(1), t), engine="cuda")(pytree)


def assert_on_card(pytree: Any) -> None:
    assert all(isinstance(x, DeviceArray) for x in tree.leaves(pytree))


def test_adam_on_the_card_is_adam(card: StandIn, reads: list[int]) -> None:
    """From host parameters on: the first gradient takes them there."""
    optimiser = optim.adam(lambda step: 0.1 / (step + 1))
    params, grads = params_and_grads()
    there, here = (params, optimiser.init(params)), (params, optimiser.init(params))
    for _ in range(3):
        here = step(optimiser, grads, here[1], here[0])
        there = step(optimiser, on_card(grads), there[1], there[0])
        assert_on_card((there[0], there[1][0].mu, there[1][0].nu))
    assert reads == [] and int(there[1][0].count) == 3
    for found, expected in zip(tree.leaves(there), tree.leaves(here), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-6)


def test_adam_on_bfloat16_is_the_processors_to_the_bit(card: StandIn, reads: list[int]) -> None:
    """Parameters and gradients of 16 bits, the state as `init` makes it."""
    optimiser = optim.adam(0.1)
    params, grads = (tree.map(lambda x: x.astype(cnp.bfloat16), part) for part in params_and_grads())
    there, here = (params, optimiser.init(params)), (params, optimiser.init(params))
    for _ in range(3):
        here = step(optimiser, grads, here[1], here[0])
        there = step(optimiser, on_card(grads), there[1], there[0])
    assert_on_card(there[0])
    assert reads == [] and all(p.dtype == cnp.bfloat16 for p in tree.leaves(there[0]))
    for found, expected in zip(tree.leaves(there), tree.leaves(here), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(np.asarray(found), expected)


def test_layers_of_bfloat16_have_the_gradients_of_the_processors(card: StandIn) -> None:
    """An LSTM over a sequence: products, a loop, pushes and pops, sums."""
    rng = np.random.default_rng(0)
    cell = nn.lstm_init(cg.random.key(0), 3, 4, cnp.bfloat16)
    xs, zeros = rng.normal(size=(5, 2, 3)).astype(cnp.bfloat16), np.zeros((2, 4), cnp.bfloat16)

    def loss(cell: Any) -> Any:
        step = lambda state, x: (nn.lstm_cell(cell, state, x), None)
        (h, c), _ = cg.lax.scan(step, (zeros, zeros), xs)
        return cnp.sum(h * c)

    found = cg.function(cg.grad(loss), engine="cuda")(cell)
    expected = cg.function(cg.grad(loss), engine="reference")(cell)
    assert_on_card(found)
    for a, b in zip(tree.leaves(found), tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype == cnp.bfloat16
        np.testing.assert_array_equal(np.asarray(a), b)


def test_every_step_of_adam_runs_the_same_graph(card: StandIn) -> None:
    optimiser = optim.adam(lambda step: 0.1 / (step + 1))
    params, grads = params_and_grads()
    grads = on_card(grads)
    state = optimiser.init(params)
    params, state = step(optimiser, grads, state, params)
    texts = len(card.texts)
    for _ in range(3):
        params, state = step(optimiser, grads, state, params)
    assert len(card.texts) == texts


@pytest.mark.parametrize("scale", [0.01, 10.0])
def test_clipping_on_the_card_asks_for_no_number(card: StandIn, reads: list[int], scale: float) -> None:
    _, grads = params_and_grads(scale)
    there = on_card(grads)
    clipped = lambda g: optim.clip_by_global_norm(1.0).update(g, optim.EmptyState())[0]
    found = clipped(there)
    assert_on_card(found)
    assert reads == []
    for a, b in zip(tree.leaves(found), tree.leaves(clipped(grads)), strict=True):
        np.testing.assert_allclose(np.asarray(a), b, rtol=1e-6)
    assert optim.global_norm(there) == pytest.approx(optim.global_norm(grads), rel=1e-12)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(f"{n} loop {n * n % 7} stack" for n in range(60)))
    return path


def command(out: Path, text: Path, engine: str, steps: int = 3, *more: str) -> Any:
    given = ["train", "--hidden", "8", "--batch", "4", "--steps", str(steps), "--engine", engine]
    return CliRunner().invoke(app, [*given, "--text", str(text), "--out", str(out), *more])


def test_the_command_trains_on_the_card(card: StandIn, reads: list[int], tmp_path: Path, text: Path) -> None:
    """As the reference engine does, within rounding; a step copies its loss alone, and what says an index was wrong."""
    for engine in ("cuda", "reference"):
        result = command(tmp_path / engine, text, engine)
        assert result.exit_code == 0, result.output
    assert_same_parameters(tmp_path)
    assert sum(size > 64 for size in reads) < 60, "parameters are read for checkpoints and samples, not at each step"


def assert_same_parameters(tmp_path: Path) -> None:
    """Of the runs in the folders named for their engines, within rounding."""
    there, here = (read(tmp_path / engine / CHECKPOINT).tensors for engine in ("cuda", "reference"))
    assert set(there) == set(here)
    for name, expected in here.items():
        np.testing.assert_allclose(there[name], expected, rtol=2e-3, atol=2e-5, err_msg=name)


def test_a_run_on_the_card_goes_on_from_its_checkpoint(card: StandIn, tmp_path: Path, text: Path) -> None:
    for engine in ("cuda", "reference"):
        assert command(tmp_path / engine, text, engine, 2).exit_code == 0
        result = command(tmp_path / engine, text, engine, 4, "--resume")
        assert result.exit_code == 0, result.output
    assert_same_parameters(tmp_path)


def test_without_cupy_nothing_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: Path) -> None:
    cupy_library.cupy_library.cache_clear()
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "cupy" else find(name, *rest))
    result = command(tmp_path / "run", text, "cuda")
    assert result.exit_code != 0 and "the CUDA engine is not installed" in result.output
    assert not (tmp_path / "run" / CHECKPOINT).exists()
