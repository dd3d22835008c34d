"""The CUDA devices of this process: CuPy's, or by name what was registered in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ctrlgrad.engines.cuda.cupy_library import cupy_library, device_count
from ctrlgrad.engines.cuda.library import ArrayLibrary
from ctrlgrad.errors import UserInputError

LibraryFactory = Callable[[], ArrayLibrary]

_REGISTERED: dict[str, LibraryFactory] = {}


@contextmanager
def registered(factories: dict[str, LibraryFactory]) -> Iterator[None]:
    """For a block of code the CUDA devices are these, by their names "cuda:N"; for tests without a card."""
    before = dict(_REGISTERED)
    _REGISTERED.update(factories)
    try:
        yield
    finally:
        _REGISTERED.clear()
        _REGISTERED.update(before)


def library_of(number: int) -> ArrayLibrary:
    """The array library of device `cuda:number`.

    Raises:
        UserInputError: there is no such device.
    """
    if _REGISTERED:
        check(number)
        return _REGISTERED[f"cuda:{number}"]()
    return cupy_library(number)


def check(number: int) -> None:
    """Refuse a device that is not there.

    Raises:
        UserInputError: there is none of that number; says how many there are, or what is missing.
    """
    count = len(_REGISTERED) or device_count()
    there = f"cuda:{number}" in _REGISTERED if _REGISTERED else number < count
    if not there:
        raise UserInputError(
            f"there is no CUDA device {number}",
            expected="cuda:0, the only one" if count == 1 else f"cuda:0 to cuda:{count - 1}",
            got=f"cuda:{number}",
            hint="change the name in ctrlgrad.device(...), or run where there are more",
        )


def found() -> list[str]:
    """The names of those that are there; none where CuPy or a card is missing."""
    if _REGISTERED:
        return sorted(_REGISTERED)
    try:
        return [f"cuda:{n}" for n in range(device_count())]
    except UserInputError:
        return []
