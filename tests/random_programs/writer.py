"""The scope in which a random program is written: what is visible, and what was drawn.

Every float of a program stays within [-2, 2], every integer scalar within 0..3, and no operation is steep: so whatever
is written is well conditioned to second order. Every decision gives the simpler choice the lower number, so that a
failing program shrinks to few lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from random_programs.choices import Choices
from random_programs.kinds import SCALAR, Bool, Float, Int, Key, Kind, Typed, Unknown, Variable
from random_programs.program import Block, Line, Statement

T = TypeVar("T")
# Further features of a program besides lines of float64, loops, branches and calls.
FEATURES = (
    "bare",  # carries read as they are, by whatever reads; new ones computed before the old are read
    "branches",  # one branch, empty ones, ones that are alike or give constants
    "passed",  # carries passed through
    "rules",  # custom_jvp and custom_vjp
    "gradients",  # a gradient inside
    "vmap",
    "dtypes",  # integer, bool, complex and narrow tensors
    "zero",  # axes without elements
    "long",  # axes of more elements than a vector has
    "large",  # axes of several tiles of a product, and of elements enough for several threads
    "random",  # keys and random numbers
    "limits",  # maximum_iterations, now and then too few
    "python",  # Python's own control flow on tensors
)
DEEPEST = 3
# Of a program; what costs most are the long ones.
MOST_STATEMENTS = (6, 12, 20)
THRESHOLDS = (0.13, -0.37, 0.71, -0.83, 0.019)
# That most values are below: loops go on as long as they are.
HIGH = (0.93, 1.31, 0.71, 0.52)


class Writer:
    """Writes lines into the current block; `pick` and its kin draw operands from all that is visible there."""

    def __init__(
        self,
        choices: Choices,
        *,
        cuts: bool,
        most: int,
        features: frozenset[str] = frozenset(FEATURES),
        coarse: bool = False,
        python: bool = False,
    ) -> None:
        self.choices = choices
        self.cuts = cuts
        self.features = features
        self.coarse = coarse
        # True if Python's own control flow decides what happens while a program is traced.
        self.python = python
        self.visible: list[Variable] = []
        # The carries of the loops around, and whether no size may depend on data here.
        self.carried: list[Variable] = []
        self.fixed = False
        # True if the code being written must have a forward mode: the rule of a custom_jvp uses it.
        self.forward = False
        self.statements: list[Statement] = []
        self.depth = 0
        self.left = most
        self._names = 0

    # Drawing.

    def number(self, low: int, high: int) -> int:
        return self.choices.number(low, high) if high > low else low

    def chance(self, one_in: int) -> bool:
        """True once in so many times; shrinks to False."""
        return self.number(0, one_in - 1) == one_in - 1

    def choose(self, options: Sequence[T]) -> T:
        return options[self.number(0, len(options) - 1)]

    # Names and variables.

    def fresh(self, letter: str) -> str:
        self._names += 1
        return f"{letter}{self._names}"

    def declare(self, kind: Kind, name: str | None = None) -> str:
        """Make a variable visible."""
        letters = {Float: "v", Int: "i", Bool: "b", Typed: "z", Key: "r"}
        name = name or self.fresh(letters.get(type(kind), "a"))
        self.visible.append(Variable(name, kind))
        return name

    def line(self, kind: Kind, operation: str, traced: str, plain: str | None = None) -> Variable:
        """`name = expression`, a new variable. `plain` where the twin's text differs."""
        name = self.declare(kind)
        self.statements.append(Line(name, traced, plain if plain is not None else traced, operation))
        return self.visible[-1]

    def unknown(self, *, filled: bool, grown: bool = True, told: bool = False) -> Unknown:
        """A dimension of its own."""
        return Unknown(self.fresh("n"), filled, grown, told)

    # Operands.

    def pick(self, wanted: Callable[[Kind], bool]) -> Variable | None:
        """A visible variable whose kind is wanted: half of the time one of the newest; shrinks to the newest."""
        matching = [v for v in self.visible if wanted(v.kind)]
        if not matching:
            return None
        oldest = len(matching) - 1
        return matching[-1 - self.number(0, oldest if self.chance(2) else min(oldest, 3))]

    def floats(self, wanted: Callable[[Float], bool] = lambda kind: True) -> tuple[str, Float] | None:
        """The name and kind of a float tensor."""
        found = self.pick(lambda kind: isinstance(kind, Float) and wanted(kind))
        if found is None:
            return None
        assert isinstance(found.kind, Float)
        return found.name, found.kind

    def typed(self, wanted: Callable[[Typed], bool] = lambda kind: True) -> tuple[str, Typed] | None:
        """The name and kind of a tensor of another dtype."""
        found = self.pick(lambda kind: isinstance(kind, Typed) and wanted(kind))
        if found is None:
            return None
        assert isinstance(found.kind, Typed)
        return found.name, found.kind

    def any_float(self) -> tuple[str, Float]:
        found = self.floats()
        assert found is not None, "a program has a float argument"
        return found

    def scalar(self) -> str:
        """A float scalar: a visible one, or the sine of a sum."""
        found = self.floats(lambda kind: kind == SCALAR)
        if found is not None and not self.chance(3):
            return found[0]
        name, kind = self.any_float()
        return name if kind == SCALAR else self.line(SCALAR, "sum", f"np.sin(np.sum({name}))").name

    def int_variable(self) -> str | None:
        """An integer that is known at run time only."""
        found = self.pick(lambda kind: isinstance(kind, Int))
        return None if found is None else found.name

    def integer(self) -> str:
        """An integer operand: a literal or a variable."""
        name = self.int_variable()
        return self.choose(("2", "3", "1", "0")) if name is None or self.chance(4) else name

    def boolean(self) -> str:
        """A predicate: a visible one, or a comparison of floats or of integers."""
        found = self.pick(lambda kind: isinstance(kind, Bool))
        if found is not None and not self.chance(2):
            return found.name
        name = self.int_variable()
        if name is not None and not self.chance(2):
            comparison = self.choose(("<", "==", ">=", "!="))
            return self.line(Bool(), "compare integers", f"{name} {comparison} {self.number(1, 2)}").name
        return self.below(self.scalar(), str(self.choose(THRESHOLDS)))

    def below(self, low: str, high: str) -> str:
        """Return true if one float is less than another; the plain form notes how nearly."""
        return self.line(Bool(), "compare floats", f"{low} < {high}", f"less({low}, {high})").name

    # Blocks.

    @contextmanager
    def block(self) -> Iterator[list[Statement]]:
        """A block of its own: sees everything, and what it declares ends with it."""
        before, visible, carried, self.statements = self.statements, len(self.visible), len(self.carried), []
        self.depth += 1
        try:
            yield self.statements
        finally:
            self.depth -= 1
            self.statements = before
            del self.visible[visible:]
            del self.carried[carried:]

    @contextmanager
    def hidden(self, wanted: Callable[[Kind], bool] = lambda kind: False) -> Iterator[None]:
        """Only what is wanted stays visible."""
        before = self.visible, self.carried
        self.visible = [v for v in self.visible if wanted(v.kind)]
        self.carried = [v for v in self.carried if wanted(v.kind)]
        try:
            yield
        finally:
            self.visible, self.carried = before

    @contextmanager
    def forward_mode(self) -> Iterator[None]:
        """Code written inside has a forward mode."""
        before, self.forward = self.forward, True
        try:
            yield
        finally:
            self.forward = before

    @contextmanager
    def fixed_sizes(self) -> Iterator[None]:
        """No size of what is written depends on data."""
        before, self.fixed = self.fixed, True
        try:
            yield
        finally:
            self.fixed = before

    def finished(self, results: Sequence[str]) -> Block:
        """The current block with its results."""
        return Block(tuple(self.statements), tuple(results))
