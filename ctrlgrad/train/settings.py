"""Settings that fix a run: with the same settings and the same text, the same numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ctrlgrad import optim
from ctrlgrad.advice import check_choice
from ctrlgrad.engines import ENGINES
from ctrlgrad.errors import UserInputError
from ctrlgrad.train.corpus import TOKENS, Reading
from ctrlgrad.train.layers import LAYERS

# Steps between lines of metrics.jsonl.
LOG_INTERVAL = 10
# How often a run is validated where no interval is given: a pass over the validation part costs some dozen steps.
VALIDATIONS = 5
OPTIMISERS = ("adam", "adamw", "sgd", "rmsprop", "adagrad", "lion")
SCHEDULES = ("cosine", "constant", "linear")
PRECISIONS = ("float32", "float64", "bfloat16")
CHOICES = {
    "cell": tuple(LAYERS),
    "engine": tuple(name for name in ENGINES if name != "auto"),
    "optimiser": OPTIMISERS,
    "schedule": SCHEDULES,
    "tokens": TOKENS,
    "precision": PRECISIONS,
}
# The least and the most of each number. Beyond 2**53 steps the learning rate's schedule would not be exact.
LIMITS = {
    "hidden": (1, 1 << 31),
    "layers": (1, 1 << 31),
    "embedding": (1, 1 << 31),
    "batch": (1, 1 << 31),
    "steps": (1, 1 << 53),
    "schedule_steps": (1, 1 << 53),
    "warmup": (0, 1 << 53),
    "seed": (0, (1 << 64) - 1),
    "learning_rate": (0.0, 1e6),
    "clip": (0.0, 1e30),
    "weight_decay": (0.0, 1.0),
    "dropout": (0.0, 0.999),
    "truncate": (0, 1 << 31),
    "line_limit": (0, 1 << 31),
    "vocabulary": (0, 1 << 31),
    "validation_interval": (1, 1 << 53),
    "checkpoint_interval": (1, 1 << 53),
    "patience": (0, 1 << 31),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of `ctrlgrad train` that its numbers depend on, beside the text."""

    cell: str = "lstm"
    hidden: int = 128
    layers: int = 1
    batch: int = 32
    steps: int = 500
    seed: int = 0
    # Engines agree within rounding, not to the bit: a run keeps to one.
    engine: str = "reference"
    # Bytes of device memory for saved values; it decides how long chunks are, and so the last bits of sums.
    memory_budget: int | None = None
    # True if the layers sit on devices of their own; the engine is then "dataflow".
    pipeline: bool = False
    embedding: int = 64
    # The highest learning rate; None for the cell's own.
    learning_rate: float | None = None
    schedule: str = "cosine"
    # The step at which the schedule ends: as many as the run has at first, where it is not given.
    schedule_steps: int | None = None
    warmup: int = 20
    optimiser: str = "adam"
    # The largest norm of all gradients taken as one vector; 0 for no clipping.
    clip: float = 1.0
    weight_decay: float = 0.0
    dropout: float = 0.0
    # The most steps through which a gradient goes back; 0 for all.
    truncate: int = 0
    tokens: str = "character"
    line_limit: int = 256
    vocabulary: int = 0
    # True if lines of like length stand in one batch.
    buckets: bool = False
    precision: str = "float32"
    # Steps between validations; None for five times in a run.
    validation_interval: int | None = None
    checkpoint_interval: int = 50
    # How many validations without a better one end the run; 0 for all steps.
    patience: int = 0

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            check_choice(f"--{name}", name, getattr(self, name), choices)
        for name, (least, most) in LIMITS.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise UserInputError(
                    f"--{name.replace('_', '-')}: too small or too large",
                    expected=f"at least {least}, and at most {most}",
                    got=str(value),
                )
        multiple = LAYERS[self.cell].multiple
        if self.hidden % multiple:
            raise UserInputError(
                f"--hidden: does not fit --cell {self.cell}",
                expected=f"a multiple of {multiple}, for pairs of features in each head",
                got=str(self.hidden),
            )
        if self.pipeline and self.layers < 2:
            raise UserInputError("--pipeline: nothing to split", expected="--layers 2 or more", got="--layers 1")
        if self.pipeline and self.engine != "dataflow":
            raise UserInputError(
                "--pipeline: layers on devices of their own run on the dataflow engine",
                expected="no --engine",
                got=f"--engine {self.engine}",
                hint="leave out --engine, or --pipeline",
            )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def schedule_end(self) -> int:
        """The step at which the schedule of the learning rate ends."""
        return self.steps if self.schedule_steps is None else self.schedule_steps

    def rate(self) -> optim.Schedule:
        """The learning rate as a function of the step, after the steps of the warm-up."""
        peak = LAYERS[self.cell].peak_learning_rate if self.learning_rate is None else self.learning_rate
        end = self.schedule_end
        warmup = min(self.warmup, end)
        rising = optim.linear_schedule(peak / (warmup + 1), peak, warmup)
        after = {
            "constant": lambda: optim.constant_schedule(peak),
            "linear": lambda: optim.linear_schedule(peak, 0.1 * peak, end + 1 - warmup),
            "cosine": lambda: optim.cosine_decay_schedule(peak, end + 1 - warmup, 0.1),
        }[self.schedule]()
        return optim.join_schedules([rising, after], [warmup])

    def transformation(self, rate: float | None = None) -> optim.GradientTransformation:
        """The optimiser of the run; with a constant rate in place of the schedule where one is given."""
        make, scheduled = getattr(optim, self.optimiser), self.rate() if rate is None else rate
        decays = self.optimiser in ("adamw", "lion")
        optimiser = make(scheduled, weight_decay=self.weight_decay) if decays else make(scheduled)
        first = [optim.clip_by_global_norm(self.clip)] if self.clip else []
        if self.weight_decay and not decays:
            first.append(optim.add_decayed_weights(self.weight_decay))
        return optim.chain(*first, optimiser)

    @property
    def reading(self) -> Reading:
        return Reading(self.tokens, self.line_limit, self.vocabulary)

    def continued(self, given: Mapping[str, Any]) -> Settings:
        """Return the settings for resuming a run that has these: with the `given` options in place of its own.

        Only `steps` and `schedule_steps` may differ. With more steps alone, the schedule of the learning rate keeps its
        length, and the steps after it have its last rate. Raises `UserInputError` that names the other options that
        differ.
        """
        different = {name: value for name, value in given.items() if value != getattr(self, name)}
        more = different.pop("steps", self.steps)
        if "schedule_steps" in different:
            end = different.pop("schedule_steps")
        else:  # as long as it was: the steps after it have the rate that it ends with
            end = self.schedule_steps if more == self.steps else self.schedule_end
        if different:
            raise UserInputError(
                "--resume: the run in this folder has other settings",
                expected=", ".join(_as_option(name, getattr(self, name)) for name in different),
                got=", ".join(_as_option(name, value) for name, value in different.items()),
                hint="leave these options out: a run goes on with its own; or start another run in another --out",
            )
        if more < self.steps:
            raise UserInputError(
                "--resume: the run in this folder has more steps",
                expected=f"--steps {self.steps} or more",
                got=f"--steps {more}",
                hint="leave out --steps, or start another run in another --out",
            )
        return replace(self, steps=more, schedule_steps=end)


def _as_option(name: str, value: Any) -> str:
    """As it stands on the command line.

    >>> _as_option("memory_budget", None), _as_option("pipeline", True), _as_option("hidden", 8)
    ('no --memory-budget', '--pipeline', '--hidden 8')
    """
    option = "--" + name.replace("_", "-")
    if value is None or value is False:
        return f"no {option}"
    return option if value is True else f"{option} {value}"
