"""The policies of a chunk, and which share of a loop's chunks to copy away or to compute again.

A chunk that leaves the device costs either its copies, which run beside the computation, or a second run. With f and b
the seconds that a chunk computes forward and backward, x and y those of its copies out and in, and p the share of
chunks that are copied, the time per chunk is

    max(f, p x) + max(b + (1 - p) f, p y)

which is least at one of its corners.
"""

from __future__ import annotations

from typing import Literal

from ctrlgrad.records import record

Policy = Literal["keep", "copy", "recompute"]
# The reason of a chunk's policy, before anything had to leave.
UNDECIDED = "not decided yet"


@record
class ChunkTimes:
    """Seconds of one chunk: computed forward and backward, copied out and in."""

    forward: float
    backward: float
    out: float
    into: float

    def per_chunk(self, share: float) -> float:
        """Seconds per chunk when a share of the chunks is copied and the rest is computed again."""
        again = (1 - share) * self.forward
        return max(self.forward, share * self.out) + max(self.backward + again, share * self.into)


def copied_share(times: ChunkTimes) -> float:
    """The share of chunks that are best copied; the rest is best computed again.

    >>> copied_share(ChunkTimes(forward=1.0, backward=2.0, out=0.9, into=0.9))
    1.0
    >>> copied_share(ChunkTimes(forward=1.0, backward=2.0, out=2.0, into=2.0))
    0.5
    """
    corners = [0.0, 1.0]
    if times.out > 0:
        corners.append(times.forward / times.out)
    if times.into + times.forward > 0:
        corners.append((times.backward + times.forward) / (times.into + times.forward))
    possible = [share for share in corners if 0 <= share <= 1]
    # Of equals the one that computes least again.
    return min(possible, key=lambda share: (round(times.per_chunk(share), 12), -share))


def uncopied_bytes(limit: int, chunk_bytes: int) -> int:
    """Bytes of blocks without a backup that may stay on the device: what would still fit at the end is not copied.

    >>> uncopied_bytes(1600, 100), uncopied_bytes(300, 100)
    (650, 0)
    """
    return max(0, limit // 2 - 3 * chunk_bytes // 2)


__all__ = ["UNDECIDED", "ChunkTimes", "Policy", "copied_share", "uncopied_bytes"]
