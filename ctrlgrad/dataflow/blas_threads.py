"""Products single-threaded while several devices compute: a thread per device is what uses the cores.

BLAS libraries have one number of threads per process, so it is set for as long as any such run lasts and put back at
the end; runs at once share one setting. OpenBLAS's call for the calling thread alone changes the number of all, too.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_LOG = logging.getLogger("ctrlgrad")


class _Shared:
    """How many runs hold the limit, and what takes it away."""

    lock = threading.Lock()
    holders = 0
    limit: Any = None
    has_told = False


@contextmanager
def single_threaded_products() -> Iterator[None]:
    """One thread per matrix product, for a block of code; needs threadpoolctl (the extra `dataflow`)."""
    if importlib.util.find_spec("threadpoolctl") is None:
        if not _Shared.has_told:
            _LOG.warning("devices share the cores with BLAS's own threads: install ctrlgrad[dataflow] for speed")
            _Shared.has_told = True
        yield
        return
    from threadpoolctl import threadpool_limits

    with _Shared.lock:
        if not _Shared.holders:
            _Shared.limit = threadpool_limits(1, user_api="blas")
        _Shared.holders += 1
    try:
        yield
    finally:
        with _Shared.lock:
            _Shared.holders -= 1
            if not _Shared.holders:
                _Shared.limit.restore_original_limits()
                _Shared.limit = None


__all__ = ["single_threaded_products"]
