"""Layers by PyTorch's names: shapes, masks, gradients, and JAX's and Optax's numbers."""

import itertools

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import nn
from ctrlgrad.errors import CtrlgradError, MissingAttributeError, ShapeError

KEY = cg.random.key(3)
RECURRENT = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
LAYERS = {
    "Linear": (nn.Linear(3, 2), (5, 3)),
    "Linear without a bias": (nn.Linear(3, 2, bias=False), (3,)),
    "LayerNorm": (nn.LayerNorm(3), (5, 3)),
    "MultiHeadAttention": (nn.MultiHeadAttention(4, 2), (2, 5, 4)),
    "RNN": (nn.RNN(3, 4), (6, 2, 3)),
    "GRU": (nn.GRU(3, 4, layers=2), (6, 2, 3)),
    "LSTM": (nn.LSTM(3, 4, layers=2), (6, 3)),
}


def applied(layer, params, x):
    found = layer(params, x)
    return found[0] if isinstance(found, tuple) else found


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_has_derivatives(name):
    layer, shape = LAYERS[name]
    params, x = layer.init(KEY), np.random.default_rng(0).standard_normal(shape)
    cg.check_grads(lambda params, x: cnp.sum(cnp.sin(applied(layer, params, x))), (params, x))


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_follows_the_default_dtype(name):
    layer, shape = LAYERS[name]
    for dtype in ("float32", "float64"):
        with cg.options(default_float=dtype):
            params = layer.init(KEY)
        assert {leaf.dtype.name for leaf in cg.tree.leaves(params)} == {dtype}
        assert applied(layer, params, np.ones(shape, dtype)).dtype == dtype


@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("layers", [1, 2])
def test_sequences_of_different_length_are_as_each_by_itself(kind, layers):
    layer = RECURRENT[kind](3, 4, layers)
    params, xs = layer.init(KEY), np.random.default_rng(0).standard_normal((6, 3, 3))
    lengths = np.array([4, 1, 5])
    outputs, states = cg.function(layer)(params, xs, lengths)
    for row, length in enumerate(lengths):
        alone, last = layer(params, xs[:length, row])
        np.testing.assert_allclose(outputs[:length, row], alone, rtol=1e-12)
        assert not outputs[length:, row].any()
        for of_batch, of_one in zip(cg.tree.leaves(states), cg.tree.leaves(last), strict=True):
            np.testing.assert_allclose(of_batch[row], of_one, rtol=1e-12)


@pytest.mark.parametrize("kind", RECURRENT)
def test_a_sequence_in_two_parts_is_the_whole(kind):
    layer = RECURRENT[kind](3, 4, 2)
    params, xs = layer.init(KEY), np.random.default_rng(0).standard_normal((6, 2, 3))
    whole, end = layer(params, xs)
    first, state = layer(params, xs[:2])
    second, state = layer(params, xs[2:], state=state)
    np.testing.assert_allclose(np.concatenate([first, second]), whole, rtol=1e-12)
    np.testing.assert_allclose(state[1][0], end[1][0], rtol=1e-12)


@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize(
    "call, words",
    [
        (lambda layer, params, xs: layer(xs, [5, 7]), "the first argument is not the layer's parameters"),
        (lambda layer, params, xs: layer(params, xs.swapaxes(0, 1), [5, 7]), r"sequences are \[time, batch, inputs\]"),
        (lambda layer, params, xs: layer(params, xs, [5.0, 7.0]), "the lengths are not integers"),
        (lambda layer, params, xs: layer(params, xs[:, 0], [5, 7]), "the lengths do not fit the sequences"),
    ],
    ids=["no parameters", "batch first", "float lengths", "lengths of one sequence"],
)
def test_a_call_of_recurrent_layers_that_does_not_fit_is_explained(kind, call, words):
    layer = RECURRENT[kind](3, 4)
    with pytest.raises(CtrlgradError, match=words) as caught:
        call(layer, layer.init(KEY), np.zeros((7, 2, 3)))
    assert f"nn.{layer.__class__.__name__}" in str(caught.value) and "try: " in str(caught.value)


