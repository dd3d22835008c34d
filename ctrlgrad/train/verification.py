"""The gradient of the next step, beside the one that JAX computes from a forward graph for the whole batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import ctrlgrad as cg
from ctrlgrad import tree
from ctrlgrad.errors import UserInputError
from ctrlgrad.train.model import Model
from ctrlgrad.train.text import TextTask
from ctrlgrad.train.trainer import Job

# Both sides compute in float32 and add up in different orders: what is allowed, relative to a parameter's largest
# gradient entry. A wrong term or a lost iteration shows far above it.
TOLERANCE = 2e-5


@dataclass(frozen=True, slots=True)
class Row:
    """One parameter: the largest difference of any entry of its gradient, and how large it may be."""

    name: str
    shape: tuple[int, ...]
    error: float
    allowed: float

    @property
    def agrees(self) -> bool:
        return self.error <= self.allowed  # false where the error is not a number


@dataclass(frozen=True, slots=True)
class Comparison:
    """All parameters."""

    rows: tuple[Row, ...]

    @property
    def agrees(self) -> bool:
        return all(row.agrees for row in self.rows)

    @property
    def worst(self) -> str:
        """The names of the parameters that differ."""
        return ", ".join(row.name for row in self.rows if not row.agrees)


def needed_judge() -> Any:
    """The judge of `--verify`; raises `UserInputError` where JAX is not installed."""
    try:
        from ctrlgrad.verify.jax_judge import JaxJudge  # loads JAX, an extra
    except ImportError as error:
        raise UserInputError(
            "--verify: JAX is not installed", got=str(error), hint="pip install -e '.[jax]', or leave out --verify"
        ) from None
    return JaxJudge


def next_gradient(job: Job) -> Any:
    """The gradient of the batch that the next step takes, summed over the ranks. All ranks call this."""
    mine = job.task.share_at(job.state.step)
    _, grads = job.ranks.begin_sum(*job.task.value_and_grad(job.state.params, *mine.arguments))()
    return grads


def compare_with_jax(job: Job, grads: Any) -> Comparison:
    """Compare the `next_gradient` with the one that JAX finds. Needs JAX; raises `UserInputError` without it."""
    JaxJudge = needed_judge()
    task = job.task
    arguments = (job.state.params, *TextTask(task.settings, task.corpus).share_at(job.state.step).arguments)
    leaves, treedef = tree.flatten(job.state.params)
    whole = Model(task.settings, task.corpus.symbols)
    graph = cg.function(whole.bits_per_char).graph(*arguments)
    theirs = JaxJudge(graph, tree.leaves(arguments), range(len(leaves))).derivative().gradient
    rows = []
    for path, ours, judged in zip(tree.paths(treedef), tree.leaves(grads), theirs, strict=True):
        # In float64, so that the comparison itself rounds nothing.
        difference = np.abs(np.asarray(ours, np.float64) - np.asarray(judged, np.float64))
        allowed = TOLERANCE * float(np.max(np.abs(judged), initial=0.0))
        rows.append(Row(f"params{path}", ours.shape, float(np.max(difference, initial=0.0)), allowed))
    return Comparison(tuple(rows))
