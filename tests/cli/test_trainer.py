"""`ctrlgrad.train.Trainer`: a loss of one's own, stopped and continued exactly; and weights by PyTorch's names."""

import json
import signal

import numpy as np
import pytest

import ctrlgrad as cg
import ctrlgrad.numpy as cnp
from ctrlgrad import nn, optim, train
from ctrlgrad.errors import CtrlgradError, UserInputError
from ctrlgrad.train.model import Model
from ctrlgrad.train.settings import Settings

GRU, OUT = nn.GRU(2, 5), nn.Linear(5, 2)


def first_params():
    key, other = cg.random.split(cg.random.key(0))
    return {"gru": GRU.init(key), "out": OUT.init(other)}


def loss(params, xs, lengths, labels):
    """A classifier of ragged sequences."""
    _, [(h,)] = GRU(params["gru"], xs, lengths)
    return nn.cross_entropy(OUT(params["out"], h), labels)


def batch(step):
    rng = np.random.default_rng([7, step])
    lengths = rng.integers(2, 7, 8)
    xs = rng.standard_normal((6, 8, 2))
    return xs, lengths, (xs[0, :, 0] > 0).astype(int)


def trainer(out, **options):
    given = {"steps": 30, "engine": "reference", "validation": [batch(-n % 1000) for n in (1, 2)], "log_interval": 5}
    return train.Trainer(loss, first_params(), optim.adam(0.05), batch, out=out, **{**given, **options})


def assert_same(result, other):
    for one, two in zip(cg.tree.leaves(result.params), cg.tree.leaves(other.params), strict=True):
        np.testing.assert_array_equal(one, two)
    assert result.validation == other.validation


def test_a_loss_of_ones_own_is_trained_and_leaves_its_results(tmp_path):
    seen = []
    result = trainer(tmp_path / "run", steps=60, callbacks=[seen.append]).run()
    assert [step.step for step in seen] == list(range(1, 61)) and result.steps == 60
    assert seen[-1].loss < 0.5 * seen[0].loss and seen[0].count == 6
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < 0.5 * lines[0]["loss"] and lines[-1]["validation"] == result.validation
    assert set(lines[0]) == {"step", "loss", "per_second", "peak_memory_bytes", "validation"}
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["validation"] == result.validation and "unigram_bits_per_char" not in summary
    restored = train.read_params(tmp_path / "run", first_params())
    for one, two in zip(cg.tree.leaves(restored), cg.tree.leaves(result.params), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("stop", [1, 5, 13])
def test_a_run_that_is_stopped_continues_to_the_same_numbers(tmp_path, stop):
    whole = trainer(tmp_path / "whole").run()
    press = lambda step: signal.raise_signal(signal.SIGINT) if step.step == stop else None
    with pytest.raises(train.Interrupted) as caught:
        trainer(tmp_path / "broken", callbacks=[press]).run()
    assert "the same Trainer with resume=True" in caught.value.ending.text
    assert_same(trainer(tmp_path / "broken", resume=True).run(), whole)


def test_a_run_is_made_longer_exactly(tmp_path):
    """The schedule is the optimiser's: it is the same for both."""
    trainer(tmp_path / "parts", steps=12).run()
    longer = trainer(tmp_path / "parts", steps=30, resume=True).run()
    assert_same(longer, trainer(tmp_path / "whole", steps=30).run())


def test_data_may_be_a_sequence_and_the_validation_a_function(tmp_path):
    single = [(np.array([1.0, 2.0]), np.array([3.0, 5.0]))]
    fit = lambda params, x, y: cnp.mean((params[0] * x + params[1] - y) ** 2)
    seen = []
    result = train.Trainer(
        fit,
        [np.array(0.0), np.array(0.0)],
        optim.sgd(0.2, momentum=0.5),
        single,
        steps=400,
        out=tmp_path / "run",
        validation=lambda params: seen.append(params) or abs(float(params[0]) - 2.0),
    ).run()
    assert len(seen) == 5 and result.validation < 1e-3 and result.best_validation <= result.validation


def test_an_optimiser_of_optax_trains_and_resumes(tmp_path):
    optax = pytest.importorskip("optax")
    make = lambda out, **options: train.Trainer(
        lambda p, x: ((p["w"] - x) ** 2).sum(),
        {"w": np.zeros(3, np.float32)},
        optax.adam(0.1),
        [np.ones(3, np.float32)],
        out=tmp_path / out,
        engine="reference",
        **options,
    )
    make("parts", steps=7).run()
    found, whole = make("parts", steps=20, resume=True).run(), make("whole", steps=20).run()
    np.testing.assert_array_equal(found.params["w"], whole.params["w"])


def test_patience_ends_a_run_whose_validation_does_not_fall(tmp_path):
    result = trainer(tmp_path / "run", validation=lambda params: 1.0, validation_interval=3, patience=2).run()
    assert result.steps == 9


ROW = (np.ones(2), np.ones(2))
LINE = lambda params, x, y: cnp.mean((params["a"] * x - y) ** 2)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"data": ROW}, r"a batch does not fit the loss[^$]*signature \(params, x, y\)[^$]*float64\[2\]"),
        ({"data": (ROW for _ in range(3))}, r"data is no sequence[^$]*got: generator"),
        ({"validation": ROW}, "a batch does not fit the loss"),
        ({"validation": iter([ROW])}, "validation is no sequence"),
        ({"optimiser": dict}, r"this is no optimiser[^$]*got: dict[^$]*ctrlgrad\.optim\.adam"),
        ({"callbacks": print}, r"callbacks=\[function\]"),
        ({"loss": lambda p, x, y: (LINE(p, x, y), x)}, r"try: return the loss alone"),
        ({"loss": lambda p, x, y: np.nan * LINE(p, x, y)}, "clip_by_global_norm in front of the optimiser"),
        ({"resume": True}, r"resume=True: there is no checkpoint[^$]*leave out resume=True[^$]*out="),
    ],
)
def test_arguments_that_do_not_fit_are_explained_in_pythons_words(tmp_path, change, words):
    given = {"loss": LINE, "params": {"a": np.zeros(())}, "optimiser": optim.sgd(0.1), "data": [ROW], **change}
    with pytest.raises(CtrlgradError, match=words) as caught:
        train.Trainer(steps=2, out=tmp_path / "run", engine="reference", **given).run()
    assert "--" not in str(caught.value)


