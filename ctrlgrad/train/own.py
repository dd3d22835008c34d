"""Training of a user's own loss: `Trainer`."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ctrlgrad import optim, tree
from ctrlgrad.advice import explains_calls
from ctrlgrad.errors import CtrlgradError, DifferentiationError, UserInputError
from ctrlgrad.function import function
from ctrlgrad.source import here
from ctrlgrad.train import checkpoint, folder
from ctrlgrad.train.checkpoint import Identity, State
from ctrlgrad.train.folder import CHECKPOINT
from ctrlgrad.train.metrics import Step
from ctrlgrad.train.ranks import Pressed
from ctrlgrad.train.settings import LOG_INTERVAL
from ctrlgrad.train.trainer import Job, OnStep, Share, run
from ctrlgrad.transforms.grad import value_and_grad


class _OwnTask:
    """A user's loss and data."""

    def __init__(self, loss: Any, data: Any, validation: Any, engine: str | None) -> None:
        self.value_and_grad = (
            function(value_and_grad(loss), engine=engine) if engine else function(value_and_grad(loss))
        )
        self._loss = function(loss, engine=engine) if engine else function(loss)
        self._written = loss
        self._data = data
        self._validation = validation

    def share_at(self, step: int) -> Share:
        found = self._data(step) if callable(self._data) else self._data[step % len(self._data)]
        arguments = _arguments(found)
        _check_call(self._written, arguments)
        sizes = [np.shape(leaf)[0] for leaf in tree.leaves(arguments) if np.ndim(leaf)]
        return Share(arguments, sizes[0] if sizes else 1)

    def validate(self, params: Any, pressed: Pressed) -> float | None:
        if self._validation is None:
            return None
        if callable(self._validation):
            return float(self._validation(params))
        losses = []
        for found in self._validation:
            losses.append(float(self._loss(params, *_arguments(found))))
            if pressed():
                return None
        return math.fsum(losses) / len(losses)

    def levels(self) -> tuple[None, None]:
        return None, None


def _arguments(batch: Any) -> tuple[Any, ...]:
    """The loss's further arguments."""
    return batch if isinstance(batch, tuple) else (batch,)


def _check_batches(name: str, data: Any) -> None:
    """Refuse data that are neither a function nor a sequence with a batch in it."""
    if callable(data):
        return
    # A loader of PyTorch has a length, and its batches are only iterated over.
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise UserInputError(
            f"train.Trainer: {name} is no sequence",
            expected=f"a sequence of batches, or a function of the {'step' if name == 'data' else 'parameters'}",
            got=type(data).__name__,
            hint=f"{name}=list(...), if all batches fit into memory",
        )
    if not len(data):
        raise UserInputError(
            f"train.Trainer: {name} is empty", expected="at least one batch", got=f"{type(data).__name__}"
        )


