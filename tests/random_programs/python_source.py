"""A random program as Python source with Python's own control flow on traced tensors, which AutoGraph converts.

`while`, `for` over a range, `if` and `elif` stand for loops and branches; what Python has no statement for (scans,
switches, loops with a limit) are ctrlgrad's constructs. A loop's form follows from its structure, so that a program has
several: a condition that is a call, or a `break` behind the statements of the condition.
"""

from __future__ import annotations

from random_programs.program import Branch, For, Program, While
from random_programs.source import Traced, program_text


def python_source(program: Program, name: str = "program") -> str:
    """The source of `def program(...)` for `cg.function(autograph=True)`."""
    return program_text(program, name, _Python())


class _Python(Traced):
    """With `while`, `for` and `if` on tensors."""

    def while_(self, loop: While) -> None:
        if loop.maximum is not None:
            super().while_(loop)
            return
        inner = [c.inner for c in loop.carry]
        self.assign(inner, [c.start for c in loop.carry])
        if loop.structure.form in ("dict", "nested"):
            condition = self.label("condition")
            self.function(condition, inner, loop.condition, None, loop.condition.results[0])
            self.emit(f"while {condition}({', '.join(inner)}):")
            with self.indented():
                self.statements(loop.body.statements)
                self.assign(inner, loop.body.results)
        else:
            self.emit("while True:")
            with self.indented():
                self.statements(loop.condition.statements)
                self.emit(f"if not {loop.condition.results[0]}:")
                with self.indented():
                    self.emit("break")
                self.statements(loop.body.statements)
                self.assign(inner, loop.body.results)
        self.assign([c.out for c in loop.carry], inner)

    def for_(self, loop: For) -> None:
        inner = [c.inner for c in loop.carry]
        self.assign(inner, [c.start for c in loop.carry])
        self.emit(f"for {loop.index} in range({loop.lower}, {loop.upper}):")
        with self.indented():
            self.statements(loop.body.statements)
            self.assign(inner, loop.body.results)
        self.assign([c.out for c in loop.carry], inner)

    def branch_(self, branch: Branch) -> None:
        if branch.form == "switch":
            super().branch_(branch)
            return
        self.assign([p.inner for p in branch.parameters], [p.operand for p in branch.parameters])
        # The first block of a cond is for False.
        blocks = branch.blocks[::-1] if branch.form == "cond" else branch.blocks
        tests = [f"{'el' * (k > 0)}if {s}:" for k, s in enumerate(branch.selectors)] + ["else:"]
        for test, block in zip(tests, blocks, strict=True):
            self.emit(test)
            with self.indented():
                self.statements(block.statements)
                self.assign(branch.outs, block.results)


__all__ = ["python_source"]
