"""Settings for a block of code say so where no block is entered."""

from __future__ import annotations

import gc
import warnings
from contextlib import ExitStack
from typing import Any

import pytest

import ctrlgrad as cg
from ctrlgrad import dataflow
from ctrlgrad.options import current_options

BLOCKS = {
    "ctrlgrad.options": lambda: cg.options(engine="reference"),
    "ctrlgrad.memory.budget": lambda: cg.memory.budget("1 MiB"),
    "ctrlgrad.memory.profile": lambda: cg.memory.profile(),
    "ctrlgrad.device": lambda: cg.device("cpu:1"),
    "ctrlgrad.dataflow.settings": lambda: dataflow.settings(loops="lowered"),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_settings_that_are_not_entered_warn_at_the_users_line(name: str) -> None:
    with pytest.warns(RuntimeWarning, match=f"{name}.* changes nothing by itself.*test_blocks.py"):
        BLOCKS[name]()
        gc.collect()


@pytest.mark.parametrize("name", BLOCKS)
def test_settings_that_are_entered_do_not(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with BLOCKS[name]():
            pass
        with ExitStack() as stack:
            stack.enter_context(BLOCKS[name]())
        gc.collect()


def test_a_function_may_be_decorated_and_called_many_times() -> None:
    @cg.options(engine="reference")
    def engine(x: Any) -> tuple[str, Any]:
        return current_options().engine, x

    assert [engine(1), engine(x=2)] == [("reference", 1), ("reference", 2)]
    assert engine.__name__ == "engine" and current_options().engine == "auto"


def test_arguments_that_do_not_exist_are_refused_where_they_are_given() -> None:
    with pytest.raises(TypeError, match="unexpected keyword"):
        cg.memory.budget(gpu="1 MiB")
