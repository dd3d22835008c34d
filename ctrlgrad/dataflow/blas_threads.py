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
from ctrlgrad.errors import UserInputError
from ctrlgrad.source import here

_LOG = logging.getLogger("ctrlgrad")


def _limit() -> Undo:
    if not _is_possible():
        _tell()
        return lambda: None
    from threadpoolctl import threadpool_limits

    undo: Undo = threadpool_limits(1, user_api="blas").restore_original_limits
    return undo


def _is_possible() -> bool:
    return importlib.util.find_spec("threadpoolctl") is not None


@functools.cache
def _tell() -> None:
    """Once."""
    _LOG.warning("devices share the cores with BLAS's own threads: install ctrlgrad[dataflow] for speed")


_SHARED = SharedSetting(_limit)


def single_threaded_products(*, is_required: bool = True) -> AbstractContextManager[None]:
    """One thread per matrix product, for a block of code.

    Args:
        is_required: whether to refuse where it cannot be had. A run whose speed alone depends on it goes on, and a
            warning says so once.

    Raises:
        UserInputError: the package threadpoolctl is missing, and it is required.
    """
    if is_required and not _is_possible():
        raise UserInputError(
            "matrix products cannot be made single-threaded",
            source=here(),
            expected="the package threadpoolctl",
            got="an installation without it",
            hint="pip install 'ctrlgrad[dataflow]'",
        )
    return _SHARED.held()


__all__ = ["single_threaded_products"]
