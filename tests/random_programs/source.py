"""A random program as Python source: `traced` with ctrlgrad's constructs, `plain` with Python's own `while` and `if`.

The two forms share the lines' text and nothing of the control flow. In the plain form `tick()` counts iterations,
`less`, `floored`, `maximum` and `largest` note how near a decision was to turning out otherwise, and a TensorArray is
a list that is never changed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from random_programs.program import Block, Branch, Call, For, Line, Program, Scan, Statement, Structure, While


def traced_source(program: Program, name: str = "program") -> str:
    """The source of `def program(...)` with ctrlgrad's constructs."""
    return program_text(program, name, Traced())


def plain_source(program: Program, name: str = "program") -> str:
    """The source of the plain twin."""
    return program_text(program, name, _Plain())


def program_text(program: Program, name: str, form: Traced | _Plain) -> str:
    """The source of a program in one of its forms."""
    parameters = ", ".join(a.variable.name for a in program.arguments)
    form.emit(f"def {name}({parameters}):")
    with form.indented():
        form.statements(program.body.statements)
        form.emit(f"return {_tuple(program.body.results)}")
    return "\n".join(form.lines) + "\n"


def _tuple(items: Sequence[str]) -> str:
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def pack(structure: Structure, items: Sequence[str]) -> str:
    """The text of a pytree that holds the items."""
    if structure.form == "bare" and len(items) == 1:
        return items[0]
    if structure.form == "dict":
        # Not in the order of the names: a pytree sorts its keys.
        return "{" + ", ".join(f'"{_key(i, items)}": {x}' for i, x in enumerate(items)) + "}"
    if structure.form == "nested" and len(items) > 1:
        return f'({items[0]}, {{"rest": [{", ".join(items[1:])}]}})'
    return _tuple(items)


def reach(structure: Structure, whole: str, items: Sequence[str]) -> list[str]:
    """The text that takes each item out of such a pytree."""
    if structure.form == "bare" and len(items) == 1:
        return [whole]
    if structure.form == "dict":
        return [f'{whole}["{_key(i, items)}"]' for i in range(len(items))]
    if structure.form == "nested" and len(items) > 1:
        return [f"{whole}[0]", *(f'{whole}[1]["rest"][{i}]' for i in range(len(items) - 1))]
    return [f"{whole}[{i}]" for i in range(len(items))]


def _key(position: int, items: Sequence[str]) -> str:
    return "abcdefghijklmnopqrstuvwxyz"[len(items) - 1 - position]


class _Indented:
    def __init__(self, writer: _Writer) -> None:
        self.writer = writer

    def __enter__(self) -> None:
        self.writer.indent += "    "

    def __exit__(self, *_: object) -> None:
        self.writer.indent = self.writer.indent[4:]


class _Writer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.indent = ""
        self.labels = 0

    def emit(self, line: str) -> None:
        self.lines.append(self.indent + line)

    def indented(self) -> _Indented:
        return _Indented(self)

    def label(self, word: str) -> str:
        self.labels += 1
        return f"{word}{self.labels}"

    def assign(self, names: Sequence[str], operands: Sequence[str]) -> None:
        if names:
            self.emit(f"{_tuple(names)} = {_tuple(operands)}")

    def statements(self, statements: Sequence[Statement]) -> None:
        for statement in statements:
            getattr(self, type(statement).__name__.lower() + "_")(statement)


