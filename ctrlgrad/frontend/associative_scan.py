"""`associative_scan`: prefix results of an associative function in a logarithmic number of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ctrlgrad import tree
from ctrlgrad.errors import ShapeError, TypeMismatchError
from ctrlgrad.frontend.apply import type_of
from ctrlgrad.frontend.array.dims import axis_of, dim, sliced
from ctrlgrad.frontend.array.joining import concatenate, stack
from ctrlgrad.frontend.array.manipulation import flip, reshape
from ctrlgrad.frontend.array.promote import operand
from ctrlgrad.frontend.checks import check_callable, check_leaves, same_structure
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.tracer import in_trace
from ctrlgrad.source import Source, here


def associative_scan(fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0) -> Any:
    """`fn(...fn(fn(x[0], x[1]), x[2])..., x[i])` for every i; as `jax.lax.associative_scan`.

    Neighbours are joined first, then the pairs, so that `fn`, which takes whole arrays of elements, is traced for
    about 2 log2(n) of them. Source: Blelloch, "Prefix sums and their applications" (1990).

    Args:
        fn: takes two pytrees like `elems`, with the same number of elements along the axis, and returns one. It is
            associative.
        elems: a pytree of arrays of one known size along the axis.
        reverse: from the last element to the first.
        axis: along which the elements lie.

    Raises:
        ShapeError: the sizes along the axis differ, or are not known.

    >>> cg.associative_scan(lambda a, b: a * b, np.array([1.0, 2.0, 3.0, 4.0]))
    array([ 1.,  2.,  6., 24.])
    """
    source = here()
    check_callable("associative_scan", "fn", fn, ("a", "b"), source)
    leaves, treedef = tree.flatten(elems)
    check_leaves("associative_scan: elems", leaves)
    arrays = [operand("associative_scan", x) for x in leaves]
    axes = [axis_of("associative_scan", axis, x.ndim) for x in arrays]
    sizes = {dim(x, a) if isinstance(dim(x, a), int) else None for x, a in zip(arrays, axes, strict=True)}
    if len(sizes) > 1 or None in sizes:
        raise ShapeError(
            "associative_scan: the elements have no one known size along the axis",
            source=source,
            expected="arrays of one size, known when the function is traced",
            got=", ".join(str(type_of(x)) for x in arrays),
            hint="use ctrlgrad.scan where the number of elements is data",
        )

    def combine(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
        found, found_treedef = tree.flatten(fn(tree.unflatten(treedef, a), tree.unflatten(treedef, b)))
        labels = ("the elements", "the function's result")
        same_structure("associative_scan", source, labels, (list(a), treedef), (found, found_treedef))
        _check_sizes(a, found, axes, source)
        return found

    def scanned() -> Any:
        turned = [flip(x, a) for x, a in zip(arrays, axes, strict=True)] if reverse else arrays
        found = _scan(combine, turned, axes) if sizes else []
        return tree.unflatten(treedef, [flip(x, a) for x, a in zip(found, axes, strict=True)] if reverse else found)

    return in_trace(scanned)


Combine = Callable[[Sequence[Any], Sequence[Any]], list[Any]]


def _scan(combine: Combine, elems: Sequence[Any], axes: Sequence[int]) -> list[Any]:
    size = dim(elems[0], axes[0])
    if size < 2:
        return list(elems)
    # The results at odd places are those of the pairs; one more element gives those at even places.
    odd = _scan(combine, combine(_every_second(elems, axes, 0, size - 1), _every_second(elems, axes, 1, size)), axes)
    before = odd if size % 2 else _part(odd, axes, 0, size // 2 - 1)
    rest = _every_second(elems, axes, 2, size)
    even = combine(before, rest) if size > 2 else []
    first = _part(elems, axes, 0, 1)
    even = [concatenate([a, b], axis) for a, b, axis in zip(first, even, axes, strict=True)] if even else first
    return [_interleaved(a, b, axis) for a, b, axis in zip(even, odd, axes, strict=True)]


def _part(xs: Sequence[Any], axes: Sequence[int], start: int, stop: int) -> list[Any]:
    return [sliced(x, axis, start, stop) for x, axis in zip(xs, axes, strict=True)]


def _every_second(xs: Sequence[Any], axes: Sequence[int], start: int, stop: int) -> list[Any]:
    return [FUNCTIONS["getitem"](x, (*[slice(None)] * a, slice(start, stop, 2))) for x, a in zip(xs, axes, strict=True)]


def _interleaved(even: Any, odd: Any, axis: int) -> Any:
    """even[0], odd[0], even[1], ...; there may be one more of the even ones."""
    count = dim(odd, axis)
    pairs = stack([sliced(even, axis, 0, count), odd], axis + 1)
    joined = reshape(pairs, (*pairs.shape[:axis], 2 * count, *pairs.shape[axis + 2 :]))
    return joined if dim(even, axis) == count else concatenate([joined, sliced(even, axis, count, count + 1)], axis)


def _check_sizes(given: Sequence[Any], found: Sequence[Any], axes: Sequence[int], source: Source | None) -> None:
    for x, y, axis in zip(given, found, axes, strict=True):
        if type_of(x) != type_of(y):
            raise TypeMismatchError(
                "associative_scan: the function's result differs from the elements",
                source=source,
                expected=f"{type_of(x)}, with the elements along axis {axis}",
                got=str(type_of(y)),
                hint="the function takes many elements at once, along the axis: ctrlgrad.vmap makes it of one for two",
            )
