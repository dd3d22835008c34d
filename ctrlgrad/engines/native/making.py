"""Plans for this machine and their text: what a process that finds a plan on disk does without."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence

import numpy as np

from ctrlgrad.engines.native import library, target
from ctrlgrad.engines.native.emit import PlanWriter
from ctrlgrad.ir import Graph
from ctrlgrad.plan import planning
from ctrlgrad.plan.arguments import ArgumentShape
from ctrlgrad.plan.model import Assumption, Plan
from ctrlgrad.plan.packing import Panels


def plan_of(
    graph: Graph, shapes: Sequence[ArgumentShape], without: Collection[str], dropped: frozenset[Assumption]
) -> Plan:
    """The plan of a graph for this machine, `without` some passes, and with assumptions `dropped`."""
    return planning.plan_of(graph, shapes, _panels, without, dropped)


def text_of(plan: Plan) -> tuple[str, list[str]]:
    """The text of a plan's module, and the routines that it calls."""
    writer = PlanWriter(plan, target.host().vector_bytes)
    return writer.function("plan"), library.called(writer.w.declarations)


@functools.cache
def _panels() -> dict[np.dtype, Panels]:
    """Layout of right sides for this machine's products. Plans without products never load it."""
    from ctrlgrad.engines.native.products import pack, real

    found = {}
    for kind in real.reals(target.host()):
        dtype = np.dtype(f"f{kind.bytes}")
        found[dtype] = Panels(kind.columns, pack.SLACK // dtype.itemsize)
    return found
