"""The small programs in ctrlgrad."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from benchmarks.program import Program
from benchmarks.small.library import Library
from benchmarks.small.programs import PROGRAMS, read
from ctrlgrad import tree

LIBRARY = Library(
    cnp,
    cg.fori_loop,
    cg.scan,
    lambda going_on, body, init, most: cg.while_loop(going_on, body, init),
    cg.cond,
    cg.vmap,
    cnp.softmax,
    lambda x, axis: cnp.logsumexp(x, axis=axis),
)


def gradient(name: str, size: Mapping[str, Any], engine: str = "native") -> Program:
    small = PROGRAMS[name](LIBRARY, **size)
    slope = cg.value_and_grad(small.loss, argnums=tuple(range(small.by)))
    step = cg.function(cg.vmap(slope) if small.is_mapped else slope, engine=engine)
    return Program(step=lambda: step(*small.arrays), read=lambda result: read(tree.leaves(result)))


def value(name: str, size: Mapping[str, Any], engine: str = "native") -> Program:
    small = PROGRAMS[name](LIBRARY, **size)
    step = cg.function(cg.vmap(small.loss) if small.is_mapped else small.loss, engine=engine)
    return Program(step=lambda: step(*small.arrays), read=lambda result: read(tree.leaves(result)))
