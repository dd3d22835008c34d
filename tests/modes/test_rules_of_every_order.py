"""Rules that call the function they are the rule of: derivatives of every order, alone, in loops and under vmap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.polynomial import Polynomial

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.errors import DifferentiationError, TypeMismatchError
from ctrlgrad.scipy import gamma_functions, special

ORDERS = range(1, 9)
POINT = 0.3


def pushed_exponential() -> Any:
    """exp(2x): the rule calls the function twice."""
    f = cg.custom_jvp(lambda x: np.exp(2 * x))
    f.defjvp(lambda p, t: (f(p[0]), 2 * f(p[0]) * t[0]))
    return f


def pulled_exponential() -> Any:
    f = cg.custom_vjp(lambda x: np.exp(2 * x))
    f.defvjp(lambda x: (f(x), f(x)), lambda kept, ct: (2 * kept * ct,))
    return f


def pulled_back_exponential() -> Any:
    """The backward rule calls the function itself."""
    f = cg.custom_vjp(lambda x: np.exp(2 * x))
    f.defvjp(lambda x: (np.exp(2 * x), x), lambda x, ct: (2 * f(x) * ct,))
    return f


def pushed_sine() -> Any:
    """sin by cos and cos by sin."""
    sine, cosine = cg.custom_jvp(lambda x: np.sin(x)), cg.custom_jvp(lambda x: np.cos(x))
    sine.defjvp(lambda p, t: (sine(p[0]), cosine(p[0]) * t[0]))
    cosine.defjvp(lambda p, t: (cosine(p[0]), -sine(p[0]) * t[0]))
    return sine


def pulled_sine() -> Any:
    sine, cosine = cg.custom_vjp(lambda x: np.sin(x)), cg.custom_vjp(lambda x: np.cos(x))
    sine.defvjp(lambda x: (sine(x), x), lambda x, ct: (cosine(x) * ct,))
    cosine.defvjp(lambda x: (cosine(x), x), lambda x, ct: (-sine(x) * ct,))
    return sine


def pushed_tangent() -> Any:
    """tan: its derivative is no multiple of one other function, so the calls multiply with the order."""
    f = cg.custom_jvp(lambda x: np.tan(x))
    f.defjvp(lambda p, t: (f(p[0]), (1 + f(p[0]) ** 2) * t[0]))
    return f


def of_tangent(order: int, x: float) -> float:
    """By d/dx p(tan x) = p'(tan x) (1 + tan(x)**2)."""
    p = Polynomial([0.0, 1.0])
    for _ in range(order):
        p = p.deriv() * Polynomial([1.0, 0.0, 1.0])
    return float(p(np.tan(x)))


EXPONENTIAL = lambda order, x: 2.0**order * np.exp(2 * x)
SINE = lambda order, x: np.sin(x + order * np.pi / 2)
RULES = {
    "defjvp of itself": (pushed_exponential, EXPONENTIAL),
    "defvjp of itself, forward": (pulled_exponential, EXPONENTIAL),
    "defvjp of itself, backward": (pulled_back_exponential, EXPONENTIAL),
    "defjvp of each other": (pushed_sine, SINE),
    "defvjp of each other": (pulled_sine, SINE),
    "defjvp of a polynomial of itself": (pushed_tangent, of_tangent),
}
rules = pytest.mark.parametrize("make, exact", RULES.values(), ids=RULES)


def derivative(f: Any, order: int) -> Any:
    for _ in range(order):
        f = cg.grad(f)
    return f


def pushed(f: Any, order: int) -> Any:
    for _ in range(order):
        f = (lambda inner: lambda x: cg.jvp(inner, (x,), (1.0,))[1])(f)
    return f


@rules
def test_every_order_is_that_of_the_rule(make, exact):
    f = make()
    found = [float(derivative(f, order)(POINT)) for order in ORDERS]
    np.testing.assert_allclose(found, [exact(order, POINT) for order in ORDERS], rtol=1e-12)


@pytest.mark.parametrize("make, exact", [(pushed_exponential, EXPONENTIAL), (pushed_sine, SINE)])
def test_every_order_in_forward_mode(make, exact):
    found = [float(pushed(make(), order)(POINT)) for order in ORDERS]
    np.testing.assert_allclose(found, [exact(order, POINT) for order in ORDERS], rtol=1e-12)


