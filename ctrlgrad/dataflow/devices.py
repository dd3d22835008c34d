"""Devices: their names, what an executor needs of one, and how those of a process share its cores.

    cpu:N          a worker thread of this process
    sim:N          the same, and everything that is sent to or from it takes a while: `Settings.latency`
    cuda:N         a GPU, by the CUDA engine, with a worker thread that queues work on it
    /rank:R/NAME   device NAME of the process with rank R

`cpu:0` is where everything sits that was put nowhere else. A device runs the ops of a cluster as one piece, and says
how values get to it and leave it: a `DeviceRun`.

While several devices compute, a thread per device is what uses the cores. So matrix products are single-threaded, and
threads take turns quickly: while one runs Python, another that has a message to act on would wait for Python's global
lock for the switch interval, 5 ms unless set, and a device's ops take microseconds. Both are settings of the process.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

from ctrlgrad.blocks import block
from ctrlgrad.engines.reference import Kernels, Run
from ctrlgrad.engines.reference.interpreter import compile_graph
from ctrlgrad.errors import UserInputError
from ctrlgrad.ir import Graph, Type
from ctrlgrad.records import record
from ctrlgrad.source import Source, here, placed_on

_LOG = logging.getLogger("ctrlgrad")

# Names.

DEFAULT = "cpu:0"
# Devices of one kind in one process: far more than cores, so that a program for many devices runs anywhere.
MOST = 64
_NAME = re.compile(r"(?:/rank:(\d+)/)?([a-z]+):(\d+)")
_KINDS = ("cpu", "sim", "cuda")
# Kinds of devices that every process has.
_OF_THE_HOST = ("cpu", "sim")


@record(order=True)
class DeviceName:
    """A device's name, taken apart."""

    rank: int | None
    kind: str
    number: int

    def __str__(self) -> str:
        prefix = "" if self.rank is None else f"/rank:{self.rank}/"
        return f"{prefix}{self.kind}:{self.number}"


def parse_device(name: object, source: Source | None = None) -> DeviceName:
    """A device's name, taken apart.

    Raises:
        UserInputError: it is no name of a device.
    """
    found = _NAME.fullmatch(name) if isinstance(name, str) else None
    if found is None or found[2] not in _KINDS or int(found[3]) >= MOST:
        raise UserInputError(
            f"there is no device {name!r}",
            source=source or here(),
            expected=f"cpu:N, sim:N or cuda:N with N below {MOST}, and /rank:R/ in front of it on another machine",
            got=repr(name),
            hint="'cuda:0' is the first card, 'cpu:0' the first device of the processor",
        )
    return DeviceName(None if found[1] is None else int(found[1]), found[2], int(found[3]))


@block("ctrlgrad.device")
def device(name: str | None) -> Iterator[None]:
    """Place the ops traced in a block of code. The engine "dataflow" runs them on that device; other engines ignore
    it.

    A gradient's op sits with the op that it is the gradient of, and a stack with the values pushed on it. `None` takes
    an outer block's device away.

    Args:
        name: "cpu:N" or "sim:N" (a worker thread each), "cuda:N" (a GPU), or one on another rank, "/rank:R/cpu:N".

    Raises:
        UserInputError: the name is no device's. Whether the device is there is seen when the graph runs.

    >>> @cg.function(engine="dataflow")
    ... def f(x):
    ...     with cg.device("cpu:1"):
    ...         y = x * x
    ...     return y + 1.0
    >>> float(f(3.0))
    10.0
    """
    if name is not None:
        parse_device(name)
    with placed_on(name):
        yield


def check_devices(names: Iterable[tuple[str, Source | None]]) -> None:
    """Refuse devices that this process does not have; `names` come with the place that asks for them.

    Raises:
        UserInputError: one is not here; says which are, and for a GPU how many there are or what is missing.
    """
    asked: dict[str, Source | None] = {}
    for text, source in names:
        # A copied constant does not say where the user wrote it.
        asked[text] = asked.get(text) or source
    for text, source in asked.items():
        name = parse_device(text, source)
        missing = None if name.kind in _OF_THE_HOST else _missing_cuda(name.number)
        if missing is not None:
            always = ", ".join(f"{kind}:0 to {kind}:{MOST - 1}" for kind in _OF_THE_HOST)
            raise UserInputError(
                f"the device {name} does not exist here: {missing.problem}",
                source=source,
                expected=f"{always}; of GPUs: {missing.expected}",
                got=missing.got,
                hint=missing.hint,
            )


def is_here(name: DeviceName) -> bool:
    """Return true if this process can compute on a device; the device's rank is ignored."""
    return name.kind in _OF_THE_HOST or _missing_cuda(name.number) is None


def _missing_cuda(number: int) -> UserInputError | None:
    """Error that says why a GPU is missing; None if it exists."""
    from ctrlgrad.engines.cuda import cupy_library

    try:
        cupy_library.check_device(number)
    except UserInputError as error:
        return error
    return None


# Pieces: the code that runs on a device.

