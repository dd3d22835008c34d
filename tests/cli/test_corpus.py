"""Text becomes symbols as documented, and its entropies are right where they can be known."""

import numpy as np
import pytest

from ctrlgrad.errors import UserInputError
from ctrlgrad.train import corpus


def letters(entries):
    return corpus.Vocabulary("character", tuple(entries))


def numbered(count):
    return [f"line {n} beside 0123456789" for n in range(count)]


def test_every_tenth_line_is_for_validation():
    c = corpus.build(numbered(40), 4, "text")
    assert [c.text(line) for line in c.validation] == numbered(40)[9::10]
    assert len(c.train) == 36


def test_a_repeated_line_counts_as_often_as_it_stands_there_and_is_never_in_both_parts(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("\n".join(numbered(30) * 3))
    c = corpus.load(path, 4)
    train, validation = ({c.text(line) for line in part} for part in (c.train, c.validation))
    assert len(c.train) + len(c.validation) == 90 and not train & validation
    assert c.report == ()


def test_line_ends_do_not_matter_and_nothing_else_is_dropped(tmp_path):
    """Blank lines and white space at both ends are part of the text."""
    plain, other = tmp_path / "a", tmp_path / "b"
    lines = [f"  {line}\t " for line in numbered(30)] + ["", ""] * 5
    plain.write_bytes(("\n".join(lines) + "\n").encode())
    other.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode() + b"\r\n")
    c = corpus.load(plain, 4)
    assert c.fingerprint == corpus.load(other, 4).fingerprint
    assert sorted(c.text(line) for line in c.train + c.validation) == sorted(lines)


@pytest.mark.parametrize("tokens", corpus.TOKENS)
@pytest.mark.parametrize("limit", [0, 1, 7, 4000])
def test_no_token_of_a_long_line_is_lost(tmp_path, tokens, limit):
    path = tmp_path / "t.txt"
    long = " ".join(chr(ord("a") + n % 26) + str(n) + "é" for n in range(300))
    path.write_text("\n".join([long, *numbered(30)]))
    c = corpus.load(path, 4, corpus.Reading(tokens, limit))
    whole = [len(corpus.split(tokens, line)) for line in (long, *numbered(30))]
    lengths = [len(line) - 1 for line in c.train + c.validation]
    assert sum(lengths) == sum(whole) and (not limit or max(lengths) <= limit)
    too_long = [n for n in whole if limit and n > limit]
    expected = [f"{len(too_long)} lines of more than {limit} {tokens}s"] if too_long else []
    assert [line.partition(" became")[0] for line in c.report if "became" in line] == expected


@pytest.mark.parametrize("tokens", corpus.TOKENS)
def test_tokens_of_a_line_are_the_line(tokens):
    line = "Grüße,  a loop\t(twice)! \N{SNOWMAN}"
    c = corpus.build([line] * 12 + numbered(30), 4, "text", corpus.Reading(tokens))
    assert c.text(c.vocabulary.encode(line).tolist()) == line
    assert c.vocabulary.encode(line).tolist() in [x.tolist() for x in c.train]


def test_a_file_of_its_own_is_for_validation(tmp_path):
    text, other = tmp_path / "t.txt", tmp_path / "v.txt"
    text.write_text("\n".join(numbered(30)))
    other.write_text("beside\nline 4!")
    c = corpus.load(text, 4, validation=other)
    assert len(c.train) == 30 and [len(line) for line in c.validation] == [7, 8]
    assert c.report == ("1 characters of the validation part do not occur in training",)


def test_batches_of_buckets_hold_lines_of_like_length():
    rng = np.random.default_rng(0)
    c = corpus.build([f"{'x' * rng.integers(0, 90)}{n}" for n in range(200)], 8, "text")
    padding = lambda order: sum(order.at(s).symbols[1:].size - order.at(s).characters for s in range(22))
    plain, bucketed = corpus.TrainingOrder(c, 8, 3), corpus.TrainingOrder(c, 8, 3, is_bucketed=True)
    assert padding(bucketed) < padding(plain) / 3
    seen = [c.text(line) for s in range(22) for line in bucketed.lines(s)]
    assert len(set(seen)) == 22 * 8


