"""Functions of numbers, vectors and matrices made functions of arrays of them: `vmap` by the rules of broadcasting."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

from ctrlgrad.errors import ShapeError, UserInputError
from ctrlgrad.frontend.array.manipulation import broadcast_to, joined_sizes, moveaxis
from ctrlgrad.frontend.array.promote import axis_of, dims, operand, rank_of, reshaped, shape_of, times
from ctrlgrad.frontend.functions import ufunc
from ctrlgrad.source import here
from ctrlgrad.transforms.vmap import vmap

_NAME = r"[A-Za-z_]\w*|\d+"
_GROUP = rf"\((?:(?:{_NAME})(?:,(?:{_NAME}))*)?\)"
_SIGNATURE = re.compile(rf"{_GROUP}(?:,{_GROUP})*->{_GROUP}(?:,{_GROUP})*")

Core = tuple[str, ...]


def vectorize(
    pyfunc: Callable[..., Any], *, excluded: Collection[int | str] = frozenset(), signature: str | None = None
) -> Callable[..., Any]:
    """A function of arrays that calls `pyfunc` for all of their elements at once; as `jax.numpy.vectorize`.

    Args:
        pyfunc: takes and returns numbers, or arrays of the ranks that the signature says.
        excluded: positions and names of arguments that reach it as they are.
        signature: the axes of each argument and each result of one call, such as "(m,n),(n)->(m)"; numbers by
            default. The axes before them broadcast.

    Raises (when called):
        UserInputError: the signature cannot be read, or has another number of arguments.
        ShapeError: an argument has too few axes, or sizes of one name differ.

    >>> clipped = cnp.vectorize(lambda x, low: cnp.where(x < low, low, x))
    >>> clipped([1.0, 2.0, 3.0], 2.0)
    array([2., 2., 3.])
    >>> cnp.vectorize(cnp.dot, signature="(n),(n)->()")(cnp.ones((4, 3)), cnp.ones(3))
    array([3., 3., 3., 3.])
    """
    cores = None if signature is None else _parse(signature)

    @functools.wraps(pyfunc)
    def vectorized(*args: Any, **kwargs: Any) -> Any:
        kept = {place: x for place, x in enumerate(args) if place in excluded}
        names = [name for name in kwargs if name not in excluded]
        given = [x for place, x in enumerate(args) if place not in kept] + [kwargs[name] for name in names]
        arrays = [operand("vectorize", x) for x in given]
        wanted = [()] * len(arrays) if cores is None else cores[0]
        if len(wanted) != len(arrays):
            raise UserInputError(
                "vectorize: the signature has another number of arguments",
                source=here(),
                expected=f"{len(wanted)} arrays, by {signature!r}",
                got=str(len(arrays)),
            )

        def call(*rows: Any) -> Any:
            rows = tuple(rows)
            positional: list[Any] = list(rows[: len(rows) - len(names)])
            for place, x in sorted(kept.items()):
                positional.insert(place, x)
            named = {**kwargs, **dict(zip(names, rows[len(rows) - len(names) :], strict=True))}
            result = pyfunc(*positional, **named)
            _check_results(result, None if cores is None else cores[1], signature)
            return result

        return _over_rows(call, arrays, wanted)

    return vectorized


def _parse(signature: str) -> tuple[list[Core], list[Core]]:
    text = signature.replace(" ", "")
    if not _SIGNATURE.fullmatch(text):
        raise UserInputError(
            "vectorize: the signature cannot be read",
            source=here(),
            expected='such as "(m,n),(n)->(m)"',
            got=repr(signature),
        )
    inputs, outputs = (
        [tuple(name for name in group[1:-1].split(",") if name) for group in re.findall(_GROUP, side)]
        for side in text.split("->")
    )
    return inputs, outputs


def _check_results(result: Any, wanted: Sequence[Core] | None, signature: str | None) -> None:
    results = list(result) if isinstance(result, tuple | list) else [result]
    ranks = [0] * len(results) if wanted is None else [len(core) for core in wanted]
    found = [rank_of(operand("vectorize", x)) for x in results]
    if found != ranks:
        raise ShapeError(
            "vectorize: the results of one call have other ranks",
            expected=f"ranks {ranks}" + ("" if signature is None else f", by {signature!r}"),
            got=f"ranks {found}",
            hint="say which axes a call takes and returns: signature='(n)->(n)'",
        )


def _over_rows(call: Callable[..., Any], arrays: Sequence[Any], cores: Sequence[Core]) -> Any:
    """The call on all rows of the axes before the cores; what has no such axes is the same for all rows."""
    sizes: dict[str, Any] = {}
    for x, core in zip(arrays, cores, strict=True):
        if rank_of(x) < len(core):
            raise ShapeError(
                "vectorize: an argument has too few axes",
                expected=f"rank {len(core)} or more",
                got=f"rank {rank_of(x)}",
            )
        for name, size in zip(core, shape_of(x)[rank_of(x) - len(core) :], strict=True):
            known = sizes.setdefault(name, size)
            if None not in (known, size) and known != size:
                raise ShapeError(f"vectorize: sizes of {name} differ", expected=str(known), got=str(size))
    leading = [rank_of(x) - len(core) for x, core in zip(arrays, cores, strict=True)]
    if not any(leading):
        return call(*arrays)
    # Arrays of the leading axes alone: their sizes are all that counts.
    outer = joined_sizes("vectorize", [_outer(x, rank) for x, rank in zip(arrays, leading, strict=True)])
    rows = []
    for x, rank in zip(arrays, leading, strict=True):
        own = dims(x)[rank:]
        rows.append(reshaped(broadcast_to(x, (*outer, *own)), [times(outer), *own]) if rank else x)
    results = vmap(call, in_axes=tuple(0 if rank else None for rank in leading))(*rows)
    whole = [reshaped(x, [*outer, *dims(x)[1:]]) for x in (results if isinstance(results, tuple | list) else [results])]
    return tuple(whole) if isinstance(results, tuple | list) else whole[0]


def _outer(x: Any, rank: int) -> Any:
    """The first row of each core."""
    return x[(..., *[0] * (rank_of(x) - rank))] if rank_of(x) > rank else x


def apply_along_axis(func1d: Callable[..., Any], axis: int, arr: Any, *args: Any, **kwargs: Any) -> Any:
    """`func1d` of each vector along an axis, all of them at once; as `jax.numpy.apply_along_axis`.

    The axes of its result stand in place of that axis.

    >>> cnp.apply_along_axis(cnp.sort, 1, [[3, 1, 2], [9, 7, 8]])
    array([[1, 2, 3],
           [7, 8, 9]])
    """
    arr = operand("apply_along_axis", arr)
    place = axis_of("apply_along_axis", axis, rank_of(arr))
    if rank_of(arr) == 1:
        return func1d(arr, *args, **kwargs)
    last = moveaxis(arr, place, -1)
    outer = dims(last)[:-1]
    rows = vmap(lambda row: func1d(row, *args, **kwargs))(reshaped(last, [times(outer), dims(last)[-1]]))
    found = reshaped(rows, [*outer, *dims(rows)[1:]])
    own = rank_of(found) - len(outer)
    return moveaxis(found, tuple(range(len(outer), rank_of(found))), tuple(range(place, place + own)))


def frompyfunc(func: Callable[..., Any], /, nin: int, nout: int, *, identity: Any = None) -> ufunc:
    """A `ufunc` of a function of numbers; as `jax.numpy.frompyfunc`.

    >>> cnp.frompyfunc(lambda x, y: x * 10 + y, 2, 1).reduce([1, 2, 3])
    array(123)
    """
    return ufunc(vectorize(func), nin, nout, name=getattr(func, "__name__", None), identity=identity)
