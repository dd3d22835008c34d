"""Training steps of PyTorch's modules: as they are, under `torch.compile`, and read by `ctrlgrad.from_torch`.

`python -m benchmarks.torch_modules` runs each case on the systems in turn, several rounds, each in a process of its
own with empty caches on disk. A process first compares value and gradients with PyTorch's. Printed are the best times
of the first step, compilation included, and of later ones, and the processor time of both. The last row is an LSTM
of 4,000 steps under a budget of a tenth of the bytes that PyTorch keeps for its gradient.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import ctrlgrad as cg
from benchmarks import machine
from benchmarks.process import THREAD_COUNTS

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
    started, began = time.perf_counter(), _processor_time()
    step = step_of(system, module)
    loss = step(x)
    first, first_used = time.perf_counter() - started, _processor_time() - began
    found = [loss.detach(), *(p.grad.clone() for p in module.parameters())]
    loss = step_of("eager", module)(x)
    for a, b in zip(found, [loss.detach(), *(p.grad for p in module.parameters())], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    elapsed: list[float] = []
    used: list[float] = []
    while sum(elapsed) < seconds or len(elapsed) < 3:
        started, began = time.perf_counter(), time.process_time()
        step(x)
        elapsed.append(time.perf_counter() - started)
        used.append(time.process_time() - began)
    return {"first": first, "first processor": first_used, "warm": min(elapsed), "processor": min(used)}


def _processor_time() -> float:
    """Seconds of this process and of children that have ended, such as compilers."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


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


def measured(case: str, system: str, seconds: float, limit: float, threads: int) -> dict[str, float] | None:
    """Times of a process of its own; None where it fails or takes longer than the limit."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.torch_modules", case, "--child", system]
    with tempfile.TemporaryDirectory() as caches:
        given = dict.fromkeys(("CTRLGRAD_THREADS", *THREAD_COUNTS), str(threads))
        places = {"CTRLGRAD_CACHE_DIR": f"{caches}/ours", "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor"}
        try:
            text = subprocess.check_output(
                [*command, "--seconds", str(seconds)], timeout=limit, text=True, env={**os.environ, **places, **given}
            )
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
            return None
    found: dict[str, float] = json.loads(text.strip().splitlines()[-1])
    return found


def main() -> None:
    """Run all cases, or one as a child."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=[*CASES, "budget"])
    parser.add_argument("--child", choices=SYSTEMS)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of each system; one thread needs no second idle core")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds that a child may take")
    given = parser.parse_args()
    if given.child:
        print(json.dumps(child(given.cases[0], given.child, given.seconds)))
        return
    load, how = machine.description()["load"], f"best of {given.rounds} rounds, {given.threads} threads each"
    print(f"{machine.header('native')}, torch {torch.__version__}, {how}, load {load}", flush=True)
    for case in given.cases:
        if case == "budget":
            print("LSTM of 4,000 steps:", json.dumps(budget(4000, 4, 32)), flush=True)
            continue
        best: dict[str, dict[str, float]] = {}
        failed: set[str] = set()
        for _ in range(given.rounds):
            for system in SYSTEMS:
                found = None if system in failed else measured(case, system, given.seconds, given.limit, given.threads)
                if found is None:
                    failed.add(system)
                    continue
                best[system] = {k: min(v, best.get(system, found)[k]) for k, v in found.items()}
        for system in SYSTEMS:
            if system in failed:
                print(f"{case:28} {system:10} failed, or took more than {given.limit:.0f} s", flush=True)
                continue
            first, first_used, warm, used = (best[system][k] for k in ("first", "first processor", "warm", "processor"))
            row = f"first {first:7.2f} s (processor {first_used:6.2f} s)   warm {1e3 * warm:9.2f} ms"
            row += f" (processor {1e3 * used:9.2f} ms)"
            print(f"{case:28} {system:10} {row}", flush=True)


if __name__ == "__main__":
    main()
