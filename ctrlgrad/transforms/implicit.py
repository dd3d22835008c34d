"""`custom_root` and `custom_linear_solve`: derivatives of what a solver finds, by what it has solved.

The solver itself, a loop as a rule, is not differentiated: of f(p, x(p)) = 0 follows df/dx dx = -df/dp dp, and of
A(p) x = b follows A dx = db - dA x; the cotangent of b is what the transposed solver finds for that of x.

What `f` and `matvec` close over are their parameters: their graphs' captures become arguments of a custom rule. What
the solvers close over, such as a factor or a preconditioner, has no part in the derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ctrlgrad import tree
from ctrlgrad.advice import explains_calls
from ctrlgrad.errors import TypeMismatchError
from ctrlgrad.frontend.apply import cast, is_weak, tensor_type, type_of, value_in
from ctrlgrad.frontend.checks import check_callable, check_leaves, same_structure
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import recorder
from ctrlgrad.frontend.tracer import Leaf, Traced, in_trace
from ctrlgrad.ir import TensorType, close
from ctrlgrad.source import Source, here
from ctrlgrad.transforms.custom_calls import custom_jvp, custom_vjp
from ctrlgrad.transforms.grad import jvp, vjp


class _Closed:
    """A function of a pytree like `x`, with what it closes over as explicit parameters."""

    def __init__(self, what: str, fn: Callable[[Any], Any], x: Any, source: Source | None) -> None:
        leaves, self.treedef = tree.flatten(x)
        inputs = [Leaf(type_of(leaf)) for leaf in leaves]
        traced = Traced(what, lambda xs: fn(tree.unflatten(self.treedef, xs)), inputs, what=f"{what}: its result")
        labels = ("its argument", "its result")
        same_structure(what, source, labels, (leaves, self.treedef), (traced.leaves, traced.treedef))
        dtypes = [t.dtype if isinstance(t, TensorType) else None for t in map(type_of, leaves)]
        for leaf, result, path in zip(leaves, traced.leaves, tree.paths(self.treedef), strict=True):
            if not type_of(leaf).accepts(type_of(result)) and not is_weak(result):
                raise TypeMismatchError(
                    f"{what}: its result{path} differs from its argument",
                    source=source,
                    expected=str(type_of(leaf)),
                    got=str(type_of(result)),
                    hint="a function of x to something of the same dtypes and shapes",
                )
        closed = close([traced.finish(dtypes=dtypes)])
        self.graph = closed.regions[0]
        self.captures = closed.captures
        self.moving = [i for i, v in enumerate(closed.captures) if v.type.is_differentiable]
        self.parameters = [Tensor(recorder(), closed.captures[i]) for i in self.moving]

    def __call__(self, parameters: Any, x: Any) -> Any:
        builder = recorder()
        given = list(self.captures)
        for i, p in zip(self.moving, parameters, strict=True):
            given[i] = value_in(builder, p)
        values = builder.inline(self.graph, [*given, *(value_in(builder, leaf) for leaf in tree.leaves(x))])
        return tree.unflatten(self.treedef, [Tensor(builder, v) for v in values])


def _strong(x: Any) -> Any:
    return tree.map(lambda leaf: cast(leaf, tensor_type(leaf).dtype), x)


def _negative(x: Any) -> Any:
    return tree.map(FUNCTIONS["negative"], x)


def _zeros(x: Any) -> Any:
    return tree.map(FUNCTIONS["zeros_like"], x)


@explains_calls
def custom_root(
    f: Callable[[Any], Any],
    initial_guess: Any,
    solve: Callable[[Callable[[Any], Any], Any], Any],
    tangent_solve: Callable[[Callable[[Any], Any], Any], Any],
    has_aux: bool = False,
) -> Any:
    """A root of `f`, differentiated by the implicit function theorem; as `jax.lax.custom_root`.

    Args:
        f: a function of x to something of the same dtypes and shapes. What it closes over may be differentiated.
        initial_guess: a pytree of float arrays.
        solve: `solve(f, initial_guess)` returns the root, with `has_aux` a pair of it and a pytree to hand on. What the
            solvers close over has no part in the derivative.
        tangent_solve: `tangent_solve(g, y)` solves the linear equation g(x) = y. Reverse mode transposes it: a loop in
            it that ends when y says so stands in `custom_linear_solve`.

    >>> def root(a):
    ...     f = lambda x: x * x - a
    ...     newton = lambda f, x: cg.fori_loop(0, 8, lambda i, x: x - f(x) / (2 * x), x)
    ...     return cg.custom_root(f, 1.0, newton, lambda g, y: y / g(1.0))
    >>> float(root(4.0)), float(cg.grad(root)(4.0))
    (2.0, 0.25)
    """
    source = here()
    check_callable("custom_root", "f", f, ("x",), source)
    check_callable("custom_root", "solve", solve, ("f", "initial_guess"), source)
    check_callable("custom_root", "tangent_solve", tangent_solve, ("g", "y"), source)
    check_leaves("custom_root: the initial guess", tree.leaves(initial_guess))

    def recorded() -> Any:
        closed = _Closed("custom_root: f", f, _strong(initial_guess), source)

        @custom_jvp
        def custom_root_solution(parameters: Any, guess: Any) -> Any:
            return solve(lambda x: closed(parameters, x), guess)

        @custom_root_solution.defjvp
        def tangent_solution(primals: Any, tangents: Any) -> Any:
            parameters, guess = primals
            result = custom_root_solution(parameters, guess)
            x = result[0] if has_aux else result
            right = _zeros(x)
            if parameters:
                _, change = jvp(lambda p: closed(p, x), (parameters,), (tangents[0],))
                right = tangent_solve(lambda v: jvp(lambda y: closed(parameters, y), (x,), (v,))[1], _negative(change))
            return result, ((right, _zeros(result[1])) if has_aux else right)

        custom_root_solution.stops_captures = True
        return custom_root_solution(closed.parameters, _strong(initial_guess))

    return in_trace(recorded)


@explains_calls
def custom_linear_solve(
    matvec: Callable[[Any], Any],
    b: Any,
    solve: Callable[[Callable[[Any], Any], Any], Any],
    transpose_solve: Callable[[Callable[[Any], Any], Any], Any] | None = None,
    symmetric: bool = False,
    has_aux: bool = False,
) -> Any:
    """The x with `matvec(x) = b`, differentiated by solving again; as `jax.lax.custom_linear_solve`.

    Args:
        matvec: a linear function of x to something of the same dtypes and shapes. What it closes over may be
            differentiated.
        b: a pytree of float arrays.
        solve: `solve(matvec, b)` returns x, with `has_aux` a pair of it and a pytree to hand on. What the solvers close
            over has no part in the derivative.
        transpose_solve: `transpose_solve(vecmat, y)` solves the transposed equation, for reverse mode. Without it
            reverse mode transposes `solve`, which must be linear in b then: no loop in it that ends when b says so.
        symmetric: the function is its own transpose, so that `solve` serves for both.

    >>> a, b = np.array([[2.0, 1.0], [0.0, 4.0]]), np.array([3.0, 4.0])
    >>> dense = lambda f, y: np.linalg.solve(cg.jacfwd(f)(y), y)
    >>> x = lambda b: cg.custom_linear_solve(lambda v: a @ v, b, dense, dense)
    >>> x(b), cg.grad(lambda b: x(b)[0])(b)
    (array([1., 1.]), array([ 0.5  , -0.125]))
    """
    source = here()
    check_callable("custom_linear_solve", "matvec", matvec, ("x",), source)
    check_callable("custom_linear_solve", "solve", solve, ("matvec", "b"), source)
    check_leaves("custom_linear_solve: b", tree.leaves(b))
    transposed_solve = solve if transpose_solve is None and symmetric else transpose_solve

    def recorded() -> Any:
        right = _strong(b)
        closed = _Closed("custom_linear_solve: matvec", matvec, right, source)

        def operator(transposed: bool, parameters: Any) -> Callable[[Any], Any]:
            forward = lambda x: closed(parameters, x)
            return (lambda y: vjp(forward, _zeros(right))[1](y)[0]) if transposed else forward

        def custom_linear_solution(transposed: bool, parameters: Any, y: Any) -> Any:
            solver = transposed_solve if transposed else solve
            assert solver is not None
            result = solver(operator(transposed, parameters), y)
            return result if has_aux else (result, None)

        def tangent_solution(transposed: bool, primals: Any, tangents: Any) -> Any:
            (parameters, y), (moving, change) = primals, tangents
            result = solution(transposed, parameters, y)
            if parameters:
                _, of_matrix = jvp(lambda p: operator(transposed, p)(result[0]), (parameters,), (moving,))
                change = tree.map(FUNCTIONS["subtract"], change, of_matrix)
            # With a rule for its transpose the derivative is solved for by rule once more, else by the solver itself.
            again = custom_linear_solution if transposed_solve is None else solution
            return result, (again(transposed, parameters, change)[0], _zeros(result[1]))

        def keep(transposed: bool, parameters: Any, y: Any) -> Any:
            result = solution(transposed, parameters, y)
            return result, (parameters, result[0])

        def pull(transposed: bool, kept: Any, cotangent: Any) -> Any:
            parameters, x = kept
            back = solution(not transposed, parameters, cotangent[0])[0]
            of_matrix = None
            if parameters:
                _, pullback = vjp(lambda p: operator(transposed, p)(x), parameters)
                (of_matrix,) = pullback(_negative(back))
            return of_matrix, back

        solution: Any
        if transposed_solve is None:
            solution = custom_jvp(custom_linear_solution, nondiff_argnums=(0,))
        else:
            solution = custom_vjp(custom_linear_solution, nondiff_argnums=(0,))
            solution.defvjp(keep, pull)
        solution.defjvp(tangent_solution)
        solution.stops_captures = True
        result = solution(False, closed.parameters, right)
        return result if has_aux else result[0]

    return in_trace(recorded)
