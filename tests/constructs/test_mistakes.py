"""Mistakes that users of other libraries make with loops, arrays and transforms, and what they are told.

Each error names the operation, the line, what was expected and got, and what to do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optree
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import CtrlgradError, MissingAttributeError, NonFiniteError, TracingError

X = np.arange(3.0)


@dataclasses.dataclass
class Plain:
    w: Any


def _forgets_to_return(i: Any, c: Any) -> Any:
    c + i


def _yields(c: Any) -> Any:
    yield c


def _in_budget(size: Any) -> Any:
    with cg.memory.budget(size):
        return cg.grad(lambda x: cg.fori_loop(0, 50, lambda i, c: np.sin(c), x).sum())(np.ones(1000))


def _on_device(name: str) -> Any:
    with cg.device(name):
        return cg.function(lambda x: x, engine="dataflow")(1.0)


def _array(size: int | None = 3) -> cg.TensorArray:
    return cg.TensorArray("float64", size, ())


# The mistake, and what the message must say beside the five parts.
MISTAKES: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "fori_loop of another structure": (
        lambda: cg.fori_loop(0, 3, lambda i, c: (c, c), X),
        ("fori_loop: the carry and the body's result", "structure of the carry, *", "the body's result[0]: f64[3]"),
    ),
    "fori_loop of another dtype": (
        lambda: cg.fori_loop(0, 3, lambda i, c: {"a": c["a"] * 0.5}, {"a": np.arange(3)}),
        ("fori_loop: the body's result differs", "carry['a']: starts as i64[3], the body returns f64[3]"),
    ),
    "fori_loop without return": (
        lambda: cg.fori_loop(0, 3, _forgets_to_return, X),
        ("fori_loop", "got: None", "without `return`"),
    ),
    "fori_loop with a body of one parameter": (
        lambda: cg.fori_loop(0, 3, lambda c: c, X),
        ("fori_loop: body_fun does not take", "a function of i, carry"),
    ),
    "fori_loop with init and body exchanged": (
        lambda: cg.fori_loop(0, 3, X, lambda i, c: c),
        ("fori_loop: body_fun is not a function", "got: ndarray", "lambda i, carry: ..."),
    ),
    "while_loop of a generator": (
        lambda: cg.while_loop(lambda c: c < 3, _yields, 0),
        ("while_loop: the body's result", ", generator", "`yield`"),
    ),
    "scan with a function of one parameter": (
        lambda: cg.scan(lambda c: (c, c), 0.0, X),
        ("scan: f does not take", "a function of carry, x"),
    ),
    "scan with init and f exchanged": (lambda: cg.scan(0.0, lambda c, x: (c, x), X), ("scan: f is not a function",)),
    "scan without return": (lambda: cg.scan(lambda c, x: None, 0.0, X), ("scan: f does not return a pair", "None")),
    "map over a scalar": (lambda: cg.map(lambda x: x, 1.0), ("map: a leaf of xs has no rows",)),
    "map with a function of two parameters": (lambda: cg.map(lambda a, b: a, X), ("map: f does not take",)),
    "foldl of another shape": (
        lambda: cg.foldl(lambda c, x: cnp.stack([c, x]), X, 0.0),
        ("foldl: the body's result differs", "f64[2]"),
    ),
    "foldr with a list": (lambda: cg.foldr([1.0], X, 0.0), ("foldr: f is not a function", "got: list")),
    "cond of an object": (lambda: cg.cond(True, object, object), ("cond: the result of false_fun", ", object")),
    "a TensorArray written at a float": (lambda: _array().write(0.5, 1.0), ("TensorArray.write: the index", "f64[]")),
    "a TensorArray read at an array": (lambda: _array().read(X.astype(int)), ("TensorArray.read: the index", "i64[3]")),
    "a dataclass in a carry": (
        lambda: cg.while_loop(lambda p: p.w < 3, lambda p: Plain(p.w + 1), Plain(0.0)),
        ("got: Plain", "@ctrlgrad.tree.register_dataclass above its @dataclass"),
    ),
    "a dataclass as an argument": (
        lambda: cg.function(lambda p: p.w)(Plain(X)),
        ("got: Plain", "@ctrlgrad.tree.register_dataclass above its @dataclass", "hashable"),
    ),
    "a tensor as the key of a dict": (
        lambda: cg.function(lambda i: {0: 1.0}[i])(0),
        ("hash() (a key of a dict", "ctrlgrad.switch"),
    ),
    "x.numpy()": (lambda: cg.function(lambda x: x.numpy())(X), ("no attribute 'numpy'", "a NumPy array")),
    "x.detach()": (lambda: cg.function(lambda x: x.detach())(X), ("ctrlgrad.stop_gradient",)),
    "x.view(-1)": (lambda: cg.function(lambda x: x.view(-1))(X), ("x.reshape",)),
    "x.exp()": (lambda: cg.function(lambda x: x.exp())(X), ("ctrlgrad.numpy.exp(x)",)),
    "x.at called": (lambda: cg.function(lambda x: x.at(0).set(1.0))(X), ("square brackets",)),
    "math.sin": (lambda: cg.function(lambda x: __import__("math").sin(x))(1.0), ("`math`", "numpy.sin(x)")),
    "grad of an integer leaf": (
        lambda: cg.grad(lambda params, x: x)({"w": 1.0, "n": 3}, 1.0),
        ("params['n']: i64[]", "argnums"),
    ),
    "jvp of an integer": (lambda: cg.jvp(lambda speed: speed, (1,), (1.0,)), ("speed: i64[]",)),
    "jacrev of an integer among others": (lambda: cg.jacrev(lambda *xs: xs[1], 1)(1.0, 2), ("xs[1]: i64[]",)),
    "grad without return": (lambda: cg.grad(lambda x: None)(1.0), ("got: nothing", "without `return`")),
    "vmap over different sizes": (
        lambda: cg.vmap(lambda batch, *, scale: batch)({"a": X}, scale=np.ones(4)),
        ("batch['a']: f64[3], axis 0", "scale: f64[4], axis 0"),
    ),
    "vmap over a scalar": (lambda: cg.vmap(lambda p, x: x)({"b": 1.0}, X), ("p['b']: f64[]", "in_axes")),
    "vmap with too many in_axes": (lambda: cg.vmap(lambda x: x, in_axes=(0, 0))(X), ("2 entries", "keyword")),
    "vmap of nothing": (lambda: cg.vmap(lambda x: x, in_axes=None)(X), ("no argument is mapped",)),
    "an engine that does not exist": (lambda: cg.function(lambda x: x, engine="nativ"), ("'nativ'", "'native'")),
    "items of different ranks": (lambda: cg.function(lambda x: cnp.stack([x, [x, x]]))(1.0), ("f64[2]",)),
    "what a function returns in place of the function": (
        lambda: cg.grad(np.sin(2.0)),
        ("grad: the argument is not callable", "got: float64", "and not what it returns"),
    ),
    "the Hessian of a number": (lambda: cg.hessian(3.0), ("hessian: the argument is not callable",)),
    "vmap of an array": (lambda: cg.vmap(X), ("vmap: the argument is not callable", "got: ndarray")),
    "linearize of a number": (lambda: cg.linearize(3.0, X), ("linearize: the argument is not callable",)),
    "jvp of a number": (lambda: cg.jvp(3.0, (X,), (X,)), ("jvp: the argument is not callable",)),
    "a rule of a number": (lambda: cg.custom_vjp(3.0), ("custom_vjp: the argument is not callable",)),
    "from_jax of a number": (lambda: cg.from_jax(3.0), ("from_jax: the argument is not callable",)),
    "to_jax of a number": (lambda: cg.to_jax(3.0), ("to_jax: the argument is not callable",)),
    "stop_gradient of a function": (
        lambda: cg.stop_gradient(np.sin),
        ("stop_gradient: a function has no derivative", "lambda x: ctrlgrad.stop_gradient(fn(x))"),
    ),
    "argnums with an argument twice": (
        lambda: cg.grad(lambda x, y: x * y, argnums=(0, -2))(1.0, 2.0),
        ("grad: argnums names an argument twice", "got: (0, -2)"),
    ),
    "static_argnums out of range": (
        lambda: cg.function(lambda x, n: x * n, static_argnums=2),
        ("static_argnums is out of range", "positions among the 2 parameters: x, n"),
    ),
    "static_argnames of no parameter": (
        lambda: cg.grad(lambda x, steps: x * steps, static_argnames="step"),
        ("grad: static_argnames names a parameter", "of 'x', 'steps'", "got: 'step'"),
    ),
    "a loss beside other results": (lambda: cg.grad(lambda x: (x.sum(), x))(X), ("say has_aux=True",)),
    "cotangents one by one": (
        lambda: cg.vjp(lambda x: (x, x), X)[1](X, X),
        ("vjp: the pullback takes one pytree", "the structure of the outputs, (*, *)", "pullback((a, b))"),
    ),
    "a scan of a negative length": (
        lambda: cg.scan(lambda c, x: (c, c), 0.0, None, length=-1),
        ("scan: length is no number of iterations", "got: -1"),
    ),
    "a scan of half an iteration": (lambda: cg.scan(lambda c, x: (c, c), 0.0, None, length=3.5), ("got: 3.5",)),
    "a switch over a dict": (
        lambda: cg.switch(1, {0: lambda: 1.0, 1: lambda: 2.0}),
        ("switch: the branches are no list", "got: dict of 2"),
    ),
    "concatenate without a list": (
        lambda: cnp.concatenate(cnp.asarray(X), 1.0),
        ("concatenate: scalars have no axis", "got: f64[], f64[], f64[]", "takes arrays as a list"),
    ),
    "a TensorArray of a text as its size": (lambda: cg.TensorArray("float64", "3"), ("no number of slots", "got: '3'")),
    "a TensorArray of a negative size": (lambda: cg.TensorArray("float64", -3), ("no number of slots", "got: -3")),
    "a TensorArray of no dtype": (
        lambda: cg.TensorArray("flaot", 3),
        ("TensorArray: there is no such dtype", "'flaot'"),
    ),
    "a TensorArray that is indexed": (lambda: _array()[0], ("TensorArray: it is not indexed", "array.read(index)")),
    "a cast to no dtype": (lambda: cg.function(lambda x: x.astype("flaot"))(X), ("there is no such dtype",)),
    "a branch that returns a TensorArray, and one that returns an array": (
        lambda: cg.function(lambda x: cg.cond(x[0] > 0, lambda: _array(), lambda: x))(X),
        ("got: TensorArray(*)",),
    ),
    "a specification whose dtype comes first": (
        lambda: cg.TensorSpec("float64", (3,)),
        ("TensorSpec: not a shape", "the shape comes first"),
    ),
    "a callback whose results are stated by a shape": (
        lambda: cg.pure_callback(np.sin, (3,), X),
        ("pure_callback sin: what the function returns is not stated", "ctrlgrad.TensorSpec((3,), 'float64')"),
    ),
    "a seed that is no integer": (lambda: cg.random.key(0.5), ("random.key: the seed is no integer", "float64[]")),
    "a shape of random numbers that is traced": (
        lambda: cg.function(lambda n: cg.random.normal(cg.random.key(0), (n,)))(3),
        ("not a shape of known sizes", "static_argnums"),
    ),
    "a budget that is a float": (lambda: _in_budget(1e9), ("memory: not a size", "int(n) makes bytes")),
    "a budget that is too small": (
        lambda: _in_budget(100),
        ("needs", "expected: a device budget of", "try: a larger device budget"),
    ),
    "a device of another library": (lambda: _on_device("gpu:0"), ("there is no device 'gpu:0'", "'cuda:0'")),
    "check_grads without a tuple": (
        lambda: cg.check_grads(np.sin, 1.0),
        ("check_grads: the arguments are not a tuple", "check_grads(fn, (x,))"),
    ),
    "check_grads at an integer": (
        lambda: cg.check_grads(np.sin, (1,)),
        ("no argument to differentiate", "1.0 in place"),
    ),
    "a function of JAX on a traced tensor": (
        lambda: cg.function(lambda x: jnp.sin(x))(X),
        ("a function of JAX was given a traced tensor", "got: Tensor(f64[3], x)", "ctrlgrad.from_jax(fn)"),
    ),
    "jax.grad of a function of this library": (
        lambda: jax.grad(lambda x: cnp.sin(x))(1.0),
        ("a traced array of JAX reached a function of this library", "ctrlgrad.to_jax(fn)"),
    ),
    "bytes that are no ONNX model": (
        lambda: cg.from_onnx(b"no model"),
        ("from_onnx: this is no ONNX model", "cut short"),
    ),
    "a mask of another shape": (lambda: cg.function(lambda x: x[np.ones(4, bool)])(X), ("the mask has another shape",)),
    "a step of zero": (lambda: cg.function(lambda x: x[::0])(X), ("a slice's step is zero",)),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_explained(name: str) -> None:
    make, parts = MISTAKES[name]
    with pytest.raises(CtrlgradError) as caught:
        make()
    error, text = caught.value, str(caught.value)
    for label in ("problem", "expected", "got", "hint"):
        assert getattr(error, label), f"no {label} in:\n{text}"
    assert __file__.rsplit("/", 1)[-1] in str(error.source), text
    for part in parts:
        assert part in text, f"{part!r} is not in:\n{text}"


def test_a_tensor_that_left_its_trace_is_refused_as_an_argument() -> None:
    kept = []
    cg.function(lambda x: (kept.append(x * 2), x)[1])(1.0)
    with pytest.raises(TracingError, match="reached a function outside of its trace"):
        cg.function(lambda y: y + 1)(kept[0])


def test_attributes_that_are_missing_can_be_asked_for() -> None:
    seen = []
    cg.function(lambda x: (seen.append((hasattr(x, "numpy"), hasattr(x, "shape"), hasattr(x, "__foo__"))), x)[1])(1.0)
    assert seen == [(False, True, False)]
    assert issubclass(MissingAttributeError, AttributeError)


def test_arrays_of_other_libraries_are_operands() -> None:
    w = jnp.asarray([1.0, 2.0, 3.0])
    for f in (lambda x: x * w, lambda x: w * x, lambda x: np.multiply(x, w), lambda x: x @ w, lambda x: w - x):
        for engine in ("reference", "native"):
            found = cg.function(f, engine=engine)(X)
            assert isinstance(found, np.ndarray)
            np.testing.assert_allclose(found, np.asarray(f(X)), rtol=1e-6)
    np.testing.assert_array_equal(cg.grad(lambda x: (x * w).sum())(X), np.asarray(w))


def test_lists_are_operands_as_in_numpy() -> None:
    np.testing.assert_array_equal(cg.function(lambda x: [1.0, 2.0, 3.0] * (x + [1, 2, 3]))(X), [1.0, 6.0, 15.0])


def test_a_dataclass_registered_as_the_error_says_is_a_pytree() -> None:
    @optree.dataclasses.dataclass(namespace="ctrlgrad")
    class Parameters:
        w: Any
        b: Any

    found = cg.grad(lambda p, x: (p.w * x + p.b).sum())(Parameters(X, 1.0), X)
    np.testing.assert_array_equal(found.w, X)
    assert float(found.b) == 3.0


def test_a_carry_that_changes_its_shape_works_outside_of_a_trace_too() -> None:
    x = np.arange(1.0, 6.0)
    shrink = lambda x: cg.while_loop(lambda c: c.shape[0] > 1, lambda c: c[1:] * c[:-1], cg.unknown_dims(x))
    np.testing.assert_array_equal(shrink(x), cg.function(shrink)(x))
    grow = lambda x: cg.fori_loop(0, 2, lambda i, c: (c[0] + i, cnp.concat([c[1], c[1]])), (0, cg.unknown_dims(x)))[1]
    np.testing.assert_array_equal(grow(x[:1]), [1.0, 1.0, 1.0, 1.0])
    assert grow(np.arange(2)).dtype == np.int64
    marked = cg.unknown_dims(x)
    assert type(marked * 2) is type(marked[1:]) is type(np.sin(marked)) is np.ndarray


@pytest.mark.parametrize(
    ("loop", "name"),
    [
        (lambda x: cg.fori_loop(0, 3, lambda i, c: np.log(c - 1.0), x[0]), "iteration 1 of the fori_loop"),
        (lambda x: cg.scan(lambda c, v: (np.log(c - v), c), 1.0, x)[0], "iteration 0 of the scan"),
        (lambda x: cg.map(lambda v: np.log(2.4 - v), x), "iteration 0 of the map"),
        (lambda x: cg.foldl(lambda c, v: np.log(c - v), x, 1.0), "iteration 0 of the foldl"),
        (lambda x: cg.foldr(lambda c, v: np.log(c - v), x, 1.0), "iteration 0 of the foldr"),
        (lambda x: cg.while_loop(lambda c: c < 9.0, lambda c: np.log(c - 1.0), x[0]), "iteration 1 of the while_loop"),
    ],
)
def test_check_nans_calls_a_loop_what_the_user_calls_it(loop: Any, name: str) -> None:
    with cg.options(check_nans=True), pytest.raises(NonFiniteError) as caught:
        cg.function(loop)(np.full(3, 2.5))
    assert name in str(caught.value)


def test_check_nans_says_for_and_while_of_python() -> None:
    def counted(x: Any, n: Any) -> Any:
        for _ in range(n):
            x = np.log(x - 1.0)
        return x

    def tested(x: Any, n: Any) -> Any:
        while x < n:
            x = np.log(x - 1.0)
        return x

    for plain, name in ((counted, "for"), (tested, "while")):
        with cg.options(check_nans=True), pytest.raises(NonFiniteError, match=f"iteration 1 of the {name} at"):
            cg.function(plain, autograph=True)(2.5, 4)
