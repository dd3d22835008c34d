"""Errors name only functions that there are, and say what to write in place of what a traced tensor refuses."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import CtrlgradError, TracingError, TypeMismatchError, UserInputError

ROOT = Path(cg.__file__).parent
FOLDERS = (ROOT, *(ROOT.parent / name for name in ("gradients", "stacks", "memory")))
NAME = re.compile(r"(?<![\w./])(ctrlgrad|numpy|jax|optree)((?:\.[A-Za-z_]\w*)+)")
X = np.arange(3.0)


def _texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The strings of a module that are no docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def _exists(root: str, path: str) -> bool:
    found: Any = importlib.import_module(root)
    name = root
    for part in path[1:].split("."):
        name = f"{name}.{part}"
        try:
            found = getattr(found, part)
        except AttributeError:
            try:
                found = importlib.import_module(name)
            except ImportError:
                return False
    return True


def _named() -> list[tuple[str, str, str]]:
    files = [file for folder in FOLDERS if folder.is_dir() for file in sorted(folder.rglob("*.py"))]
    return [
        (f"{file.name}:{line}", root, path)
        for file in files
        for line, text in _texts(ast.parse(file.read_text()))
        for root, path in NAME.findall(text)
        # A bare name is no sentence: it is what something is called.
        if not re.fullmatch(r"[\w.-]+", text)
    ]


def test_every_name_in_an_error_is_that_of_something() -> None:
    named = _named()
    assert len(named) > 100
    assert [(where, root + path) for where, root, path in named if not _exists(root, path)] == []


# Folders whose errors are about what a user wrote.
OF_USERS = "autograph batching cli frontend interop lax nn optim random scipy train transforms verify"


def test_an_error_has_advice_or_what_was_expected_and_got() -> None:
    kinds = {
        name for name, kind in vars(cg.errors).items() if isinstance(kind, type) and issubclass(kind, CtrlgradError)
    }
    silent = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for folder in OF_USERS.split()
        for file in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds
        for given in [{keyword.arg for keyword in node.keywords}]
        if given.isdisjoint({"hint", None}) and not {"expected", "got"} <= given
    ]
    assert silent == []


def _set(x: Any) -> Any:
    y = np.zeros(3)
    y[0] = x
    return y


def _set_rows(x: Any) -> Any:
    y = np.zeros((3, 2))
    y[1:] = x
    return y


def _add_to_one(x: Any) -> Any:
    y = np.zeros(3)
    y[0] += x
    return y


def _add(x: Any) -> Any:
    y = np.zeros(3)
    y += x
    return y


def _raise_to(x: Any) -> Any:
    y = np.ones(3)
    y **= x
    return y


# Refused calls, the refused thing by name, and the name or form to write instead.
REFUSED: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "y[0] = x": (_set, "an assignment to a part of a NumPy array", "ctrlgrad.numpy.at(y)[index].set(x)"),
    "y[1:] = x": (_set_rows, "an assignment to a part of a NumPy array", "ctrlgrad.numpy.at(y)[index].set(x)"),
    "y[0] += x": (_add_to_one, "an assignment to a part of a NumPy array", "ctrlgrad.numpy.at(y)[index].set(x)"),
    "y += x": (_add, "+= on a NumPy array", "y = y + x"),
    "y **= x": (_raise_to, "**= on a NumPy array", "y = y ** x"),
    "array": (lambda x: np.array([x, x]), "converting it to a NumPy array", "ctrlgrad.numpy.stack([a, b])"),
    "asarray": (lambda x: np.asarray(x), "converting it to a NumPy array", "ctrlgrad.numpy.asarray"),
    "full": (lambda x: np.full(3, x), "numpy.full needs", "ctrlgrad.numpy.full"),
    "full_like": (lambda x: np.full_like(X, x), "np.full_like", "ctrlgrad.numpy.full_like"),
    "eye": (lambda x: np.eye(x.astype(int)), "numpy.eye needs", "ctrlgrad.numpy.eye"),
    "zeros": (lambda x: np.zeros(x.astype(int)), "a traced size in a shape", "ctrlgrad.numpy.zeros"),
    "arange": (lambda x: np.arange(x), "converting it to a NumPy array", "ctrlgrad.numpy.arange"),
    "xs[t]": (lambda x: X[x.astype(int)], "indexing a NumPy array", "ctrlgrad.numpy.asarray(xs)[t]"),
    "xs[t:]": (lambda x: X[x.astype(int) :], "indexing a NumPy array", "ctrlgrad.numpy.asarray(xs)[t]"),
    "items[t]": (lambda x: [1, 2][x.astype(int)], "or a list", "ctrlgrad.numpy.stack(items)[t]"),
    "range": (lambda x: list(range(x.astype(int))), "range()", "ctrlgrad.fori_loop"),
    "math": (lambda x: __import__("math").sin(x), "`math`", "numpy.sin(x)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_says_what_to_write_instead(case: str) -> None:
    fn, message, instead = REFUSED[case]
    for around in (cg.function(fn), lambda x: cg.function(lambda x: cg.cond(x > 0, fn, fn, x))(x)):
        with pytest.raises(TracingError) as caught:
            around(1.0)
        error = caught.value
        assert message in error.args[0] and instead in str(error.hint)
        assert error.source is not None and error.source.file == __file__
        assert error.expected and error.got


@pytest.mark.parametrize(
    ("fn", "instead"),
    [
        (lambda s, x: s.expit(x), "ctrlgrad.scipy.special.expit"),
        (lambda s, x: s.gammaln(x), "ctrlgrad.scipy.special.gammaln"),
        (lambda s, x: s.logsumexp(x), "ctrlgrad.scipy.special.logsumexp"),
        (lambda s, x: s.wrightomega(x), "see ctrlgrad.numpy and ctrlgrad.scipy"),
    ],
)
def test_functions_of_scipy_name_ours(fn: Callable[..., Any], instead: str) -> None:
    special = pytest.importorskip("scipy.special")
    with pytest.raises(TracingError, match=r"scipy\.special") as caught:
        cg.function(lambda x: fn(special, x))(X)
    assert instead in str(caught.value.hint)
    assert caught.value.source is not None and caught.value.source.file == __file__


def test_code_that_the_hints_advise_works() -> None:
    assert cg.function(lambda x: cnp.at(np.zeros(3))[0].set(x))(2.0).tolist() == [2.0, 0.0, 0.0]
    assert cg.function(lambda t: cnp.asarray(X)[t])(2) == 2.0
    assert cg.function(lambda t: cnp.asarray(np.eye(3))[t, 0])(0) == 1.0
    assert cg.function(lambda a, b: cnp.stack([a, b]))(1.0, 2.0).tolist() == [1.0, 2.0]
    assert cg.function(lambda s: cnp.full(3, s))(1.0).tolist() == [1.0, 1.0, 1.0]


def test_errors_of_numpy_that_hide_nothing_are_left_alone() -> None:
    def wrong(x: Any) -> Any:
        y = np.zeros(3)
        y[0] = [1.0, 2.0]
        return x

    with pytest.raises(ValueError, match="setting an array element with a sequence") as caught:
        cg.function(wrong)(1.0)
    assert not isinstance(caught.value, CtrlgradError)


@pytest.mark.parametrize(
    ("mistake", "error", "texts"),
    [
        (lambda: cg.cond(None, lambda: 1.0, lambda: 2.0), TypeMismatchError, ("cond: the predicate", "NoneType")),
        (lambda: cg.cond("a", lambda: 1.0, lambda: 2.0), TypeMismatchError, ("cond: the predicate", "str: 'a'")),
        (lambda: cg.cond(X > 1, lambda: 1.0, lambda: 2.0), TypeMismatchError, ("cond: the predicate", "bool[3]")),
        (lambda: cg.cond(True, 1.0, lambda: 2.0), TypeMismatchError, ("cond: true_fun is not a function", "float")),
        (lambda: cg.switch(None, [lambda: 1.0]), TypeMismatchError, ("switch: the index", "NoneType")),
        (lambda: cg.switch(0, lambda: 1.0), UserInputError, ("switch: the branches are no list", "a list")),
        (lambda: cg.switch(0, X), UserInputError, ("switch: the branches are no list", "a list")),
        (lambda: cg.switch(0, []), UserInputError, ("switch: there are no branches", "a list")),
        (lambda: cg.switch(0, [1.0]), TypeMismatchError, ("switch: branch 0 is not a function",)),
        (lambda: cg.case([lambda: 1.0]), TypeMismatchError, ("case: entry 0 is not a pair", "(condition, function)")),
        (
            lambda: cg.cond(True, lambda: (1.0, 2.0), lambda: [1.0, 2.0]),
            TypeMismatchError,
            ("the result of false_fun is a list, and the result of true_fun is a tuple", "(a, b) is a tuple"),
        ),
        (
            lambda: cg.while_loop(lambda c: c["a"][0] < 3, lambda c: {"a": tuple(c["a"])}, {"a": [0, 1]}),
            TypeMismatchError,
            ("the carry['a'] is a list, and the body's result['a'] is a tuple",),
        ),
    ],
)
def test_wrong_predicates_branches_and_containers_are_said_in_words(
    mistake: Callable[[], Any], error: type[CtrlgradError], texts: tuple[str, ...]
) -> None:
    with pytest.raises(error) as caught:
        mistake()
    assert [text for text in texts if text not in str(caught.value)] == []
    assert caught.value.source is not None and caught.value.source.file == __file__


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda: cg.optim.adam(lr=1e-3), "learning_rate=0.001"),  # type: ignore[call-arg]
        (lambda: cg.optim.adam(1e-3, betas=(0.9, 0.99)), "b1=..., b2=..."),  # type: ignore[call-arg]
        (lambda: cg.optim.sgd(1e-3, weight_decay=0.1), "add_decayed_weights(0.1)"),  # type: ignore[call-arg]
        (lambda: cg.optim.sgd(1e-3, momentun=0.9), "momentum=0.9"),  # type: ignore[call-arg]
        (lambda: cg.optim.lion(1e-3, nothing=1), "name the parameters as above"),  # type: ignore[call-arg]
        (lambda: cg.nn.LSTM(3, 4, num_layers=2), "layers=2"),  # type: ignore[call-arg]
        (lambda: cg.nn.GRU(input_size=3, hidden_size=4), "inputs=3,\n    hidden=4"),  # type: ignore[call-arg]
        (lambda: cg.nn.softmax(X, dim=-1), "axis=-1"),  # type: ignore[call-arg]
        (lambda: cnp.sum(X, dim=0), "axis=0"),
        (lambda: cnp.max(X, keepdim=True), "keepdims=True"),
        (lambda: cnp.mean(X, axs=0), "axis=0"),
        (lambda: cg.nn.LSTM(3, 4, batch_first=True), "swapaxes(xs, 0, 1)"),  # type: ignore[call-arg]
        (lambda: cg.nn.Linear(3, 4, key=0), "layer.init(ctrlgrad.random.key(0))"),  # type: ignore[call-arg]
        (lambda: cg.nn.cross_entropy(X, 1, ignore_index=-1), "where=targets != -1"),  # type: ignore[call-arg]
    ],
)
def test_keywords_of_other_libraries_name_ours(call: Callable[[], Any], advice: str) -> None:
    with pytest.raises(TypeMismatchError, match="unexpected keyword") as caught:
        call()
    assert advice in str(caught.value) and Path(__file__).name in str(caught.value)


@pytest.mark.parametrize(
    ("fn", "advice"),
    [
        (lambda x: max(x[0], 1.0), "ctrlgrad.numpy.maximum(x, y)"),
        (lambda x: min(x[0], x[1]), "ctrlgrad.numpy.minimum(x, y)"),
        (lambda x: sorted(x), "ctrlgrad.numpy.sort(x)"),
        (lambda x: any(x > 1.0), "ctrlgrad.numpy.any(x)"),
    ],
)
def test_functions_of_python_that_compare_name_ours(fn: Callable[..., Any], advice: str) -> None:
    with pytest.raises(TracingError) as caught:
        cg.function(fn)(X)
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    ("given", "advice"), [("GPU", "cuda"), ("CUDA", "cuda"), ("Native", "native"), ("cpu", "native")]
)
def test_a_choice_is_found_however_its_letters_are_written(given: str, advice: str) -> None:
    with pytest.raises(UserInputError) as caught, cg.options(engine=given):
        pass
    assert caught.value.hint == repr(advice)
    with pytest.raises(UserInputError) as caught:
        cg.train.to_torch("GRU", [])
    assert caught.value.hint == "'gru'"
