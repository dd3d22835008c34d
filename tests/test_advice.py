"""Advice that is one line of code, on pages and in errors: on a page it is run, in an error its arguments are bound."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg

ROOT = Path(__file__).resolve().parent.parent
MADE = {"reference", "notebooks"}
PAGES = [ROOT / "README.md"] + sorted(p for p in (ROOT / "docs").rglob("*.md") if p.parent.name not in MADE)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CALL = re.compile(r"(?<![\w.])(?:cg|ctrlgrad)(?:\.\w+)+\(")
# Arguments that stand for `...` on a page, by the call.
LEFT_OUT = {"cg.jvp": "(x,), (x,)"}
# Run by other tests, with what they take: a file of a model, a run, a module of PyTorch, a terminal.
ELSEWHERE = {"cg.from_onnx", "cg.from_torch", "cg.to_torch", "cg.debug.breakpoint"}
ELSEWHERE |= {"ctrlgrad.train.load", "ctrlgrad.train.to_torch"}
# Context managers.
BLOCKS = {"cg.options", "cg.device", "cg.memory.profile", "ctrlgrad.memory.budget"}


def advice() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for code in re.findall(r"`([^`\n]+)`", FENCED.sub("", page.read_text())):
            called = {call[:-1] for call in CALL.findall(code)}
            if called and not called & ELSEWHERE:
                yield str(page.relative_to(ROOT)), code


def flow(x: Any, n: Any = 5) -> Any:
    return cg.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, np.sin(c[1])), (0, x))[1].sum()


def names() -> dict[str, Any]:
    return {
        "cg": cg,
        "ctrlgrad": cg,
        "np": np,
        "f": flow,
        "fn": lambda x, *_: flow(x),
        "root": flow,
        "loss": flow,
        "x": np.linspace(0.1, 1.0, 3),
        "xs": np.ones((2, 3)),
        "values": np.ones(3),
        "inputs": 3,
        "hidden": 4,
        "lengths": np.array(2),
        "params": cg.nn.LSTM(3, 4).init(cg.random.key(0)),
        "updates": cg.nn.LSTM(3, 4).init(cg.random.key(0)),
        "rate": 0.1,
        "key": cg.random.key(1),
        "carry": (0, 1.0),
        "cond": lambda c: c[0] < 3,
        "body": lambda c: (c[0] + 1, c[1] * 2),
        "name": "a primitive",
        "domain": "a domain",
    }


ADVICE = sorted(set(advice()))


@pytest.mark.parametrize(("page", "code"), ADVICE, ids=[f"{page}: {code}" for page, code in ADVICE])
def test_advice_on_a_page_is_run(page: str, code: str) -> None:
    given, called = names(), CALL.search(code)
    assert called is not None
    code = code.replace("...", LEFT_OUT.get(called[0][:-1], "..."))
    if called[0][:-1] not in BLOCKS:
        exec(code, given)
        return
    # Around the gradient of a loop, on the processor.
    exec(f"with {code.removeprefix('with ').rstrip(':')}:\n    result = cg.grad(f)(x)", given)
    np.testing.assert_allclose(given["result"], cg.grad(flow)(given["x"]), rtol=1e-6)


def test_the_net_finds_the_advice() -> None:
    found = {code for _, code in ADVICE}
    assert len(found) > 20 and 'with ctrlgrad.memory.budget(device="64 MiB")' in found
    with pytest.raises(cg.errors.UserInputError, match="has no host memory of its own"):
        test_advice_on_a_page_is_run("a page", "with ctrlgrad.memory.budget(host='64 MiB')")


def hints() -> Iterator[tuple[str, ast.Call]]:
    """Calls of this library in the hints of errors; what a format puts in is a name."""
    for folder in (ROOT / "ctrlgrad", ROOT / "gradients", ROOT / "memory", ROOT / "stacks"):
        for path in sorted(folder.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.keyword) or node.arg != "hint":
                    continue
                for text in texts(node.value):
                    for found in CALL.finditer(text):
                        yield f"{path.name}:{node.value.lineno}", called(text[found.start() :])


def texts(value: ast.AST) -> Iterator[str]:
    if isinstance(value, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "_" for part in value.values]
        yield "".join(map(str, parts))
    elif isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value
    elif isinstance(value, ast.IfExp):
        yield from (*texts(value.body), *texts(value.orelse))


def called(text: str) -> ast.Call:
    """The call that a text begins with."""
    for end in (match.end() for match in re.finditer(r"\)", text)):
        try:
            node = ast.parse(text[:end], mode="eval").body
        except SyntaxError:
            continue
        assert isinstance(node, ast.Call)
        return node
    raise AssertionError(f"{text} is no call")


HINTS = list(hints())


@pytest.mark.parametrize(("place", "call"), HINTS, ids=[f"{place} {ast.unparse(call)}" for place, call in HINTS])
def test_advice_in_an_error_fits_the_function(place: str, call: ast.Call) -> None:
    path = ast.unparse(call.func).split(".")[1:]
    fn: Any = cg
    for name in path:
        # The formatted name is one of several functions.
        if name == "_":
            return
        fn = getattr(fn, name)
    signature = inspect.signature(fn)
    left_out = [a for a in call.args if not (isinstance(a, ast.Constant) and a.value is ...)]
    bind = signature.bind if len(left_out) == len(call.args) else signature.bind_partial
    bind(*left_out, **{k.arg: k.value for k in call.keywords if k.arg})
