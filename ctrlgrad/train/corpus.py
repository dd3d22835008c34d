"""Text as lines of symbols, split into a training and a validation part, with its entropies.

Lines are taken without trailing white space and without blank ones; a line of more than `LINE_LIMIT` characters
becomes several. A line that occurs again counts once, so that no validation line is ever trained on. Every tenth
line is for validation, the others for training. The vocabulary is the training part's most frequent characters;
any other character is the symbol `UNKNOWN`. Each line ends with the symbol `END`, which also stands before its
first character.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ctrlgrad.errors import UserInputError
from ctrlgrad.files import read_file

END, UNKNOWN = 0, 1
LINE_LIMIT = 256
VOCABULARY_LIMIT = 1024
VALIDATION_EVERY = 10


@dataclass(frozen=True)
class Corpus:
    """`train` and `validation` hold a line each as int64 symbols, `END` last; `characters[s - 2]` is symbol s."""

    characters: str
    train: tuple[np.ndarray, ...]
    validation: tuple[np.ndarray, ...]
    fingerprint: str

    @property
    def symbols(self) -> int:
        return len(self.characters) + 2

    def text(self, symbols: Iterable[int]) -> str:
        """The characters of symbols up to the first `END`; an unknown one shows as U+FFFD."""
        result = []
        for s in symbols:
            if s == END:
                break
            result.append("\N{REPLACEMENT CHARACTER}" if s == UNKNOWN else self.characters[s - 2])
        return "".join(result)

    def unigram_bits_per_char(self) -> float:
        """The entropy of a symbol, by the counts of all lines (training and validation), each line's `END` counted."""
        symbols = np.concatenate(self.train + self.validation)
        return _bits(np.bincount(symbols, minlength=self.symbols))

    def bigram_bits_per_char(self) -> float:
        """The entropy of a symbol given the one before it, by the counts of all lines.

        A line's first character follows `END`, so there are as many pairs as symbols, and the figure compares with a
        validation figure per character. It is what the best bigram model of exactly this text reaches on the same text;
        a bigram model fitted to the training part alone does worse than that on the validation part.
        """
        pairs = np.zeros((self.symbols, self.symbols), np.int64)
        symbols = np.concatenate([np.array([END]), *self.train, *self.validation])
        np.add.at(pairs, (symbols[:-1], symbols[1:]), 1)
        return _bits(pairs) - _bits(pairs.sum(axis=1))


def _bits(counts: np.ndarray) -> float:
    p = counts[counts > 0] / counts.sum()
    return float(-np.sum(p * np.log2(p)))


def load(path: Path | None, batch: int) -> Corpus:
    """The corpus of a text file in UTF-8, or of Python's own language reference when `path` is None.

    Raises `UserInputError` for a file that is missing, empty, binary, or too short for one batch.
    """
    return build(_lines(_default_text() if path is None else _read(path)), batch, str(path or "the default text"))


def _default_text() -> str:
    from pydoc_data.topics import topics  # half a megabyte that only this function needs

    return "\n".join(topics[name] for name in sorted(topics))