@rules
def test_every_order_under_vmap(make, exact):
    x = np.array([0.3, -0.2, 0.7])
    found = cg.vmap(derivative(make(), 6))(x)
    np.testing.assert_allclose(found, [exact(6, v) for v in x], rtol=1e-12)


@rules
def test_orders_above_a_vmap(make, exact):
    """A rule is called inside a vmap, when its operands have rows already."""
    x = np.array([0.3, -0.2, 0.7])
    f = make()
    summed = lambda y: cnp.sum(cg.vmap(f)(y))
    for _ in range(3):
        summed = (lambda g: lambda y: cnp.sum(cg.grad(g)(y)))(summed)
    np.testing.assert_allclose(cg.grad(summed)(x), [exact(4, v) for v in x], rtol=1e-12)


@pytest.mark.parametrize("orders", [range(1, 5), pytest.param(range(5, 7), marks=pytest.mark.long)], ids=str)
@pytest.mark.parametrize("make", [pushed_sine, pulled_sine])
def test_every_order_in_a_loop_is_that_of_the_plain_function(make, orders):
    loop = lambda f: lambda x: cg.fori_loop(0, 3, lambda i, y: f(y) * 0.5 + x, x)
    for order in orders:
        found, plain = derivative(loop(make()), order)(POINT), derivative(loop(np.sin), order)(POINT)
        np.testing.assert_allclose(found, plain, rtol=1e-11)


@pytest.mark.parametrize("order", [1, 2, 5])
@pytest.mark.parametrize("mapped", [False, True])
def test_a_rule_of_itself_may_close_over_a_traced_value(order, mapped):
    """A rule that calls its own function may close over a traced value, which the inner calls capture too."""

    def scaled(x, a):
        f = cg.custom_jvp(lambda x: np.exp(x) * a)
        f.defjvp(lambda p, t: (f(p[0]), f(p[0]) * a / a * t[0]))
        return f(x)

    nth = lambda x, a: derivative(lambda x: scaled(x, a), order)(x)
    x, a = np.array([0.5, 0.1]), np.array([2.0, 3.0])
    found = cg.function(cg.vmap(nth) if mapped else lambda x, a: nth(x[0], a[0]))(x, a)
    np.testing.assert_allclose(found, a * np.exp(x) if mapped else 2.0 * np.exp(0.5), rtol=1e-12)


def test_a_rule_that_needs_its_own_derivative_is_refused():
    f = cg.custom_jvp(lambda x: np.sin(x))
    f.defjvp(lambda p, t: (f(p[0]), cg.grad(f)(p[0]) * t[0]))
    with pytest.raises(DifferentiationError, match="differentiates the function that it is the rule of") as caught:
        cg.grad(f)(POINT)
    assert "test_rules_of_every_order.py" in str(caught.value)


def test_a_rule_may_call_its_function_where_nothing_is_differentiated():
    for make in (pushed_sine, pulled_sine):
        assert float(make()(POINT)) == np.sin(POINT)
        assert cg.function(make()).graph(POINT).nodes[-1].op.name == "sin"


def test_a_rule_is_traced_once_for_each_order_that_is_asked_for():
    traced = []
    f = cg.custom_jvp(lambda x: np.exp(x))
    f.defjvps(lambda t, out, x: (traced.append(1), t * f(x))[1])
    cg.function(f).graph(POINT)
    assert traced == []
    for order in range(1, 5):
        traced.clear()
        derivative(f, order)(POINT)
        assert len(traced) == order


def test_special_functions_trace_rules_only_for_derivatives(monkeypatch):
    """The rule of `gammaln` calls `digamma`, whose own calls `_trigamma`."""
    traced = []
    for name in ("digamma", "_trigamma"):
        fn = getattr(gamma_functions, name)
        noted = lambda x, name=name, fn=fn: (traced.append(name), fn(x))[1]
        monkeypatch.setattr(gamma_functions, name, noted)
    with cg.options(engine="reference"):
        special.betainc(POINT, 2.0, 0.5)
        assert traced == []
        cg.grad(special.gammaln)(POINT)
        assert traced == ["digamma"]


