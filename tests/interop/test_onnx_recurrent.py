"""The recurrent networks of ONNX, with all their attributes: by their equations and finite differences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import ctrlgrad as cg
from tests.onnx_models import one_node, random


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    with cg.options(engine="reference"):
        yield


LENGTHS = np.array([4, 2, 3], np.int32)
RECURRENT = {
    "RNN": (1, [{}, {"activations": ["Affine", "Tanh"], "activation_alpha": [0.5], "activation_beta": [0.125]}]),
    "GRU": (3, [{}, {"linear_before_reset": 1}, {"clip": 0.75}]),
    "LSTM": (4, [{}, {"input_forget": 1}, {"clip": 0.75}]),
}
CASES = [
    (op, direction, attributes, lengths, layout)
    for op, (_, several) in RECURRENT.items()
    for attributes in several
    for direction, lengths, layout in (("forward", False, 0), ("reverse", True, 0), ("bidirectional", True, 1))
    if not attributes or direction == "bidirectional"
]


def one_direction(op: str, x: Any, w: Any, r: Any, b: Any, p: Any, attributes: Any, which: int) -> tuple[Any, Any]:
    """The equations of ONNX's text for one row and one direction, step by step: outputs and the last state."""
    gates, hidden = RECURRENT[op][0], r.shape[-1]
    own = np.split(b[: gates * hidden], gates), np.split(b[gates * hidden :], gates)
    ws, rs = np.split(w, gates), np.split(r, gates)
    clip = attributes.get("clip", np.inf)
    pre = lambda i, x, h: ws[i] @ x + rs[i] @ h + own[0][i] + own[1][i]
    sigma = lambda v: 1 / (1 + np.exp(-np.clip(v, -clip, clip)))
    tanh = lambda v: np.tanh(np.clip(v, -clip, clip))
    affine = "activations" in attributes and which == 0
    h = c = np.zeros(hidden)
    outputs = []
    for row in x:
        if op == "RNN":
            v = pre(0, row, h)
            h = 0.5 * v + 0.125 if affine else tanh(v)
        elif op == "GRU":
            z, reset = sigma(pre(0, row, h)), sigma(pre(1, row, h))
            if attributes.get("linear_before_reset"):
                new = tanh(ws[2] @ row + own[0][2] + reset * (rs[2] @ h + own[1][2]))
            else:
                new = tanh(pre(2, row, reset * h))
            h = (1 - z) * new + z * h
        else:
            p_i, p_o, p_f = np.split(p, 3)
            i = sigma(pre(0, row, h) + p_i * c)
            f = 1 - i if attributes.get("input_forget") else sigma(pre(2, row, h) + p_f * c)
            c_new = f * c + i * tanh(pre(3, row, h))
            h = sigma(pre(1, row, h) + p_o * c_new) * np.tanh(c_new)
            c = c_new
        outputs.append(h)
    return np.array(outputs).reshape(-1, hidden), h


@pytest.mark.parametrize(("op", "direction", "attributes", "has_lengths", "layout"), CASES)
def test_recurrent_networks_by_their_equations_and_finite_differences(
    op: str, direction: str, attributes: Any, has_lengths: bool, layout: int
) -> None:
    time, rows, inputs, hidden = 4, 3, 2, 2
    gates, directions = RECURRENT[op][0], 2 if direction == "bidirectional" else 1
    x = random(time, rows, inputs)
    w, r = random(directions, gates * hidden, inputs, seed=1), random(directions, gates * hidden, hidden, seed=2)
    b, p = 0.3 * random(directions, 2 * gates * hidden, seed=3), random(directions, 3 * hidden, seed=4)
    lengths = LENGTHS if has_lengths else None
    given = [np.swapaxes(x, 0, 1) if layout else x, w, r, b, lengths]
    given += [None, None, p] if op == "LSTM" else []
    f = one_node(op, given, 2, hidden_size=hidden, direction=direction, layout=layout, **attributes)

    def call(x: Any, *weights: Any) -> Any:
        arguments = dict(zip(["x0", "x1", "x2", "x3", "x7"], (x, *weights), strict=False))
        return f(**arguments, **({} if lengths is None else {"x4": lengths}))

    floats = [a for a in given if a is not None and a.dtype.kind == "f"]
    y, last = call(*floats)
    if layout:
        y, last = np.transpose(y, (1, 2, 0, 3)), np.swapaxes(last, 0, 1)
    for row in range(rows):
        n = time if lengths is None else lengths[row]
        for d in range(directions):
            backwards = direction == "reverse" or d == 1
            own = x[:n, row][::-1] if backwards else x[:n, row]
            outputs, state = one_direction(op, own, w[d], r[d], b[d], p[d], attributes, d)
            np.testing.assert_allclose(y[:n, d, row], outputs[::-1] if backwards else outputs)
            np.testing.assert_allclose(last[d, row], state)
            assert not y[n:, d, row].any()
    modes = ("rev", "fwd") if direction == "forward" else ("rev",)
    cg.check_grads(call, floats, modes=modes, against=("finite_differences",))
