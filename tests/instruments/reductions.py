"""A reduction's kernel, computed element by element and in the order of its threads, on NumPy's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.reductions import POSITION, SERIAL, KernelSpec, ReductionText, Tree
from instruments.kernel_functions import MEANING
from instruments.text import run_text


@dataclass(frozen=True)
class Geometry:
    """The numbers of a launch."""

    results: int
    count: int
    span: int
    sizes: tuple[int, ...]
    # Of each array that has the elements' sizes, in the order of the accesses.
    strides: tuple[tuple[int, ...], ...]

    @property
    def parts(self) -> int:
        return -(-self.count // self.span) if self.count > self.span else 1


def geometry(spec: KernelSpec, numbers: Sequence[int]) -> Geometry:
    results, count, span, *rest = numbers
    rank = spec.kept + spec.reduced
    arrays = sum(
        not access.is_number and p not in spec.by_part for p, access in zip(spec.parameters, spec.accesses, strict=True)
    )
    strides = [tuple(rest[k * rank : (k + 1) * rank]) for k in range(1, arrays + 1)]
    return Geometry(results, count, span, tuple(rest[:rank]), tuple(strides))


def reduction(spec: KernelSpec, inputs: Sequence[Any], its: Geometry) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Stored values, over the sizes, and written ones, `[part, result]`. Inputs have the sizes, or are numbers."""
    text = spec.text
    position = np.arange(its.count, dtype=np.int64).reshape((1,) * spec.kept + its.sizes[spec.kept :])
    given = iter(inputs)
    values = run_text(text.element, [position if p == POSITION else next(given) for p in text.element.inputs])
    values = [np.broadcast_to(x, its.sizes) for x in values]
    stored = len(text.stored)
    # Padded to [result, part, turn, lane].
    turns = -(-its.span // spec.lanes)
    parts = its.parts
    padded = []
    for x in values[stored:]:
        whole = np.zeros((its.results, parts * its.span), x.dtype)
        whole[:, : its.count] = x.reshape(its.results, its.count)
        wide = np.zeros((its.results, parts, turns * spec.lanes), x.dtype)
        wide[:, :, : its.span] = whole.reshape(its.results, parts, its.span)
        padded.append(wide.reshape(its.results, parts, turns, spec.lanes))
    states = [
        np.full((its.results, parts, spec.lanes), np.asarray(eval(start, MEANING)).astype(state.dtype))
        for state, start in zip(text.states, text.starts, strict=True)
    ]
    number = np.arange(turns * spec.lanes).reshape(turns, spec.lanes)
    ends = np.minimum(its.count - np.arange(parts) * its.span, its.span)[:, None]
    for turn in range(turns):
        after = _combined(text, states, [x[:, :, turn] for x in padded])
        is_element = number[turn] < ends
        states = [np.where(is_element, new, old) for new, old in zip(after, states, strict=True)]
    step = spec.lanes // 2
    while step:
        states = _combined(text, [x[..., :step] for x in states], [x[..., step : 2 * step] for x in states])
        step //= 2
    final = [x[..., 0].T for x in states]
    return values[:stored], [_written(result.dtype, [final[k] for k in result.states]) for result in text.results]


def scan(spec: KernelSpec, inputs: Sequence[Any], before: Sequence[np.ndarray], its: Geometry) -> list[np.ndarray]:
    """Written values, over the sizes. `before` has the start of each part, `[part, result]`, if parts continue."""
    text, results = spec.text, its.results
    starts = [np.asarray(eval(s, MEANING)).astype(p.dtype) for p, s in zip(text.states, text.starts, strict=True)]
    elements = [np.broadcast_to(x, its.sizes).reshape(results, its.count) for x in run_text(text.element, [*inputs])]
    turn = min(-(-its.span // spec.lanes), SERIAL)
    found = []
    for part in range(its.parts):
        carried = [np.full((results, 1), start) for start in starts]
        if part and before:
            carried = [x[part - 1][:, None] for x in before]
        mine = [x[:, part * its.span : (part + 1) * its.span] for x in elements]
        found.append(_scanned(text, mine, starts, carried, spec.lanes, turn))
    whole = [np.concatenate(states, 1).reshape(its.sizes) for states in zip(*found, strict=True)]
    return [_written(result.dtype, [whole[k] for k in result.states]) for result in text.results]


def _scanned(
    text: ReductionText,
    part: Sequence[np.ndarray],
    starts: Sequence[np.ndarray],
    carried: list[np.ndarray],
    lanes: int,
    span: int,
) -> list[np.ndarray]:
    """The states up to each element of a part, `[result, element]`, from the states of all before it."""
    results, count = part[0].shape
    turns = -(-count // (lanes * span))
    # [result, turn, lane, element]
    elements = []
    for value, start in zip(part, starts, strict=True):
        wide = np.full((results, turns * lanes * span), start)
        wide[:, :count] = value
        elements.append(wide.reshape(results, turns, lanes, span))
    totals = _grown(text, [np.full_like(e[..., 0], start) for e, start in zip(elements, starts, strict=True)], elements)
    states, step = [x[..., -1] for x in totals], 1
    while step < lanes:
        after = _combined(text, [x[..., :-step] for x in states], [x[..., step:] for x in states])
        states = [np.concatenate([x[..., :step], y], -1) for x, y in zip(states, after, strict=True)]
        step *= 2
    found = []
    for turn in range(turns):
        lanes_before = [
            np.concatenate([np.full_like(x[:, turn, :1], start), x[:, turn, :-1]], 1)
            for x, start in zip(states, starts, strict=True)
        ]
        before = _combined(text, [np.repeat(c, lanes, 1) for c in carried], lanes_before)
        found.append(_grown(text, before, [e[:, turn] for e in elements]))
        carried = _combined(text, carried, [x[:, turn, -1:] for x in states])
    return [np.stack(x, 1).reshape(results, -1)[:, :count] for x in zip(*found, strict=True)]


def _grown(text: ReductionText, states: list[np.ndarray], elements: Sequence[np.ndarray]) -> list[np.ndarray]:
    """States with one element more after the other, along a last axis."""
    found = []
    for k in range(elements[0].shape[-1]):
        states = _combined(text, states, [e[..., k] for e in elements])
        found.append(states)
    return [np.stack(x, -1) for x in zip(*found, strict=True)]


def _combined(text: ReductionText, x: Sequence[np.ndarray], y: Sequence[np.ndarray]) -> list[np.ndarray]:
    return run_text(text.combination, [*x, *y])


def _written(dtype: str, states: Sequence[np.ndarray]) -> np.ndarray:
    found: np.ndarray = MEANING[dtype](*states)
    return np.asarray(found)


def blocks_of(spec: KernelSpec, its: Geometry) -> int:
    """Number of blocks of a launch."""
    return Tree(spec.lanes, spec.is_inner, its.parts, its.span).blocks(its.results)


__all__ = ["Geometry", "blocks_of", "geometry", "reduction", "scan"]