def test_an_unknown_option_is_of_the_layer_that_was_named():
    with pytest.raises(TypeError, match=r"GRU: got an unexpected keyword argument .bidirectional."):
        nn.GRU(3, 4, bidirectional=True)


def test_ids_that_are_floats_or_ragged_are_explained():
    layer = nn.Embedding(5, 2)
    params = layer.init(KEY)
    with pytest.raises(CtrlgradError, match=r"ids are not integers[^$]*try: ids.astype\(int\)"):
        layer(params, np.zeros(3))
    with pytest.raises(CtrlgradError, match=r"ragged[^$]*try: pad the shorter ones"):
        layer(params, [[1, 2, 3], [1, 2]])


def test_attention_to_the_past_alone_does_not_see_what_follows():
    layer, rng = nn.MultiHeadAttention(4, 2), np.random.default_rng(0)
    params, x = layer.init(KEY), rng.standard_normal((5, 4))
    changed = x.copy()
    changed[3:] = rng.standard_normal((2, 4))
    before, after = (layer(params, each, is_causal=True) for each in (x, changed))
    np.testing.assert_array_equal(before[:3], after[:3])
    assert not np.allclose(before[3:], after[3:])


def test_cross_entropy_is_optax(optax):
    rng = np.random.default_rng(0)
    logits, targets = rng.standard_normal((4, 5, 7)), rng.integers(0, 7, (4, 5))
    each = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    np.testing.assert_allclose(nn.cross_entropy(logits, targets), each.mean(), rtol=1e-6)
    mask = rng.random((4, 5)) < 0.5
    np.testing.assert_allclose(nn.cross_entropy(logits, targets, where=mask), np.asarray(each)[mask].mean(), rtol=1e-6)
    smooth = optax.smooth_labels(np.eye(7)[targets], 0.2)
    expected = optax.softmax_cross_entropy(logits, smooth).mean()
    np.testing.assert_allclose(nn.cross_entropy(logits, targets, label_smoothing=0.2), expected, rtol=1e-6)


@pytest.fixture
def optax():
    return pytest.importorskip("optax")


def paths(frames, labels, classes):
    """All alignments of so many frames to labels, 0 being the blank."""
    for path in itertools.product(range(classes), repeat=frames):
        if [c for c, _ in itertools.groupby(path) if c] == labels:
            yield path


@pytest.mark.parametrize("labels", [[], [1], [2, 1], [1, 1], [2, 2, 2], [1, 2, 1]])
@pytest.mark.parametrize("frames", [1, 2, 4, 5])
def test_ctc_is_the_sum_over_all_alignments(labels, frames):
    logits = np.random.default_rng(0).standard_normal((5, 3))
    p = np.exp(nn.log_softmax(logits))
    total = sum(np.prod([p[t, c] for t, c in enumerate(path)]) for path in paths(frames, labels, 3))
    with np.errstate(divide="ignore"):
        expected = -np.log(total)
    found = nn.ctc_loss(logits, np.array(labels + [1, 1], int), frames, len(labels))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_ctc_of_a_batch_has_the_gradient_of_finite_differences_and_of_optax(optax):
    rng = np.random.default_rng(0)
    logits, frames = rng.standard_normal((3, 6, 4)), np.array([6, 3, 5])
    targets, lengths = np.array([[1, 2, 2], [3, 0, 0], [2, 1, 2]]), np.array([3, 1, 3])
    loss = lambda logits: nn.ctc_loss(logits, targets, frames, lengths).sum()
    cg.check_grads(loss, (logits,))
    padding = lambda counts, size: (np.arange(size) >= counts[:, None]).astype(float)
    expected = optax.ctc_loss(logits, padding(frames, 6), targets, padding(lengths, 3))
    np.testing.assert_allclose(nn.ctc_loss(logits, targets, frames, lengths), expected, rtol=1e-5)


def test_ctc_with_another_blank_is_the_same_with_the_classes_moved():
    logits = np.random.default_rng(0).standard_normal((6, 4))
    moved = np.roll(logits, -1, axis=1)  # class 0 becomes class 3
    found = nn.ctc_loss(moved, np.array([0, 1, 1]), 6, 3, blank=3)
    np.testing.assert_allclose(found, nn.ctc_loss(logits, np.array([1, 2, 2]), 6, 3), rtol=1e-12)


