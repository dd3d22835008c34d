"""Training on a text: its data, its loss and its figures, and what a run that has ended can do: write and be judged."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctrlgrad import random, tree
from ctrlgrad.advice import explains_calls
from ctrlgrad.engines.cuda import cupy_library
from ctrlgrad.errors import UserInputError
from ctrlgrad.train import checkpoint, metrics
from ctrlgrad.train.checkpoint import Identity, Saved, State
from ctrlgrad.train.corpus import Corpus, TrainingOrder, Vocabulary, cut, lines_of, pad, read, validation_lines
from ctrlgrad.train.folder import BEST, CHECKPOINT, METRICS
from ctrlgrad.train.model import SAMPLE_LIMIT, Model
from ctrlgrad.train.ranks import Pressed, Ranks, columns, places_of, share
from ctrlgrad.train.settings import Settings
from ctrlgrad.train.trainer import Job, Share

# Keys of the random streams beside the training order's.
INIT_STREAM, SAMPLE_STREAM, DROPOUT_STREAM = 1, 2, 3


class TextTask:
    """A model of a text, as `ctrlgrad.train.trainer` sees it: a loss, its gradient, and batches by the step."""

    def __init__(self, settings: Settings, corpus: Corpus, ranks: Ranks | None = None) -> None:
        self.settings = settings
        self.corpus = corpus
        self.ranks = ranks or Ranks()
        places = places_of(settings.layers, self.ranks) if settings.pipeline else ()
        # One layer computes faster as one loop, and no loop goes on below it while its gradient is summed. Within a
        # budget the model is one loop too: what lies between loops is not swapped.
        by_layers = settings.layers > 1 and settings.memory_budget is None
        on_gradient = self.ranks.on_gradient if by_layers else None
        self.model = Model(settings, corpus.symbols, columns(self.ranks, settings.batch), places, on_gradient)
        self.order = TrainingOrder(corpus, settings.batch, settings.seed, settings.buckets)

    @property
    def value_and_grad(self) -> Any:
        return self.model.bits_and_grads

    def init(self) -> Any:
        """The first parameters."""
        return self.model.init(random.fold_in(random.key(self.settings.seed), INIT_STREAM))

    def share_at(self, step: int) -> Share:
        """Share of a step's batch on this rank."""
        return self._share(self.order.lines(step), step)

    def _share(self, lines: Any, step: int) -> Share:
        batch, characters = pad(share(self.ranks, lines), self.model.columns), sum(map(len, lines))
        arguments: tuple[Any, ...] = batch.symbols, batch.lengths, np.int64(characters)
        if self.settings.dropout:
            stream = random.fold_in(random.key(self.settings.seed), DROPOUT_STREAM)
            arguments += (np.asarray(random.fold_in(random.fold_in(stream, step), self.ranks.part)),)
        return Share(arguments, characters)

    def longest(self) -> Share:
        """A batch of the longest lines of the text, which needs the most memory."""
        lines = sorted(self.corpus.train + self.corpus.validation, key=len)[-self.settings.batch :]
        return self._share(lines, 0)

    def validate(self, params: Any, pressed: Pressed) -> float | None:
        """Bits per token over the validation part, each line's end counted as one; None if stopped."""
        return bits_per_token(self.model, params, self.corpus.validation, self.ranks, pressed)

    def levels(self) -> tuple[float | None, float | None]:
        """The entropies of the text by single tokens and by pairs."""
        return self.corpus.unigram_bits_per_char(), self.corpus.bigram_bits_per_char()


def bits_per_token(model: Model, params: Any, lines: Any, ranks: Ranks, pressed: Pressed) -> float | None:
    """The bits of all lines over the number of their tokens, ends included; None if stopped."""
    bits, characters = 0.0, 0
    for chosen in validation_lines(lines, model.settings.batch):
        batch = pad(share(ranks, chosen), model.columns)
        line_bits = np.asarray(model.line_bits_of(params, batch.symbols, batch.lengths))
        bits += float(np.sum(line_bits, dtype=np.float64))
        characters += sum(map(len, chosen))
        if pressed():
            return None
    return ranks.sum(bits) / characters


