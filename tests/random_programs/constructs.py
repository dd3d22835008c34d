"""Parts of loops, branches and calls of random programs, and the table of them; `loops` and `branches` fill it."""

from __future__ import annotations

from collections.abc import Callable

from random_programs import (  # noqa: F401  (fill the table of operations)
    arrangements,
    carries,
    chances,
    compounds,
    numbers,
    parts,
    selections,
    slices,
)
from random_programs.arrays import push
from random_programs.carries import bare_use
from random_programs.kinds import SCALAR, Array, Bool, Float, Int, Kind, Typed, Unknown, fits
from random_programs.numbers import same_kind
from random_programs.operations import OPERATIONS
from random_programs.program import Structure
from random_programs.writer import DEEPEST, Writer

FORMS = ("tuple", "dict", "nested", "bare")
LINES = [function for lots, function in OPERATIONS for _ in range(lots)]
Construct = Callable[[Writer], None]
# Each as often as it has lots in the draw.
CONSTRUCTS: list[Construct] = []


def construct(lots: int) -> Callable[[Construct], Construct]:
    def register(function: Construct) -> Construct:
        CONSTRUCTS.extend([function] * lots)
        return function

    return register


def write_statements(w: Writer, most: int) -> None:
    """Some statements, each drawn by itself so that any one of them may vanish in shrinking."""
    for _ in range(most):
        with w.choices.span():
            goes_on = _statement(w)
        if not goes_on:
            break


def _statement(w: Writer) -> bool:
    """Write one statement, or say that the block ends here."""
    if w.number(0, 11) == 0 or w.left <= 0:
        return False
    w.left -= 1
    if w.depth < DEEPEST and w.number(0, 9) >= (6 if w.depth < 2 else 7):
        w.choose(CONSTRUCTS)(w)
    elif not (w.carried and w.number(0, 2) == 2 and bare_use(w)):
        # A drawn construct may find no variable that fits.
        any(w.choose(LINES)(w) for _ in range(4)) or OPERATIONS[0][1](w)
    return True


def structure(w: Writer) -> Structure:
    return Structure(w.choose(FORMS))  # type: ignore[arg-type]


# Results of a block.


def value_of(w: Writer, kind: Kind, free: frozenset[str] = frozenset(), *, unknown_only: bool = False) -> str:
    """An operand of a kind: a literal, a visible variable, or one more line on such a variable."""
    if kind == SCALAR and w.chance(12):
        return str(w.choose((0.5, -0.25, 1.0)))
    if isinstance(kind, Int) and w.chance(8):
        return str(w.number(0, 3))
    if isinstance(kind, Bool) and w.chance(8):
        return str(w.choose((False, True)))
    found = w.pick(lambda k: fits(kind, k, free, unknown_only=unknown_only))
    assert found is not None, f"nothing visible is of the kind {kind}"
    if isinstance(found.kind, Float) and not w.chance(3):
        return moved(w, found.name, found.kind)
    if isinstance(found.kind, Typed) and not w.chance(3):
        return same_kind(w, found.name, found.kind)
    if isinstance(found.kind, Array) and found.kind.size is None and not w.chance(3):
        return push(w, found.name, found.kind) or found.name
    return found.name


def moved(w: Writer, name: str, kind: Float) -> str:
    """A line that changes a float by another one of its kind or a scalar."""
    other = w.floats(lambda k: k == kind)
    by = other[0] if other is not None and other[0] != name and w.chance(2) else w.scalar()
    text = w.choose(("np.sin({0} + 0.5 * {1})", "({0} + {1}) * 0.5", "{0} * np.cos({1})", "np.tanh({0} - {1} * {0})"))
    return w.line(kind, "update", text.format(name, by)).name


def as_it_is(w: Writer, kind: Kind, free: frozenset[str] = frozenset(), *, unknown_only: bool = False) -> str:
    """A visible variable of a kind, without a line of its own: half of the time the newest."""
    matching = [v for v in w.visible if fits(kind, v.kind, free, unknown_only=unknown_only)]
    assert matching, f"nothing visible is of the kind {kind}"
    return matching[-1].name if w.chance(2) else w.choose(matching[::-1]).name


def declare_out(w: Writer, kind: Kind, free: frozenset[str]) -> str:
    """A result; each of its free dimensions has a size of its own from here on."""
    if isinstance(kind, Float) and free:
        dims = [w.unknown(filled=False) if isinstance(d, Unknown) and d.name in free else d for d in kind.dims]
        kind = Float(tuple(dims))
    return w.declare(kind)
