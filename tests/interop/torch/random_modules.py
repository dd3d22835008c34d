"""Random modules of PyTorch: nested loops and branches of its operators, judged by PyTorch's values and derivatives.

`python -m tests.interop.torch.random_modules --count 1000 --seed 7` draws that many and says which disagree. A module
is compared by value, gradient, and the gradient of the gradient's squares: through `from_torch`, and as `to_torch` puts
it back into PyTorch.
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


# PyTorch's own loops and branches. Of a `while_loop` without an iteration it gives the gradient of one iteration.
HIGHER = (
    "{x} = torch.cond({s} > {c}, lambda v: v.sin() + {y}, lambda v: torch.tanh(self.w @ v), ({x},))",
    "_, {x} = torch.while_loop(lambda i, v: i < {n}, lambda i, v: (i + 1, (self.w @ v).sin()), (torch.tensor(0), {x}))",
    "{s}, {x} = scan(lambda v, row: ((v * row.sin()).clone(), v + row), {s}, {x}, reverse={r})",
    "{x} = associative_scan(lambda v, w: v * w, {x} + 0.1 * {y}, dim=0, reverse={r}, combine_mode='generic')",
    "{x} = map_rows(lambda row, v: torch.tanh(row * v).sum(), self.w, {x})",
)


class Draw:
    """A random body of `forward`."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lines: list[str] = []
        self.loops = 0

    def pick(self, texts: tuple[str, ...]) -> str:
        names = {"x": self.rng.choice("xyz"), "y": self.rng.choice("xyz"), "s": self.rng.choice("st")}
        constants = {
            "c": round(self.rng.uniform(-0.6, 0.9), 2),
            "n": self.rng.randrange(1, 4),
            "r": self.rng.random() < 0.5,
        }
        return self.rng.choice(texts).format(**constants, **names)

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
        elif kind < 0.66:
            add(self.pick(HIGHER))
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
        return f"""import torch
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
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
"""


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
    """Compare the module of a seed with PyTorch. Raises AssertionError where they differ.

    Returns:
        False where PyTorch refuses the gradient, since a tensor that it needs was changed in place; and where its
        derivatives are not finite, or so large that rounding decides them.
    """
    source = Draw(seed).source()
    drawn = module_of(source, folder, f"drawn_{seed}")
    torch.manual_seed(seed)
    model = drawn.Drawn().double()
    numbers = np.random.default_rng(seed)
    x, y = numbers.normal(size=3), numbers.normal(size=3)
    given = [torch.tensor(x, requires_grad=True), torch.tensor(y, requires_grad=True), *model.parameters()]
    names = ["x", "y", *(name for name, _ in model.named_parameters())]
    try:
        value, once, twice = by_pytorch(model, given)
    except RuntimeError as error:
        if "inplace operation" in str(error):
            return False
        raise
    if not all(x is None or np.max(np.abs(x)) < 1e6 for x in [*once, *twice]):
        return False
    f = cg.from_torch(model)
    gradient = cg.value_and_grad(lambda p, x, y: f(p, x, y), argnums=(0, 1, 2))

    def squares(p: Any, x: Any, y: Any) -> Any:
        _, (dp, dx, dy) = gradient(p, x, y)
        return sum((g * g).sum() for g in (dx, dy, *dp.values()))

    listed = lambda p, dx, dy: [dx, dy, *(p[name] for name in names[2:])]
    found, own = gradient(f.params, x, y)
    compare(names, [found, *listed(*own)], [value, *once], 1e-8, "value and gradient")
    second = [found, *listed(*cg.grad(squares, argnums=(0, 1, 2))(f.params, x, y))]
    if any(name in source for name in ("torch.cond", "while_loop(", "scan(", "map_rows(")):
        # PyTorch refuses to differentiate these twice, or forgets terms without a word.
        along_a_line(model, given, second[1:], numbers)
    else:
        compare(names, second, [value, *twice], 1e-6, "second derivative")
    found, once_again, twice_again = by_pytorch(cg.to_torch(f), given)
    compare(names, [found, *once_again], [value, *once], 1e-8, "value and gradient of to_torch")
    compare(names, [found, *twice_again], second, 1e-8, "second derivative of to_torch")
    return True


def first(model: Any, given: list[Any]) -> tuple[Any, list[Any], Any]:
    """Value, gradient, and the sum of the gradient's squares by PyTorch."""
    value = model(*given[:2])
    gradient = torch.autograd.grad(value, given, create_graph=True, allow_unused=True)
    return value, list(gradient), sum((g * g).sum() for g in gradient if g is not None)


def by_pytorch(model: Any, given: list[Any]) -> tuple[Any, list[Any], list[Any]]:
    """Value, gradient, and gradient of the gradient's squares by PyTorch."""
    value, once, squares = first(model, given)
    twice = [None] * len(given)
    if isinstance(squares, torch.Tensor) and squares.requires_grad:
        twice = torch.autograd.grad(squares, given, allow_unused=True)
    plain = lambda gs: [None if g is None else g.detach().numpy() for g in gs]
    return value.item(), plain(once), plain(twice)


def along_a_line(model: Any, given: list[Any], gradient: list[Any], numbers: Any) -> None:
    """Compare the gradient of the gradient's squares with differences, where two steps agree on them."""
    direction = [torch.tensor(numbers.normal(size=x.shape)) for x in given]

    def squares(h: float) -> float:
        with torch.no_grad():
            for x, d in zip(given, direction, strict=True):
                x += h * d
        found = torch.as_tensor(first(model, given)[2]).item()
        with torch.no_grad():
            for x, d in zip(given, direction, strict=True):
                x -= h * d
        return found

    slopes = [(squares(h) - squares(-h)) / (2 * h) for h in (1e-5, 3e-5)]
    if np.isclose(*slopes, rtol=1e-5, atol=1e-6):
        found = sum(float(np.sum(g * d.numpy())) for g, d in zip(gradient, direction, strict=True))
        np.testing.assert_allclose(found, slopes[0], rtol=1e-4, atol=1e-5, err_msg="second derivative along a line")


def compare(names: list[str], found: list[Any], expected: list[Any], near: float, what: str) -> None:
    for name, a, b in zip(["value", *names], found, expected, strict=True):
        a, b = (0.0 if x is None else x for x in (a, b))
        near_zero = near * max(1.0, float(np.max(np.abs(b))))
        np.testing.assert_allclose(a, b, rtol=near, atol=near_zero, err_msg=f"{what}: {name}")


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
