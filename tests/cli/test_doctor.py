"""`ctrlgrad doctor`, and what is said of long compilations."""

from __future__ import annotations

import re

import numpy as np
import pytest

import ctrlgrad as cg
from ctrlgrad.cli import EngineName
from ctrlgrad.cli.errors import compiling_shown
from ctrlgrad.engines import ENGINES
from ctrlgrad.train import settings


def test_it_tells_what_is_there_and_that_engines_work(command, tmp_path, monkeypatch):
    monkeypatch.setenv("CTRLGRAD_CACHE_DIR", str(tmp_path / "code"))
    result = command("doctor")
    assert result.exit_code == 0, result.output
    for engine in ("native", "reference", "dataflow"):
        assert re.search(rf"^ ?{engine} +works", result.output, re.MULTILINE)
    for name in ("ctrlgrad", "numpy", "llvmlite", "processor", "BLAS of NumPy", "GPU", str(tmp_path / "code")):
        assert name in result.output
    assert re.search(rf"numpy +{re.escape(np.__version__)}", result.output)
    assert all(engine in result.output for engine in ENGINES if engine != "auto")


def test_a_folder_of_code_that_is_not_safe_is_told(command, tmp_path, monkeypatch):
    tmp_path.chmod(0o777)
    monkeypatch.setenv("CTRLGRAD_CACHE_DIR", str(tmp_path))
    result = command("doctor")
    assert result.exit_code == 1
    assert "is not safe" in result.output


def test_train_offers_every_engine_that_a_run_may_have():
    assert {engine.value for engine in EngineName} == {"auto", *settings.ENGINES}


@pytest.mark.parametrize(
    ("patience", "is_terminal", "says"), [(0.0, True, True), (1e3, True, False), (0.0, False, False)]
)
def test_long_compilations_are_shown(capsys, patience, is_terminal, says):
    def tripled(x):
        return cg.while_loop(lambda y: y < 100.0, lambda y: y * 3.0 + patience, x)

    with compiling_shown(is_terminal, patience):
        cg.function(tripled, engine="native")(1.0)
    shown = capsys.readouterr().err
    assert bool(re.search(r"compiled tripled in \d+\.\d s", shown)) == says
    assert ("compiling tripled" in shown) <= says


def test_a_known_program_says_nothing(capsys):
    f = cg.function(lambda x: x * 2.0, name="doubled", engine="native")
    f(1.0)
    with compiling_shown(True, 0.0):
        f(2.0)
    assert capsys.readouterr().err == ""
