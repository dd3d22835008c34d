"""Tracing the body of a loop until its carry has settled, at a cost that does not double with every loop around it.

What is learned of a carry (a dtype, an array's element) is learned by tracing the body, which is then traced once more.
In a nest of loops that all learn, each would trace the loops inside it twice, the innermost body 2**depth times.

So a body that may teach something is traced as a guess at first: a loop in it that learns stops there, and hands out
results of the types that it has learned so far without a node that makes them. If the carry around learns from it, the
guess has served; if not, or if the guess is in error, the body is traced in earnest. A guess calls each body once, so
the innermost body of a nest is called once more with every level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, Protocol, Self, TypeVar

from ctrlgrad.frontend.tracer import Traced
from ctrlgrad.records import record


class Learner(Protocol):
    """Carry of a loop, as far as its types are known."""

    @property
    def may_learn(self) -> bool:
        """True if tracing the body can still settle a type."""

    def settle(self, result: Any) -> Self | None:
        """Return the carry to trace the body with again, given the body's result; None if the result fits."""


L = TypeVar("L", bound=Learner)


@record(frozen=False)
class _Guess:
    """A body that is traced for what it teaches. `has_gaps`: a loop in it has not been recorded."""

    has_gaps: bool = False


_GUESS: ContextVar[_Guess | None] = ContextVar("the guess that goes on", default=None)


@contextmanager
def _guessing(guess: _Guess) -> Iterator[None]:
    token = _GUESS.set(guess)
    try:
        yield
    finally:
        _GUESS.reset(token)


@record
class Settled(Generic[L]):
    """The carry, the body as it was traced last, and whether that is the loop's: else the loop stands in a guess."""

    carry: L
    body: Traced
    is_final: bool


def settle(
    carry: L, trace_body: Callable[[L], Traced], following: Callable[[Traced], Any] = lambda body: body.result
) -> Settled[L]:
    """Trace the body for better and better carries until it yields what it is given; `following` is its next carry."""
    around = _GUESS.get()
    while True:
        if carry.may_learn:
            guess = _Guess()
            try:
                with _guessing(guess):
                    body = trace_body(carry)
                better = carry.settle(following(body))
            except Exception:
                if not guess.has_gaps:
                    raise
            else:
                if better is None and not guess.has_gaps:
                    return Settled(carry, body, is_final=True)
                if around is not None:
                    around.has_gaps = True
                    return Settled(better or carry, body, is_final=False)
                if better is not None:
                    carry = better
                    continue
        body = trace_body(carry)
        better = carry.settle(following(body))
        if better is None:
            return Settled(carry, body, is_final=True)
        carry = better
