"""Errors of JAX at the boundary: they reach the user as errors of this library, with JAX's words.

JAX runs while a function is traced and while a rule is. An exception that JAX's own code raises becomes an error that
names the operation, the user's line and what to do. One that the user's code raises stays as it is.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import jax
import jaxlib
import numpy as np
from jax._src.config import traceback_filtering

from ctrlgrad.errors import CtrlgradError, locate
from ctrlgrad.source import Source, raised_at

_FOLDERS = tuple(os.path.join(os.path.abspath(m.__path__[0]), "") for m in (jax, jaxlib))
_BENEATH = (
    os.path.join(os.path.dirname(os.path.abspath(np.__file__)), ""),
    contextlib.__file__,
    functools.__file__,
    "<",
)


def is_of_jax(file: str) -> bool:
    """Return true for a file of JAX's code."""
    return file.startswith(_FOLDERS)


@contextmanager
def told(kind: type[CtrlgradError], problem: str, source: Source | None, hint: str) -> Iterator[None]:
    """A block that calls JAX, whose exceptions become errors of a kind; `source` is where no line of the user's is."""
    try:
        # With all frames, the innermost says whose code raised.
        with traceback_filtering("off"):
            yield
    except CtrlgradError:
        raise
    except Exception as error:
        frames = list(_frames(error.__traceback__))
        # JAX or the user's code may have called NumPy or Python's library: skip frames of these.
        raising = next((file for file in map(_file, reversed(frames)) if not file.startswith(_BENEATH)), "")
        error = error.with_traceback(_without_jax(frames))
        if not is_of_jax(raising):
            locate(error, "code that JAX traces for from_jax", source)
            raise
        said = str(error).strip() or "no reason"
        raise kind(
            problem,
            source=raised_at(error) or source,
            expected="a program that JAX takes",
            got=f"JAX's {type(error).__name__}: {said}",
            hint=hint,
        ) from error


def _frames(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _file(traceback: TracebackType) -> str:
    return traceback.tb_frame.f_code.co_filename


def _without_jax(frames: list[TracebackType]) -> TracebackType | None:
    kept: TracebackType | None = None
    for t in reversed(frames):
        if not is_of_jax(_file(t)):
            kept = TracebackType(kept, t.tb_frame, t.tb_lasti, t.tb_lineno)
    return kept
