"""From a graph to its plan: lowering, then passes from plan to plan, each of which can be left out, then places."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import numpy as np

from ctrlgrad.ir import Graph
from ctrlgrad.plan import PASSES
from ctrlgrad.plan.accumulation import accumulate
from ctrlgrad.plan.arguments import ArgumentShape
from ctrlgrad.plan.columns import lay_out_columns
from ctrlgrad.plan.contraction import contract
from ctrlgrad.plan.effects import walk
from ctrlgrad.plan.fusion import fuse
from ctrlgrad.plan.lowering.lower import lower
from ctrlgrad.plan.model import Assumption, Columns, Plan
from ctrlgrad.plan.packing import Panels, pack_constants
from ctrlgrad.plan.placement import place
from ctrlgrad.plan.store_forwarding import forward_stores


def plan_of(
    graph: Graph,
    shapes: Sequence[ArgumentShape],
    panels: Callable[[], Mapping[np.dtype, Panels]],
    without: Collection[str] = (),
    dropped: frozenset[Assumption] = frozenset(),
) -> Plan:
    """The plan of a graph, with places; `without` names passes to leave out, `dropped` what it may not assume."""
    return place(unplaced(graph, shapes, panels, without, dropped))


def unplaced(
    graph: Graph,
    shapes: Sequence[ArgumentShape],
    panels: Callable[[], Mapping[np.dtype, Panels]],
    without: Collection[str] = (),
    dropped: frozenset[Assumption] = frozenset(),
) -> Plan:
    """The plan of a graph over values, which lie nowhere yet."""
    passes: dict[str, Callable[[Plan], Plan]] = {
        "forward_stores": forward_stores,
        "accumulate": accumulate,
        "fuse": fuse,
        "contract": contract,
        "lay_out_columns": lay_out_columns,
        "cascade": _cascade,
        "pack_constants": partial(pack_constants, panels=panels),
    }
    plan = lower(graph, shapes, dropped)
    for name in PASSES:
        if name not in without:
            plan = passes[name](plan)
    return plan


def _cascade(plan: Plan) -> Plan:
    """The plan with cascades; what a plan without columns does without is no part of its first call."""
    if not any(isinstance(step, Columns) for step in walk(plan.body)):
        return plan
    from ctrlgrad.plan.cascades import cascade

    return cascade(plan)
