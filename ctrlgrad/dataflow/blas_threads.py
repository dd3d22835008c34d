"""Products single-threaded while several devices compute: a thread per device is what uses the cores.

BLAS libraries have one number of threads per process; OpenBLAS's call for the calling thread alone changes the number
of all, too.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
from contextlib import AbstractContextManager

from ctrlgrad.dataflow.shared_settings import SharedSetting, Undo

_LOG = logging.getLogger("ctrlgrad")


def _limit() -> Undo:
    if importlib.util.find_spec("threadpoolctl") is None:
        _tell()
        return lambda: None
    from threadpoolctl import threadpool_limits

    undo: Undo = threadpool_limits(1, user_api="blas").restore_original_limits
    return undo


@functools.cache
def _tell() -> None:
    """Once."""
    _LOG.warning("devices share the cores with BLAS's own threads: install ctrlgrad[dataflow] for speed")


_SHARED = SharedSetting(_limit)


def single_threaded_products() -> AbstractContextManager[None]:
    """One thread per matrix product, for a block of code; needs threadpoolctl (the extra `dataflow`)."""
    return _SHARED.held()


__all__ = ["single_threaded_products"]
