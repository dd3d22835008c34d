"""The model by a loop for each layer: the same numbers as by one loop, and gradients that are told as they complete."""

import numpy as np
import pytest

import ctrlgrad as cg
from ctrlgrad import tree
from ctrlgrad.passes import optimise
from ctrlgrad.train.corpus import pad
from ctrlgrad.train.layers import LAYERS
from ctrlgrad.train.model import Model
from ctrlgrad.train.settings import Settings

SYMBOLS, LINES = 20, 5


def models(on_gradient, **settings):
    way = Settings(**{"hidden": 8, "batch": LINES, "engine": "native", **settings})
    return Model(way, SYMBOLS), Model(way, SYMBOLS, on_gradient=on_gradient)


def arguments(model, lengths=(5, 9, 1, 3)):
    """Parameters, and fewer lines than columns, as a rank may have."""
    rng = np.random.default_rng(1)
    batch = pad([rng.integers(1, SYMBOLS, n) for n in lengths], LINES)
    return model.init(cg.random.key(0)), batch.symbols, batch.lengths, np.int64(2 * batch.characters)


@pytest.mark.parametrize("engine", ["reference", "native"])
@pytest.mark.parametrize("cell", LAYERS)
@pytest.mark.parametrize("layers", [1, 3])
def test_it_computes_what_one_loop_computes(cell, layers, engine):
    told = {}
    one, by_layer = models(lambda n, ct: told.update({n: ct.copy()}), cell=cell, layers=layers, engine=engine)
    bits, grads = one.bits_and_grads(*arguments(one))
    found_bits, found = by_layer.bits_and_grads(*arguments(one))
    np.testing.assert_allclose(found_bits, bits, rtol=1e-6)
    for number, (a, b) in enumerate(zip(tree.leaves(found), tree.leaves(grads), strict=True)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.max(np.abs(b)), err_msg=str(number))
        np.testing.assert_array_equal(told[number], a)
    assert len(told) == len(tree.leaves(grads))


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
@pytest.mark.parametrize("is_by_layer", [False, True])
def test_products_of_symbols_that_are_computed_before_the_loop_change_no_number(monkeypatch, cell, is_by_layer):
    def found():
        told = (lambda n, ct: None) if is_by_layer else None
        model = Model(Settings(cell=cell, hidden=8, batch=LINES, engine="native"), SYMBOLS, on_gradient=told)
        return model.bits_and_grads(*arguments(model))

    folded = found()
    monkeypatch.setattr(Model, "_folded", lambda self, params: params)
    for a, b in zip(tree.leaves(folded), tree.leaves(found()), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6 * np.max(np.abs(b)))


@pytest.mark.parametrize(
    "symbols, settings, is_folded",
    [(16 * LINES, {}, True), (16 * LINES + 1, {}, False), (20, {"dropout": 0.1}, False), (20, {"cell": "rnn"}, True)],
)
def test_products_of_symbols_are_computed_before_where_there_are_few(symbols, settings, is_folded):
    model = Model(Settings(**{"hidden": 8, "batch": LINES, **settings}), symbols)
    params = model.init(cg.random.key(0))
    found = model._folded(params)
    assert ("wx" in found["layers"][0]) != is_folded
    assert found["embedding"].shape == (symbols, params["layers"][0]["wx"].shape[1] if is_folded else 64)


def test_the_lines_of_a_batch_may_be_dealt_out():
    """The losses and gradients of its parts add up to those of the batch."""
    _, model = models(lambda n, ct: None, layers=2)
    params, symbols, lengths, characters = arguments(model)
    whole, grads = model.bits_and_grads(params, symbols, lengths, characters)
    parts = [np.where(np.arange(LINES) % 2 == part, lengths, 0) for part in (0, 1)]
    found = [model.bits_and_grads(params, symbols, part, characters) for part in parts]
    np.testing.assert_allclose(sum(bits for bits, _ in found), whole, rtol=1e-6)
    for a, b, total in zip(*(tree.leaves(g) for _, g in found), tree.leaves(grads), strict=True):
        np.testing.assert_allclose(a + b, total, rtol=1e-4, atol=1e-6)


def test_the_gradient_graph_tells_a_layer_before_it_goes_through_the_next():
    """No pass moves a layer's loop before the callbacks of the layer above."""
    _, model = models(lambda n, ct: None, layers=3)
    graph = model.bits_and_grads.graph(*arguments(model))
    expected = ["layer 0", "layer 1", "layer 2", "read-out"]
    # Embedding 0; layers 1 to 3, 4 to 6, 7 to 9; read-out 10 and 11.
    for loop, numbers in (
        ("read-out", (11, 10)),
        ("layer 2", (9, 8, 7)),
        ("layer 1", (6, 5, 4)),
        ("layer 0", (3, 2, 1, 0)),
    ):
        expected += [loop, *(f"gradient {number}" for number in numbers)]
    for passed in (graph, optimise(graph)):
        nodes = (node for node in passed.nodes if node.op.name in ("while", "callback"))
        assert [getattr(node.attrs, "name" if node.op.name == "while" else "label") for node in nodes] == expected
