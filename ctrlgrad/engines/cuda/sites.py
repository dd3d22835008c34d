"""Position of a run when the card found an index out of range: the op, and the iterations of the loops around it.

A kernel that goes by indices is given a number, its *site*, and notes that with the index (see
`ctrlgrad.engines.cuda.indexing`). Of a kernel that is launched by itself the number stands for a `Moment`: the host
knows the iterations. A prepared list is launched for many iterations at once, by the same arguments from run to run of
a loop. There the number stands for a `Site`, and the kernel notes words of the card's, too: the number of the moment at
which the run of iterations began, how many of them there were before, and the same of each loop inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ctrlgrad.engines.reference import Run
from ctrlgrad.engines.reference.control_kernels import in_iteration, note
from ctrlgrad.engines.reference.stack_kernels import beyond_the_slots, written_twice
from ctrlgrad.errors import CtrlgradError, IndexOutOfRangeError
from ctrlgrad.ir import Node, StackType, attributes

INT64 = np.dtype(np.int64)
FLAG_WORDS = 16
"""The words in which the first index is noted that is out of range: the site, the index, the size of its axis, and
words of a list; zeros where there is none."""
# Words before the words of a list.
_OWN = 3
MOST_NOTED = FLAG_WORDS - _OWN
# Moments that are remembered: when there are more, the host looks whether anything was noted, and forgets them.
MOMENTS = 4096


@dataclass(frozen=True)
class Moment:
    """Loops around one another and their iterations, the outermost first; and the op that is launched, if it is one."""

    loops: tuple[Node, ...]
    iterations: tuple[int, ...]
    node: Node | None = None


@dataclass(frozen=True)
class Site:
    """An op in a list, and the loops of the list around it, the outermost first."""

    node: Node
    loops: tuple[Node, ...]
    dtype: np.dtype = INT64


class Sites:
    """Meaning of one run's numbers: moments and sites."""

    def __init__(self) -> None:
        # Numbers of moments begin with 1; as sites they are below 0.
        self._moments: dict[Moment, int] = {}
        self._sites: dict[Site, int] = {}

    @property
    def is_full(self) -> bool:
        return len(self._moments) >= MOMENTS

    def forget_moments(self) -> None:
        """Nothing was noted at any of them."""
        self._moments.clear()

    def moment(self, its: Moment) -> int:
        return self._moments.setdefault(its, len(self._moments) + 1)

    def listed(self, its: Site) -> int:
        """The same from run to run of a list."""
        return self._sites.setdefault(its, len(self._sites) + 1)

    def error(self, flag: Sequence[int]) -> CtrlgradError | None:
        """The noted index error, as the error of its iteration; None where there is none."""
        number, index, size, *words = flag
        if not number:
            return None
        if number < 0:
            moment = self._at(-number)
            assert moment.node is not None
            error = _error(moment.node, index, size)
            _add_notes(error, moment.loops, moment.iterations, len(moment.loops))
            return error
        site = next(x for x, n in self._sites.items() if n == number)
        moment, error = self._at(words[0]), _error(site.node, index, size)
        *outside, began = moment.iterations
        ran, *inside = words[1 : 2 + len(site.loops)]
        step = -1 if attributes.Loop.of(moment.loops[-1]).counts_down else 1
        _add_notes(error, (*moment.loops, *site.loops), (*outside, began + step * ran, *inside), len(moment.loops))
        return error

    def _at(self, number: int) -> Moment:
        return next(x for x, n in self._moments.items() if n == number)


def _error(node: Node, index: int, size: int) -> CtrlgradError:
    if any(isinstance(v.type, StackType) for v in node.operands):
        error = beyond_the_slots(index, size) if not -size <= index < size else written_twice(index % size)
        error.source = node.source
        return error
    return IndexOutOfRangeError(
        f"{node.op.name}: index {index} is out of bounds for an axis with size {size}",
        source=node.source,
        expected=f"-{size} <= index < {size}",
        got=f"index {index}; operands {', '.join(str(v.type) for v in node.operands)}",
        hint="clip the index, or let the loop end before it leaves the array",
    )


def _add_notes(error: CtrlgradError, loops: Sequence[Node], iterations: Sequence[int], known: int) -> None:
    """As the loops themselves add them to an error, the innermost first.

    Args:
        known: the number of outer loops whose iterations have forward numbers; loops inside a list count from 0.
    """
    for depth in reversed(range(len(loops))):
        loop, of_loop = loops[depth], attributes.Loop.of(loops[depth])
        if depth < known or not of_loop.counts_down:
            note(error, loop, iterations[depth], Run(iterations=list(iterations[: depth + 1])))
        elif of_loop.chunks_of is None:
            error.add_note(in_iteration(loop, iterations[depth], from_the_end=True))
