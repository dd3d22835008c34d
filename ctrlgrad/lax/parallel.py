"""Collectives over a named mapped axis, by the names of `jax.lax`: communication between the rows of a `vmap`.

    >>> from ctrlgrad import lax
    >>> centred = lambda x: x - lax.pmean(x, "rows")
    >>> cg.vmap(centred, axis_name="rows")(np.array([1.0, 2.0, 6.0]))
    array([-2., -1.,  3.])

All of them can be differentiated, inside of the mapped function and around it, in both modes. In a loop or a branch
they need a condition that is the same for all rows: a row that has left could not take part.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

import ctrlgrad.numpy as cnp
from ctrlgrad import tree
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.errors import ShapeError, UnknownSizeError, UserInputError
from ctrlgrad.frontend.apply import is_weak, require_numbers, value_in
from ctrlgrad.frontend.functions import publish
from ctrlgrad.frontend.rules import Bound, axis_called
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.frontend.trace import recorder
from ctrlgrad.ops.term import axes_in_order
from ctrlgrad.source import here


def _axes(operation: str, axis_name: Hashable) -> list[Bound]:
    """The axes of one name or of a tuple of names, the outermost first."""
    names = axis_name if isinstance(axis_name, tuple) else (axis_name,)
    return [axis_called(operation, name) for name in names]


def _one(operation: str, axis_name: Hashable) -> Bound:
    found = _axes(operation, axis_name)
    if len(found) != 1:
        raise UserInputError(
            f"{operation}: it goes over one axis at a time",
            expected="one axis name",
            got=repr(axis_name),
            hint="apply it once for each of the axes",
        )
    return found[0]


def _emit(op: str, x: Any, bound: Bound, **attrs: Any) -> Any:
    """One op of a row; of what all rows share as well."""
    builder = recorder()
    return Tensor(builder, builder.emit(op, [value_in(builder, x)], {"rows": bound.axis, **attrs}, source=here()))


def _along(op: str, x: Any, bound: Bound, axis: int) -> Any:
    size = bound.size if isinstance(bound.size, int) else None
    return _emit(op, x, bound, axis=axis, size=size)


def _operand(operation: str, x: Any) -> Any:
    require_numbers(operation, x)
    x = cnp.asarray(x)
    return x.astype(np.int64) if dtype_kind(x.dtype) == "b" else x


def _axis(operation: str, axis: int, rank: int) -> int:
    """An axis of one row, from the front: the mapped axis does not count."""
    return axes_in_order(operation, [axis], rank)[0]


def _ungrouped(operation: str, groups: Any) -> None:
    if groups is not None:
        raise UserInputError(
            f"{operation}: axis_index_groups is not supported",
            expected="axis_index_groups=None",
            got=repr(groups),
            hint="map over two axes, groups and their rows: vmap(vmap(f, axis_name='rows'), axis_name='groups')",
        )


def axis_size(axis_name: Hashable) -> Any:
    """Number of rows of the mapped axis: an int, or a traced scalar if it is unknown; as `jax.lax.axis_size`.

    >>> cg.vmap(lambda x: x * cg.lax.axis_size("rows"), axis_name="rows")(np.ones(3))
    array([3., 3., 3.])
    """
    return functools.reduce(lambda n, bound: n * bound.size, _axes("axis_size", axis_name), 1)


def axis_index(axis_name: Hashable) -> Any:
    """The number of this row along the mapped axis, int64 []; as `jax.lax.axis_index`. Several are counted as one.

    >>> cg.vmap(lambda x: x + cg.lax.axis_index("rows"), axis_name="rows")(np.zeros(3))
    array([0., 1., 2.])
    """
    builder = recorder() if (bounds := _axes("axis_index", axis_name)) else None
    number: Any = 0
    for bound in bounds:
        assert builder is not None
        place = Tensor(builder, builder.emit("axis_index", (), {"rows": bound.axis}, source=here()))
        number = number * bound.size + place
    return number


def psum(x: Any, axis_name: Hashable, *, axis_index_groups: None = None) -> Any:
    """The sum over all rows, the same in each; as `jax.lax.psum`. Booleans count as integers.

    Args:
        x: a pytree of arrays; a Python number gives its product with the number of rows, at once.
        axis_name: what `vmap(axis_name=)` called the axis, or a tuple of such names.

    >>> share = lambda x: x / cg.lax.psum(x, "rows")
    >>> cg.vmap(share, axis_name="rows")(np.array([1.0, 3.0]))
    array([0.25, 0.75])
    """
    _ungrouped("psum", axis_index_groups)
    bounds = _axes("psum", axis_name)

    def total(leaf: Any) -> Any:
        for bound in bounds:
            if is_weak(leaf) and not isinstance(leaf, Tensor):
                leaf = leaf * bound.size
            else:
                leaf = _emit("psum", _operand("psum", leaf), bound)
        return leaf

    return tree.map(total, x)


def pmean(x: Any, axis_name: Hashable, *, axis_index_groups: None = None) -> Any:
    """The mean over all rows, the same in each; as `jax.lax.pmean`.

    >>> mean = cg.vmap(lambda x: cg.lax.pmean(x, "rows"), axis_name="rows", out_axes=None)
    >>> mean(np.array([1.0, 2.0, 6.0]))
    array(3.)
    """
    size = axis_size(axis_name)
    total = psum(x, axis_name, axis_index_groups=axis_index_groups)
    return tree.map(lambda leaf: cnp.asarray(leaf) / size, total)


def _extreme(operation: str, x: Any, axis_name: Hashable, groups: None, reduce: Callable[..., Any]) -> Any:
    _ungrouped(operation, groups)
    bounds = _axes(operation, axis_name)

    def found(leaf: Any) -> Any:
        require_numbers(operation, leaf)
        for bound in bounds:
            leaf = reduce(_along("all_gather", cnp.asarray(leaf), bound, 0), axis=0)
        return leaf

    return tree.map(found, x)


def pmax(x: Any, axis_name: Hashable, *, axis_index_groups: None = None) -> Any:
    """The greatest over all rows, the same in each; as `jax.lax.pmax`. It has a derivative too; of booleans: any.

    >>> cg.vmap(lambda x: cg.lax.pmax(x, "rows"), axis_name="rows")(np.array([1.0, 3.0]))
    array([3., 3.])
    """
    return _extreme("pmax", x, axis_name, axis_index_groups, cnp.max)


def pmin(x: Any, axis_name: Hashable, *, axis_index_groups: None = None) -> Any:
    """The least over all rows, the same in each; as `jax.lax.pmin`. It has a derivative too; of booleans: all.

    >>> cg.vmap(lambda x: cg.lax.pmin(x, "rows"), axis_name="rows")(np.array([1.0, 3.0]))
    array([1., 1.])
    """
    return _extreme("pmin", x, axis_name, axis_index_groups, cnp.min)


def all_gather(
    x: Any, axis_name: Hashable, *, axis_index_groups: None = None, axis: int = 0, tiled: bool = False
) -> Any:
    """Gather the arrays of all rows along a new axis, or `tiled`, along an existing one; as `jax.lax.all_gather`.

    Args:
        x: a pytree of arrays `[*shape]`.
        axis_name: the name of the axis in `vmap(axis_name=)`, or a tuple of such names.
        axis: the position of the rows in the result.

    >>> gather = cg.vmap(lambda x: cg.lax.all_gather(x, "rows"), axis_name="rows")
    >>> gather(np.array([1.0, 3.0]))
    array([[1., 3.],
           [1., 3.]])
    """
    _ungrouped("all_gather", axis_index_groups)
    bounds, size = _axes("all_gather", axis_name), axis_size(axis_name)

    def gathered(leaf: Any) -> Any:
        require_numbers("all_gather", leaf)
        leaf = cnp.asarray(leaf)
        shape = leaf.shape
        at = _axis("all_gather", axis, leaf.ndim + (not tiled))
        for bound in reversed(bounds):
            leaf = _along("all_gather", leaf, bound, at)
        if tiled:
            return cnp.reshape(leaf, (*shape[:at], size * shape[at], *shape[at + 1 :]))
        return leaf if len(bounds) == 1 else cnp.reshape(leaf, (*shape[:at], size, *shape[at:]))

    return tree.map(gathered, x)


def _parted(operation: str, x: Any, axis: int, bound: Bound) -> Any:
    """x with an axis split into an axis of the rows and the remaining axis."""
    size = x.shape[axis]
    if isinstance(size, int) and isinstance(bound.size, int) and size % bound.size:
        raise ShapeError(
            f"{operation}: the axis cannot be parted among the rows",
            expected=f"a multiple of {bound.size} elements on axis {axis}",
            got=str(tuple(x.shape)),
            hint="pad it to a multiple of the number of rows",
        )
    return cnp.reshape(x, (*x.shape[:axis], bound.size, size // bound.size, *x.shape[axis + 1 :]))


def psum_scatter(
    x: Any, axis_name: Hashable, *, scatter_dimension: int = 0, axis_index_groups: None = None, tiled: bool = False
) -> Any:
    """The sum over all rows, of which row i keeps element i of an axis, or `tiled`, part i; as `jax.lax.psum_scatter`.

    >>> scatter = cg.vmap(lambda x: cg.lax.psum_scatter(x, "rows"), axis_name="rows")
    >>> scatter(np.array([[1.0, 2.0], [10.0, 20.0]]))
    array([11., 22.])
    """
    _ungrouped("psum_scatter", axis_index_groups)
    bound = _one("psum_scatter", axis_name)

    def scattered(leaf: Any) -> Any:
        leaf = _operand("psum_scatter", leaf)
        at = _axis("psum_scatter", scatter_dimension, leaf.ndim)
        return _along("psum_scatter", _parted("psum_scatter", leaf, at, bound) if tiled else leaf, bound, at)

    return tree.map(scattered, x)


def all_to_all(
    x: Any,
    axis_name: Hashable,
    split_axis: int,
    concat_axis: int,
    *,
    axis_index_groups: None = None,
    tiled: bool = False,
) -> Any:
    """Row i sends element j of an axis to row j, which stacks them along another axis; as `jax.lax.all_to_all`.

    Args:
        x: a pytree of arrays whose axis `split_axis` has an element for each row; `tiled`: a multiple of it.
        concat_axis: where in the result, counted without the split axis, what was sent by each row stands; `tiled`: the
            axis that it is joined along.

    >>> exchange = cg.vmap(lambda x: cg.lax.all_to_all(x, "rows", 0, 0), axis_name="rows")
    >>> exchange(np.array([[1.0, 2.0], [3.0, 4.0]]))
    array([[1., 3.],
           [2., 4.]])
    """
    _ungrouped("all_to_all", axis_index_groups)
    bound = _one("all_to_all", axis_name)

    def exchanged(leaf: Any) -> Any:
        require_numbers("all_to_all", leaf)
        leaf = cnp.asarray(leaf)
        split, joined = (_axis("all_to_all", axis, leaf.ndim) for axis in (split_axis, concat_axis))
        if not tiled:
            return cnp.moveaxis(_along("all_to_all", leaf, bound, split), split, joined)
        sent = cnp.moveaxis(
            _along("all_to_all", _parted("all_to_all", leaf, split, bound), bound, split), split, joined
        )
        shape = sent.shape
        return cnp.reshape(sent, (*shape[:joined], shape[joined] * shape[joined + 1], *shape[joined + 2 :]))

    return tree.map(exchanged, x)


def ppermute(x: Any, axis_name: Hashable, perm: Sequence[tuple[int, int]]) -> Any:
    """Each row gets what the row has that sends to it, zeros where none does; as `jax.lax.ppermute`.

    Args:
        x: a pytree of arrays.
        perm: pairs (row that sends, row that gets); none stands twice on one side.

    >>> shift = lambda x: cg.lax.ppermute(x, "rows", [(0, 1), (1, 2)])
    >>> cg.vmap(shift, axis_name="rows")(np.array([1.0, 2.0, 3.0]))
    array([0., 1., 2.])
    """
    bound = _one("ppermute", axis_name)
    size = bound.size
    if not isinstance(size, int):
        raise UnknownSizeError(
            "ppermute: the number of rows is not known",
            expected="a mapped axis of known size",
            got=repr(size),
            hint="declare its size in the signature",
        )
    pairs = [(int(source), int(target)) for source, target in perm]
    for side in zip(*pairs, strict=True):
        if len(set(side)) != len(side) or not all(0 <= row < size for row in side):
            raise UserInputError(
                "ppermute: perm is no permutation of rows",
                expected=f"pairs (source, target) of rows 0 to {size - 1}, each at most once on a side",
                got=repr(list(perm)),
                hint="a row that receives from two rows: ctrlgrad.lax.psum, or two calls and their sum",
            )
    senders = {target: source for source, target in pairs}
    sources = tuple(senders.get(row, -1) for row in range(size))

    def sent(leaf: Any) -> Any:
        require_numbers("ppermute", leaf)
        return _emit("ppermute", cnp.asarray(leaf), bound, sources=sources)

    return tree.map(sent, x)


def pshuffle(x: Any, axis_name: Hashable, perm: Sequence[int]) -> Any:
    """Row i gets what row `perm[i]` has; as `jax.lax.pshuffle`.

    >>> rotate = lambda x: cg.lax.pshuffle(x, "rows", [2, 0, 1])
    >>> cg.vmap(rotate, axis_name="rows")(np.array([1.0, 2.0, 3.0]))
    array([3., 1., 2.])
    """
    if set(perm) != set(range(len(perm))):
        raise UserInputError(
            "pshuffle: perm is no permutation",
            expected="the number of every row, each once",
            got=repr(list(perm)),
            hint="ctrlgrad.lax.ppermute sends each row to at most one row",
        )
    return ppermute(x, axis_name, list(zip(perm, range(len(perm)), strict=True)))


def pswapaxes(x: Any, axis_name: Hashable, axis: int, *, axis_index_groups: None = None) -> Any:
    """The mapped axis and another one, of as many elements, change places; as `jax.lax.pswapaxes`.

    >>> swap = cg.vmap(lambda x: cg.lax.pswapaxes(x, "rows", 0), axis_name="rows")
    >>> swap(np.array([[1.0, 2.0], [3.0, 4.0]]))
    array([[1., 3.],
           [2., 4.]])
    """
    return all_to_all(x, axis_name, axis, axis, axis_index_groups=axis_index_groups)


publish(__name__)
