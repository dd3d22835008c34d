"""What fixes a run: with the same settings and the same text, the same numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ctrlgrad.errors import UserInputError
from ctrlgrad.nn import CELLS

# Chosen so that a run with the default settings takes about a minute on two cores, two on the reference engine.
EMBEDDING = 64
PEAK_LEARNING_RATE = 1e-2
WARMUP_STEPS = 20
GRADIENT_NORM_LIMIT = 1.0
# Steps between lines of metrics.jsonl, and between checkpoints.
LOG_INTERVAL = 10
CHECKPOINT_INTERVAL = 50


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
        if self.cell not in CELLS:
            raise UserInputError("--cell: no such cell", expected=" or ".join(CELLS), got=repr(self.cell))
        for name, least in (("hidden", 1), ("layers", 1), ("batch", 1), ("steps", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise UserInputError(f"--{name}: too small", expected=f"at least {least}", got=str(getattr(self, name)))
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
