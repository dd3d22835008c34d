"""Access of kernels to their arguments: parameters, and words on the card that move from iteration to iteration."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ctrlgrad.engines.cuda.kernel import Parameter

NAME = "launched"
"""What kernels are called that are launched by their parameters."""


@dataclass(frozen=True)
class Access:
    """Access of a kernel to an argument's element: `strides` in bytes by the axes of its shape; None for a number.

    A kernel whose sizes are parameters has no strides here (()). The address, or the number, is the sum of a parameter
    (where it has one), of a word, and of what it moves by (where it moves): so much in each iteration, and for each of
    `others` so much each time that another word counts. Which words, and how much, are parameters too. An output that
    is a number is the condition of a graph, its parameter the condition's handle.
    """

    strides: tuple[int, ...] | None
    has_parameter: bool = True
    is_moving: bool = False
    others: int = 0


def declared(p: Parameter, access: Access) -> list[str]:
    """The parameters: a number's own value or an array's address, then the number of the word, and the step; and the
    numbers of other words, each with its step."""
    found = [f"const {p.dtype} n_{p.name}" if access.strides is None else f"char* b_{p.name}"] * access.has_parameter
    words = ("", *range(access.others)) if access.is_moving else ()
    return found + [f"const long long {letter}{k}_{p.name}" for k in words for letter in "ws"]


def address(p: Parameter, access: Access) -> str:
    """C expression of an array's address."""
    if not access.is_moving:
        return f"b_{p.name}"
    return f"b_{p.name} + {_moved(p, access)}" if access.has_parameter else f"(char*){_moved(p, access)}"


def number(p: Parameter, access: Access) -> str:
    """The value of a number."""
    return f"({p.dtype}){_moved(p, access)}" if access.is_moving else f"n_{p.name}"


def _moved(p: Parameter, access: Access) -> str:
    others = [f"words[w{k}_{p.name}] * s{k}_{p.name}" for k in range(access.others)]
    return f"({' + '.join([f'words[w_{p.name}]', f'iteration * s_{p.name}', *others])})"


def broadcast_strides(x: Any, shape: Sequence[int]) -> list[int]:
    """The strides of an array that is seen with a shape that it broadcasts to."""
    lead = len(shape) - len(x.shape)
    return [0] * lead + [0 if n == 1 else step for n, step in zip(x.shape, x.strides, strict=True)]


def joined_axes(
    shape: Sequence[int], axes: Iterable[int], strides: Sequence[Sequence[int]]
) -> tuple[list[int], list[list[int]]]:
    """Sizes and strides along some axes, as few as tell where their elements lie, in the same order."""
    sizes: list[int] = []
    found: list[list[int]] = [[] for _ in strides]
    for axis in axes:
        size, steps = shape[axis], [its[axis] for its in strides]
        if size == 1:
            continue
        if sizes and all(mine[-1] == size * step for mine, step in zip(found, steps, strict=True)):
            # The axis before goes on where this one ends.
            sizes[-1] *= size
            for mine, step in zip(found, steps, strict=True):
                mine[-1] = step
        else:
            sizes.append(size)
            for mine, step in zip(found, steps, strict=True):
                mine.append(step)
    return sizes, found
