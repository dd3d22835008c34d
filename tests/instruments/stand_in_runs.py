"""How the tests run graphs on the stand-in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ctrlgrad.engines import optimised_graph
from ctrlgrad.engines.cuda.context import Context, Counts
from ctrlgrad.engines.cuda.engine import run_with
from ctrlgrad.engines.cuda.prepared.forms import Body
from ctrlgrad.execution import run_on
from ctrlgrad.ir import Graph
from instruments.stand_in import StandIn, StandInArray

# One library for many runs: a budget names its device.
LIBRARY = StandIn()


@dataclass(frozen=True)
class Ran:
    """The results of a run, and what it did."""

    results: list[Any]
    counts: Counts


def on_stand_in(graph: Graph, arguments: Sequence[Any], kinds: str = "", library: StandIn | None = None) -> Ran:
    """Run on the stand-in, arguments of some dtype kinds being on the device from the start."""
    context = Context(library or StandIn())
    lies = [not isinstance(x, list) and np.asarray(x).dtype.kind in kinds for x in arguments]
    given = [StandInArray(np.array(x)) if on_device else x for x, on_device in zip(arguments, lies, strict=True)]
    return Ran(run_with(context, optimised_graph(graph), given), context.counts)


def step_by_step(graph: Graph, arguments: Sequence[Any]) -> Ran:
    """Run without prepared lists."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Body, "form", lambda *_: "it was asked for")
        return on_stand_in(graph, arguments)


def on_reference(graph: Graph, arguments: Sequence[Any]) -> list[Any]:
    return run_on("reference", graph, arguments)
