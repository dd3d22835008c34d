"""Names that options of `ctrlgrad train` take: typer asks for enumerations, and `--help` loads nothing else."""

from __future__ import annotations

from enum import Enum


class CellName(str, Enum):  # noqa: UP042  typer takes both; this one's values print as plain text everywhere
    """Kinds of layers; a test compares them with `ctrlgrad.train.layers`."""

    lstm = "lstm"
    gru = "gru"
    rnn = "rnn"
    transformer = "transformer"


class OptimiserName(str, Enum):  # noqa: UP042  as above
    """Optimisers of `ctrlgrad.optim`; a test holds it true to `ctrlgrad.train.settings`."""

    adam = "adam"
    adamw = "adamw"
    sgd = "sgd"
    rmsprop = "rmsprop"
    adagrad = "adagrad"
    lion = "lion"


class ScheduleName(str, Enum):  # noqa: UP042  as above
    """Schedules of the learning rate; a test holds it true to `ctrlgrad.train.settings`."""

    cosine = "cosine"
    constant = "constant"
    linear = "linear"


class TokenName(str, Enum):  # noqa: UP042  as above
    """Kinds of tokens; a test holds it true to `ctrlgrad.train.corpus`."""

    character = "character"
    byte = "byte"
    word = "word"


class PrecisionName(str, Enum):  # noqa: UP042  as above
    """Dtypes of parameters; a test holds it true to `ctrlgrad.train.settings`."""

    float32 = "float32"
    float64 = "float64"
    bfloat16 = "bfloat16"


class EngineName(str, Enum):  # noqa: UP042  as above
    """Engines of the training step; a test compares them with `ctrlgrad.train.settings`."""

    auto = "auto"
    dataflow = "dataflow"
    native = "native"
    reference = "reference"
    cuda = "cuda"
