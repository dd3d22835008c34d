"""The Hypothesis strategy of random programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from random_programs.arrays import stack
from random_programs.constructs import CONSTRUCTS, write_statements
from random_programs.kinds import Array, Dim, Float, Int, Kind, Unknown
from random_programs.program import Argument, Line, Program
from random_programs.writer import MOST_STATEMENTS, Writer

_SHAPES: tuple[tuple[Dim | None, ...], ...] = ((), (3,), (2,), (2, 3), (None,), (None, 2), (3, 3), (1,))


@st.composite
def programs(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Program:
    """Whole programs with their arguments."""
    cuts = draw(st.integers(0, 7)) == 7
    w = Writer(draw, cuts=cuts, most=draw(st.sampled_from(MOST_STATEMENTS)))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    arguments = _arguments(w, rng)
    write_statements(w, 8)
    if all(isinstance(statement, Line) for statement in w.statements) and w.number(0, 7) > 0:
        w.choose(CONSTRUCTS)(w)
    results, kinds = _results(w)
    return Program(tuple(arguments), w.finished(results), tuple(kinds), cuts)


def _arguments(w: Writer, rng: np.random.Generator) -> list[Argument]:
    size = Unknown(w.fresh("n"), filled=True)
    length = w.choose((2, 3, 1))
    arguments = []
    for _ in range(w.number(1, 3)):
        dims = tuple(size if d is None else d for d in w.choose(_SHAPES))
        w.declare(Float(dims), w.fresh("x"))
        shape = tuple(length if isinstance(d, Unknown) else d for d in dims)
        arguments.append(Argument(w.visible[-1], np.asarray(rng.uniform(-1.5, 1.5, shape))))
    for _ in range(w.number(0, 2)):
        w.declare(Int(), w.fresh("k"))
        arguments.append(Argument(w.visible[-1], np.asarray(w.choose((2, 3, 1, 0)), np.int64)))
    return arguments


def _results(w: Writer) -> tuple[list[str], list[Kind]]:
    """One to four results, one of them a float, or half of the time all that is visible; TensorArrays as one tensor."""

    def can_return(kind: Kind) -> bool:
        return not isinstance(kind, Array) or kind.can_stack

    found = [w.pick(lambda k: isinstance(k, Float))]
    if w.chance(2):
        found += [v for v in w.visible if can_return(v.kind)]
    else:
        found += [w.pick(can_return) for _ in range(w.number(0, 3))]
    names: list[str] = []
    kinds: list[Kind] = []
    for variable in found:
        assert variable is not None
        kind, name = variable.kind, variable.name
        if isinstance(kind, Array):
            name = stack(w, name, kind)
            kind = w.visible[-1].kind
        names.append(name)
        kinds.append(kind)
    return names, kinds