def test_a_result_prints_its_figures_alone(tmp_path):
    result = trainer(tmp_path / "run", steps=1).run()
    assert "steps=1" in repr(result) and "array" not in repr(result)


def test_a_run_is_not_overwritten_and_not_continued_with_other_parameters(tmp_path):
    trainer(tmp_path / "run", steps=2).run()
    with pytest.raises(UserInputError, match=r"the folder already holds a run[^$]*continue that run with resume=True"):
        trainer(tmp_path / "run").run()
    other = train.Trainer(loss, {"w": np.zeros(3)}, optim.adam(0.1), batch, steps=4, out=tmp_path / "run", resume=True)
    with pytest.raises(UserInputError, match=r"absent[^$]*try: give the params and the optimiser of that run"):
        other.run()
    with pytest.raises(UserInputError, match="has more steps"):
        trainer(tmp_path / "run", steps=1, resume=True).run()
    with pytest.raises(UserInputError, match="the run is of a loss of its own"):
        train.load(tmp_path / "run")


@pytest.mark.parametrize("options, words", [({"data": []}, "data is empty"), ({"steps": 0}, "steps is too small")])
def test_a_trainer_says_what_it_lacks(options, words):
    given = {"data": batch, "steps": 3, **options}
    with pytest.raises(UserInputError, match=words) as caught:
        train.Trainer(loss, first_params(), optim.adam(0.1), given["data"], steps=given["steps"])
    assert "test_trainer.py" in str(caught.value)


# PyTorch's names.


def layers_of(kind, layers=2):
    module = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[kind](3, 4, layers)
    rng = np.random.default_rng(0)
    params = [{**layer, "b": rng.standard_normal(layer["b"].shape)} for layer in module.init(cg.random.key(0))]
    return module, [{**layer, "bn": rng.standard_normal(4)} if kind == "gru" else layer for layer in params]


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_exported_weights_compute_the_same_in_torch_and_come_back(kind):
    torch = pytest.importorskip("torch")
    module, params = layers_of(kind)
    theirs = getattr(torch.nn, kind.upper())(3, 4, num_layers=2).double()
    theirs.load_state_dict({name: torch.from_numpy(w) for name, w in train.to_torch(kind, params).items()})
    xs = np.random.default_rng(1).standard_normal((6, 2, 3))
    outputs, _ = module(params, xs)
    expected, _ = theirs(torch.from_numpy(xs))
    np.testing.assert_allclose(outputs, expected.detach().numpy(), rtol=1e-10, atol=1e-12)
    for w in theirs.parameters():
        torch.nn.init.normal_(w)
    back = train.from_torch(kind, {name: w.detach() for name, w in theirs.state_dict().items()})
    again, _ = theirs(torch.from_numpy(xs))
    np.testing.assert_allclose(module(back, xs)[0], again.detach().numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_the_layers_of_a_text_model_are_exported(kind):
    torch = pytest.importorskip("torch")
    settings = Settings(cell=kind, hidden=4, embedding=3, layers=2, batch=2, precision="float64", engine="reference")
    model = Model(settings, 5)
    params = model.init(cg.random.key(0))
    theirs = getattr(torch.nn, kind.upper())(3, 4, num_layers=2).double()
    state = train.to_torch(kind, params["layers"])
    theirs.load_state_dict({name: torch.from_numpy(w) for name, w in state.items()})
    symbols, states = np.array([[1, 2], [3, 4], [0, 1]]), model.start(2, 3)
    outputs, _ = theirs(torch.from_numpy(np.asarray(params["embedding"])[symbols]))
    for row, expected in zip(symbols, outputs, strict=True):
        states, _ = model.step(params, states, row)
        np.testing.assert_allclose(states[-1][0], expected.detach().numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_weights_by_torchs_names_are_ours_again(kind):
    _, params = layers_of(kind)
    for one, two in zip(train.from_torch(kind, train.to_torch(kind, params)), params, strict=True):
        assert sorted(one) == sorted(two)
        for name, w in two.items():
            np.testing.assert_array_equal(one[name], w)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: train.to_torch("gru", nn.GRU(3, 4).init(cg.random.key(0))), "no counterpart in PyTorch"),
        (lambda: train.to_torch("mlp", []), "no such kind"),
        (lambda: train.from_torch("lstm", {"lstm.weight_ih_l0": 0}), "no layer is named"),
        (lambda: train.from_torch("lstm", {"weight_ih_l0": 0}), "no weight_hh_l0"),
    ],
)
def test_weights_that_cannot_be_named_are_refused(call, words):
    with pytest.raises(UserInputError, match=words):
        call()
