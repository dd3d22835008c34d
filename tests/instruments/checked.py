"""`checked`: every plan that the native engine makes is judged before it runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock


@contextmanager
def checked() -> Iterator[None]:
    """Within it, a plan in which a read could find another value than it wants is a `PlanError`."""
    with mock.patch.dict(os.environ, {"CTRLGRAD_CHECK_PLANS": "1"}):
        yield
