"""Descriptions of a body's inputs (dtype, shape, kind), from which it is prepared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ctrlgrad.engines.cuda.prepared.operands import Shape


@dataclass(frozen=True)
class ArrayInput:
    """An array on the device that the body is given."""

    dtype: np.dtype
    shape: Shape
    strides: Shape


@dataclass(frozen=True)
class NumberInput:
    """A number on the host."""

    dtype: np.dtype


@dataclass(frozen=True)
class TableInput:
    """A stack whose rows are read and written by index, of so many rows; whether all of them were written."""

    dtype: np.dtype
    shape: Shape
    is_full: bool


@dataclass(frozen=True)
class NumbersInput:
    """A stack of numbers on the host."""


@dataclass(frozen=True)
class StackInput:
    """A stack, in blocks on the device or as a list."""

    is_blocks: bool


Input = ArrayInput | NumberInput | TableInput | NumbersInput | StackInput