# Takes ownership of a list of operands, and the `context` of its device's run: a `Run` on the processor.
Piece = Callable[[list[Any], Any], list[Any]]
# Makes the piece of a cluster's region.
PieceOf = Callable[[Graph], Piece]


def interpreted(kernels: Kernels) -> PieceOf:
    """Pieces that run node by node, by an interpreting engine's kernels.

    The arrays of constants are bound once and passed as operands, which is cheaper than making them in every iteration.
    """

    def piece_of(region: Graph) -> Piece:
        constants = [node for node in region.nodes if node.op.name == "constant"]
        arrays = [kernels.pure["constant"](node)() for node in constants]
        rest = tuple(node for node in region.nodes if node.op.name != "constant")
        inputs = (*region.inputs, *(node.result for node in constants))
        program = compile_graph(Graph(inputs, rest, region.outputs, region.name), kernels)
        if not arrays:
            return program

        def with_constants(values: list[Any], run: Run) -> list[Any]:
            values += arrays
            return program(values, run)

        return with_constants

    return piece_of


class Leaving(Protocol):
    """A value on its way from a device to the host."""

    def is_done(self) -> bool:
        """Return true if the value has arrived. Never blocks."""

    def value(self) -> Any:
        """The value on the host; waits for it. To be called once."""


class DeviceRun:
    """A device `cpu:N` or `sim:N` in one run, whose values are NumPy's; `ctrlgrad.dataflow.cuda.CudaRun` is a GPU.

    All but the constructor is called on the device's own thread, inside `running`.
    """

    def __init__(self, run: Run) -> None:
        # Counters, and the iteration that a piece runs in; and the context argument of the pieces.
        self.run = run
        self.context: Any = run

    @property
    def is_late(self) -> bool:
        """True if an error was seen later than it happened, so that its iteration is unknown."""
        return False

    def running(self) -> AbstractContextManager[None]:
        """Hold the device for the whole run. At the end nothing is under way any more, whatever has happened."""
        return nullcontext()

    def entered(self, value: Any, its: Type) -> Any:
        """An input of the graph, as pieces take it."""
        return value

    def on_host(self, value: Any) -> Any:
        """Wait for a value that control flow depends on, and return it on the host."""
        return value

    def leave(self, value: Any) -> Leaving | None:
        """Begin to copy a value to the host, without blocking the device; None if the value is on the host."""
        return None

    def arrive(self, value: Any, its: Type) -> Any:
        """Begin to take in a value that lies on the host; `landed` has it."""
        return value

    def landed(self, arriving: Any) -> Any:
        """The value after `arrive`, in the form that pieces take. The device waits for the copy, not the caller."""
        return arriving

    def results(self, outputs: Mapping[int, Any]) -> dict[int, Any]:
        """Outputs of the graph as NumPy arrays and scalars, and lists of them for stacks."""
        return dict(outputs)


# The settings of the process.

Undo = Callable[[], None]


class ProcessSetting:
    """A setting of the whole process: the first run sets it by `enter`, the last one undoes it by what that gave."""

    def __init__(self, enter: Callable[[], Undo]) -> None:
        self._enter = enter
        self._lock = threading.Lock()
        self._holders = 0
        self._undo: Undo | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """The setting holds for a block of code, and for those of other threads that hold it too."""
        with self._lock:
            if not self._holders:
                self._undo = self._enter()
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                if not self._holders and self._undo is not None:
                    self._undo()


def _limit_products() -> Undo:
    if not _is_possible():
        _tell()
        return lambda: None
    from threadpoolctl import threadpool_limits

    undo: Undo = threadpool_limits(1, user_api="blas").restore_original_limits
    return undo


def _is_possible() -> bool:
    return importlib.util.find_spec("threadpoolctl") is not None


@functools.cache
def _tell() -> None:
    """Warn once."""
    _LOG.warning("devices share the cores with BLAS's own threads: install ctrlgrad[dataflow] for speed")


_ONE_THREAD_PER_PRODUCT = ProcessSetting(_limit_products)


def single_threaded_products(*, is_required: bool = True) -> AbstractContextManager[None]:
    """One thread per matrix product, for a block of code.

    Args:
        is_required: raise an error if the setting is not possible. Otherwise the run goes on, slower, after one
            warning.

    Raises:
        UserInputError: the package threadpoolctl is missing, and it is required.
    """
    if is_required and not _is_possible():
        raise UserInputError(
            "matrix products cannot be made single-threaded",
            expected="the package threadpoolctl",
            got="an installation without it",
            hint="pip install -e '.[dataflow]'",
        )
    return _ONE_THREAD_PER_PRODUCT.held()


# Seconds.
TURN = 5e-5


def _shorten_turns() -> Undo:
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(TURN, before))
    return lambda: sys.setswitchinterval(before)


_QUICK_TURNS = ProcessSetting(_shorten_turns)


def quick_turns() -> AbstractContextManager[None]:
    """Let threads take turns every `TURN` seconds, for a block of code."""
    return _QUICK_TURNS.held()