def test_a_character_that_training_lacks_is_unknown():
    lines = numbered(10)
    lines[9] += "!"
    c = corpus.build(lines, 4, "text")
    assert c.validation[0][-2:].tolist() == [corpus.UNKNOWN, corpus.END]
    assert c.text(c.validation[0]) == lines[9].replace("!", "\N{REPLACEMENT CHARACTER}")


def test_a_limited_vocabulary_keeps_the_most_frequent_characters_and_counts_the_others():
    lines = ["aaa" + "b" * n + "cc"[: n % 2 + 1] + chr(200 + n) for n in range(1, 21)]
    assert len(corpus.build(lines, 4, "text").vocabulary.entries) == 3 + 18
    c = corpus.build(lines, 4, "text", corpus.Reading(vocabulary=3))
    assert c.vocabulary.entries == ("a", "b", "c")
    assert c.report[0] == "18 characters, of 18 rare kinds, are unknown to the model"


def test_entropies_of_lines_that_are_known():
    # Every line is "ab" or "ba" and its end: two starts, then all is certain; three symbols in equal numbers.
    line = {"ab": np.array([2, 3, 0]), "ba": np.array([3, 2, 0])}
    c = corpus.Corpus(letters("ab"), (line["ab"], line["ba"]), (line["ab"], line["ba"]), "")
    assert c.unigram_bits_per_char() == pytest.approx(np.log2(3))
    # After END: a or b, after a: b or END, after b: a or END, each with probability one half.
    assert c.bigram_bits_per_char() == pytest.approx(1.0)


def test_bigram_entropy_of_a_deterministic_text_is_the_choice_at_the_start():
    lines = tuple(np.array([s, 0]) for s in (2, 3, 4, 5))
    c = corpus.Corpus(letters("abcd"), lines, (), "")
    assert c.bigram_bits_per_char() == pytest.approx(2 / 2)  # two bits at the first of two symbols


def test_a_batch_has_its_lines_in_columns():
    batch = corpus.pad([np.array([5, 6, 0]), np.array([7, 0])], 3)
    assert batch.symbols.T.tolist() == [[0, 5, 6, 0], [0, 7, 0, 0], [0, 0, 0, 0]]
    assert batch.lengths.tolist() == [3, 2, 0] and batch.characters == 5


def test_batches_are_a_function_of_seed_and_step_and_each_pass_sees_a_line_once():
    c = corpus.build(numbered(40), 4, "text")
    order, again = corpus.TrainingOrder(c, 4, 3), corpus.TrainingOrder(c, 4, 3)
    forwards = [order.at(step).symbols for step in range(18)]
    backwards = [again.at(step).symbols for step in reversed(range(18))][::-1]
    for a, b in zip(forwards, backwards, strict=True):
        np.testing.assert_array_equal(a, b)
    for number in (0, 1):
        seen = [c.text(column[1:]) for symbols in forwards[9 * number : 9 * number + 9] for column in symbols.T]
        assert sorted(seen) == sorted(c.text(line) for line in c.train)
    assert not np.array_equal(forwards[0], corpus.TrainingOrder(c, 4, 4).at(0).symbols)


def test_validation_batches_hold_every_line_once():
    c = corpus.build([f"{'x' * (n % 7)}{n}" for n in range(95)], 4, "text")
    batches = [corpus.pad(lines, 4) for lines in corpus.validation_lines(c.validation, 4)]
    seen = [c.text(b.symbols[1:, j]) for b in batches for j in range(4) if b.lengths[j]]
    assert sorted(seen) == sorted(c.text(line) for line in c.validation)
    assert sum(b.characters for b in batches) == sum(map(len, c.validation))


def test_the_default_text_is_real_text():
    c = corpus.load(None, 32)
    assert len(c.train) > 3000 and c.symbols > 80
    assert 1 < c.bigram_bits_per_char() < c.unigram_bits_per_char() < np.log2(c.symbols)


@pytest.mark.parametrize("count, batch", [(9, 1), (40, 37)])
def test_a_text_that_is_too_short_is_refused_with_what_is_needed(count, batch):
    with pytest.raises(UserInputError) as caught:
        corpus.build(numbered(count), batch, "text")
    needed = int(caught.value.expected.split()[2])
    corpus.build(numbered(needed), batch, "text")
    with pytest.raises(UserInputError):
        corpus.build(numbered(needed - 1), batch, "text")
