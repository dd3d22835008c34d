"""custom_vjp, custom_jvp, checkpoint and stop_gradient inside loops and branches, to second order; what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from instruments.tables import in_turn

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import tree
from ctrlgrad.engines.reference import Counters, Run, run_graph
from ctrlgrad.errors import CtrlgradError, DifferentiationError, GradientMismatch, TypeMismatchError, UserInputError
from ctrlgrad.ir import Graph

X = np.array([0.7, -0.4])


def reversed_sine() -> Any:
    """sin with its own reverse rule."""
    sine = cg.custom_vjp(lambda x: np.sin(x))
    sine.defvjp(lambda x: (np.sin(x), np.cos(x)), lambda c, ct: (ct * c,))
    return sine


def pushed_sine() -> Any:
    """sin with its own forward rule."""
    sine = cg.custom_jvp(lambda x: np.sin(x))
    sine.defjvp(lambda primals, tangents: (np.sin(primals[0]), np.cos(primals[0]) * tangents[0]))
    return sine


RULES = {
    "custom_vjp": (reversed_sine, ("rev",)),
    "custom_jvp": (pushed_sine, ("rev", "fwd")),
    "checkpoint": (lambda: cg.checkpoint(lambda x: np.sin(x)), ("rev", "fwd")),
}
rules = pytest.mark.parametrize("make, modes", RULES.values(), ids=RULES)


def in_a_loop(sine, x):
    return cg.while_loop(lambda y: cnp.sum(y * y) < 40.0, lambda y: y * 1.6 + sine(y * x), x)


def in_nested_loops(sine, x):
    def outer(i, y):
        return cg.while_loop(lambda z: cnp.sum(z * z) < 3.0 + i, lambda z: z * 1.4 + sine(z), y * 0.5)

    return cg.fori_loop(0, 3, outer, x)


def in_a_branch_of_a_loop(sine, x):
    def step(i, y):
        return cg.cond(i % 2 == 0, lambda: sine(y) * x, lambda: y * y + sine(x))

    return cg.fori_loop(0, 4, step, x)


def in_a_switch(sine, x):
    step = lambda i, y: cg.switch(i, [lambda: sine(y), lambda: y + sine(x) ** 2, lambda: y * x])
    return cg.fori_loop(0, 3, step, x)


PLACES = (in_a_loop, in_nested_loops, in_a_branch_of_a_loop, in_a_switch)


@in_turn("place, rule", PLACES, list(RULES))
def test_rules_inside_control_flow_to_second_order(place, rule):
    make, modes = RULES[rule]
    sine = make()
    cg.check_grads(lambda x: place(sine, x), (X,), order=2, modes=modes)
    plain = cg.hessian(lambda x: cnp.sum(place(np.sin, x) ** 2))(X)
    found = [cg.grad(lambda x: cnp.sum(cg.grad(lambda x: cnp.sum(place(sine, x) ** 2))(x) * v))(X) for v in np.eye(2)]  # noqa: B023
    np.testing.assert_allclose(found, plain, rtol=1e-11)


@rules
def test_rules_under_vmap(make, modes):
    sine = make()
    batch = X * np.array([[0.3], [1.0], [4.0]])
    rows = cg.vmap(cg.grad(lambda x: cnp.sum(in_a_loop(sine, x))))(batch)
    np.testing.assert_allclose(rows, [cg.grad(lambda x: cnp.sum(in_a_loop(np.sin, x)))(x) for x in batch], rtol=1e-12)


def test_a_rule_is_used_and_a_wrong_one_is_caught():
    wrong = cg.custom_vjp(lambda x: x * x)
    wrong.defvjp(lambda x: (x * x, x), lambda x, ct: (3.0 * ct * x,))
    loop = lambda x: cg.fori_loop(0, 2, lambda i, y: wrong(y), x)
    assert float(cg.grad(loop)(2.0)) == 3.0 * 4.0 * 3.0 * 2.0
    with pytest.raises(GradientMismatch, match="WRONG"):
        cg.check_grads(loop, (2.0,))


def test_residuals_may_be_pytrees_and_arguments_too():
    @cg.custom_vjp
    def affine(params, x):
        return params["w"] * x + params["b"]

    def forward(params, x):
        return affine.fn(params, x), {"w": params["w"], "x": (x,)}

    def backward(kept, ct):
        return {"w": ct * kept["x"][0], "b": ct}, ct * kept["w"]

    affine.defvjp(forward, backward)
    f = lambda params, x: cg.while_loop(lambda y: cnp.sum(y) < 10.0, lambda y: affine(params, y), x)
    cg.check_grads(f, ({"w": np.array([1.5, 1.2]), "b": np.array([0.3, 0.4])}, np.abs(X)), order=2)


def test_none_is_a_cotangent_of_zero():
    f = cg.custom_vjp(lambda x, y: x * y)
    f.defvjp(lambda x, y: (x * y, y), lambda y, ct: (ct * y, None))
    assert cg.grad(lambda x, y: cg.fori_loop(0, 3, lambda i, z: f(z, y), x), argnums=(0, 1))(2.0, 3.0) == (27.0, 0.0)


# stop_gradient.


def test_stop_gradient_in_a_loop_in_both_modes_to_second_order():
    """y <- y * stop(y) + x: by hand dy <- dy * y + 1, d2y <- d2y * y, the cut factor taken as a number."""

    def f(x):
        return cg.fori_loop(0, 3, lambda i, y: y * cg.stop_gradient(y) + x, x)

    x = 0.6
    y, dy = x, 1.0
    for _ in range(3):
        y, dy = y * y + x, dy * y + 1.0
    assert float(cg.grad(f)(x)) == pytest.approx(dy, rel=1e-14)
    assert float(cg.jvp(f, (x,), (1.0,))[1]) == pytest.approx(dy, rel=1e-14)


def test_stop_gradient_in_the_branch_that_is_taken():
    f = lambda x: cg.cond(x > 0.0, lambda: x * cg.stop_gradient(x), lambda: x * x)
    assert (float(cg.grad(f)(3.0)), float(cg.grad(f)(-3.0))) == (3.0, -6.0)
    assert (float(cg.grad(cg.grad(f))(3.0)), float(cg.grad(cg.grad(f))(-3.0))) == (0.0, 2.0)
    assert float(cg.jvp(f, (3.0,), (1.0,))[1]) == 3.0


# checkpoint.


def count(graph: Graph, *args: Any) -> Counters:
    run = Run()
    run_graph(graph, [np.asarray(leaf) for leaf in tree.leaves(args)], run)
    return run.counters


def layers(y, w):
    for _ in range(4):
        y = np.tanh(w @ y)
    return y


@pytest.mark.parametrize("trips", [1, 7, 30])
def test_a_checkpointed_body_pushes_its_carry_and_nothing_else(trips):
    w = np.array([[0.3, 0.8], [-0.5, 1.1]])

    def gradient(body):
        f = lambda x, w: cnp.sum(cg.fori_loop(0, trips, lambda i, y: body(y, w), x))
        return cg.function(cg.grad(f, argnums=(0, 1))).graph(X, w)

    kept, saved = count(gradient(cg.checkpoint(layers)), X, w), count(gradient(layers), X, w)
    assert kept.pushes == trips and kept.pushed_bytes == trips * X.nbytes
    assert saved.pushed_bytes >= 4 * kept.pushed_bytes
    assert kept.ops > saved.ops


def test_a_checkpointed_loop_is_run_again():
    """Outside of it nothing is pushed on the way forward; its pushes are those of the run in the backward pass."""
    inner = cg.checkpoint(lambda y: cg.while_loop(lambda z: cnp.sum(z * z) < 9.0, lambda z: z * 1.5 + np.sin(z), y))
    f = lambda x: cnp.sum(cg.fori_loop(0, 3, lambda i, y: inner(y * 0.5), x))
    counters = count(cg.function(cg.grad(f)).graph(X), X)
    plain = lambda x: cnp.sum(cg.fori_loop(0, 3, lambda i, y: inner.__wrapped__(y * 0.5), x))
    np.testing.assert_allclose(cg.grad(f)(X), cg.grad(plain)(X), rtol=1e-13)
    assert counters.ops > count(cg.function(cg.grad(plain)).graph(X), X).ops
    cg.check_grads(f, (X,), order=2, modes=("rev", "fwd"))


# Refused rules.


def rule_of(result: Any) -> Any:
    f = cg.custom_vjp(lambda x: x * 2.0)
    f.defvjp(lambda x: (x * 2.0, x), lambda x, ct: result(x, ct))
    return f


def forward_of(result: Any) -> Any:
    f = cg.custom_vjp(lambda x: x * 2.0)
    f.defvjp(lambda x: result(x), lambda x, ct: (ct,))
    return f


def push_of(result: Any) -> Any:
    f = cg.custom_jvp(lambda x: x * 2.0)
    f.defjvp(lambda primals, tangents: result(primals[0], tangents[0]))
    return f


@pytest.mark.parametrize("inside", ["outside", "in a loop", "in a branch"])
@pytest.mark.parametrize(
    "wrong, words",
    [
        (lambda: rule_of(lambda x, ct: ct), "one cotangent per argument"),
        (lambda: rule_of(lambda x, ct: (ct, ct)), "a tuple of 2|tuple of 2"),
        (lambda: rule_of(lambda x, ct: ((ct, ct),)), "argument 0"),
        (lambda: rule_of(lambda x, ct: (ct[:1],)), "cotangent of argument 0 does not fit"),
        (lambda: rule_of(lambda x, ct: (ct.astype("float32"),)), "cotangent of argument 0 does not fit"),
        (lambda: forward_of(lambda x: x * 2.0), "forward rule does not return a pair"),
        (lambda: forward_of(lambda x: ((x, x), x)), "forward rule's result"),
        (lambda: forward_of(lambda x: (x[:1], x)), "forward rule's result"),
        (lambda: push_of(lambda x, t: t), "rule does not return a pair"),
        (lambda: push_of(lambda x, t: (x, (t, t))), "tangent"),
        (lambda: cg.custom_vjp(lambda x: x), "no rule yet"),
        (lambda: cg.custom_jvp(lambda x: x), "no rule yet"),
    ],
)
def test_a_rule_of_the_wrong_form_says_so_where_it_is_called(inside, wrong, words):
    f = wrong()

    def program(x):
        if inside == "in a loop":
            return cnp.sum(cg.fori_loop(0, 2, lambda i, y: f(y), x))
        if inside == "in a branch":
            return cnp.sum(cg.cond(x[0] > 0, lambda: f(x), lambda: x))
        return cnp.sum(f(x))

    with pytest.raises((TypeMismatchError, UserInputError), match=words) as caught:
        cg.grad(program)(X)
    assert "test_custom_rules.py" in str(caught.value)


FORWARD = {
    "jacfwd": cg.jacfwd,
    "jvp": lambda f: lambda x: cg.jvp(f, (x,), (x,)),
    "reverse over forward": lambda f: cg.grad(lambda x: cg.jvp(f, (x,), (x,))[1]),
}


@pytest.mark.parametrize("transform", FORWARD.values(), ids=FORWARD)
@pytest.mark.parametrize("place", [lambda s, x: s(x), *PLACES])
def test_forward_mode_through_a_reverse_rule_names_the_way_out(transform, place):
    sine = reversed_sine()
    with pytest.raises(DifferentiationError, match="custom_jvp") as caught:
        transform(lambda x: cnp.sum(place(sine, x)))(X)
    assert "test_custom_rules.py" in str(caught.value)


def test_forward_over_reverse_goes_through_a_reverse_rule():
    """The inner reverse mode has put the rule in place of the function; forward mode meets only the rule."""
    sine = reversed_sine()
    for place in PLACES:
        found = cg.hessian(lambda x: cnp.sum(place(sine, x)))(X)  # noqa: B023
        np.testing.assert_allclose(found, cg.hessian(lambda x: cnp.sum(place(np.sin, x)))(X), rtol=1e-11)  # noqa: B023


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: cg.grad(lambda x: x)(X),
        lambda: cg.grad(lambda n: n * 2)(3),
        lambda: cg.grad(lambda x: x, argnums=1)(1.0),
        lambda: cg.jvp(lambda x: x, (X,), (X[:1],)),
        lambda: cg.jvp(lambda x: x, (X,), ()),
        lambda: cg.jvp(lambda x: x, (X,), ({"a": X},)),
        lambda: cg.vjp(lambda x: x * 2.0, X)[1](X[:1]),
        lambda: cg.jacfwd(lambda n: n * 2)(3),
        lambda: cg.jacrev(lambda x: x, argnums="x")(X),
    ],
)
def test_derivatives_that_do_not_exist(wrong):
    with pytest.raises(CtrlgradError) as caught:
        wrong()
    assert "test_custom_rules.py" in str(caught.value) and "expected" in str(caught.value)


def _with_rule_of(forward: Any, backward: Any, **options: Any) -> Any:
    f = cg.custom_vjp(lambda n, x: x * n, **options)
    f.defvjp(forward, backward)
    return cg.grad(f, 1)(3.0, 1.0)


@pytest.mark.parametrize(
    "make, parts",
    [
        (
            lambda: _with_rule_of(lambda r, ct, y: (ct, ct), lambda n, x: (x * n, None)),
            ("the forward rule does not take", "a function of n, x", "<lambda>(r, ct, y)"),
        ),
        (
            lambda: _with_rule_of(lambda n, x: (x * n, n), lambda r: (r, r)),
            ("the backward rule does not take", "a function of residuals, cotangent"),
        ),
        (
            lambda: _with_rule_of(lambda n, x: (x * n, n), lambda r, ct: (ct,), nondiff_argnums=0),
            ("the backward rule does not take", "a function of n, residuals, cotangent"),
        ),
        (
            lambda: _with_rule_of(lambda n, x: (x * n, n), lambda r, ct: (ct * r,)),
            ("one cotangent per argument", "return ct_n, ct_x", "nondiff_argnums"),
        ),
        (lambda: cg.grad(push_of(lambda x, t: t))(1.0), ("the rule does not return a pair", "return result, tangent")),
    ],
)
def test_a_rule_that_is_written_otherwise_is_told_how(make: Any, parts: tuple[str, ...]) -> None:
    with pytest.raises(TypeMismatchError) as caught:
        make()
    for part in ("test_custom_rules.py", "try: ", *parts):
        assert part in str(caught.value)


def conjugate_gradients(matvec: Any, b: Any) -> Any:
    def body(c: Any) -> Any:
        x, r, p, k = c
        image = matvec(p)
        a = (r @ r) / (p @ image)
        left = r - a * image
        return x + a * p, left, left + (left @ left) / (r @ r) * p, k + 1

    return cg.while_loop(lambda c: (c[1] @ c[1] > 1e-26) & (c[3] < 20), body, (0.0 * b, b, b, 0))[0]


def implicit(tangent_solve: Any) -> Any:
    newton = lambda f, x: cg.fori_loop(0, 60, lambda i, x: x - 0.2 * f(x), x)
    return lambda a: cnp.sum(cg.custom_root(lambda x: x**3 + x - a, 0.0 * a, newton, tangent_solve))


@pytest.mark.parametrize(
    "push",
    [
        lambda x, t: t**2,
        lambda x, t: cnp.where(t > 0, t, 0.0),
        lambda x, t: cg.while_loop(lambda c: c.sum() < 30.0, lambda c: c * 2.0, t),
        lambda x, t: cg.scan(lambda c, t: (c + t, c * t), 0.0, t)[1],
        lambda x, t: cg.cond(t[0] > 0, lambda: t, lambda: 2.0 * t),
    ],
)
def test_a_tangent_that_is_not_linear_is_not_transposed(push: Any) -> None:
    """A tangent that is not linear is refused. It was once transposed at zero tangents, and could give a gradient of
    zero."""
    f = push_of(lambda x, t: (x * 2.0, push(x, t)))
    with pytest.raises(DifferentiationError, match="not linear in the tangents") as caught:
        cg.grad(lambda x: cnp.sum(f(x)))(X)
    assert "test_custom_rules.py" in str(caught.value)
    with pytest.raises(DifferentiationError, match="not linear in the tangents"):
        cg.grad(lambda x: cnp.sum(cg.vmap(f)(x)))(np.stack([X, X]))
    cg.jvp(f, (X,), (X,))


@pytest.mark.parametrize(
    "push",
    [
        lambda x, t: cg.while_loop(lambda c: c[0].sum() < 9.0, lambda c: (c[0] + 1.0, c[1] * x), (x, t))[1],
        lambda x, t: cg.checkpoint(lambda t, x: t * np.sin(x))(t, x),
        lambda x, t: cg.vmap(lambda t, x: t * np.sin(x))(t, x) + t[cnp.argmax(x)],
        lambda x, t: cg.cond(x[0] > 0, lambda: t * x, lambda: 2.0 * t) + cnp.zeros_like(t),
        lambda x, t: cg.custom_linear_solve(lambda v: v * (2.0 + x**2), t, conjugate_gradients, symmetric=True),
    ],
)
def test_a_linear_tangent_may_be_computed_in_any_way(push: Any) -> None:
    f = push_of(lambda x, t: (x * 2.0, push(x, t)))
    loss = lambda x: cnp.sum(f(x) * x)
    found = cg.grad(loss)(X)
    np.testing.assert_allclose(found, [cg.jvp(loss, (X,), (row,))[1] for row in np.eye(len(X))], rtol=1e-12)
    np.testing.assert_allclose(cg.vmap(cg.grad(loss))(np.stack([X, X])), [found, found], rtol=1e-12)
    np.testing.assert_allclose(
        cg.grad(lambda x: cnp.sum(cg.vmap(loss)(x)))(np.stack([X, X])), [found, found], rtol=1e-12
    )


def test_a_solver_that_ends_when_the_tangent_says_so_needs_a_transposed_one() -> None:
    """At zero tangents its loop ends at once: the gradient was zero."""
    dense = implicit(lambda g, y: cnp.linalg.solve(cg.jacfwd(g)(y), y))
    with pytest.raises(DifferentiationError, match=r"custom_root.* not linear in the tangents"):
        cg.grad(implicit(conjugate_gradients))(X)
    by_rule = implicit(lambda g, y: cg.custom_linear_solve(g, y, conjugate_gradients, symmetric=True))
    np.testing.assert_allclose(cg.grad(by_rule)(X), cg.grad(dense)(X), rtol=1e-10)
    solved = lambda b: cnp.sum(cg.custom_linear_solve(lambda v: v * (2.0 + X**2), b, conjugate_gradients))
    with pytest.raises(DifferentiationError, match=r"custom_linear_sol.* not linear in the tangents"):
        cg.grad(solved)(X)


@pytest.mark.parametrize("make", [reversed_sine, pushed_sine], ids=["custom_vjp", "custom_jvp"])
def test_a_loop_over_a_rule_outside_of_a_function_runs_in_machine_code(make: Any) -> None:
    from instruments.checked import checked

    rule = make()

    def repeated(x: Any) -> Any:
        return cg.fori_loop(0, 3, lambda i, c: cg.cond(i > 0, lambda: rule(c) + 0.1, lambda: rule(2 * c)), x)

    def batched(x: Any) -> Any:
        outputs, pull = cg.vjp(cg.vmap(lambda c: cg.scan(lambda c, q: (rule(c) + q, rule(c) * q), c, X)), x)
        return outputs, pull(outputs)

    programs = [lambda: repeated(0.5), lambda: repeated(X), lambda: cg.vjp(repeated, X)[1](X), lambda: batched(X)]
    if make is pushed_sine:
        programs.append(lambda: cg.jvp(repeated, (X,), (X,)))
    for program in programs:
        with cg.options(engine="reference"):
            expected = tree.flatten(program())[0]
        with cg.options(engine="native"), checked():
            found = tree.flatten(program())[0]
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-14)


def test_the_hessian_of_what_has_reverse_rules_only_is_reverse_over_reverse() -> None:
    sine = reversed_sine()
    product = cg.custom_vjp(lambda x: sine(x) * x)
    # The rule calls a function that has no forward mode either.
    product.defvjp(lambda x: (sine(x) * x, x), lambda x, ct: (ct * (np.cos(x) * x + sine(x)),))
    found = cg.hessian(lambda x: product(x).sum())(X)
    np.testing.assert_allclose(found, np.diag(2 * np.cos(X) - X * np.sin(X)), rtol=1e-12)
    with pytest.raises(DifferentiationError, match="forward mode needs a forward rule"):
        cg.jacfwd(cg.grad(lambda x: product(x).sum()))(X)
