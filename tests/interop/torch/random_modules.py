"""Random modules of PyTorch: nested loops and branches of its operators, judged by PyTorch's own values and gradients.

`python tests/interop/torch/random_modules.py --count 1000 --seed 7` draws that many and says which disagree.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

import ctrlgrad as cg

VECTORS = (
    "torch.tanh(self.w @ {x} + {y})",
    "torch.sin({x}) + 0.5 * {y}",
    "{x} * torch.sigmoid({y})",
    "torch.where({x} > {y}, {x}, 0.3 * {y})",
    "{x}.clamp(-0.7, 0.8) - {y}",
    "F.softplus({x}) * {s}.sin()",
    "torch.cumsum({x}, 0) / 3 + {y}",
    "torch.flip({x}, [0]) - torch.roll({y}, 1)",
    "F.layer_norm({x}, (3,), self.b) + {y}",
    "torch.softmax({x}, 0) * 2 - torch.log_softmax({y}, -1) / 3",
    "self.lin({x}).relu() - {y}.tanh()",
    "F.gelu({x}) + F.elu({y})",
    "{x}.abs().sqrt() * {y}.cos()",
    "torch.stack([{x}, {y}]).mean(0)",
    "torch.cat([{x}[1:], {y}[:1]])",
    "torch.outer({x}, {y}).sum(1).tanh()",
    "torch.maximum({x}, {y}) / (1 + {x} * {x})",
    "{x}.sort().values - {y}.sort(descending=True).values",
    "F.silu({x}).expand(2, 3).sum(0) / (2 + {y}.exp().clamp(max=5.0))",
    "F.conv1d({x}.view(1, 1, 3), self.k, padding=1).view(3) - {y}",
    "{x}.index_select(0, torch.tensor([2, 0, 0])) * {y}",
    "torch.addcmul({x}, {y}, {y}, value=-0.2)",
    "({x}.unsqueeze(0) @ self.w).squeeze(0).tanh() * {s}.cos()",
)
SCALARS = (
    "{x}.sum()",
    "({x} * {y}).mean()",
    "torch.dot({x}, {y}).tanh()",
    "{x}.max() - {y}.min()",
    "torch.logsumexp({x}, 0)",
    "{x}[1] - 0.5 * {s}",
    "torch.linalg.vector_norm({x}) * 0.5",
    "F.mse_loss({x}, {y})",
    "{x}.var() - {s}.sin()",
)
TESTS = (
    "{x}.sum() > {c}",
    "({x} > {y}).any()",
    "{s} < {c} and {x}[0] > -0.5",
    "not ({x} < {c}).all()",
    "{s}.item() > {c} or {y}.mean() < 0.1",
    "abs({s}) > abs({y}[2])",
)


class Draw:
    """A random body of `forward`."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lines: list[str] = []
        self.loops = 0

    def pick(self, texts: tuple[str, ...]) -> str:
        names = {"x": self.rng.choice("xyz"), "y": self.rng.choice("xyz"), "s": self.rng.choice("st")}
        return self.rng.choice(texts).format(c=round(self.rng.uniform(-0.6, 0.9), 2), **names)

    def statement(self, depth: int, indent: str) -> None:
        kind = self.rng.random()
        add = lambda text: self.lines.append(indent + text)
        if kind < 0.35 or depth == 0:
            add(f"{self.rng.choice('xyz')} = {self.pick(VECTORS)}")
        elif kind < 0.5:
            add(f"{self.rng.choice('st')} = {self.pick(SCALARS)}")
        elif kind < 0.58:
            name = self.rng.choice("xyz")
            add(f"{name} = {name}.clone()")
            add(f"{name}[{self.rng.randrange(3)}] = {self.pick(SCALARS)}")
        elif kind < 0.64:
            name, other = self.rng.sample("xyz", 2)
            add(f"{name} = {name} * 1.0")
            add(f"{name} {self.rng.choice(['+=', '-=', '*='])} {other}.tanh()")
        elif kind < 0.8:
            add(f"if {self.pick(TESTS)}:")
            self.block(depth - 1, indent + "    ")
            if self.rng.random() < 0.7:
                add("else:")
                self.block(depth - 1, indent + "    ")
        elif kind < 0.92:
            self.loops += 1
            k = f"k{self.loops}"
            add(f"{k} = 0")
            add(f"while {k} < {self.rng.randrange(1, 5)} and ({self.pick(TESTS)}):")
            self.block(depth - 1, indent + "    ")
            if self.rng.random() < 0.25:
                add(f"    if {self.pick(TESTS)}:")
                add("        break")
            add(f"    {k} += 1")
        else:
            add("for row in self.w:")
            self.block(depth - 1, indent + "    ")
            name = self.rng.choice("xyz")
            add(f"    {name} = ({name} + row).tanh()")

    def block(self, depth: int, indent: str) -> None:
        for _ in range(self.rng.randrange(1, 4)):
            self.statement(depth, indent)

    def source(self) -> str:
        """The module as text."""
        for _ in range(self.rng.randrange(2, 6)):
            self.statement(3, "        ")
        body = "\n".join(self.lines)
        return f'''import torch
from torch import nn
from torch.nn import functional as F


class Drawn(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 3) * 0.6)
        self.b = nn.Parameter(torch.randn(3))
        self.k = nn.Parameter(torch.randn(1, 1, 3))
        self.lin = nn.Linear(3, 3)

    def forward(self, x, y):
        z, s, t = x - y, x.sum(), y[0] * 1.0
{body}
        return (x * self.b).sum() + y.sin().sum() + z.mean() + s * 0.3 - t.tanh()
'''


