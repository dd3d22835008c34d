# ruff: noqa: F821, F841, RET503, SIM108 (the mistakes are the point)
"""A mistake is one error with the user's own file and line, the variable's name, and what to do."""

from __future__ import annotations

import inspect
import linecache
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
from ctrlgrad.errors import CtrlgradError, ShapeError, TracingError, TypeMismatchError, UserInputError


@dataclass(frozen=True)
class Mistake:
    """A function, its arguments, and the error; the line at fault is the one that ends in `# here`."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    error: type[CtrlgradError]
    says: tuple[str, ...]

    def __repr__(self) -> str:
        return self.fn.__name__


MISTAKES: list[Mistake] = []
ROWS = np.arange(6.0).reshape(3, 2)


def mistake(error: type[CtrlgradError], says: tuple[str, ...], *args: Any) -> Callable[..., Any]:
    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        MISTAKES.append(Mistake(fn, args, error, says))
        return fn

    return register


@mistake(TracingError, ("the list `rows` changes inside a `for`", "TensorArray"), ROWS)
def list_in_a_loop(xs):
    rows = []
    for x in xs:  # here
        rows.append(x)
    return rows


@mistake(TracingError, ("the dict `seen` changes inside an `if`",), 1.0)
def dict_in_a_branch(x):
    seen = {"a": [1]}

    def note():
        seen["b"] = x

    if x > 0:  # here
        note()
    return x


@mistake(TracingError, ("the variable `count` is changed by a function", "count = ..."), 5.0)
def nonlocal_in_a_loop(x):
    count = 0

    def bump():
        nonlocal count
        count = count + x

    while x > 1.0:  # here
        bump()
        x = x / 2
    return count


@mistake(TracingError, ("the variable `count` is changed by a function", "count = ..."), 5.0)
def nonlocal_of_a_function_made_in_the_loop(x):
    count = x
    while x > 1.0:  # here

        def bump():
            nonlocal count
            count = count + 1.0

        bump()
        x = x / 2
    return count


@mistake(TypeMismatchError, ("the variable `best` changes", "None", "f64[2]", "zeros"), ROWS)
def none_becomes_a_tensor(xs):
    best = None
    for x in xs:  # here
        best = x
    return best


@mistake(TypeMismatchError, ("the variable `mode` changes", "'slow'", "'fast'"), 5.0)
def string_changes_in_a_loop(x):
    mode = "slow"
    while x > 1.0:  # here
        mode = "fast"
        x = x / 2
    return x if mode == "slow" else -x


@mistake(TypeMismatchError, ("the variable `y` changes", "f64[]", "f64[2]", "before the loop"), 1.0, 3)
def shape_changes_in_a_loop(y, n):
    for _ in range(n):  # here
        y = np.stack([y, y]) if y.ndim == 0 else y
    return y


@mistake(TypeMismatchError, ("the variable `pair` changes", "(at pair[1])", "i64[]", "f64[]"), np.int64(1), 0.5)
def dtype_changes_in_a_pair(n, x):
    pair = (x, n)
    while pair[0] < 3:  # here
        pair = (pair[0] + 1.0, pair[1] * x)
    return pair


@mistake(TracingError, ("the variable `last` may have no value here", "before the `for`"), ROWS)
def set_only_in_a_loop(xs):
    for x in xs:
        last = x
    return last  # here


@mistake(TracingError, ("the variable `previous` may have no value here", "before the `while`"), 5.0)
def read_before_set_in_a_loop(x):
    n = 0
    while x > 1.0:
        if n > 0:
            x = x - previous  # here
        previous = x / 2
        n += 1
        x = x / 2
    return x


@mistake(TracingError, ("the variable `y` may have no value here", "only one branch of the `if`"), 1.0)
def set_in_one_branch(x):
    if x > 0:
        y = x
    return y * 2  # here


@mistake(TypeMismatchError, ("the variable `y` differs between the branches", "f64[3]", "f64[]"), 1.0)
def branches_differ_in_shape(x):
    if x > 0:  # here
        y = np.zeros(3)
    else:
        y = x
    return y


@mistake(TypeMismatchError, ("the return value differs between the branches", "None"), 1.0)
def returns_none_or_a_tensor(x):
    if x > 0:  # here
        return x
    return None


@mistake(TracingError, ("returns a value on some paths only", "add a `return`"), 1.0)
def no_return_at_the_end(x):  # here
    if x > 0:
        return x


@mistake(TypeMismatchError, ("the result of the conditional expression differs", "{'a': f64[]}"), 1.0)
def conditional_expression_differs(x):
    return {"a": x} if x > 0 else {"b": x}  # here


@mistake(TypeMismatchError, ("the condition of `if` is not a scalar", "bool[3]", "numpy.any"), np.zeros(3))
def condition_is_an_array(x):
    if x > 0:  # here
        x = x + 1
    return x


@mistake(TypeMismatchError, ("the condition of `and` is not a scalar", "logical_and"), np.zeros(3))
def chain_of_arrays(x):
    return -1 < x < 1  # here


@mistake(TracingError, ("an `assert` on a traced tensor",), 1.0)
def assert_on_a_tensor(x):
    assert x.ndim == 0, "is a Python value"
    assert x > 0, f"is not: {x}"  # here
    return x


@mistake(ShapeError, ("`for` over a tensor without rows", "range(n)"), 1.0)
def for_over_a_scalar(x):
    for _ in x:  # here
        pass
    return x


@mistake(TypeMismatchError, ("range() of a tensor that is no integer scalar", "int(x)"), 3.0)
def range_of_a_float(x):
    total = 0.0
    for i in range(x):  # here
        total = total + i
    return total


@mistake(TracingError, ("range() with a traced step",), 3)
def range_with_a_traced_step(n):
    total = 0
    for i in range(0, 10, n):  # here
        total = total + i
    return total


@mistake(TracingError, ("indexing a NumPy array or a list by it",), 3)
def index_into_a_list(n):
    items, total = [1.0, 2.0, 3.0], 0.0
    for i in range(n):
        total = (
            total + items[i]  # here
        )
    return total


def _deep(x):
    return float(x.astype("int64") + 1) + [1.0][x > 0]  # here


@mistake(TracingError, ("indexing a NumPy array or a list by it", "_deep"), 3.0)
def in_a_function_that_is_called(x):
    while x > 1.0:
        x = _deep(x)
    return x


@pytest.mark.parametrize("case", MISTAKES, ids=repr)
def test_mistake(case: Mistake) -> None:
    with pytest.raises(case.error) as caught:
        cg.function(case.fn, autograph=True)(*case.args)
    text = str(caught.value)
    assert [part for part in case.says if part not in text] == [], text
    source = caught.value.source
    fault = _deep if case.fn is in_a_function_that_is_called else case.fn
    lines, first = inspect.getsourcelines(fault)
    expected = [first + k for k, line in enumerate(lines) if "# here" in line]
    assert source is not None and source.file == __file__ and [source.line] == expected, text
    assert source.function.endswith(fault.__name__)


def _restored(x, items, model):
    while x > 1.0:
        model.weight = model.weight * 2
        items.append(x)
        x = x / 2
    return x


class _Model:
    weight = 1.5


def test_everything_is_as_it_was_after_an_error() -> None:
    items, model = [1.0], _Model()

    def fn(x):
        return _restored(x, items, model)

    with pytest.raises(TracingError, match="the list `items` changes"):
        cg.function(fn, autograph=True)(5.0)
    assert items == [1.0] and model.weight == 1.5


def test_own_exceptions_keep_type_and_lines() -> None:
    def fn(x):
        while x < 3:
            x = x + 1
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        cg.function(fn, autograph=True)(1.0)
    frames = [f for f in traceback.extract_tb(caught.value.__traceback__) if f.filename == __file__]
    first = inspect.getsourcelines(fn)[1]
    assert [(f.lineno, f.name) for f in frames[1:]] == [(first + 3, "fn")]


def test_nodes_carry_the_original_lines() -> None:
    def fn(x):
        y = np.sin(x)
        while y < 3:
            y = y * 2.0
        return y

    graph = cg.function(fn, autograph=True).graph(1.0)
    first = inspect.getsourcelines(fn)[1]
    (loop,) = (node for node in graph.nodes if node.op.name == "while")
    (product,) = (node for node in loop.regions[1].nodes if node.op.name == "multiply")
    (sine,) = (node for node in graph.nodes if node.op.name == "sin")
    found = [(n.source.file, n.source.line) for n in (sine, loop, product) if n.source]
    assert found == [(__file__, first + 1), (__file__, first + 2), (__file__, first + 3)]


def _generator(x):
    yield x


def _match(x):
    match x:
        case [1, _]:
            return x
    return -x


def _walrus(x):
    while x < 3 and (y := x * 2) < 3:
        x = y
    return x


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (_generator, "generators are not supported"),
        (_match, "a `case` other than values"),
        (_walrus, ":="),
        (np.sin, "not written in Python"),
        (cg.grad(_match), "ctrlgrad's own"),
        (eval("lambda x: x"), "source code cannot be read"),
    ],
    ids=["generator", "match", "walrus", "ufunc", "own", "no_source"],
)
def test_unconvertible_functions_are_refused_at_once(fn: Callable[..., Any], reason: str) -> None:
    with pytest.raises(UserInputError) as caught:
        cg.function(fn, autograph=True)
    assert reason in str(caught.value) and "autograph cannot convert" in str(caught.value)


def test_text_of_python_c_is_not_taken_for_the_source_of_an_eval(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "other = lambda x: -x"
    monkeypatch.setitem(linecache.cache, "<string>", (len(line), None, [line + "\n"], "<string>"))
    with pytest.raises(UserInputError, match="source code cannot be read"):
        cg.function(eval("lambda x: x + 1"), autograph=True)


def test_called_function_that_cannot_be_converted_runs_as_it_is() -> None:
    assert float(cg.function(lambda x: sum(_generator(x)) * 2, autograph=True)(3.0)) == 6.0
    with pytest.raises(TracingError) as caught:
        cg.function(lambda x: _walrus(x), autograph=True)(3.0)
    assert "_walrus, which autograph runs as it is" in str(caught.value)


def test_without_malt(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.split(".")[0] == "malt" or n.startswith("ctrlgrad.autograph.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "malt", None)
    with pytest.raises(UserInputError, match=r"pip install -e .\.\[autograph\]"):
        cg.function(lambda x: x, autograph=True)


def test_import_does_not_load_malt() -> None:
    code = "import sys, ctrlgrad; print([m for m in sys.modules if m.split('.')[0] == 'malt'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