def test_a_gradient_of_ctc_stays_finite_where_no_alignment_exists():
    logits = np.random.default_rng(0).standard_normal((2, 3))
    value, gradient = cg.value_and_grad(lambda x: nn.ctc_loss(x, np.array([1, 1]), 2, 2))(logits)
    assert value == np.inf and not np.isnan(gradient).any()


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: nn.Linear(3, 2)(nn.Linear(3, 2).init(KEY), np.ones((5, 4))), "expected: a last axis of 3"),
        (lambda: nn.LSTM(3, 2)(nn.LSTM(3, 2).init(KEY), np.ones(3)), "of 2 axes or more"),
        (lambda: nn.LSTM(3, 2).init(np.random.default_rng(0)), "no key"),
        (lambda: nn.MultiHeadAttention(4, 3), "heads that divides 4"),
        (lambda: nn.cross_entropy(np.ones((5, 4)), np.ones(5)), "the targets are no integers"),
        (lambda: nn.cross_entropy(np.ones((5, 4)), np.ones((5, 4), int)), r"targets \[...\]"),
        (lambda: nn.ctc_loss(np.ones((5, 4)), np.ones((1, 1), int), 1, 1), "without the batch"),
        (lambda: nn.ctc_loss(np.ones((5, 4)), np.ones(1, int), 1, 1, blank=4), "0 <= blank < 4"),
    ],
)
def test_a_layer_says_what_does_not_fit(call, words):
    with pytest.raises(CtrlgradError, match=words) as caught:
        call()
    assert "test_modules.py" in str(caught.value) and "try: " in str(caught.value)


@pytest.mark.parametrize(
    "get, instead",
    [
        (lambda: cg.tensor, "ctrlgrad.numpy.asarray(values)"),
        (lambda: cg.no_grad, "what is not differentiated costs nothing"),
        (lambda: cg.whileloop, "ctrlgrad.while_loop"),
        (lambda: cg.nn.Module, "ctrlgrad.nn.Linear"),
        (lambda: cg.nn.Dense, "ctrlgrad.nn.Linear(inputs, outputs)"),
        (lambda: cg.nn.ReLU, "ctrlgrad.nn.relu"),
        (lambda: cg.nn.CrossEntropyLoss, "ctrlgrad.nn.cross_entropy(logits, targets)"),
        (lambda: cg.nn.Conv2d, "ctrlgrad.lax.conv(x, w, strides, padding)"),
        (lambda: cg.zeros, "ctrlgrad.numpy.zeros"),
        (lambda: cg.scipy.integrate, "a while_loop (recipe 'Adaptive solvers with events')"),
        (lambda: cg.optim.Adam, "ctrlgrad.optim.adam(rate)"),
        (lambda: cg.random.seed, "key = ctrlgrad.random.key(seed)"),
        (lambda: cg.random.randn, "ctrlgrad.random.normal(key, shape)"),
        (lambda: cg.random.shuffle, "ctrlgrad.random.permutation(key, x)"),
        (lambda: cg.optim.lr_scheduler, "ctrlgrad.optim.cosine_decay_schedule"),
    ],
)
def test_a_name_of_another_library_is_answered_with_ours(get, instead):
    with pytest.raises(MissingAttributeError) as caught:
        get()
    assert instead in str(caught.value) and "test_modules.py" in str(caught.value)


def test_a_name_that_nothing_resembles_is_missing_as_usual():
    assert not hasattr(cg.nn, "__wrapped__") and not hasattr(cg, "quux_frobnicate")
    with pytest.raises(AttributeError, match="module 'ctrlgrad' has no attribute 'quux_frobnicate'"):
        _ = cg.quux_frobnicate


@pytest.mark.parametrize("lengths", [[2, 6], [-1, 5]])
def test_a_length_outside_of_the_sequences_is_refused(lengths: list[int]) -> None:
    """Sequences in the other order of axes would otherwise be cut without a word."""
    layer = nn.LSTM(3, 4)
    with pytest.raises(ShapeError, match="0 <= length <= 5"):
        layer(layer.init(cg.random.key(0)), np.ones((5, 2, 3)), lengths=np.array(lengths))