def module_of(source: str, folder: Path, name: str) -> ModuleType:
    """A module of Python with this text, whose lines can be read."""
    path = folder / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def judge(seed: int, folder: Path) -> bool:
    """Compare value and gradients of the module of a seed. Raises AssertionError where they differ.

    Returns:
        False where PyTorch itself refuses the gradient, since a tensor that it needs was changed in place.
    """
    drawn = module_of(Draw(seed).source(), folder, f"drawn_{seed}")
    torch.manual_seed(seed)
    model = drawn.Drawn().double()
    numbers = np.random.default_rng(seed)
    x, y = numbers.normal(size=3), numbers.normal(size=3)
    xt, yt = torch.tensor(x, requires_grad=True), torch.tensor(y, requires_grad=True)
    value = model(xt, yt)
    try:
        value.backward()
    except RuntimeError as error:
        assert "inplace operation" in str(error)
        return False
    f = cg.from_torch(model)
    found, (params, *own) = cg.value_and_grad(f, argnums=(0, 1, 2))(f.params, x, y)
    np.testing.assert_allclose(found, value.item(), rtol=1e-9, atol=1e-9)
    pairs = [("x", own[0], xt), ("y", own[1], yt), *((name, params[name], p) for name, p in model.named_parameters())]
    for name, gradient, p in pairs:
        expected = np.zeros(p.shape) if p.grad is None else p.grad.numpy()
        np.testing.assert_allclose(gradient, expected, rtol=1e-7, atol=1e-8, err_msg=name)
    return True


def main() -> None:
    """Draw modules and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", default="reference")
    given: Any = parser.parse_args()
    wrong, judged = [], 0
    with tempfile.TemporaryDirectory() as folder, cg.options(engine=given.engine):
        for seed in range(given.seed, given.seed + given.count):
            try:
                judged += judge(seed, Path(folder))
            except Exception as error:
                wrong.append(seed)
                print(f"seed {seed}: {type(error).__name__}: {error}".strip()[:1500], flush=True)
    print(f"{judged} of {given.count} agree, {given.count - judged - len(wrong)} not judged; wrong: {wrong}")


if __name__ == "__main__":
    main()