def prepare(
    settings: Settings,
    corpus: Corpus,
    text: str | None,
    out: Path,
    *,
    saved: Saved | None = None,
    is_profiled: bool = False,
    ranks: Ranks | None = None,
    validation_text: str | None = None,
) -> Job:
    """Make the model and its first state, or take the state of a run that is to go on: the one that was `saved`.

    `text` is the path of the corpus. On several ranks all call this. Rank 0 has read what was saved; all other ranks
    get the state from it.
    """
    ranks = ranks or Ranks()
    if settings.pipeline and ranks.size > settings.layers:
        raise UserInputError(
            "--pipeline: fewer layers than ranks",
            expected=f"--layers {ranks.size} or more, a layer for each rank",
            got=f"--layers {settings.layers}",
            hint="use more --layers, or a smaller -n of mpirun",
        )
    if ranks.parts > settings.batch:
        raise UserInputError(
            "--batch: fewer lines than ranks",
            expected=f"at least {ranks.parts}, a line for each rank",
            got=str(settings.batch),
            hint="use a larger --batch, or a smaller -n of mpirun",
        )
    if settings.engine == "cuda":
        cupy_library.cupy_library()  # what is missing is told before anything is written
    optimiser = settings.transformation()
    try:
        task = TextTask(settings, corpus, ranks)
        params = task.init()
        state = State(0, params, optimiser.init(params))
    except MemoryError as error:
        raise UserInputError(
            "--hidden: the model does not fit into memory",
            got=f"{settings.layers} layers of {settings.hidden} ({error})",
            hint="use a smaller --hidden",
        ) from None
    identity = Identity(settings, corpus.fingerprint, None, text, corpus.vocabulary, validation_text)
    if saved is not None:
        saved.check_text(corpus.fingerprint)
        state = saved.state(state)
        identity = dataclasses.replace(identity, verified=saved.identity.verified)
        metrics.read(out / METRICS)  # what cannot be continued is refused here, before anything is written
    return Job(
        task,
        optimiser,
        out,
        ranks.from_first_state(state),
        identity,
        steps=settings.steps,
        validation_interval=settings.validation_interval,
        checkpoint_interval=settings.checkpoint_interval,
        patience=settings.patience,
        memory_budget=settings.memory_budget,
        is_profiled=is_profiled,
        ranks=ranks,
    )


@dataclass(frozen=True)
class Trained:
    """A run that was read from its folder: `model` and `params`, and what they do.

    `params` is a pytree of NumPy arrays, as `Model` describes it; `model.step(params, states, symbols)` is one step.
    """

    model: Model
    params: Any
    vocabulary: Vocabulary
    settings: Settings
    step: int

    def sample(self, prompt: str = "", temperature: float = 1.0, seed: int = 0) -> str:
        """A line of up to 200 tokens that begins with the prompt.

        The temperature divides the logits: the line is likelier below 1, and more surprising above it.
        """
        if not temperature > 0:
            raise UserInputError("--temperature: not positive", expected="a number above 0", got=str(temperature))
        rng = np.random.Generator(np.random.PCG64([self.settings.seed, seed, SAMPLE_STREAM]))
        given = self.vocabulary.encode(prompt)[:-1]
        if len(given) >= SAMPLE_LIMIT:
            raise UserInputError(
                "--prompt: too long", expected=f"fewer than {SAMPLE_LIMIT} tokens", got=str(len(given))
            )
        numbers = rng.random(SAMPLE_LIMIT, np.float32)
        line = self.model.sample_of(self.params, numbers, given, np.float32(temperature))
        return self.vocabulary.text(line.tolist())

    def evaluate(self, path: Path | str) -> dict[str, float]:
        """Bits per token of a text file, each line's end counted as one, with the perplexity and how many there are.

        Lines are cut as in training; `unknown` counts tokens that the vocabulary lacks.
        """
        lines, _ = cut(lines_of(read(Path(path), "FILE")), self.settings.reading)
        encoded = self.vocabulary.encode_all(lines)
        if not encoded:
            raise UserInputError("FILE: the text is empty", expected="lines of text", got=str(path))
        bits = bits_per_token(self.model, self.params, encoded, Ranks(), lambda: False)
        assert bits is not None
        unknown = sum(int((line == 1).sum()) for line in encoded)
        return {"bits_per_token": bits, "perplexity": 2.0**bits, "tokens": sum(map(len, encoded)), "unknown": unknown}


@explains_calls
def load(run: Path | str, best: bool = False) -> Trained:
    """Read the model of a run of `ctrlgrad train` from its folder, or from a checkpoint file.

    Args:
        run: the folder, or a file of it.
        best: of the step with the best validation figure, in place of the last.

    Raises `UserInputError` where there is none, or where it cannot be used.
    """
    path = Path(run)
    path = path / (BEST if best else CHECKPOINT) if path.is_dir() or not path.suffix else path
    saved = checkpoint.read(path, "RUN")
    identity = saved.identity
    if not isinstance(identity.settings, Settings) or identity.vocabulary is None:
        raise UserInputError(
            "train.load: the run is of a loss of its own",
            expected="a run of `ctrlgrad train`",
            got=str(path),
            hint="ctrlgrad.train.read_params(run, like) reads the parameters of a Trainer",
        )
    engine = "native" if identity.settings.engine == "dataflow" else identity.settings.engine
    settings = dataclasses.replace(identity.settings, pipeline=False, engine=engine)
    model = Model(settings, identity.vocabulary.symbols)
    params = saved.params(model.init(random.key(0)))
    return Trained(model, tree.map(np.asarray, params), identity.vocabulary, settings, saved.figures["step"])