class Traced(_Writer):
    """With ctrlgrad's constructs."""

    def line_(self, line: Line) -> None:
        self.emit(f"{line.target} = {line.traced}")

    def function(self, name: str, parameters: Sequence[str], block: Block, unpack: _Unpack | None, result: str) -> None:
        self.emit(f"def {name}({', '.join(parameters)}):")
        with self.indented():
            if unpack is not None:
                self.unpack(unpack)
            self.statements(block.statements)
            self.emit(f"return {result}")

    def unpack(self, unpack: _Unpack) -> None:
        structure, whole, names = unpack
        for name, path in zip(names, reach(structure, whole, names), strict=True):
            self.emit(f"{name} = {path}")

    def results(self, structure: Structure, outs: Sequence[str], call: str) -> None:
        whole = self.label("result")
        self.emit(f"{whole} = {call}")
        self.unpack((structure, whole, outs))

    def while_(self, loop: While) -> None:
        condition, body = self.label("condition"), self.label("body")
        inner = [c.inner for c in loop.carry]
        unpack = (loop.structure, "carry", inner)
        self.function(condition, ["carry"], loop.condition, unpack, loop.condition.results[0])
        self.function(body, ["carry"], loop.body, unpack, pack(loop.structure, loop.body.results))
        start = pack(loop.structure, [c.start for c in loop.carry])
        limit = "" if loop.maximum is None else f", maximum_iterations={loop.maximum}"
        self.results(loop.structure, [c.out for c in loop.carry], f"cg.while_loop({condition}, {body}, {start}{limit})")

    def for_(self, loop: For) -> None:
        body = self.label("body")
        unpack = (loop.structure, "carry", [c.inner for c in loop.carry])
        self.function(body, [loop.index, "carry"], loop.body, unpack, pack(loop.structure, loop.body.results))
        start = pack(loop.structure, [c.start for c in loop.carry])
        call = f"cg.fori_loop({loop.lower}, {loop.upper}, {body}, {start})"
        self.results(loop.structure, [c.out for c in loop.carry], call)

    def scan_(self, loop: Scan) -> None:
        body, rows = self.label("body"), self.label("rows")
        names = [r.inner for r in loop.rows]
        xs_structure = Structure("bare" if len(names) == 1 else "dict")
        kept = len(loop.carry)
        carry = pack(loop.structure, loop.body.results[:kept])
        collected = loop.body.results[kept:]
        ys_structure = Structure("bare" if len(collected) == 1 else "nested")
        ys = pack(ys_structure, collected) if collected else "None"
        parameters, result = {
            "scan": (["carry", rows], f"{carry}, {ys}"),
            "map": ([rows], ys),
            "foldl": (["carry", rows], carry),
            "foldr": (["carry", rows], carry),
        }[loop.form]
        self.emit(f"def {body}({', '.join(parameters)}):")
        with self.indented():
            self.unpack((loop.structure, "carry", [c.inner for c in loop.carry]))
            self.unpack((xs_structure, rows, names))
            self.statements(loop.body.statements)
            self.emit(f"return {result}")
        start = pack(loop.structure, [c.start for c in loop.carry])
        xs = pack(xs_structure, [r.rows for r in loop.rows]) if loop.rows else "None"
        whole = self.label("result")
        more = f", length={loop.length}" if loop.length else ""
        more += (", reverse=True" if loop.reverse else "") + loop.more
        outs = [c.out for c in loop.collected]
        if loop.form == "scan":
            gathered = self.label("gathered")
            self.emit(f"{whole}, {gathered} = cg.scan({body}, {start}, {xs}{more})")
            self.unpack((ys_structure, gathered, outs))
        elif loop.form == "map":
            self.emit(f"{whole} = cg.map({body}, {xs}{more})")
            self.unpack((ys_structure, whole, outs))
        else:
            self.emit(f"{whole} = cg.{loop.form}({body}, {xs}, {start})")
        self.unpack((loop.structure, whole, [c.out for c in loop.carry]))

    def branch_(self, branch: Branch) -> None:
        parameters = [p.inner for p in branch.parameters]
        names = [self.label("branch") for _ in branch.blocks]
        for name, block in zip(names, branch.blocks, strict=True):
            self.function(name, parameters, block, None, pack(branch.structure, block.results))
        operands = "".join(f", {p.operand}" for p in branch.parameters)
        if branch.form == "cond":
            call = f"cg.cond({branch.selectors[0]}, {names[1]}, {names[0]}{operands})"
        elif branch.form == "switch":
            call = f"cg.switch({branch.selectors[0]}, [{', '.join(names)}]{operands})"
        else:
            pairs = ", ".join(f"({s}, {n})" for s, n in zip(branch.selectors, names, strict=False))
            call = f"cg.case([{pairs}], default={names[-1]})"
        self.results(branch.structure, branch.outs, call)

    def call_(self, call: Call) -> None:
        name = self.label("function")
        parameters = [p.inner for p in call.parameters]
        self.function(name, parameters, call.block, None, pack(call.structure, call.block.results))
        if call.form == "plain":
            called = name
        elif call.form in ("custom_jvp", "custom_vjp"):
            called = self.rule(call, name)
        elif call.form == "grad":
            called = f"cg.grad({name}, argnums={tuple(range(len(parameters)))})"
        elif call.form in ("jvp", "linearize"):
            point = ", ".join(p.operand for p in call.parameters)
            along = f"cg.jvp({name}, {_tuple([p.operand for p in call.parameters])}, {_tuple(call.directions)})[1]"
            if call.form == "linearize":
                along = f"cg.linearize({name}, {point})[1]({', '.join(call.directions)})"
            self.assign(call.outs, [along])
            return
        elif call.form == "vmap":
            axes = [str(p.axis) if p.mapped else "None" for p in call.parameters]
            out = f", out_axes={pack(call.structure, [*map(str, call.out_axes)])}" if any(call.out_axes) else ""
            called = f"cg.vmap({name}, in_axes={_tuple(axes)}{out})"
        else:
            policy = f", policy=cg.checkpoint_policies.{call.policy}" if call.policy else ""
            called = f"cg.{call.form}({name}{policy})"
        operands = ", ".join(p.operand for p in call.parameters)
        structure = Structure() if call.form == "grad" else call.structure
        self.results(structure, call.outs, f"{called}({operands})")

    def rule(self, call: Call, name: str) -> str:
        """A function with a rule that says the truth."""
        rule = self.label("rule")
        self.emit(f"{rule} = cg.{call.form}({name})")
        if call.rule == "pulled twice":
            push = self.label("push")
            self.emit(f"def {push}(primals, tangents):")
            with self.indented():
                self.emit(f"outputs, pullback = cg.vjp({name}, *primals)")
                self.emit("start = cg.tree.map(cnp.zeros_like, outputs)")
                self.emit("return outputs, cg.vjp(pullback, start)[1](tangents)[0]")
            self.emit(f"{rule}.defjvp({push})")
            return rule
        setter, *functions = {
            "later": (
                "defvjp",
                f"lambda *given: ({name}(*given), given)",
                f"lambda given, ct: cg.vjp({name}, *given)[1](ct)",
            ),
            "kept": ("defvjp", f"lambda *given: cg.vjp({name}, *given)", "lambda pullback, ct: pullback(ct)"),
            "pushed": ("defjvp", f"lambda primals, tangents: cg.jvp({name}, primals, tangents)"),
            "linearized": (
                "defjvp",
                f"lambda primals, tangents: (lambda y, push: (y, push(*tangents)))(*cg.linearize({name}, *primals))",
            ),
        }[call.rule]
        self.emit(f"{rule}.{setter}({', '.join(functions)})")
        return rule