def _read(path: Path) -> str:
    try:
        data = read_file(path)
    except FileNotFoundError:
        raise UserInputError("--text: there is no such file", got=str(path), hint="check the path") from None
    except IsADirectoryError:
        raise UserInputError("--text: this is a folder", expected="a text file", got=str(path)) from None
    except OSError as error:
        raise UserInputError("--text: the file cannot be read", got=f"{path}: {error.strerror}") from None
    if b"\0" in data:
        raise UserInputError(
            "--text: the file is binary",
            expected="text in UTF-8",
            got=f"{path} with a NUL byte at offset {data.index(0)}",
            hint="convert it to UTF-8 text",
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserInputError(
            "--text: the file is not text in UTF-8",
            expected="text in UTF-8",
            got=f"{path} with byte 0x{data[error.start]:02x} at offset {error.start}",
            hint="convert it to UTF-8 text (for example with iconv)",
        ) from None


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    pieces = [line[i : i + LINE_LIMIT] for line in lines for i in range(0, len(line), LINE_LIMIT)]
    return list(dict.fromkeys(piece for piece in pieces if piece.strip()))


def build(lines: Sequence[str], batch: int, name: str) -> Corpus:
    """The corpus of distinct lines that are not blank."""
    if not lines:
        raise UserInputError("--text: the text is empty", expected="lines of text", got=name)
    validation = [line for i, line in enumerate(lines) if i % VALIDATION_EVERY == VALIDATION_EVERY - 1]
    train = [line for i, line in enumerate(lines) if i % VALIDATION_EVERY != VALIDATION_EVERY - 1]
    if not validation or len(train) < batch:
        needed = next(n for n in itertools.count(VALIDATION_EVERY) if n - n // VALIDATION_EVERY >= batch)
        raise UserInputError(
            "--text: the text is too short",
            expected=f"at least {needed} different lines: batches of {batch}, and every tenth line for validation",
            got=f"{name} with {len(lines)}",
            hint="use a longer text, or a smaller --batch",
        )
    counts = Counter("".join(train))
    # By frequency, then by code point, so that the choice at the limit does not depend on the order of lines.
    frequent = sorted(counts, key=lambda c: (-counts[c], c))[:VOCABULARY_LIMIT]
    characters = "".join(sorted(frequent))
    symbol = {c: s for s, c in enumerate(characters, start=2)}

    def encode(line: str) -> np.ndarray:
        return np.array([symbol.get(c, UNKNOWN) for c in line] + [END], np.int64)

    return Corpus(
        characters,
        tuple(map(encode, train)),
        tuple(map(encode, validation)),
        hashlib.sha256("\n".join(lines).encode()).hexdigest(),
    )


@dataclass(frozen=True, slots=True)
class Batch:
    """Lines side by side: `symbols` `[longest + 1, lines]` starts with a row of `END`; `lengths` `[lines]` counts the
    symbols to predict, `END` included. Line b has `symbols[1 : lengths[b] + 1, b]`; the rest of its column is `END`.
    """

    symbols: np.ndarray
    lengths: np.ndarray

    @property
    def characters(self) -> int:
        return int(self.lengths.sum())


def pad(lines: Sequence[np.ndarray], columns: int) -> Batch:
    """A batch as long as its longest line; columns that no line fills have length 0."""
    lengths = np.zeros(columns, np.int64)
    lengths[: len(lines)] = [len(line) for line in lines]
    symbols = np.full((int(lengths.max()) + 1, columns), END, np.int64)
    for column, line in enumerate(lines):
        symbols[1 : len(line) + 1, column] = line
    return Batch(symbols, lengths)


@dataclass
class TrainingOrder:
    """Which lines each step sees: a new permutation for each pass over the text, fixed by seed and pass alone.

    A batch is a function of the step, so a run that starts in the middle sees what an unbroken one sees.
    """

    corpus: Corpus
    batch: int
    seed: int
    _pass: int = -1
    _order: np.ndarray | None = None

    def at(self, step: int) -> Batch:
        return pad(self.lines(step), self.batch)

    def lines(self, step: int) -> list[np.ndarray]:
        """The lines of a step's batch, not yet side by side."""
        number, position = divmod(step, len(self.corpus.train) // self.batch)
        if number != self._pass or self._order is None:
            rng = np.random.Generator(np.random.PCG64([self.seed, number]))
            self._pass, self._order = number, rng.permutation(len(self.corpus.train))
        chosen = self._order[position * self.batch : (position + 1) * self.batch]
        return [self.corpus.train[i] for i in chosen]


def validation_lines(corpus: Corpus, batch: int) -> list[list[np.ndarray]]:
    """The lines of each validation batch: all lines, those of like length together, so that little is padding."""
    lines = sorted(corpus.validation, key=len)
    return [lines[i : i + batch] for i in range(0, len(lines), batch)]


def validation_batches(corpus: Corpus, batch: int) -> list[Batch]:
    """The validation batches as one process takes them."""
    return [pad(lines, batch) for lines in validation_lines(corpus, batch)]
