"""Training steps of PyTorch's modules: as they are, under `torch.compile`, and read by `ctrlgrad.from_torch`.

`python -m benchmarks.torch_modules` runs each case on each system in a process of its own, which first compares value
and gradients with PyTorch's, and prints the time of the first step, compilation included, and of later ones. The last
rows are an LSTM of 4,000 steps under a budget of a tenth of the bytes that PyTorch keeps for its gradient.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import ctrlgrad as cg

SYSTEMS = ("eager", "compile", "ctrlgrad")


class CellLoop(nn.Module):
    """An LSTM written as a Python loop over the steps."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(inputs, hidden)

    def forward(self, xs: Any) -> Any:
        h = torch.zeros(xs.shape[1], self.cell.hidden_size)
        c = torch.zeros_like(h)
        for x in xs:
            h, c = self.cell(x, (h, c))
        return (h * h).mean()


class Network(nn.Module):
    """`nn.LSTM` or `nn.GRU`."""

    def __init__(self, kind: Any, inputs: int, hidden: int) -> None:
        super().__init__()
        self.network = kind(inputs, hidden)

    def forward(self, xs: Any) -> Any:
        return (self.network(xs)[0] ** 2).mean()


class LastState(nn.Module):
    """An LSTM of which the last state counts."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.network = nn.LSTM(hidden, hidden)

    def forward(self, xs: Any) -> Any:
        return (self.network(xs)[1][0] ** 2).mean()


class Until(nn.Module):
    """A recurrent state that is iterated until it moves less than a bound: about 150 iterations."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.lin = nn.Linear(size, size)
        with torch.no_grad():
            self.lin.weight.copy_(0.9 * torch.linalg.qr(self.lin.weight)[0])

    def forward(self, x: Any) -> Any:
        z = torch.zeros_like(x)
        change = torch.ones(())
        while change > 1e-6:
            new = torch.tanh(self.lin(z) + x)
            change = (new - z).abs().max()
            z = new
        return (z * z).mean()


CASES: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "cell-loop-100x8x32x64": (lambda: CellLoop(32, 64), (100, 8, 32)),
    "cell-loop-200x32x64x128": (lambda: CellLoop(64, 128), (200, 32, 64)),
    "nn.LSTM-200x32x64x128": (lambda: Network(nn.LSTM, 64, 128), (200, 32, 64)),
    "nn.GRU-200x32x64x128": (lambda: Network(nn.GRU, 64, 128), (200, 32, 64)),
    "until-64": (lambda: Until(64), (1, 64)),
}


def prepared(case: str) -> tuple[Any, Any]:
    torch.manual_seed(0)
    make, size = CASES[case]
    return make(), torch.randn(*size)


def step_of(system: str, module: Any) -> Callable[[Any], Any]:
    """A training step: the loss, with gradients left in the parameters."""
    model = module
    if system == "compile":
        model = torch.compile(module)
    elif system == "ctrlgrad":
        model = cg.to_torch(cg.from_torch(module))

    def step(x: Any) -> Any:
        module.zero_grad()
        loss = model(x)
        loss.backward()
        return loss

    return step


def child(case: str, system: str, seconds: float) -> dict[str, float]:
    """First and later steps of one system, after comparing it with PyTorch's eager step."""
    module, x = prepared(case)
    started = time.perf_counter()
    step = step_of(system, module)
    loss = step(x)
    first = time.perf_counter() - started
    found = [loss.detach(), *(p.grad.clone() for p in module.parameters())]
    loss = step_of("eager", module)(x)
    for a, b in zip(found, [loss.detach(), *(p.grad for p in module.parameters())], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    times: list[float] = []
    while sum(times) < seconds or len(times) < 3:
        started = time.perf_counter()
        step(x)
        times.append(time.perf_counter() - started)
    return {"first": first, "warm": min(times)}


def budget(steps: int, batch: int, hidden: int) -> dict[str, Any]:
    """An LSTM under a tenth of the bytes that PyTorch keeps, against one that may keep all."""
    torch.manual_seed(0)
    module, x = LastState(hidden), torch.randn(steps, batch, hidden)
    kept: dict[int, int] = {}

    def pack(t: Any) -> Any:
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        module(x).backward()
    bound = sum(kept.values()) // 10
    found = []
    for limit in (None, bound):
        module.zero_grad()
        model = cg.to_torch(cg.from_torch(module), **({} if limit is None else {"memory_budget": limit}))
        started = time.perf_counter()
        loss = model(x)
        loss.backward()
        seconds = time.perf_counter() - started
        found.append((seconds, [loss.detach(), *(p.grad.clone() for p in module.parameters())]))
    same = all(torch.equal(a, b) for a, b in zip(found[0][1], found[1][1], strict=True))
    return {"kept by PyTorch": sum(kept.values()), "budget": bound, "bit-equal": same, "first": found[1][0]}


def main() -> None:
    """Run all cases, or one as a child."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=[*CASES, "budget"])
    parser.add_argument("--child", choices=SYSTEMS)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds that a child may take")
    given = parser.parse_args()
    if given.child:
        print(json.dumps(child(given.cases[0], given.child, given.seconds)))
        return
    for case in given.cases:
        if case == "budget":
            print("LSTM of 4,000 steps:", json.dumps(budget(4000, 4, 32)), flush=True)
            continue
        for system in SYSTEMS:
            command = [sys.executable, "-W", "ignore", "-m", "benchmarks.torch_modules", case, "--child", system]
            try:
                text = subprocess.check_output(
                    [*command, "--seconds", str(given.seconds)], timeout=given.limit, text=True
                )
                found = json.loads(text.strip().splitlines()[-1])
                print(
                    f"{case:28} {system:10} first {found['first']:8.2f} s  warm {1e3 * found['warm']:9.2f} ms",
                    flush=True,
                )
            except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
                print(f"{case:28} {system:10} {type(error).__name__}", flush=True)


if __name__ == "__main__":
    main()