def test_a_cotangent_of_none_has_the_sizes_of_a_run():
    """An argument whose sizes are known at run time alone, and no cotangent: zeros of its sizes."""
    f = cg.custom_vjp(lambda x, y: cnp.sum(x) * y)
    f.defvjp(lambda x, y: (cnp.sum(x) * y, cnp.sum(x)), lambda total, ct: (None, total * ct))
    signature = (cg.TensorSpec((None,)), cg.TensorSpec(()))
    gradients = cg.function(cg.grad(f, argnums=(0, 1)), signature=signature)
    for n in (2, 5):
        x = np.ones(n)
        found = gradients(x, 3.0)
        np.testing.assert_array_equal(found[0], np.zeros(n))
        assert float(found[1]) == n


# Results of another shape or dtype.


def of_rule(rule: Any) -> Any:
    """The identity with a forward rule that is called `wrong_rule`."""

    def wrong_rule(primals, tangents):
        return rule(primals[0], tangents[0])

    f = cg.custom_jvp(lambda x: x * 2.0)
    f.defjvp(wrong_rule)
    return f


def of_forward(rule: Any) -> Any:
    def wrong_rule(x):
        return rule(x)

    f = cg.custom_vjp(lambda x: x * 2.0)
    f.defvjp(wrong_rule, lambda kept, ct: (ct,))
    return f


def of_backward(rule: Any) -> Any:
    def wrong_rule(kept, ct):
        return rule(ct)

    f = cg.custom_vjp(lambda x: x * 2.0)
    f.defvjp(lambda x: (x * 2.0, None), wrong_rule)
    return f


WRONG = {
    "the tangent's shape": lambda: of_rule(lambda x, t: (x * 2.0, cnp.sum(t))),
    "the tangent's dtype": lambda: of_rule(lambda x, t: (x * 2.0, (t * 2.0).astype("float32"))),
    "the result's shape": lambda: of_rule(lambda x, t: (cnp.sum(x), t * 2.0)),
    "the result's dtype": lambda: of_rule(lambda x, t: (x.astype("float32"), t * 2.0)),
    "the tangent's structure": lambda: of_rule(lambda x, t: (x, (t, t))),
    "the result's structure": lambda: of_rule(lambda x, t: ((x, x), t)),
    "the forward rule's shape": lambda: of_forward(lambda x: (cnp.sum(x), x)),
    "the forward rule's dtype": lambda: of_forward(lambda x: (x.astype("float32"), x)),
    "the cotangent's shape": lambda: of_backward(lambda ct: (cnp.sum(ct),)),
    "the cotangent's dtype": lambda: of_backward(lambda ct: (ct.astype("float32"),)),
}


@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG)
def test_a_result_that_does_not_fit_the_function_names_the_rule(make):
    f = make()
    pushed = lambda g: lambda x: cg.jvp(g, (x,), (x,))
    pulled = lambda g: lambda x: cg.vmap(cg.grad(g))(np.stack([x, x]))
    for transform in (cg.grad, pushed if isinstance(f, cg.custom_jvp) else pulled):
        with pytest.raises(TypeMismatchError, match="wrong_rule") as caught:
            transform(lambda x: cnp.sum(cg.fori_loop(0, 2, lambda i, y: f(y), x)))(np.ones(3))
        assert "test_rules_of_every_order.py" in str(caught.value) and "expected" in str(caught.value)


def test_a_rule_may_return_python_numbers_of_the_right_shape():
    f = cg.custom_jvp(lambda x: x * 0.0 + 1.0)
    f.defjvp(lambda primals, tangents: (1, 0.0 * tangents[0]))
    assert float(cg.grad(f)(2.0)) == 0.0 and float(f(np.float32(2.0))) == 1.0


def test_the_tangent_of_an_integer_result_does_not_matter():
    f = cg.custom_jvp(lambda x: (x * x, cnp.sum(x > 0)))
    f.defjvp(lambda p, t: ((p[0] * p[0], cnp.sum(p[0] > 0)), (2 * p[0] * t[0], 0)))
    assert float(cg.grad(lambda x: f(x)[0])(3.0)) == 6.0
