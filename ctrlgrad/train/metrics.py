"""Files of a run beside its checkpoint: `metrics.jsonl`, `summary.json` and `loss.png`."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ctrlgrad.errors import UserInputError
from ctrlgrad.files import read_file
from ctrlgrad.train.checkpoint import write_atomically


@dataclass(frozen=True, slots=True)
class Step:
    """A step's own figures, which a callback gets.

    `loss` is that of the step's batch: bits per token in a run on a text. `count` is the size of the batch: its tokens
    in a run on a text, its rows otherwise. A process's first step compiles: it does not tell how fast the run is
    (`is_timed`).
    """

    step: int
    loss: float
    count: int
    seconds: float
    is_timed: bool
    peak_memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Metrics:
    """A line of `metrics.jsonl`: the mean over the steps since the line before.

    The characters per second are those of the timed steps among them; of all, where none is timed. The validation
    figure is of the model after the step; None where the line is not one at which the run is validated.
    """

    step: int
    bits_per_char: float
    characters_per_second: float
    peak_memory_bytes: int | None
    validation_bits_per_char: float | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """`summary.json`. `verified` is None when `--verify` was not given, and the validation figure where no step ran.

    `seconds` is the time of all steps, with what was compiled in them; `characters_per_second` that of the timed steps,
    as in `Metrics`.
    """

    validation_bits_per_char: float | None
    unigram_bits_per_char: float | None
    bigram_bits_per_char: float | None
    steps: int
    seconds: float
    characters_per_second: float
    peak_memory_bytes: int | None
    verified: bool | None

    def json(self, is_own: bool = False) -> str:
        return json.dumps(written(self, is_own), indent=2)


def peak_memory_bytes() -> int | None:
    """The largest resident size that this process has had; None where the system does not tell."""
    try:
        import resource  # absent on Windows
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) if sys.platform == "darwin" else int(peak) * 1024


# How the figures of a user's own loss are called in files, in place of a text's.
OWN_NAMES = {"bits_per_char": "loss", "characters_per_second": "per_second", "validation_bits_per_char": "validation"}


def written(figures: Metrics | Summary, is_own: bool) -> dict[str, Any]:
    """The figures by the names that files give them."""
    named = asdict(figures)
    if not is_own:
        return named
    return {OWN_NAMES.get(name, name): value for name, value in named.items() if "gram" not in name}


def append(path: Path, line: Metrics, is_own: bool = False) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(written(line, is_own)) + "\n")


def read(path: Path) -> list[Metrics]:
    """All whole lines (a crash may have cut the last one short); an error for a file that is none of ours."""
    if not path.exists():
        return []
    lines = []
    try:
        whole, _, _ = read_file(path).decode("utf-8", errors="replace").rpartition("\n")
    except OSError as error:
        raise UserInputError(
            "--resume: the metrics cannot be read", got=f"{path}: {error.strerror}", hint="check its permissions"
        ) from None
    for number, text in enumerate(whole.splitlines(), start=1):
        try:
            names = {name: ours for ours, name in OWN_NAMES.items()}
            line = Metrics(**{names.get(name, name): value for name, value in json.loads(text).items()})
            if type(line.step) is not int or not math.isfinite(line.bits_per_char):
                raise ValueError(text)
            lines.append(line)
        except (ValueError, TypeError, OverflowError, RecursionError):
            raise UserInputError(
                "--resume: a line of metrics cannot be read",
                expected="the metrics of `ctrlgrad train`",
                got=f"{path}, line {number}: {text[:60]!r}",
                hint="remove the line, or start another run in another --out",
            ) from None
    return lines


def rewind(path: Path, step: int, is_own: bool = False) -> list[Metrics]:
    """Drop the lines of steps after a checkpoint's, which the run that continues writes again; returns the rest."""
    if not path.exists():
        return []
    kept = [line for line in read(path) if line.step <= step]
    write_atomically(path, "".join(json.dumps(written(line, is_own)) + "\n" for line in kept).encode())
    return kept


def plot(path: Path, lines: Sequence[Metrics], summary: Summary) -> bool:
    """Draw bits per character over steps; False where matplotlib (the extra `plot`) is not installed."""
    try:
        from matplotlib.figure import Figure  # a heavy import, and an extra
    except ImportError:
        return False
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([m.step for m in lines], [m.bits_per_char for m in lines], color="tab:blue", label="training")
    is_own = summary.unigram_bits_per_char is None
    levels = [
        ("unigram entropy", summary.unigram_bits_per_char, "tab:gray", ":"),
        ("bigram entropy", summary.bigram_bits_per_char, "black", "--"),
    ]
    for label, bits, color, style in levels:
        if bits is not None:
            axes.axhline(bits, color=color, linestyle=style, linewidth=1.3, label=f"{label}: {bits:.2f}")
    if summary.validation_bits_per_char is not None:
        points = {m.step: m.validation_bits_per_char for m in lines if m.validation_bits_per_char is not None}
        points[summary.steps] = bits = summary.validation_bits_per_char
        steps, values = list(points), list(points.values())
        axes.plot(steps, values, "o-", color="tab:orange", clip_on=False, label=f"validation: {bits:.2f}")
    axes.set(xlabel="step", ylabel="loss" if is_own else "bits per character", xlim=(0, summary.steps))
    axes.set(ylim=(None, None) if is_own else (0, None), title="Training" if is_own else "Training a text model")
    axes.grid(alpha=0.25)
    axes.legend(loc="lower left")
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_atomically(path, picture.getvalue())
    return True
