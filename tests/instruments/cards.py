"""CUDA devices of the dataflow engine on the stand-in, by copies that take their time, and what lies on which."""

from __future__ import annotations

import gc
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
from ctrlgrad.dataflow import FlatNode
from ctrlgrad.dataflow.cuda import CudaRun
from ctrlgrad.dataflow.engine import Outcome
from ctrlgrad.engines.cuda import cupy_library
from instruments.stand_in import StandIn

# How copies beside the computation go: done as soon as the thread has come by, by a clock that only waiting moves, and
# by threads that sleep.
INSTANT = {"bandwidth_out": math.inf, "bandwidth_in": math.inf}
BY_CLOCK = {"latency": 1e-5}
SLOW = {"seed": 1, "delay": 2e-3, **INSTANT}
COPIES: tuple[dict[str, Any], ...] = (INSTANT, BY_CLOCK, SLOW)


@contextmanager
def registered(libraries: Mapping[str, StandIn]) -> Iterator[None]:
    """For a block of code the CUDA devices are these, cuda:0, cuda:1, ..."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cupy_library, "device_count", lambda: len(libraries))
        patched.setattr(cupy_library, "cupy_library", lambda number=0: libraries[f"cuda:{number}"])
        yield


class Cards:
    """Devices cuda:0 and cuda:1 on the stand-in."""

    def __init__(self, copies: dict[str, Any]) -> None:
        # Older objects are not the test's garbage, and scanning them takes longer than the test.
        gc.freeze()
        self.libraries = {f"cuda:{n}": StandIn(**copies) for n in range(2)}

    def assert_nothing_is_left(self) -> None:
        gc.collect()
        for library in self.libraries.values():
            assert library.copier().used == {"device": 0, "host": 0}


def among(names: Sequence[str], seed: int) -> Callable[[FlatNode], str]:
    """A placement: each op on one of the devices."""
    draw = random.Random(seed)
    return lambda node: draw.choice(names)


def counts_of(outcome: Outcome, name: str) -> Any:
    device = outcome.devices[name]
    assert isinstance(device, CudaRun)
    return device.context.counts


def on_both(x: Any, w: Any, n: Any) -> Any:
    """The count on cpu:0, products on cuda:0, a sum of what they make on cpu:0."""

    def body(carry: Any) -> Any:
        i, y, total = carry
        with cg.device("cuda:0"):
            y = np.tanh(y @ w)
        return i + 1, y, total + y

    return cg.while_loop(lambda carry: carry[0] < n, body, (0, x, np.zeros_like(x)))


ON_BOTH = (np.linspace(-1.0, 1.0, 12).reshape(3, 4), np.eye(4) * 0.9, np.int64(7))
