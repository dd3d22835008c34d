"""Raising an error that something else keeps."""

from __future__ import annotations

import copy


def raised(failure: BaseException) -> BaseException:
    """A copy of a failure, to be raised.

    The failure itself is kept by events and marks; a traceback on it would keep the caller's arrays alive with them.
    """
    try:
        return copy.copy(failure).with_traceback(None)
    except Exception:
        # Not every class of exceptions can be copied.
        return failure


__all__ = ["raised"]
