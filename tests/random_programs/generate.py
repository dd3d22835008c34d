"""Whole programs with their arguments: the same seed gives the same program."""

from __future__ import annotations

import random

import numpy as np

from random_programs import branches, loops, tables  # noqa: F401  (fill the table of constructs)
from random_programs.arrays import stack
from random_programs.choices import Choices
from random_programs.constructs import CONSTRUCTS, write_statements
from random_programs.kinds import Array, Dim, Float, Int, Key, Kind, Typed, Unknown
from random_programs.numbers import INTEGERS, NARROW
from random_programs.program import Argument, Line, Program
from random_programs.writer import FEATURES, MOST_STATEMENTS, Writer

_SHAPES: tuple[tuple[Dim | None, ...], ...] = ((), (3,), (2,), (2, 3), (None,), (None, 2), (3, 3), (1,), (2, None))
# Several vectors, or one and a part of another; of rows that are short, and of many.
_LONG: tuple[tuple[Dim | None, ...], ...] = (
    (9,),
    (17,),
    (2, 9),
    (3, 17),
    (None, 9),
    (9, 2),
    (18, 3),
    (2, 3, 9),
    (2, None, 9),
)
_LARGE: tuple[tuple[Dim | None, ...], ...] = ((70,), (257,), (5, 64), (33, 65), (None, 70), (130, 3), (2, 35, 17))
_EMPTY: tuple[tuple[Dim | None, ...], ...] = ((0,), (0, 3), (2, 0), (3, 0), (0, 2, 3), (2, 3, 0))
_DTYPES = (*INTEGERS, "bool", *NARROW, "complex128", "complex64")


def generate(seed: int, features: frozenset[str] = frozenset(FEATURES)) -> Program:
    """The program of a seed."""
    return write(Choices(random.Random(seed)), features)


def write(choices: Choices, features: frozenset[str] = frozenset(FEATURES)) -> Program:
    """The program of some decisions."""
    cuts = choices.number(0, 7) == 7
    coarse = "dtypes" in features and choices.number(0, 9) == 9
    python = "python" in features and choices.number(0, 3) == 3
    most = MOST_STATEMENTS[choices.number(0, len(MOST_STATEMENTS) - 1)]
    w = Writer(choices, cuts=cuts, most=most, features=features, coarse=coarse, python=python)
    rng = np.random.default_rng(choices.number(0, 999))
    arguments = _arguments(w, rng)
    write_statements(w, 8)
    if all(isinstance(statement, Line) for statement in w.statements) and w.number(0, 7) > 0:
        w.choose(CONSTRUCTS)(w)
    results, kinds = _results(w)
    return Program(tuple(arguments), w.finished(results), tuple(kinds), cuts, coarse, python)


def _arguments(w: Writer, rng: np.random.Generator) -> list[Argument]:
    size = Unknown(w.fresh("n"), filled=True)
    length = w.choose((2, 3, 1))
    arguments = []
    empty = "zero" in w.features and w.chance(5)
    long = "long" in w.features and w.chance(3)
    large = "large" in w.features and w.chance(10)
    for _ in range(w.number(1, 3)):
        more = _LARGE if large else _LONG
        shapes = _EMPTY if empty and w.chance(2) else more if (long or large) and not w.chance(3) else _SHAPES
        dims = tuple(size if d is None else d for d in w.choose(shapes))
        w.declare(Float(dims), w.fresh("x"))
        shape = tuple(length if isinstance(d, Unknown) else d for d in dims)
        arguments.append(Argument(w.visible[-1], np.asarray(rng.uniform(-1.5, 1.5, shape))))
    for _ in range(w.number(0, 2)):
        w.declare(Int(), w.fresh("k"))
        arguments.append(Argument(w.visible[-1], np.asarray(w.choose((2, 3, 1, 0)), np.int64)))
    if "dtypes" in w.features and w.chance(2):
        arguments += [_typed(w, rng) for _ in range(w.number(1, 3))]
    return arguments


def _typed(w: Writer, rng: np.random.Generator) -> Argument:
    """An argument that is not differentiated: of any dtype."""
    kind = Typed(w.choose(((), (3,), (2, 3), (2,))), w.choose(_DTYPES))
    w.declare(kind, w.fresh("x"))
    parts = [rng.uniform(-1.5, 1.5, kind.dims) for _ in range(2)]
    values = {"c": parts[0] + 1j * parts[1], "f": parts[0], "b": parts[0] > 0}.get(kind.family, parts[0] * 80.0)
    value = np.asarray(values).astype(np.int64) if kind.family in "iu" else np.asarray(values)
    return Argument(w.visible[-1], np.asarray(value.astype(kind.dtype)))


def _results(w: Writer) -> tuple[list[str], list[Kind]]:
    """One to four results, one of them a float, or half of the time all that is visible; TensorArrays as one tensor."""

    def can_return(kind: Kind) -> bool:
        return not isinstance(kind, Key) and (not isinstance(kind, Array) or kind.can_stack)

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
