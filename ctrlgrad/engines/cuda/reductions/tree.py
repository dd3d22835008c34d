"""Assignment of elements to threads, by the shape alone: a repeated computation has the same bits."""

from __future__ import annotations

from dataclasses import dataclass, replace

# Threads of a block, the most elements that one goes through where there are more threads, and the most blocks.
BLOCK, SERIAL, MOST_BLOCKS = 256, 32, 1 << 16
# The most bytes that a block's threads share without being asked for more.
SHARED = 48 << 10
# A thread has so many elements where they are few.
_FEW = 4
# Neighbouring results that a block reads together, at least: as many as a warp has threads.
_WARP = 32
# The most blocks of a scan that come from sharing rows: about two for each multiprocessor of a large card.
SCAN_BLOCKS = 256


@dataclass(frozen=True)
class Tree:
    """`lanes` threads share the elements of a result; `parts` blocks do, `span` elements each but the last."""

    lanes: int
    is_inner: bool
    parts: int
    span: int

    def blocks(self, results: int) -> int:
        """The blocks of a launch; those that there are too few of go on."""
        return min(-(-results // (BLOCK // self.lanes)) * self.parts, MOST_BLOCKS)


def tree(results: int, count: int, is_inner: bool) -> Tree:
    """For as many results, each of `count` elements; `is_inner`: the last axis is reduced."""
    most = BLOCK if is_inner else BLOCK // min(_power(results), _WARP)
    lanes = min(most, _power(-(-count // _FEW)))
    parts = max(-(-count // (lanes * SERIAL)), 1)
    return Tree(lanes, is_inner, parts, lanes * SERIAL if parts > 1 else count)


def scan_tree(results: int, count: int, is_inner: bool) -> Tree:
    """As `tree`, for scans: a row has several blocks where there are few rows. Each goes on through its part, a turn of
    as many elements as its threads have at once after the other."""
    its = tree(results, count, is_inner)
    turn, groups = its.lanes * SERIAL, -(-results // (BLOCK // its.lanes))
    turns = -(-count // turn)
    of_a_part = -(-turns // max(SCAN_BLOCKS // groups, 1))
    parts = -(-turns // of_a_part)
    return replace(its, parts=parts, span=of_a_part * turn if parts > 1 else count)


def _power(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()
