"""A program whose forward pass keeps what the backward pass needs, where that is to come at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.batching import batch_whole
from ctrlgrad.execution import run_on
from ctrlgrad.gradients.adjoint import Pullback
from ctrlgrad.gradients.reverse import reverse
from ctrlgrad.interop.program import Program
from ctrlgrad.options import current_options
from ctrlgrad.passes.dead_code import without_calls
from ctrlgrad.results import hand_out


@dataclass(frozen=True, eq=False)
class Residuals:
    """What a forward pass has left for the backward pass with respect to the arguments at `wrt`."""

    wrt: tuple[int, ...]
    values: list[Any]


class TorchProgram(Program):
    """A program that `torch.autograd` runs forwards and, with what that run has kept, backwards."""

    def run_and_keep(self, wrt: tuple[int, ...], *arrays: Any) -> tuple[list[np.ndarray], Residuals]:
        """The results, and what `run_backward` needs to pull cotangents of them back to the arguments at `wrt`."""
        forward = without_calls(self._halves(wrt).forward)
        found = run_on(self.engine, forward, arrays, current_options().check_nans)
        count = len(self.results)
        kept = found[count:]
        return hand_out(self.graph, found[:count], [*arrays, *kept]), Residuals(wrt, kept)

    def run_backward(self, residuals: Residuals, cotangents: Sequence[Any]) -> list[np.ndarray]:
        """The cotangents of the arguments at `residuals.wrt`, of one for each result that is a float."""
        backward = without_calls(self._halves(residuals.wrt).backward)
        given = [*residuals.values, *cotangents]
        return hand_out(backward, run_on(self.engine, backward, given, current_options().check_nans), given)

    def _halves(self, wrt: tuple[int, ...]) -> Pullback:
        halves: Pullback = self._once(("halves", wrt), lambda: reverse(self.graph, wrt, self.floats, batch_whole))
        return halves


__all__ = ["Residuals", "TorchProgram"]
