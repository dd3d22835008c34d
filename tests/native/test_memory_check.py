"""What the checker of memory traces says of traces written by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ctrlgrad.engines.native.memory_check import MemoryTraceError, check
from ctrlgrad.engines.native.memory_trace import (
    Access,
    Bind,
    Branch,
    Count,
    Enter,
    Event,
    Given,
    Joined,
    Kernel,
    Loop,
    Pushed,
    Rename,
    Slot,
    Swap,
)

DOUBLE_BUFFER = (
    Given("a", "start"),
    Rename((("carry", "start"),)),
    Loop(
        (Bind("A", "a"), Bind("B", "b")),
        (
            Enter(("old", "new")),
            Rename((("old", "carry"),)),
            Kernel((Access("A", "i", "old"),), (Access("B", "i", "new"),)),
            Kernel((Access("A", "i", "old"),), ()),
            Rename((("carry", "new"),)),
            Swap("a", "b"),
        ),
    ),
    Kernel((Access("A", "i", "carry"),), ()),
)


def _with_body(change: Callable[[list[Event]], Sequence[Event]]) -> list[Event]:
    given, named, loop, after = DOUBLE_BUFFER
    assert isinstance(loop, Loop)
    return [given, named, Loop(loop.head, tuple(change(list(loop.body)))), after]


def test_a_double_buffer() -> None:
    check(DOUBLE_BUFFER)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda body: body[:-1], "a read wants new@0 in a, which holds start"),
        (lambda body: [*body[:2], Kernel(body[2].reads, (Access("A", "i", "new"),)), *body[3:]], "wants start in a"),
        (lambda body: [*body[:2], *body[3:]], "which holds"),
    ],
    ids=["no swap", "in place", "not computed"],
)
def test_a_double_buffer_gone_wrong(change: Any, message: str) -> None:
    with pytest.raises(MemoryTraceError, match=message):
        check(_with_body(change))


def test_an_update_where_it_is_read_elsewhere() -> None:
    shifted = Kernel((Access("a", "i + 1", "x"),), (Access("a", "i", "y"),))
    with pytest.raises(MemoryTraceError, match=r"x is read at i \+ 1 of a while that is written"):
        check([Given("a", "x"), shifted])
    check([Given("a", "x"), Kernel((Access("a", "i", "x"),), (Access("a", "i", "y"),))])


def test_each_branch_is_taken() -> None:
    right, wrong = (Kernel((), (Access(buffer, "i", "y"),)) for buffer in "ba")
    read = Kernel((Access("a", "i", "x"),), ())
    check([Given("a", "x"), Branch(((right,), (right,))), read])
    with pytest.raises(MemoryTraceError, match="wants x in a, which holds y"):
        check([Given("a", "x"), Branch(((right,), (wrong,))), read])


def test_a_row_that_is_overwritten_after_it_was_pushed() -> None:
    push = [Slot("o", "S", 0), Kernel((), (Access("S", "o + i", "y"),)), Count("S", 1), Pushed("S", "y")]
    check([Loop((), tuple(push))])
    with pytest.raises(MemoryTraceError, match="stack S has to hold y@0"):
        check([Loop((), (*push, Kernel((), (Access("S", "o + i", "z"),))))])
    with pytest.raises(MemoryTraceError, match="rows more than were pushed"):
        check([Loop((), (*push, Count("S", 1)))])


def test_parts_of_a_concatenation() -> None:
    parts = [Kernel((), (Access("a", "i", name, (k,)),)) for k, name in enumerate("xy")]
    whole = Joined("a", "0", (), "z", ("x", "y"))
    read = Kernel((Access("a", "i", "z"),), ())
    check([*parts, whole, read])
    with pytest.raises(MemoryTraceError, match="part 1 of z has to be y"):
        check([parts[0], whole])
    with pytest.raises(MemoryTraceError, match="wants z"):
        check([*parts, whole, Kernel((), (Access("a", "i", "new", (0,)),)), read])