_NAME = re.compile(r"\b[a-z]+\d+\b")
_Unpack = tuple[Structure, str, Sequence[str]]


class _Plain(_Writer):
    """With Python's own control flow."""

    def line_(self, line: Line) -> None:
        self.emit(f"{line.target} = {line.plain}")

    def while_(self, loop: While) -> None:
        inner = [c.inner for c in loop.carry]
        self.assign(inner, [c.plain_start or c.start for c in loop.carry])
        trips = self.label("trips")
        if loop.maximum is not None:
            self.emit(f"{trips} = 0")
        self.emit("while True:")
        with self.indented():
            self.statements(loop.condition.statements)
            self.emit(f"if not {loop.condition.results[0]}:")
            with self.indented():
                self.emit("break")
            if loop.maximum is not None:
                self.emit(f"{trips} = limited({trips}, {loop.maximum})")
            self.emit("tick()")
            self.statements(loop.body.statements)
            self.assign(inner, loop.body.results)
        self.assign([c.out for c in loop.carry], inner)

    def for_(self, loop: For) -> None:
        inner = [c.inner for c in loop.carry]
        self.assign(inner, [c.plain_start or c.start for c in loop.carry])
        self.emit(f"for {loop.index} in range({loop.lower}, {loop.upper}):")
        with self.indented():
            self.emit("tick()")
            self.statements(loop.body.statements)
            self.assign(inner, loop.body.results)
        self.assign([c.out for c in loop.carry], inner)

    def scan_(self, loop: Scan) -> None:
        inner = [c.inner for c in loop.carry]
        self.assign(inner, [c.plain_start or c.start for c in loop.carry])
        lists = [f"{c.out}_rows" for c in loop.collected]
        for name in lists:
            self.emit(f"{name} = []")
        steps = f"range(len({loop.rows[0].rows}))" if loop.rows else f"range({loop.length})"
        backwards = loop.reverse or loop.form == "foldr"
        step = self.label("t")
        self.emit(f"for {step} in {f'reversed({steps})' if backwards else steps}:")
        with self.indented():
            self.emit("tick()")
            self.assign([r.inner for r in loop.rows], [f"{r.rows}[{step}]" for r in loop.rows])
            self.statements(loop.body.statements)
            kept = len(loop.carry)
            for name, y in zip(lists, loop.body.results[kept:], strict=True):
                self.emit(f"{name}.append({y})")
            self.assign(inner, loop.body.results[:kept])
        for name, c in zip(lists, loop.collected, strict=True):
            self.emit(f"{c.out} = stacked({name}{'[::-1]' if backwards else ''}, {c.row_shape})")
        self.assign([c.out for c in loop.carry], inner)

    def branch_(self, branch: Branch) -> None:
        self.assign([p.inner for p in branch.parameters], [p.operand for p in branch.parameters])
        last = len(branch.blocks) - 1
        if branch.form == "cond":
            tests = [f"if not {branch.selectors[0]}:", "else:"]
        elif branch.form == "switch":
            index = branch.selectors[0]
            tests = [f"{'el' * (i > 0)}if {index} {'<=' if i == 0 else '=='} {i}:" for i in range(last)] + ["else:"]
        else:
            tests = [f"{'el' * (i > 0)}if {s}:" for i, s in enumerate(branch.selectors)] + ["else:"]
        if last == 0:
            tests = ["if True:"]
        for test, block in zip(tests, branch.blocks, strict=True):
            self.emit(test)
            with self.indented():
                self.statements(block.statements)
                self.assign(branch.outs, block.results)

    def call_(self, call: Call) -> None:
        if call.form == "vmap":
            self.rows(call)
            return
        self.assign([p.inner for p in call.parameters], [p.operand for p in call.parameters])
        self.statements(call.block.statements)
        if call.form in ("grad", "jvp", "linearize"):
            self.derivative(call)
        else:
            self.assign(call.outs, call.block.results)

    def rows(self, call: Call) -> None:
        """Row by row."""
        lists = [self.label("rows") for _ in call.outs]
        for name in lists:
            self.emit(f"{name} = []")
        row = self.label("row")
        mapped = next(p for p in call.parameters if p.mapped)
        self.emit(f"for {row} in range(np.shape({mapped.operand})[{mapped.axis}]):")
        with self.indented():
            operands = [
                f"np.take({p.operand}, {row}, axis={p.axis})" if p.mapped else p.operand for p in call.parameters
            ]
            self.assign([p.inner for p in call.parameters], operands)
            self.statements(call.block.statements)
            for name, result in zip(lists, call.block.results, strict=True):
                self.emit(f"{name}.append({result})")
        for name, out, shape, axis in zip(lists, call.outs, call.rows, call.out_axes, strict=True):
            rows = f"stacked({name}, {shape})"
            self.emit(f"{out} = {f'np.moveaxis({rows}, 0, {axis})' if axis else rows}")

    def derivative(self, call: Call) -> None:
        """Differentiated here and now, by the reference engine, of concrete values; decisions were noted before.

        What is used from outside is passed in: traced code cannot index NumPy's arrays by traced integers.
        """
        inner = Traced()
        inner.indent, inner.labels = self.indent + "    ", self.labels + 1
        inner.statements(call.block.statements)
        inner.emit(f"return {call.block.results[0]}")
        words = set(_NAME.findall("\n".join(inner.lines)))
        captures = [name for name in call.visible if name in words]
        name = self.label("function")
        self.emit(f"def {name}({', '.join([*(p.inner for p in call.parameters), *captures])}):")
        self.lines += inner.lines
        self.labels = inner.labels
        operands = ", ".join([*(p.operand for p in call.parameters), *captures])
        if call.form == "grad":
            self.emit(f"{_tuple(call.outs)} = gradients({len(call.parameters)}, {name}, {operands})")
        else:
            self.emit(f"{call.outs[0]} = directional({_tuple(call.directions)}, {name}, {operands})")
