"""`ctrlgrad train --cell transformer`: a decoder that attends to a cache, which grows by a row in each iteration."""

import numpy as np
import pytest
from trained import assert_same_numbers

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad.cli import CellName
from ctrlgrad.nn import gelu
from ctrlgrad.train.corpus import pad
from ctrlgrad.train.layers import HEADS, LAYERS, decoder_init, decoder_step
from ctrlgrad.train.model import SAMPLE_LIMIT, Model
from ctrlgrad.train.settings import Settings

LINES, HIDDEN, STEPS = 2, 16, 5
TRANSFORMER = ("--cell", "transformer")


def example(inputs=3):
    """Parameters and inputs `[steps, lines, inputs]`, in float64."""
    rng = np.random.default_rng(0)
    params = decoder_init(cg.random.key(0), inputs, HIDDEN, np.float64)
    params["norms"] = rng.uniform(0.5, 1.5, params["norms"].shape)
    return params, rng.standard_normal((STEPS, LINES, inputs))


def step_by_step(params, xs, steps):
    """The sum of the outputs, weighted so that none cancels another."""
    empty, xs = np.zeros((STEPS, LINES, HEADS, HIDDEN // HEADS)), cnp.asarray(xs)

    def body(carry):
        t, state, total = carry
        state = decoder_step(params, state, xs[t])
        return t + 1, state, total + (state[0] * np.arange(HIDDEN) * (t + 1)).sum()

    start = (0, (np.zeros((LINES, HIDDEN)), 0, empty, empty), 0.0)
    return cg.while_loop(lambda carry: carry[0] < steps, body, start)[2]


def all_at_once(params, xs):
    """The same in NumPy by one causal attention over all steps; features in pairs as complex numbers, turned."""

    def norm(scale, x):
        return scale * x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)

    x = xs @ params["in"] if "in" in params else xs
    features = HIDDEN // HEADS
    parts = (norm(params["norms"][0], x) @ params["qkv"]).reshape(len(xs), LINES, 3, HEADS, features)
    query, key, value = np.moveaxis(parts, 2, 0)
    half = features // 2
    turn = np.exp(1j * np.arange(len(xs))[:, None] * 10000.0 ** (-np.arange(half) / half))[:, None, None]
    query, key = ((part[..., :half] + 1j * part[..., half:]) * turn for part in (query, key))
    scores = np.einsum("tbhf,sbhf->bhts", query, key.conj()).real / features**0.5
    scores = np.where(np.tri(len(xs), dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    x = x + np.einsum("bhts,sbhf->tbhf", weights, value).reshape(x.shape) @ params["out"]
    x = x + np.asarray(gelu(norm(params["norms"][1], x) @ params["wide"] + params["b"])) @ params["narrow"]
    return (x * np.arange(HIDDEN) * (np.arange(len(xs)) + 1)[:, None, None]).sum()


@pytest.mark.parametrize("inputs", [3, HIDDEN])
@pytest.mark.parametrize("steps", [1, STEPS - 1, STEPS])
def test_steps_with_a_cache_are_one_causal_attention(inputs, steps):
    params, xs = example(inputs)
    found = cg.function(step_by_step, engine="reference")(params, xs, steps)
    np.testing.assert_allclose(found, all_at_once(params, xs[:steps]), rtol=1e-6)  # positions are float32


def test_its_gradient_goes_through_the_cache():
    params, xs = example()
    with cg.options(engine="reference"):
        assert cg.check_grads(lambda params: step_by_step(params, xs, STEPS), (params,), order=1, modes=("rev",)).ok


def test_lines_of_other_lengths_share_the_compiled_code():
    """Short lines first, so that the memory of the first call does not suffice for the later ones."""
    model, judge = (Model(Settings("transformer", 8, batch=3, engine=e), 20) for e in ("native", "reference"))
    params, rng = model.init(cg.random.key(0)), np.random.default_rng(1)
    for longest in (2, 40, 9):
        batch = pad([rng.integers(1, 20, n) for n in (longest, 1)], 3)
        data = (params, batch.symbols, batch.lengths, np.int64(batch.characters))
        (bits, grads), (expected, judged) = model.bits_and_grads(*data), judge.bits_and_grads(*data)
        np.testing.assert_allclose(bits, expected, rtol=1e-5)
        for a, b in zip(cg.tree.leaves(grads), cg.tree.leaves(judged), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5 * np.max(np.abs(b), initial=1e-6))
    assert model.bits_and_grads.traces == 1


def test_the_sampler_writes_up_to_its_limit():
    model = Model(Settings("transformer", 8, engine="reference"), 20)
    params = model.init(cg.random.key(0))
    params["out"]["b"][0] = -1e9  # a line never ends
    numbers, prompt = np.full(SAMPLE_LIMIT, 0.5, np.float32), np.zeros(0, np.int64)
    assert np.count_nonzero(model.sample_of(params, numbers, prompt, np.float32(1))) == SAMPLE_LIMIT


@pytest.mark.parametrize("engine", ["native", "reference", "dataflow"])
def test_a_stopped_run_continues_to_the_same_numbers(train, train_until, engine):
    options = (*TRANSFORMER, "--engine", engine)
    whole = train("whole", *options, steps=4)
    assert whole.exit_code == 0, whole.output
    stopped = train_until(2, "broken", *options, "--steps", 4)
    assert stopped.exit_code == 130, stopped.output
    assert_same_numbers(whole, train("broken", "--resume", steps=4))


def test_verify_compares_every_parameter_with_jax(train):
    pytest.importorskip("jax")
    result = train("run", *TRANSFORMER, "--layers", 2, "--verify", steps=1)
    assert result.exit_code == 0, result.output
    # The first layer's inputs are wider than the layer; the embedding, and the two of the read-out.
    assert result.stdout.count("agrees") == 7 + 6 + 3 and "differs" not in result.stdout


def test_layers_on_their_own_devices_train_the_same_model(train):
    whole = train("whole", *TRANSFORMER, "--layers", 2, "--engine", "reference", steps=3)
    split = train("split", *TRANSFORMER, "--layers", 2, "--pipeline", steps=3)
    assert split.exit_code == 0, split.output
    found, expected = (result.summary["validation_bits_per_char"] for result in (split, whole))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_a_budget_holds(train):
    plain = train("plain", *TRANSFORMER, steps=3)
    bounded = train("bounded", *TRANSFORMER, "--memory-budget", "256KiB", steps=3)
    assert bounded.exit_code == 0, bounded.output
    found, expected = (result.summary["validation_bits_per_char"] for result in (bounded, plain))
    np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_a_hidden_size_that_has_no_pairs_in_each_head_is_refused(train):
    result = train("run", *TRANSFORMER, "--hidden", 12)
    assert result.exit_code == 2
    assert "--hidden: does not fit --cell transformer" in result.stderr and "a multiple of 8" in result.stderr


def test_train_offers_every_cell_that_a_run_may_have():
    assert [cell.value for cell in CellName] == list(LAYERS)
