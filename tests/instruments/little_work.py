"""`shared_by`: threads share the nests of small programs too, which they would leave to one of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from ctrlgrad import threads as cost_model
from ctrlgrad.engines.native import ahead
from ctrlgrad.engines.native.products.library import products
from ctrlgrad.plan import sharing
from ctrlgrad.plan.model import Kernel
from ctrlgrad.plan.sizes import ONE, product

# In instructions for one element: what a nest must have, and a part.
WORK, PART = 12, 4
_work_of = sharing.work_of


def _work_of_several(kernel: Kernel) -> int:
    """None where there is one point, which has no parts: by itself it never has enough to be shared."""
    return 0 if product(kernel.space) == ONE else _work_of(kernel)


@contextmanager
def shared_by(threads: int) -> Iterator[None]:
    """Within it, the native engine makes code for so many threads; none that was kept, and none is kept."""
    before = products().threads
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, {"CTRLGRAD_CACHE_DIR": folder}),
        mock.patch.multiple(cost_model, WORK_TO_SHARE=WORK, WORK_OF_A_PART=PART),
        mock.patch.object(sharing, "work_of", _work_of_several),
    ):
        products().set_threads(threads)
        try:
            yield
        finally:
            products().set_threads(before)
            # Code written to disk a moment later would enter the folder during its removal.
            ahead.catch_up()


__all__ = ["shared_by"]