def _check_call(loss: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Refuse a batch that is not the loss's further arguments."""
    try:
        signature = inspect.signature(loss)
    except (TypeError, ValueError):  # a callable that does not tell
        return
    try:
        signature.bind(None, *arguments)
    except TypeError as error:
        kinds = [f"{x.dtype}{list(x.shape)}" if hasattr(x, "dtype") else type(x).__name__ for x in arguments]
        raise UserInputError(
            "train.Trainer: a batch does not fit the loss",
            expected=f"loss(params, *batch) with the signature {signature}",
            got=f"a batch of {', '.join(kinds)} ({error})",
            hint="data=[batch, ...], where a batch is a tuple of the loss's further arguments, or its one argument",
        ) from None


# Options of the command, which messages about a folder and its checkpoint name, and the arguments that they are here.
_ARGUMENTS = {"--out": "out=", "--resume": "resume=True", "of `ctrlgrad train`": "of this Trainer"}


@contextmanager
def _in_python() -> Iterator[None]:
    """Errors in a block of code in words of `Trainer`'s arguments."""
    try:
        yield
    except CtrlgradError as error:
        for part in ("problem", "expected", "got", "hint"):
            for option, argument in _ARGUMENTS.items():
                setattr(error, part, (getattr(error, part) or "").replace(option, argument) or None)
        if isinstance(error, DifferentiationError) and "has_aux" in (error.hint or ""):
            error.hint = "return the loss alone: `validation` may be a function that computes further figures"
        raise


@dataclass(frozen=True)
class Result:
    """Result of a `Trainer`: the parameters, the optimiser's state, and the figures of `summary.json`."""

    params: Any = field(repr=False)
    optimiser_state: Any = field(repr=False)
    steps: int
    validation: float | None
    best_validation: float | None
    seconds: float


class Trainer:
    """A run of any loss on any pytree of parameters, with metrics, validation, checkpoints, and exact resuming.

    Args:
        loss: `loss(params, *batch)`, a scalar that ctrlgrad can differentiate.
        params: a pytree of arrays, the first parameters.
        optimiser: of `ctrlgrad.optim`, or Optax's.
        data: the batches: a function of the step's number, or a sequence that is gone through again and again. A batch
            is a tuple of the loss's further arguments, or the one argument.
        steps: how many steps the run has.
        out: the folder for `metrics.jsonl`, `summary.json`, `loss.png` and `checkpoint.safetensors`; None for the
            first free runs/NUMBER.
        validation: a sequence of batches, whose mean loss is taken, or a function of the parameters.
        validation_interval, log_interval, checkpoint_interval: in steps; None validates five times in a run.
        patience: how many validations without a better one end the run; 0 for all steps.
        callbacks: functions that are called after each step with a `ctrlgrad.train.Step`.
        engine: what runs the steps, as in `ctrlgrad.function`.
        memory_budget: bytes of memory for saved values.
        resume: continue the run in `out`. The numbers are those of an unbroken run, if the loss, the data and the
            optimiser are functions of their arguments; `steps` may be larger.

    Raises `UserInputError` for data, optimisers and callbacks of another kind; when it runs, for a batch that the loss
    does not take, for a folder that holds a run (or none to resume), and where shapes or dtypes of the parameters
    differ from the checkpoint's. Raises `ExecutionError` where the loss is NaN or infinite.

    >>> import tempfile, numpy as np, ctrlgrad as cg
    >>> x = np.linspace(-1.0, 1.0, 32)
    >>> loss = lambda params, x, y: ((params["a"] * x + params["b"] - y) ** 2).mean()
    >>> first = {"a": np.array(0.0), "b": np.array(0.0)}
    >>> with tempfile.TemporaryDirectory() as out:
    ...     result = Trainer(loss, first, cg.optim.adam(0.1), [(x, 3 * x + 1)], steps=200, out=out).run()
    >>> round(float(result.params["a"]), 2), result.steps
    (3.0, 200)
    """

    @explains_calls
    def __init__(
        self,
        loss: Callable[..., Any],
        params: Any,
        optimiser: optim.GradientTransformation,
        data: Callable[[int], Any] | Sequence[Any],
        *,
        steps: int,
        out: Path | str | None = None,
        validation: Callable[[Any], float] | Sequence[Any] | None = None,
        validation_interval: int | None = None,
        log_interval: int = LOG_INTERVAL,
        checkpoint_interval: int = 50,
        patience: int = 0,
        callbacks: Sequence[OnStep] = (),
        engine: str | None = None,
        memory_budget: int | None = None,
        resume: bool = False,
    ) -> None:
        _check_batches("data", data)
        if validation is not None:
            _check_batches("validation", validation)
            for found in () if callable(validation) else validation:
                _check_call(loss, _arguments(found))
        if not (hasattr(optimiser, "init") and hasattr(optimiser, "update")):
            raise UserInputError(
                "train.Trainer: this is no optimiser",
                expected="one of ctrlgrad.optim or of Optax, with `init` and `update`",
                got=getattr(optimiser, "__name__", type(optimiser).__name__),
                hint="ctrlgrad.optim.adam(1e-3)",
            )
        if callable(callbacks):
            raise UserInputError(
                "train.Trainer: the callbacks are no sequence",
                expected="a list of functions of a Step",
                got=type(callbacks).__name__,
                hint="callbacks=[function]",
            )
        for name, value in (
            ("steps", steps),
            ("log_interval", log_interval),
            ("checkpoint_interval", checkpoint_interval),
        ):
            if value < 1:
                raise UserInputError(
                    f"train.Trainer: {name} is too small", source=here(), expected="1 or more", got=str(value)
                )
        self.task = _OwnTask(loss, data, validation, engine)
        self.params = tree.map(np.asarray, params)
        self.optimiser = optimiser
        self.out = None if out is None else Path(out)
        self.callbacks = tuple(callbacks)
        self.resume = resume
        self._options: dict[str, Any] = {
            "steps": steps,
            "log_interval": log_interval,
            "validation_interval": validation_interval,
            "checkpoint_interval": checkpoint_interval,
            "patience": patience,
            "memory_budget": memory_budget,
        }

    def run(self) -> Result:
        """Train to the last step. Raises `Interrupted` on Ctrl-C, after it has written a checkpoint."""
        state = State(0, self.params, self.optimiser.init(self.params))
        # A checkpoint belongs to the structure of parameters and optimiser.
        like = [(name, a.dtype.name, a.shape) for name, a in checkpoint.named((state.params, state.optimiser)).items()]
        identity = Identity(dict(self._options), hashlib.sha256(repr(like).encode()).hexdigest(), None)
        with _in_python(), folder.held(self.out, self.resume) as out:
            if self.resume:
                state = checkpoint.read(out / CHECKPOINT).state(state)
                if state.step > self._options["steps"]:
                    raise UserInputError(
                        "train.Trainer: the run in this folder has more steps",
                        expected=f"steps of {state.step} or more",
                        got=str(self._options["steps"]),
                        hint="raise steps, or name another folder as out=...",
                    )
            job = Job(self.task, self.optimiser, out, state, identity, **self._options)

            def on_step(step: Step) -> None:
                for callback in self.callbacks:
                    try:
                        callback(step)
                    except StopIteration as error:  # it would end the generators around this call
                        raise UserInputError(
                            "train.Trainer: a callback raised StopIteration",
                            expected="a callback that returns",
                            got=f"StopIteration after step {step.step}",
                            hint="patience= ends a run early; so does KeyboardInterrupt, and resume=True continues it",
                        ) from error

            summary, state = run(job, on_step)
        best = None if math.isinf(state.best) else state.best
        figures = summary.steps, summary.validation_bits_per_char, best, summary.seconds
        return Result(state.params, state.optimiser, *figures)


@explains_calls
def read_params(run: Path | str, like: Any, best: bool = False) -> Any:
    """The parameters in the folder of a `Trainer`'s run, as a pytree like the given one.

    Raises `UserInputError` where there is no checkpoint, or where shapes or dtypes differ.
    """
    path = Path(run) / (folder.BEST if best else CHECKPOINT)
    return checkpoint.read(path, "RUN").params(tree.map(np.asarray, like))
