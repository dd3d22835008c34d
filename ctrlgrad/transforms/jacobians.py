"""`jacfwd`, `jacrev` and `hessian`: whole derivative matrices, a basis vector per row of a `vmap`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ctrlgrad import tree
from ctrlgrad.errors import NoForwardRuleError
from ctrlgrad.frontend.checks import check_leaves
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.tracer import set_aside
from ctrlgrad.function import Function
from ctrlgrad.signature import StaticArguments
from ctrlgrad.source import here
from ctrlgrad.transforms.grad import vjp
from ctrlgrad.transforms.jvp import jvp
from ctrlgrad.transforms.tracing import (
    check_argnums,
    check_complex,
    check_differentiable,
    chosen_paths,
    float_positions,
)
from ctrlgrad.transforms.transformed import Transformed, all_but
from ctrlgrad.transforms.vmap import vmap


def _basis(x: Any) -> Any:
    """One array like x per element of x, which is 1 there and 0 elsewhere, along a new first axis."""
    zeros = FUNCTIONS["zeros_like"](x)
    size = zeros.size
    return FUNCTIONS["reshape"](FUNCTIONS["eye"](size, dtype=zeros.dtype), (size, *zeros.shape))


class _Chosen:
    """The arguments that are differentiated, as leaves, and the function of those leaves alone."""

    def __init__(
        self,
        operation: str,
        fn: Callable[..., Any],
        argnums: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        allow_int: bool = False,
    ) -> None:
        self.numbers = check_argnums(operation, argnums, args)
        self.leaves, self.treedef = tree.flatten(tuple(args[n] for n in self.numbers))
        self.single = not isinstance(argnums, tuple | list)
        check_leaves(f"{operation}: an argument", self.leaves, chosen_paths(fn, args, self.numbers))
        if not allow_int:
            check_differentiable(operation, self.leaves, chosen_paths(fn, args, self.numbers), here())
        self.floats = float_positions(self.leaves)

        def of_leaves(*leaves: Any) -> Any:
            replaced = list(args)
            for n, x in zip(self.numbers, tree.unflatten(self.treedef, leaves), strict=True):
                replaced[n] = x
            return fn(*replaced, **kwargs)

        self.of_leaves = of_leaves

    def pack(self, per_leaf: Sequence[Any]) -> Any:
        """One value per leaf, arranged as the arguments are."""
        packed = tree.unflatten(self.treedef, per_leaf)
        return packed[0] if self.single else packed


def jacfwd(
    fn: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
) -> Function:
    """The Jacobian by forward mode, column by column; as `jax.jacfwd`. Best where inputs are fewer than outputs.

    The result is a pytree like `fn`'s result whose leaves are pytrees like the argument, of arrays of shape
    `[*output shape, *input shape]`. Arguments are real; with `holomorphic` they are complex, and `fn` is a holomorphic
    function of them. With `has_aux` the function returns a pair, whose second part is handed on: (Jacobian, aux).

    >>> cg.jacfwd(lambda x: x * x)(np.array([1.0, 2.0]))
    array([[2., 0.],
           [0., 4.]])
    """

    def jacobian(*args: Any, **kwargs: Any) -> Any:
        chosen = _Chosen("jacfwd", fn, argnums, args, kwargs)
        check_complex("jacfwd", "an argument", chosen.leaves, holomorphic, here())
        zeros = [FUNCTIONS["zeros_like"](x) for x in chosen.leaves]
        columns: list[list[Any]] = []
        treedef, aux = None, list[Any]()
        aux_treedef = tree.structure(aux)
        for position, x in enumerate(chosen.leaves):

            def along(direction: Any, position: int = position) -> Any:
                nonlocal aux_treedef
                tangents = [direction if i == position else z for i, z in enumerate(zeros)]
                _, tangent, *aux = jvp(chosen.of_leaves, tuple(chosen.leaves), tuple(tangents), has_aux)
                leaves, aux_treedef = tree.flatten(set_aside(aux))
                return tangent, leaves

            # The auxiliary result is the same for all directions.
            result, aux = vmap(along, out_axes=(0, None))(_basis(x))
            moved, treedef = tree.flatten(result)
            columns.append([_last(column, zeros[position].shape) for column in moved])
        if treedef is None:
            return fn(*args, **kwargs)
        rows = [chosen.pack([column[i] for column in columns]) for i in range(len(columns[0]))]
        found = tree.unflatten(treedef, rows)
        return (found, *tree.unflatten(aux_treedef, aux)) if has_aux else found

    static = StaticArguments("jacfwd", fn, static_argnums, static_argnames)
    return Transformed(jacobian, fn, "jacfwd", all_but(argnums), static)


def _last(column: Any, shape: tuple[Any, ...]) -> Any:
    """`[size, *output]` as `[*output, *shape]`."""
    moved = FUNCTIONS["moveaxis"](column, 0, -1)
    return FUNCTIONS["reshape"](moved, (*moved.shape[:-1], *shape))


def jacrev(
    fn: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
) -> Function:
    """The Jacobian by reverse mode, row by row; as `jax.jacrev`. Best where outputs are fewer than inputs.

    The result has the form that `jacfwd` gives. Results of `fn` are real; with `holomorphic` arguments and results are
    complex, and `fn` is a holomorphic function. `has_aux` as for `jacfwd`, with `allow_int` the
    derivative with respect to integers is zeros of their dtype.

    >>> cg.jacrev(lambda x: np.sum(x * x, keepdims=True))(np.array([1.0, 2.0]))
    array([[2., 4.]])
    """

    def jacobian(*args: Any, **kwargs: Any) -> Any:
        source = here()
        chosen = _Chosen("jacrev", fn, argnums, args, kwargs, allow_int)
        if holomorphic:
            check_complex("jacrev", "an argument", chosen.leaves, holomorphic, source)
        result, pullback, *aux = vjp(chosen.of_leaves, *chosen.leaves, has_aux=has_aux)
        outputs, treedef = tree.flatten(result)
        check_complex("jacrev", "the function's result", outputs, holomorphic, source)
        zeros = [FUNCTIONS["zeros_like"](y) for y in outputs]
        rows = []
        for position, y in enumerate(outputs):

            def back(direction: Any, position: int = position) -> Any:
                given = [direction if i == position else z for i, z in enumerate(zeros)]
                return pullback(tree.unflatten(treedef, given))

            found = iter(vmap(lambda direction: [back(direction)[i] for i in chosen.floats])(_basis(y)))
            shape = zeros[position].shape
            per_leaf = [
                FUNCTIONS["reshape"](row := next(found), (*shape, *row.shape[1:]))
                if i in chosen.floats
                else FUNCTIONS["zeros"]((*shape, *FUNCTIONS["shape"](x)), FUNCTIONS["zeros_like"](x).dtype)
                for i, x in enumerate(chosen.leaves)
            ]
            rows.append(chosen.pack(per_leaf))
        found = tree.unflatten(treedef, rows)
        return (found, *aux) if has_aux else found

    static = StaticArguments("jacrev", fn, static_argnums, static_argnames)
    return Transformed(jacobian, fn, "jacrev", all_but(argnums), static)


def hessian(
    fn: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
) -> Function:
    """The matrix of second derivatives, forward over reverse; as `jax.hessian`.

    Where forward mode meets a function that has a reverse rule only, it is reverse over reverse.

    `holomorphic` and `has_aux` as for `jacfwd`.

    >>> cg.hessian(lambda x: np.sum(x ** 3))(np.array([1.0, 2.0]))
    array([[ 6.,  0.],
           [ 0., 12.]])
    """
    static = StaticArguments("hessian", fn, static_argnums, static_argnames)
    back = jacrev(fn, argnums, has_aux, holomorphic)
    by_columns, by_rows = (of(back.fn, argnums, has_aux, holomorphic).fn for of in (jacfwd, jacrev))

    def second(*args: Any, **kwargs: Any) -> Any:
        try:
            return by_columns(*args, **kwargs)
        except NoForwardRuleError:
            return by_rows(*args, **kwargs)

    return Transformed(second, fn, "hessian", all_but(argnums), static)
