"""What fixes a run: with the same settings and the same text, the same numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ctrlgrad.errors import UserInputError
from ctrlgrad.train.layers import LAYERS

# Chosen so that a run with the default settings takes about a minute on two cores, two on the reference engine.
EMBEDDING = 64
WARMUP_STEPS = 20
GRADIENT_NORM_LIMIT = 1.0
# Steps between lines of metrics.jsonl, and between checkpoints.
LOG_INTERVAL = 10
# How often a run is validated, its end included: a time over the whole validation part costs some dozen steps.
VALIDATIONS = 5
CHECKPOINT_INTERVAL = 50
ENGINES = ("native", "reference", "cuda", "dataflow")
# The least and the most of each number. Beyond 2**53 steps the learning rate's schedule would not be exact.
LIMITS = {
    "hidden": (1, 1 << 31),
    "layers": (1, 1 << 31),
    "batch": (1, 1 << 31),
    "steps": (1, 1 << 53),
    "seed": (0, (1 << 64) - 1),
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
    # Whether the layers sit on devices of their own; the engine is then "dataflow".
    pipeline: bool = False

    def __post_init__(self) -> None:
        if self.cell not in LAYERS:
            raise UserInputError("--cell: no such cell", expected=" or ".join(LAYERS), got=repr(self.cell))
        if self.engine not in ENGINES:
            raise UserInputError("--engine: no such engine", expected=" or ".join(ENGINES), got=repr(self.engine))
        for name, (least, most) in LIMITS.items():
            if not least <= getattr(self, name) <= most:
                raise UserInputError(
                    f"--{name}: too small or too large",
                    expected=f"at least {least}, and at most {most}",
                    got=str(getattr(self, name)),
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

    def as_dict(self) -> dict[str, str | int | None]:
        return asdict(self)

    def continued(self, given: Mapping[str, Any]) -> Settings:
        """The settings of a run that goes on with these, where some options are given once more.

        `steps` may be larger than before. Raises `UserInputError`, which names the options, where others differ.
        """
        different = {name: value for name, value in given.items() if value != getattr(self, name)}
        more = different.pop("steps", self.steps)
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
        return replace(self, steps=more)


def _as_option(name: str, value: Any) -> str:
    """As it stands on the command line.

    >>> _as_option("memory_budget", None), _as_option("pipeline", True), _as_option("hidden", 8)
    ('no --memory-budget', '--pipeline', '--hidden 8')
    """
    option = "--" + name.replace("_", "-")
    if value is None or value is False:
        return f"no {option}"
    return option if value is True else f"{option} {value}"
