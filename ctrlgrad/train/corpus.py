"""Text as lines of tokens, split into a training and a validation part, with its entropies.

A text is read whole: every line counts as often as it stands there, blank ones and white space included. Lines longer
than a limit become several. Every tenth distinct line is for validation, with all its copies, so that no validation
line is ever trained on; or a file of its own is. Tokens are characters, bytes of UTF-8, or words; those that the
vocabulary lacks are the symbol `UNKNOWN`. Each line ends with the symbol `END`, which also stands before its first
token. `Corpus.report` counts what was cut or replaced.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ctrlgrad.errors import UserInputError
from ctrlgrad.files import read_file

END, UNKNOWN = 0, 1
VALIDATION_EVERY = 10
# Words with the white space between them: a text is the tokens one after the other.
_WORDS = re.compile(r"\w+|\s+|[^\w\s]")
TOKENS = ("character", "byte", "word")


def split(kind: str, line: str) -> list[str]:
    """The tokens of a line; a byte is the character of that number.

    >>> split("word", "a loop, twice"), split("byte", "é")
    (['a', ' ', 'loop', ',', ' ', 'twice'], ['Ã', '©'])
    """
    if kind == "word":
        return _WORDS.findall(line)
    return list(line if kind == "character" else line.encode("utf-8", "surrogateescape").decode("latin-1"))


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by their symbols: `entries[s - 2]` is symbol s."""

    kind: str
    entries: tuple[str, ...]

    @property
    def symbols(self) -> int:
        return len(self.entries) + 2

    def encode(self, line: str) -> np.ndarray:
        """The symbols of a line, int64 `[tokens + 1]`, `END` last."""
        symbol = {token: s for s, token in enumerate(self.entries, start=2)}
        return np.array([symbol.get(token, UNKNOWN) for token in split(self.kind, line)] + [END], np.int64)

    def encode_all(self, lines: Iterable[str]) -> tuple[np.ndarray, ...]:
        symbol = {token: s for s, token in enumerate(self.entries, start=2)}
        return tuple(
            np.array([symbol.get(t, UNKNOWN) for t in split(self.kind, line)] + [END], np.int64) for line in lines
        )

    def text(self, symbols: Iterable[int]) -> str:
        """The text of symbols up to the first `END`; an unknown one shows as U+FFFD."""
        unknown = "?" if self.kind == "byte" else "\N{REPLACEMENT CHARACTER}"
        tokens = itertools.takewhile(lambda s: s != END, symbols)
        found = "".join(unknown if s == UNKNOWN else self.entries[s - 2] for s in tokens)
        return found.encode("latin-1").decode(errors="replace") if self.kind == "byte" else found


@dataclass(frozen=True)
class Corpus:
    """`train` and `validation` hold a line each as int64 symbols, `END` last."""

    vocabulary: Vocabulary
    train: tuple[np.ndarray, ...]
    validation: tuple[np.ndarray, ...]
    fingerprint: str
    report: tuple[str, ...] = ()

    @property
    def symbols(self) -> int:
        return self.vocabulary.symbols

    def text(self, symbols: Iterable[int]) -> str:
        return self.vocabulary.text(symbols)

    def unigram_bits_per_char(self) -> float:
        """The entropy of a symbol, by the counts of all lines (training and validation), each line's `END` counted."""
        symbols = np.concatenate(self.train + self.validation)
        return _bits(np.bincount(symbols, minlength=self.symbols))

    def bigram_bits_per_char(self) -> float:
        """The entropy of a symbol given the one before it, by the counts of all lines.

        A line's first token follows `END`, so there are as many pairs as symbols, and the figure compares with a
        validation figure per token. It is what the best bigram model of exactly this text reaches on the same text; a
        bigram model fitted to the training part alone does worse than that on the validation part.
        """
        symbols = np.concatenate([np.array([END]), *self.train, *self.validation])
        # Only pairs that occur are counted: a table of all would not fit for words.
        _, pairs = np.unique(symbols[:-1] * self.symbols + symbols[1:], return_counts=True)
        return _bits(pairs) - _bits(np.bincount(symbols[:-1], minlength=self.symbols))


def _bits(counts: np.ndarray) -> float:
    p = counts[counts > 0] / counts.sum()
    return float(-np.sum(p * np.log2(p)))


@dataclass(frozen=True, slots=True)
class Reading:
    """Rules by which a text becomes symbols."""

    tokens: str = "character"
    # The most tokens of a line, END not counted; 0 for no limit.
    line_limit: int = 0
    # The most entries of the vocabulary; 0 for no limit.
    vocabulary: int = 0


def load(path: Path | None, batch: int, reading: Reading = Reading(), validation: Path | None = None) -> Corpus:
    """The corpus of a text file in UTF-8, or of Python's own language reference when `path` is None.

    Raises `UserInputError` for a file that is missing, empty, binary, or too short for one batch.
    """
    text = _default_text() if path is None else read(path)
    other = None if validation is None else lines_of(read(validation, "--validation"))
    return build(lines_of(text), batch, str(path or "the default text"), reading, other)


def _default_text() -> str:
    from pydoc_data.topics import topics  # half a megabyte that only this function needs

    return "\n".join(topics[name] for name in sorted(topics))


