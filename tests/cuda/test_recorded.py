"""Every access of the stand-in to its arrays is in the record."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isfunction
from typing import Any

import numpy as np
import pytest
from instruments.stand_in import StandIn, StandInArray

from ctrlgrad.engines.cuda.indexing import Chosen, Surroundings, chosen, gather, scatter
from ctrlgrad.engines.cuda.kernel import Access, KernelText, Parameter, op_text
from ctrlgrad.engines.cuda.kernels import computed
from ctrlgrad.engines.cuda.library import ArrayLibrary
from ctrlgrad.engines.cuda.program import Context
from ctrlgrad.engines.cuda.reductions import plain_text, stages

DOUBLE = KernelText((Parameter("float64", "a0"),), (Parameter("float64", "o0"),), "o0 = a0 + a0;")


class Telling(StandIn):
    """Arrays that were read and written, by their memory."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: set[int] = set()
        self.writes: set[int] = set()

    def launched(self, reads: Any, writes: Any) -> None:
        self.reads |= {id(x.root()) for x in reads if isinstance(x, StandInArray)}
        self.writes |= {id(x.root()) for x in writes if isinstance(x, StandInArray)}


def _assign(name: str) -> Callable[[Any, Any], Any]:
    return lambda library, x: setattr(x, name, library.upload(np.zeros(4)))


def _chosen(library: StandIn, x: StandInArray, index: StandInArray) -> tuple[Chosen, Surroundings]:
    around = Surroundings(lambda _: Access(), library.empty, library.take_flag(), -1)
    return chosen(1, (index,), library.is_array, lambda key: x[key]), around


def _gathered(library: StandIn, x: StandInArray, index: StandInArray) -> StandInArray:
    out = library.empty(index.shape, x.dtype)
    its, around = _chosen(library, x, index)
    for launch in gather(its, out, around):
        library.launch(launch, False)
    return out


def _scattered(library: StandIn, x: StandInArray, index: StandInArray, value: StandInArray, adds: bool = False) -> None:
    text = op_text("add", [x.dtype] * 2, x.dtype) if adds else None
    its, around = _chosen(library, x, index)
    for launch in scatter(its, value, text, around):
        library.launch(launch, False)


def _places(library: StandIn) -> StandInArray:
    return library.upload(np.array([0, 2, 0]))


def _total(library: StandIn, x: StandInArray) -> StandInArray:
    result = library.empty((), x.dtype)
    text = plain_text("sum", x.dtype)
    for launch in stages(text, x.shape, (0,), [x], [], [result], lambda _: Access(), library.empty):
        library.launch(launch, False)
    return result


# What reads an array `x`, or writes it (`WRITING`): what is made of it is written.
READING: dict[str, Callable[[Any, Any], Any]] = {
    "astype": lambda library, x: x.astype(np.float32),
    "sum": lambda library, x: x.sum(axis=0),
    "gather": lambda library, x: _gathered(library, x, _places(library)),
    "gather by it": lambda library, x: _gathered(library, library.upload(np.ones(9)), x.view(np.int64)),
    "scatter by it": lambda library, x: _scattered(library, library.upload(np.ones(9)), x.view(np.int64), x),
    "scatter and add": lambda library, x: _scattered(library, x, _places(library), library.upload(np.ones(3)), True),
    **{
        name: lambda library, x, name=name: getattr(x, name)(2.0)
        for name in ("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__mod__", "__lt__", "__gt__")
    },
    "xp": lambda library, x: library.xp.tanh(x),
    "a reduction": _total,
    "read": lambda library, x: library.read([x]),
    "an elementwise kernel": lambda library, x: computed(Context(library), DOUBLE, (4,), x.dtype, x),
}
WRITING: dict[str, Callable[[Any, Any], Any]] = {
    "__setitem__": lambda library, x: x.__setitem__(0, 1.0),
    "real": _assign("real"),
    "imag": lambda library, x: setattr(x.astype(complex), "imag", x),
    "upload": lambda library, x: x,
    "launch": lambda library, x: _scattered(library, x, _places(library), library.upload(np.ones(3))),
}
# Views, questions, what hands memory over, and what is recorded where it happens (`instruments.driver`, copies).
QUIET = {"reshape", "view", "root", "__init__", "__array__", "__bool__", "__int__", "__float__", "__index__", "__len__"}
QUIET |= {"__iter__", "__getattr__", "__dlpack__", "__dlpack_device__", "__cuda_array_interface__", "_part"}
QUIET |= {
    "name",
    "running",
    "is_array",
    "empty",
    "borrowed",
    "strided",
    "multiply",
    "lent",
    "copier",
    "address",
    "prepare",
    "function",
    "launcher",
}
QUIET |= {"__getitem__", "take_flag", "give_back_flag", "mark", "wait", "stopped", "stop"}
# Further ways to an array beside methods.
KINDS = {"gather", "gather by it", "scatter by it", "scatter and add", "a reduction", "an elementwise kernel"}


@pytest.fixture
def library() -> Telling:
    return Telling()


@pytest.mark.parametrize("road", READING)
def test_reads_and_results_are_recorded(library: Telling, road: str) -> None:
    with library.running():
        x = library.upload(np.arange(4.0))
        library.writes.clear()
        found = READING[road](library, x)
    assert id(x) in library.reads
    assert not isinstance(found, StandInArray) or id(found) in library.writes


@pytest.mark.parametrize("road", WRITING)
def test_writes_are_recorded(library: Telling, road: str) -> None:
    with library.running():
        x = library.upload(np.arange(4.0))
        if road != "upload":
            library.writes.clear()
        WRITING[road](library, x)
    assert road == "imag" or id(x) in library.writes
    assert library.writes


def test_views_are_no_work(library: Telling) -> None:
    with library.running():
        x = library.upload(np.arange(4.0).reshape(2, 2))
        library.writes.clear()
        views = [x[0], x[:, None], x.reshape((4,)), x.view(np.int64), library.xp.transpose(x)]
    assert all(v.base is x for v in views) and not library.reads and not library.writes


def test_every_road_is_tested() -> None:
    """A method that arrays or libraries get is in one of the tables above."""
    roads = {name for name, found in vars(StandInArray).items() if isfunction(found) or isinstance(found, property)}
    roads |= {name for name in vars(ArrayLibrary) if not name.startswith("_")}
    assert roads == (set(READING) | set(WRITING) | QUIET) - KINDS
