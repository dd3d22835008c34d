"""The cells compute their papers' formulas, gate by gate, eagerly and traced, and differentiate through a loop."""

import numpy as np
import pytest

import ctrlgrad as cg
from ctrlgrad import nn
from ctrlgrad.errors import CtrlgradError

BATCH, INPUTS, HIDDEN = 2, 3, 4


def logistic(x):
    return 1 / (1 + np.exp(-x))


def one_gate(params, number, h, x):
    """The input of gate `number`, from its own columns of the weights."""
    columns = slice(number * HIDDEN, (number + 1) * HIDDEN)
    wh = np.concatenate([params["wh"], params["wn"]], axis=1) if "wn" in params else params["wh"]
    return x @ params["wx"][:, columns] + h @ wh[:, columns] + params["b"][columns]


def by_formula(kind, params, state, x):
    h = state[0]
    if kind == "rnn":
        return (np.tanh(one_gate(params, 0, h, x)),)
    if kind == "lstm":
        i, f, o = (logistic(one_gate(params, n, h, x)) for n in range(3))
        c = f * state[1] + i * np.tanh(one_gate(params, 3, h, x))
        return o * np.tanh(c), c
    r, z = (logistic(one_gate(params, n, h, x)) for n in range(2))
    n = np.tanh(one_gate(params, 2, r * h, x))
    return (z * h + (1 - z) * n,)


def example(kind, dtype=np.float64):
    rng = np.random.default_rng(7)
    params = nn.CELLS[kind].init(cg.random.key(7), INPUTS, HIDDEN, dtype)
    params["b"] = params["b"] + rng.standard_normal(params["b"].shape).astype(dtype)
    state = tuple(rng.standard_normal((BATCH, HIDDEN)).astype(dtype) for _ in range(nn.CELLS[kind].states))
    return params, state, rng.standard_normal((BATCH, INPUTS)).astype(dtype)


@pytest.mark.parametrize("kind", nn.CELLS)
def test_a_step_is_the_formula_of_the_paper(kind):
    params, state, x = example(kind)
    for ours, expected in zip(nn.CELLS[kind].step(params, state, x), by_formula(kind, params, state, x), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-12)


@pytest.mark.parametrize("kind", nn.CELLS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_traced_step_is_the_eager_one_and_keeps_the_dtype(kind, dtype):
    params, state, x = example(kind, dtype)
    eager = nn.CELLS[kind].step(params, state, x)
    traced = cg.function(nn.CELLS[kind].step)(params, state, x)
    for a, b in zip(eager, traced, strict=True):
        assert a.dtype == b.dtype == dtype
        # Compiled elementary functions are not NumPy's: the last digit may differ.
        np.testing.assert_allclose(a, b, rtol=16 * np.finfo(dtype).eps, atol=4 * np.finfo(dtype).eps)


@pytest.mark.parametrize("kind", nn.CELLS)
def test_gradient_through_a_loop_of_data_dependent_length_agrees_with_central_differences(kind):
    params, state, x = example(kind)
    cell = nn.CELLS[kind]

    def loss(params, steps):
        def body(carry):
            t, state = carry
            return t + 1, cell.step(params, state, x)

        _, last = cg.while_loop(lambda carry: carry[0] < steps, body, (0, state))
        return (last[0] ** 2).sum()

    steps = np.int64(3)
    grads = cg.grad(loss)(params, steps)
    direction = {k: np.random.default_rng(len(k)).standard_normal(v.shape) for k, v in params.items()}

    def along(distance):
        return loss({k: v + distance * direction[k] for k, v in params.items()}, steps)

    slope = sum(np.sum(grads[k] * direction[k]) for k in params)
    np.testing.assert_allclose(slope, (along(1e-5) - along(-1e-5)) / 2e-5, rtol=1e-7)


def test_forget_gates_start_open():
    b = nn.lstm_init(cg.random.key(0), INPUTS, HIDDEN)["b"]
    assert b.reshape(4, HIDDEN).tolist() == [[0] * HIDDEN, [1] * HIDDEN, [0] * HIDDEN, [0] * HIDDEN]


@pytest.mark.parametrize("kind", nn.CELLS)
def test_parameters_are_fixed_by_the_key(kind):
    first, again, other = (nn.CELLS[kind].init(cg.random.key(s), INPUTS, HIDDEN) for s in (1, 1, 2))
    np.testing.assert_array_equal(first["wh"], again["wh"])
    assert not np.array_equal(first["wh"], other["wh"])


@pytest.mark.parametrize("kind", nn.CELLS)
def test_a_single_sequence_is_a_row_of_a_batch(kind):
    params, state, x = example(kind)
    batched = nn.CELLS[kind].step(params, state, x)
    single = nn.CELLS[kind].step(params, tuple(s[1] for s in state), x[1])
    for rows, row in zip(batched, single, strict=True):
        assert row.shape == (HIDDEN,)
        np.testing.assert_allclose(row, rows[1], rtol=1e-12)


@pytest.mark.parametrize("kind", nn.CELLS)
def test_parameters_and_states_follow_the_default_dtype(kind):
    cell = nn.CELLS[kind]
    for dtype in ("float32", "float64"):
        with cg.options(default_float=dtype):
            made = cell.init(cg.random.key(0), INPUTS, HIDDEN), cell.start(BATCH, HIDDEN), cell.start(None, HIDDEN)
        assert {leaf.dtype.name for leaf in cg.tree.leaves(made)} == {dtype}


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda p, h, x: nn.gru_cell(p, h, x), r"the state is no tuple \(h,\)"),
        (lambda p, h, x: nn.gru_cell(p, (h, h), x), r"a tuple of 2"),
        (lambda p, h, x: nn.gru_cell(p, (h,), x[:, :2]), r"the input x does not fit(.|\n)*inputs = 3"),
        (lambda p, h, x: nn.gru_cell(p, (h[:, :1],), x), r"the state h does not fit(.|\n)*hidden = 4"),
        (lambda p, h, x: nn.gru_cell(p, (h[:1],), x), r"the state h and the input x have different batches"),
        (lambda p, h, x: nn.gru_cell(p, (h[0],), x), r"the state h and the input x have different batches"),
        (lambda p, h, x: nn.gru_cell(p, (h,), x[None]), r"the input x does not fit"),
        (lambda p, h, x: nn.gru_init(np.random.default_rng(0), 3, 4), r"no key(.|\n)*got: Generator"),
        (lambda p, h, x: nn.gru_init(0, 3, 4), r"no key(.|\n)*got: 0"),
    ],
)
def test_a_step_says_which_argument_does_not_fit(call, words):
    params, (h,), x = example("gru")
    with pytest.raises(CtrlgradError, match=words) as caught:
        call(params, h, x)
    assert "test_cells.py" in str(caught.value) and "try: " in str(caught.value)


@pytest.mark.parametrize("kind", nn.CELLS)
def test_without_input_weights_the_input_is_their_product(kind):
    cell, x = nn.CELLS[kind], np.random.default_rng(2).standard_normal((3, 5))
    params = cell.init(cg.random.key(4), 5, 2)
    rest = {name: w for name, w in params.items() if name != "wx"}
    state = cell.step(params, cell.start(3, 2), x)
    for ours, expected in zip(cell.step(rest, cell.start(3, 2), x @ params["wx"]), state, strict=True):
        np.testing.assert_array_equal(ours, expected)
    with pytest.raises(CtrlgradError, match=f"{kind}_cell: the input x does not fit"):
        cell.step(rest, cell.start(3, 2), x)
