"""A program of the sweep: a form with its dtype, how its arguments lie, and the machine that it runs for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from size_sweep.forms import FORMS, Argument, Form

THREADS = (1, 2, 3, 7, 16, 64)
# A program of unknown sizes is judged at further ones, found among so many draws of its form.
FURTHER, DRAWS = 11, 90
# Programs are judged in batches, a child each, for which the machine is drawn.
BATCH, JAX_EVERY = 40, 12
_LAYOUTS = ("dense", "dense", "dense", "columns", "gaps", "backwards", "shifted", "repeated")


@dataclass(frozen=True)
class Machine:
    """`quick`: code as LLVM's fast generator makes it; `by_jax`: JAX judges gradients too."""

    threads: int
    bits: int
    quick: bool
    by_jax: bool

    @property
    def environment(self) -> dict[str, str]:
        found = {"CTRLGRAD_THREADS": str(self.threads), "CTRLGRAD_VECTOR_BITS": str(self.bits)}
        return {**found, "CTRLGRAD_QUICK_CODE": "1" if self.quick else ""}


@dataclass(frozen=True)
class Program:
    seed: int
    number: int
    name: str
    form: Form
    dtype: str
    layouts: tuple[str, ...]
    unknown: bool
    machine: Machine
    further: int = 0
    """Place among the sizes at which the code of a program of unknown sizes runs."""

    def __str__(self) -> str:
        given = zip("xyz", self.form.arguments, self.layouts, strict=False)
        settings = " ".join(f"{name}={value}" for name, value in self.machine.environment.items())
        place = f", further sizes {self.further}" if self.further else ""
        return "\n".join(
            [
                f"program {self.number} of seed {self.seed} ({self.name}){place}, {settings}",
                f"    lambda {', '.join('xyz'[: len(self.form.arguments)])}: {self.form.source}",
                *(f"    {name}: {self.dtype} {list(a.shape)}, {a.kind}, {layout}" for name, a, layout in given),
                f"    sizes {'unknown' if self.unknown else 'known'} when traced; again:",
                f"    python -m tests.size_sweep --seed {self.seed} --first {self.number} --count 1",
            ]
        )

    def values(self) -> list[np.ndarray]:
        rng = np.random.default_rng([self.seed, self.number, self.further])
        return [
            _lying(layout, _filled(argument, self.dtype, rng))
            for argument, layout in zip(self.form.arguments, self.layouts, strict=True)
        ]

    def at_further_sizes(self) -> Iterator[Program]:
        """The same source and layouts at other sizes, for which the same code runs."""
        found = 0
        for k in range(DRAWS if self.unknown else 0):
            form = FORMS[self.name](random.Random(f"{self.seed} {self.number} {k}"))
            ranks = [len(a.shape) for a in form.arguments]
            if form.source == self.form.source and ranks == [len(a.shape) for a in self.form.arguments]:
                found += 1
                yield replace(self, form=form, further=found)
            if found == FURTHER:
                return


def machine_of(seed: int, number: int, widths: tuple[int, ...]) -> Machine:
    """The machine of the batch that a program belongs to."""
    batch = number // BATCH
    draw = random.Random(f"{seed} machine {batch}")
    return Machine(
        THREADS[batch % len(THREADS)], draw.choice(widths), draw.random() < 0.6, batch % JAX_EVERY == JAX_EVERY - 1
    )


def program(seed: int, number: int, widths: tuple[int, ...], names: tuple[str, ...] = tuple(FORMS)) -> Program:
    draw = random.Random(f"{seed} {number}")
    name = draw.choice(names)
    form = FORMS[name](draw)
    # Equal rows make a matrix singular.
    possible = [x for x in _LAYOUTS if x != "repeated" or "linalg" not in form.source]
    layouts = tuple(draw.choice(possible) for _ in form.arguments)
    is_unknown = not form.known and draw.random() < 0.5
    dtype = draw.choice(form.dtypes)
    return Program(seed, number, name, form, dtype, layouts, is_unknown, machine_of(seed, number, widths))


def _filled(argument: Argument, dtype: str, rng: np.random.Generator) -> np.ndarray:
    shape = argument.shape
    longest = max(1, *shape) if shape else 1
    if argument.kind == "index":
        return rng.integers(0, argument.below, shape)
    if argument.kind == "different":
        return rng.permutation(argument.below)[: shape[0]]
    if np.dtype(dtype).kind in "iub":
        low = 0 if dtype[0] in "ub" else -9
        return rng.integers(low, 9, shape).astype(dtype) if dtype != "bool" else rng.integers(0, 2, shape) > 0
    x = rng.standard_normal(shape)
    if argument.kind == "near one":
        x = 1 + 0.3 * x / longest**0.5
    elif argument.kind == "small":
        x = x / (4 * longest**0.5)
    elif argument.kind == "well":
        x = x / longest**0.5 + 3 * np.eye(*shape)
    elif argument.kind == "positive":
        x = x @ x.T / longest + np.eye(*shape)
    return np.asarray(x, dtype)


def _lying(layout: str, x: np.ndarray) -> np.ndarray:
    """The same values elsewhere in memory; "repeated" has those of the first place along the first axis everywhere."""
    if x.ndim == 0 or not x.size:
        return x
    if layout == "columns":
        return np.asfortranarray(x)
    if layout == "gaps":
        wide = np.full((*x.shape[:-1], 2 * x.shape[-1]), 77).astype(x.dtype)
        wide[..., ::2] = x
        return wide[..., ::2]
    if layout == "backwards":
        return np.ascontiguousarray(x[::-1])[::-1]
    if layout == "shifted":
        around = np.full(x.size + 1, 77).astype(x.dtype)
        around[1:] = x.ravel()
        return around[1:].reshape(x.shape)
    if layout == "repeated" and x.ndim > 1 and x.shape[0] != x.shape[-1]:
        return np.broadcast_to(x[:1], x.shape)
    return x
