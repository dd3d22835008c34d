"""Exceptions of a run of a plan that are not the user's errors: the graph has to be run in another way."""

from __future__ import annotations

from ctrlgrad.plan.model import Assumption


class SizesDoNotFit(Exception):
    """Some op is not defined for the sizes that it meets; the reference kernels say what is wrong."""

    def __init__(self, text: str, callbacks: int) -> None:
        super().__init__(text)
        # Number of calls of the user's callbacks made so far.
        self.callbacks = callbacks


class NeedsAnotherPlan(Exception):
    """An assumption of the plan turned out to be false."""

    def __init__(self, assumption: Assumption, callbacks: int) -> None:
        super().__init__(assumption)
        self.assumption, self.callbacks = assumption, callbacks
