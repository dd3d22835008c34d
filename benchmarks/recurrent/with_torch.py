"""The recurrent programs in PyTorch: the built-in layers, and an eager loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from benchmarks.program import Program
from benchmarks.recurrent.inputs import lengths, pack, read, sequence, weights


def lstm_concat(p: Any, x: Any, state: Any) -> Any:
    h, c = state
    i, f, g, o = torch.chunk(torch.cat([x, h], 1) @ p["w"] + p["b"], 4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def lstm_separate(p: Any, x: Any, state: Any) -> Any:
    h, c = state
    i, f, g, o = torch.chunk(x @ p["wx"] + h @ p["wh"] + p["b"], 4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def gru_concat(p: Any, x: Any, state: Any) -> Any:
    (h,) = state
    gates = 2 * h.shape[1]
    r, z = torch.chunk(torch.sigmoid(torch.cat([x, h], 1) @ p["w"] + p["b"][:gates]), 2, 1)
    n = torch.tanh(x @ p["wxn"] + p["b"][gates:] + r * (h @ p["whn"] + p["bn"]))
    return ((1.0 - z) * n + z * h,)


def gru_separate(p: Any, x: Any, state: Any) -> Any:
    (h,) = state
    xr, xz, xn = torch.chunk(x @ p["wx"] + p["b"], 3, 1)
    hr, hz, hn = torch.chunk(h @ p["wh"], 3, 1)
    r, z = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
    n = torch.tanh(xn + r * (hn + p["bn"]))
    return ((1.0 - z) * n + z * h,)


CELLS: dict[tuple[str, str], Callable[..., Any]] = {
    ("lstm", "concat"): lstm_concat,
    ("lstm", "separate"): lstm_separate,
    ("gru", "concat"): gru_concat,
    ("gru", "separate"): gru_separate,
}


def eager(cell: str, form: str, size: Sequence[int]) -> Program:
    """A training step by a Python loop under autograd."""
    shared = pack(cell, form, weights(cell, size))
    params = {name: torch.from_numpy(p).requires_grad_() for name, p in shared.items()}
    xs = torch.from_numpy(sequence(size))
    advance = CELLS[cell, form]

    def loss() -> Any:
        state = (torch.zeros(xs.shape[1], size[3]),) * (2 if cell == "lstm" else 1)
        hs = []
        for x in xs:
            state = advance(params, x, state)
            hs.append(state[0])
        return torch.stack(hs).pow(2).mean()

    def step() -> Any:
        for p in params.values():
            p.grad = None
        value = loss()
        value.backward()
        return value.detach(), {name: p.grad for name, p in params.items()}

    return Program(
        step=step,
        read=lambda result: read(cell, form, size[2], result),
        kept_bytes=lambda: _saved_bytes(loss, [xs, *params.values()]) / size[0],
    )


def within_memory(size: Sequence[int], how: str, segment: int = 0) -> Program:
    """A training step of an LSTM of `torch.nn` with saved values off the device, or recomputed.

    `how`: `"nothing"`, `"save_on_cpu"` (`torch.autograd.graph.save_on_cpu`, in pieces of `segment` steps) or
    `"checkpoint"` (`torch.utils.checkpoint`, around pieces of `segment` steps).
    """
    _, batch, inputs, hidden = size
    net = _layer("lstm", inputs, hidden, weights("lstm", size))
    pieces = torch.from_numpy(sequence(size)).split(segment or size[0])

    def advance(xs: Any, state: Any) -> Any:
        hs, state = net(xs, state)
        return hs.pow(2).sum(), state

    def loss() -> Any:
        state = (torch.zeros(1, batch, hidden),) * 2
        total = torch.zeros(())
        for xs in pieces:
            if how == "checkpoint":
                part, state = checkpoint(advance, xs, state, use_reentrant=False)
            else:
                part, state = advance(xs, state)
            total = total + part
        return total / (size[0] * batch * hidden)

    def step() -> Any:
        with torch.autograd.graph.save_on_cpu() if how == "save_on_cpu" else nullcontext():
            return _layer_step(net, loss)

    return Program(step=step, read=lambda result: _read_layer("lstm", hidden, result))


def layer(cell: str, size: Sequence[int]) -> Program:
    """A training step of `torch.nn.LSTM` or `torch.nn.GRU`."""
    steps, _, inputs, hidden = size
    net = _layer(cell, inputs, hidden, weights(cell, size))
    xs = torch.from_numpy(sequence(size))

    def loss() -> Any:
        return net(xs)[0].pow(2).mean()

    return Program(
        step=lambda: _layer_step(net, loss),
        read=lambda result: _read_layer(cell, hidden, result),
        kept_bytes=lambda: _saved_bytes(loss, [xs, *net.parameters()]) / steps,
    )


def many_lengths(size: Sequence[int], count: int, shortest: int, longest: int) -> Program:
    """Training steps of `torch.nn.LSTM` on batches of different lengths."""
    _, batch, inputs, hidden = size
    net = _layer("lstm", inputs, hidden, weights("lstm", size))
    sizes = [(n, batch, inputs, hidden) for n in lengths(count, shortest, longest)]
    batches = [torch.from_numpy(sequence(s, seed)) for seed, s in enumerate(sizes)]

    def read_all(results: Any) -> dict[str, np.ndarray]:
        return _read_layer("lstm", hidden, results[-1]) | {"losses": np.array([float(loss) for loss, _ in results])}

    def loss_of(xs: Any) -> Callable[[], Any]:
        return lambda: net(xs)[0].pow(2).mean()

    return Program(step=lambda: [_layer_step(net, loss_of(xs)) for xs in batches], read=read_all)


def _layer(cell: str, inputs: int, hidden: int, shared: dict[str, np.ndarray]) -> Any:
    net = torch.nn.LSTM(inputs, hidden) if cell == "lstm" else torch.nn.GRU(inputs, hidden)
    with torch.no_grad():
        net.weight_ih_l0.copy_(torch.from_numpy(shared["wx"].T))
        net.weight_hh_l0.copy_(torch.from_numpy(shared["wh"].T))
        net.bias_ih_l0.copy_(torch.from_numpy(shared["b"]))
        net.bias_hh_l0.zero_()
        if cell == "gru":
            net.bias_hh_l0[2 * hidden :] = torch.from_numpy(shared["bn"])
    return net


def _layer_step(net: Any, loss: Callable[[], Any]) -> Any:
    net.zero_grad()
    value = loss()
    value.backward()
    return value.detach(), {name: p.grad for name, p in net.named_parameters()}


def _read_layer(cell: str, hidden: int, result: Any) -> dict[str, np.ndarray]:
    loss, gradients = result
    found = {
        "loss": np.asarray(loss),
        "wx": gradients["weight_ih_l0"].numpy().T,
        "wh": gradients["weight_hh_l0"].numpy().T,
        "b": gradients["bias_ih_l0"].numpy(),
    }
    return found | {"bn": gradients["bias_hh_l0"].numpy()[2 * hidden :]} if cell == "gru" else found


def _saved_bytes(loss: Callable[[], Any], given: Sequence[Any]) -> int:
    """The bytes of all storages that autograd saves, each counted once, without what the program was given."""
    own = {x.untyped_storage().data_ptr() for x in given}
    saved: dict[int, int] = {}
    kept = []

    def pack_hook(x: Any) -> Any:
        storage = x.untyped_storage()
        kept.append(storage)
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack_hook, lambda x: x):
        loss()
    return sum(saved.values())