def read(path: Path, option: str = "--text") -> str:
    """The text of a file in UTF-8; raises `UserInputError`, which names the option, where it is none."""
    try:
        data = read_file(path)
    except FileNotFoundError:
        raise UserInputError(f"{option}: there is no such file", got=str(path), hint="check the path") from None
    except IsADirectoryError:
        raise UserInputError(
            f"{option}: this is a folder", expected="a text file", got=str(path), hint="name one file of it"
        ) from None
    except OSError as error:
        raise UserInputError(
            f"{option}: the file cannot be read", got=f"{path}: {error.strerror}", hint="check its permissions"
        ) from None
    if b"\0" in data:
        raise UserInputError(
            f"{option}: the file is binary",
            expected="text in UTF-8",
            got=f"{path} with a NUL byte at offset {data.index(0)}",
            hint="convert it to UTF-8 text",
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserInputError(
            f"{option}: the file is not text in UTF-8",
            expected="text in UTF-8",
            got=f"{path} with byte 0x{data[error.start]:02x} at offset {error.start}",
            hint="convert it to UTF-8 text (for example with iconv)",
        ) from None


def lines_of(text: str) -> list[str]:
    """All lines, without what ends them."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def cut(lines: Iterable[str], reading: Reading) -> tuple[list[str], list[str]]:
    """The lines with each that is too long as several, and a sentence that says how many those were."""
    limit, pieces, too_long, made = reading.line_limit, [], 0, 0
    for line in lines:
        if not limit or (len(line) <= limit and reading.tokens == "character"):
            pieces.append(line)
            continue
        tokens = split(reading.tokens, line)
        if len(tokens) <= limit:
            pieces.append(line)
            continue
        if reading.tokens == "byte":
            raw = line.encode()
            parts = [raw[i : i + limit].decode("utf-8", "surrogateescape") for i in range(0, len(raw), limit)]
        else:
            parts = ["".join(tokens[i : i + limit]) for i in range(0, len(tokens), limit)]
        pieces += parts
        too_long, made = too_long + 1, made + len(parts)
    return pieces, [f"{too_long} lines of more than {limit} {reading.tokens}s became {made}"] if too_long else []


def build(
    lines: Sequence[str],
    batch: int,
    name: str,
    reading: Reading = Reading(),
    validation_lines: Sequence[str] | None = None,
) -> Corpus:
    """The corpus of lines; those for validation are a tenth of them, or the given ones."""
    if not any(line.strip() for line in lines):
        raise UserInputError("--text: the text is empty", expected="lines of text", got=name)
    whole = hashlib.sha256("\n".join([*lines, *(validation_lines or [])]).encode()).hexdigest()
    lines, report = cut(lines, reading)
    if validation_lines is None:
        number = {line: i for i, line in enumerate(dict.fromkeys(lines))}
        is_for_validation = [number[line] % VALIDATION_EVERY == VALIDATION_EVERY - 1 for line in lines]
        validation = list(itertools.compress(lines, is_for_validation))
        train = [line for line, other in zip(lines, is_for_validation, strict=True) if not other]
    else:
        validation, cuts = cut(validation_lines, reading)
        train, report = lines, report + cuts
    if not validation or len(train) < batch:
        needed = next(n for n in itertools.count(VALIDATION_EVERY) if n - n // VALIDATION_EVERY >= batch)
        raise UserInputError(
            "--text: the text is too short",
            expected=f"at least {needed} different lines: batches of {batch}, and every tenth line for validation",
            got=f"{name} with {len(set(lines))}",
            hint="use a longer text, or a smaller --batch",
        )
    counts = Counter(itertools.chain.from_iterable(split(reading.tokens, line) for line in train))
    # By frequency, then by code point, so that the choice at the limit does not depend on the order of lines.
    frequent = sorted(counts, key=lambda c: (-counts[c], c))[: reading.vocabulary or None]
    vocabulary = Vocabulary(reading.tokens, tuple(sorted(frequent)))
    if len(frequent) < len(counts):
        rare = sum(counts.values()) - sum(counts[token] for token in frequent)
        report = [
            *report,
            f"{rare} {reading.tokens}s, of {len(counts) - len(frequent)} rare kinds, are unknown to the model",
        ]
    encoded = vocabulary.encode_all(train), vocabulary.encode_all(validation)
    unknown = sum(int((line == UNKNOWN).sum()) for line in encoded[1])
    if unknown:
        report = [*report, f"{unknown} {reading.tokens}s of the validation part do not occur in training"]
    return Corpus(vocabulary, *encoded, whole, tuple(report))


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
    """Lines of each step: a new permutation for each pass over the text, fixed by seed and pass alone.

    A batch is a function of the step, so a run that starts in the middle sees what an unbroken one sees.
    """

    corpus: Corpus
    batch: int
    seed: int
    # True if lines of like length stand in one batch.
    is_bucketed: bool = False
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
            if self.is_bucketed:
                # A stable sort keeps the permutation among lines of one length; then whole batches are shuffled.
                lengths = np.array([len(self.corpus.train[i]) for i in self._order])
                count = len(self._order) // self.batch * self.batch
                batches = self._order[np.argsort(lengths[:count], kind="stable")].reshape(-1, self.batch)
                self._order = rng.permutation(batches).ravel()
        chosen = self._order[position * self.batch : (position + 1) * self.batch]
        return [self.corpus.train[i] for i in chosen]


def validation_lines(all_lines: Iterable[np.ndarray], batch: int) -> list[list[np.ndarray]]:
    """The lines of each batch: all lines, those of like length together, so that little is padding."""
    lines = sorted(all_lines, key=len)
    return [lines[i : i + batch] for i in range(0, len(lines), batch)]
