"""Random programs whose control flow does almost nothing, as text: the shapes that a lowering gets wrong first.

Branches are empty, constant, identical, single, or pass on what they take; loops pass carries through, exchange them,
start from constants and run no iteration. One selector is shared by branches of one, two and three sides. What little
is computed stays between -2 and 2, so that every program runs with every engine.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import ctrlgrad as cg

DEEPEST = 3
CONSTANTS = ("0.5", "-0.25", "1.5")


@dataclass
class Writer:
    """Writes `def program(x, y, k)`; floats and integers that are visible stand in `floats` and `integers`."""

    draw: random.Random
    # How many more statements it may get.
    left: int = 10
    lines: list[str] = field(default_factory=list)
    floats: list[str] = field(default_factory=lambda: ["x", "y"])
    integers: list[str] = field(default_factory=lambda: ["k"])
    depth: int = 0
    names: int = 0

    def name(self, kind: str) -> str:
        self.names += 1
        return f"{kind}{self.names}"

    def line(self, text: str) -> None:
        self.lines.append("    " * (self.depth + 1) + text)

    def chance(self, one_in: int) -> bool:
        return self.draw.randrange(one_in) == 0

    def float_operand(self) -> str:
        """A constant, or something visible."""
        return self.draw.choice(CONSTANTS) if self.chance(3) else self.visible()

    def visible(self) -> str:
        """A variable; the latest more often, so that little is computed in vain."""
        return self.draw.choice(self.floats if self.chance(4) else self.floats[-2:])

    def integer_operand(self) -> str:
        return self.draw.choice((*self.integers, "0", "1")) if self.chance(2) else self.draw.choice(self.integers)

    def predicate(self) -> str:
        if self.chance(3):
            return f"{self.draw.choice(self.integers)} < {self.draw.choice((0, 1, 2))}"
        return f"{self.visible()} > {self.draw.choice((-0.4, 0.1, 0.3))}"

    def statements(self, most: int) -> None:
        for _ in range(self.draw.randrange(most + 1)):
            if self.left <= 0:
                return
            self.left -= 1
            if self.depth < DEEPEST and not self.chance(2):
                constructs = (self.cond, self.switch, self.switch, self.fori_loop, self.fori_loop, self.while_loop)
                self.draw.choice(constructs)()
            else:
                self.operation()

    def operation(self) -> None:
        if self.chance(8):
            name = self.name("i")
            self.line(f"{name} = {self.draw.choice(self.integers)} - 1")
            self.integers.append(name)
            return
        a, b, name = self.visible(), self.float_operand(), self.name("v")
        if self.chance(2):
            a, b = self.floats[-1], self.draw.choice(self.floats)
        form = self.draw.choice(("{0} * 0.5", "np.sin({0} - {1})", "np.tanh({0} * {1})"))
        self.line(f"{name} = {form.format(a, b)}")
        if self.chance(6):
            self.line(f"look({name})")
        self.floats.append(name)

    def function(
        self, results: Callable[[], str], unpacked: str = "", carry: Sequence[str] = (), index: str = ""
    ) -> str:
        """A function without parameters, or of a carry that it unpacks; what it defines is not visible after it."""
        name, before = self.name("f"), (len(self.floats), len(self.integers))
        self.line(f"def {name}({'*c' if unpacked else ''}):")
        self.depth += 1
        if unpacked:
            self.line(f"{unpacked} = c")
            self.floats += carry
            self.integers.append(index)
        self.statements(3)
        self.line(f"return {results()}")
        self.depth -= 1
        del self.floats[before[0] :], self.integers[before[1] :]
        return name

    def results(self, count: int) -> str:
        return "(" + "".join(f"{self.float_operand()}, " for _ in range(count)) + ")"

    def outs(self, count: int) -> str:
        names = [self.name("v") for _ in range(count)]
        self.floats += names
        return "".join(f"{name}, " for name in names)

    def branches(self, count: int, results: int) -> list[str]:
        """Branches that are constants, that pass things on, or that may compute; now and then all are one function."""
        style = self.draw.choice(("constants", "passes on", "computes", "computes"))
        made = [self.branch(style, results) for _ in range(count)]
        return [made[0]] * count if self.chance(6) else made

    def branch(self, style: str, results: int) -> str:
        if style == "computes":
            return self.function(lambda: self.results(results))
        operand = self.visible if style == "passes on" else lambda: self.draw.choice(CONSTANTS)
        name = self.name("f")
        self.line(f"{name} = lambda: ({''.join(f'{operand()}, ' for _ in range(results))})")
        return name

    def cond(self) -> None:
        predicate, count = self.predicate(), self.draw.choice((1, 1, 2, 3))
        true, false = self.branches(2, count)
        self.line(f"{self.outs(count)} = cg.cond({predicate}, {true}, {false})")

    def switch(self) -> None:
        index, count = self.integer_operand(), self.draw.choice((1, 1, 2, 3))
        branches = self.branches(self.draw.choice((1, 1, 2, 3)), count)
        self.line(f"{self.outs(count)} = cg.switch({index}, [{', '.join(branches)}])")

    def carried(self) -> tuple[list[str], str]:
        count = self.draw.choice((1, 1, 2, 3))
        return [self.name("c") for _ in range(count)], self.results(count)

    def following(self, carry: list[str]) -> str:
        """The next carry: mostly the old one, passed on or exchanged."""
        values = [self.draw.choice((c, c, self.draw.choice(carry), self.float_operand())) for c in carry]
        return "(" + "".join(f"{value}, " for value in values) + ")"

    def fori_loop(self) -> None:
        trips, i = self.draw.choice(("0", "1", "3", "2", self.integer_operand())), self.name("i")
        carry, starts = self.carried()
        body = self.function(lambda: self.following(carry), f"{i}, ({', '.join(carry)},)", carry, i)
        self.line(f"{self.outs(len(carry))} = cg.fori_loop(0, {trips}, {body}, {starts})")

    def while_loop(self) -> None:
        """A loop that a counter ends, or a value that its carry passes on."""
        i, flag = self.name("i"), self.predicate()
        carry, starts = self.carried()

        def results() -> str:
            return f"({i} + 1, {self.draw.choice(('flag', self.predicate()))}, {self.following(carry)})"

        body = self.function(results, f"(({i}, flag, ({', '.join(carry)},)),)", carry, i)
        given = f"lambda c: (c[0] < 3) & c[1], {body}, (0, {flag}, {starts})"
        self.line(f"_, _, ({self.outs(len(carry))}) = cg.while_loop({given})")


def degenerate_program(draw: random.Random) -> str:
    """The text of a program."""
    w = Writer(draw)
    while not any("cg." in line for line in w.lines):
        w.left = 10
        w.statements(4)
    w.line(f"return ({', '.join(w.floats)})")
    return "\n".join(["def program(x, y, k):", *w.lines])


def defined(text: str, seen: list[tuple[float, tuple[int, ...]]]) -> Callable[..., Any]:
    """The function that a text defines; what it looks at while it runs is added to `seen`, with the iterations."""

    def look(value: Any) -> None:
        cg.debug.callback(lambda x, iterations: seen.append((float(x), iterations)), value)

    names: dict[str, Any] = {"cg": cg, "np": np, "look": look}
    exec(text, names)
    program: Callable[..., Any] = names["program"]
    return program
