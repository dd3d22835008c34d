"""Devices that nodes run on: the processor's threads, and NVIDIA's cards."""

from __future__ import annotations

import functools
import importlib.util
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ctrlgrad.blocks import block
from ctrlgrad.engines.cuda.context import Context
from ctrlgrad.engines.cuda.copies import Copies, InCopy, OutCopy
from ctrlgrad.engines.cuda.engine import program_of
from ctrlgrad.engines.cuda.library import ArrayLibrary
from ctrlgrad.engines.cuda.placement import DEVICE, HOST, Place, Places, place
from ctrlgrad.engines.cuda.program import Program, scalar, to_device
from ctrlgrad.engines.cuda.stacks import DeviceStack
from ctrlgrad.engines.reference import Kernels, Run
from ctrlgrad.engines.reference.interpreter import compile_graph
from ctrlgrad.errors import CtrlgradError, UserInputError
from ctrlgrad.ir import Graph, StackType, TensorType, Type, Value
from ctrlgrad.records import record
from ctrlgrad.source import Source, here, placed_on

# A device `cuda:N` in one run: its pieces are programs of the CUDA engine, queued on the library's compute stream.
#
# Values stay on the device from one piece to the next. A value that is a host scalar for the CUDA engine (a counter,
# an index, a bound) is one here too, so a loop that counts reads nothing. The place of a value is looked up when a
# piece fires. The piece has a program for each combination of places that it meets: at most two where a loop's first
# iteration takes host scalars and later ones take the device's.
#
# An index that is out of range on the device is noted there. Every copy to the host brings the note too, so no
# message carries a value that such an index has spoiled.


# From copies in their order to the value that they are of.
_Build = Callable[[Sequence[Any]], Any]


def cuda_piece(region: Graph) -> Piece:
    """A function that runs a cluster's nodes on a list of operands, which it takes over, in a `Context`."""
    programs: dict[tuple[str, Places], tuple[Places, Program]] = {}

    def piece(values: list[Any], context: Context) -> list[Any]:
        library = context.library
        found = tuple([_place(library, v, x) for v, x in zip(region.inputs, values, strict=True)])
        key = (library.name, found)
        if key not in programs:
            wanted = _with_growing_stacks(region, found)
            programs[key] = (wanted, program_of(library, region, wanted))
        places, program = programs[key]
        for i, its in enumerate(places):
            values[i] = _host_value(values[i]) if its is HOST else to_device(context, values[i], region.inputs[i].type)
        return program(values, context)

    return piece


def _place(library: ArrayLibrary, value: Value, x: Any) -> Place:
    if not isinstance(value.type, StackType):
        return DEVICE if value.tensor.rank or library.is_array(x) else HOST
    if value.type.element.rank or isinstance(x, DeviceStack):
        return DEVICE
    # All rows that were written are on one side.
    first = next((row for row in x if row is not None), None)
    return DEVICE if library.is_array(first) else HOST


def _with_growing_stacks(region: Graph, given: Places) -> Places:
    """The places, but for stacks on the host on which something of the device's is put: they go there at once."""
    inputs = dict(zip(region.inputs, given, strict=True))
    while True:
        places = place(region, tuple(inputs.values()))
        came_as = {v: v for v in region.inputs}
        moved = set()
        for node in region.nodes:
            if not node.results or not isinstance(node.results[0].type, StackType) or node.regions:
                continue
            origin = next((came_as[v] for v in node.operands[:1] if v in came_as), None)
            if origin is None:
                continue
            came_as[node.results[0]] = origin
            if inputs[origin] is HOST and places[node.results[0]] is DEVICE:
                moved.add(origin)
        if not moved:
            return tuple(inputs.values())
        inputs |= dict.fromkeys(moved, DEVICE)


def _host_value(x: Any) -> Any:
    return x if isinstance(x, list) else scalar(x)


def _scalars(rows: Sequence[Any]) -> list[Any]:
    """A stack of scalars on the host; None for a slot that was not written."""
    return [None if row is None else scalar(np.asarray(row)) for row in rows]


def _among(written: Sequence[bool]) -> _Build:
    """Rows to a stack in which only some slots were written."""

    def build(arrays: Sequence[Any]) -> list[Any]:
        rest = iter(arrays)
        return [scalar(next(rest)) if is_written else None for is_written in written]

    return build


@contextmanager
def _seen_late(context: Context) -> Iterator[None]:
    """An error inside is not one of the step that fires just now."""
    try:
        yield
    except CtrlgradError:
        context.is_late = True
        raise


class CudaLeaving:
    """A value on its way to the host, and the note of indices out of range so far."""

    def __init__(self, context: Context, copy: OutCopy, is_noted: bool, build: _Build) -> None:
        self._context, self._copy, self._is_noted, self._build = context, copy, is_noted, build

    def is_done(self) -> bool:
        return self._copy.is_done()

    def value(self) -> Any:
        with _seen_late(self._context):
            arrays = self._copy.arrays()
            if self._is_noted:
                self._context.raise_flagged(arrays.pop())
        return self._build(arrays)


@dataclass(frozen=True, eq=False)
class _Arriving:
    """A value on its way to the device."""

    copies: list[InCopy]
    build: _Build


class CudaRun:
    """A device `cuda:N`, by its library."""

    def __init__(self, library: ArrayLibrary, run: Run) -> None:
        self.run = run
        self.library = library
        self.context = Context(library, run=run)
        self.copies = Copies(library)
        # The last predicate that was read, and its value: all Switches of a branch ask for it.
        self._read: tuple[Any, Any] = (None, None)

    @property
    def is_late(self) -> bool:
        return self.context.is_late

    @contextmanager
    def running(self) -> Iterator[None]:
        with self.library.running():
            try:
                yield
            finally:
                self._read = (None, None)
                self.copies.close()

    def entered(self, value: Any, its: Type) -> Any:
        if isinstance(its, StackType):
            # A copy: the run may change it.
            on_host = its.element.rank == 0
            return _scalars(value) if on_host else self.context.stack_on_device(list(value), its.element.dtype)
        return self.context.on_device(value) if its.rank else scalar(np.asarray(value))

    def on_host(self, value: Any) -> Any:
        if not self.library.is_array(value):
            return value
        if self._read[0] is not value:
            self._read = (value, scalar(self.context.predicate(value)[0]))
        return self._read[1]

    # Messages.

    def leave(self, value: Any) -> CudaLeaving | None:
        if self.library.is_array(value):
            return self._leave([value], lambda arrays: scalar(arrays[0]))
        if isinstance(value, DeviceStack):
            blocks = [value.rows(block) for block in value.blocks]
            return self._leave(blocks, lambda arrays: [row for array in arrays for row in array])
        if isinstance(value, list) and any(map(self.library.is_array, value)):
            return self._leave([row for row in value if row is not None], _among([row is not None for row in value]))
        return None

    def _leave(self, arrays: Sequence[Any], build: _Build) -> CudaLeaving:
        flag = self.context.flag
        # A copy of the note: a later kernel may write to it.
        notes = [] if flag is None else [self.library.xp.array(flag)]
        return CudaLeaving(self.context, self.copies.out([*arrays, *notes]), bool(notes), build)

    def arrive(self, value: Any, its: Type) -> Any:
        if isinstance(its, StackType):
            return self._stack(value, its.element)
        x = np.asarray(value)
        return scalar(x) if not x.ndim else _Arriving([self._begin([x], x.shape)], lambda arrays: arrays[0])

    def _stack(self, rows: Sequence[Any], element: TensorType) -> Any:
        if not element.rank:
            return _scalars(rows)
        if not rows:
            return DeviceStack(self.library, element.dtype)
        written = [row for row in rows if row is not None]
        if len(written) == len(rows) and len({np.shape(row) for row in rows}) == 1:
            whole = self._begin(rows, (len(rows), *np.shape(rows[0])))
            return _Arriving([whole], lambda arrays: DeviceStack.of(self.library, arrays[0]))
        return _Arriving([self._begin([row], np.shape(row)) for row in written], _among([r is not None for r in rows]))

    def _begin(self, rows: Sequence[Any], shape: tuple[int, ...]) -> InCopy:
        """Begin to take in an array, given whole or by its rows."""
        self.context.counts.uploads += 1
        dtype = np.asarray(rows[0]).dtype

        def fill(target: np.ndarray) -> None:
            for x, row in zip(rows, target.reshape(len(rows), *np.shape(rows[0])), strict=True):
                row[...] = x

        with _seen_late(self.context):
            return self.copies.into(shape, dtype, fill)

    def landed(self, arriving: Any) -> Any:
        if not isinstance(arriving, _Arriving):
            return arriving
        return arriving.build([self.copies.landed(copy) for copy in arriving.copies])

    def results(self, outputs: Mapping[int, Any]) -> dict[int, Any]:
        self._read = (None, None)
        return dict(zip(outputs, self.context.finish(list(outputs.values())), strict=True))


# Devices: their names, what an executor needs of one, and how those of a process share its cores.
#
#     cpu:N          a worker thread of this process
#     sim:N          the same, and everything that is sent to or from it takes a while: `Settings.latency`
#     cuda:N         a GPU, by the CUDA engine, with a worker thread that queues work on it
#     /rank:R/NAME   device NAME of the process with rank R
#
# `cpu:0` is where everything sits that was put nowhere else. A device runs the ops of a cluster as one piece, and
# says how values get to it and leave it: a `DeviceRun`. `HostRun` is that of a thread on the processor, where values
# are NumPy's from start to end; the other one is in `cuda`.
#
# While several devices compute, a thread per device is what uses the cores. So matrix products are single-threaded,
# and threads take turns quickly: while one runs Python, another that has a message to act on would wait for Python's
# global lock for the switch interval, 5 ms unless set, and a device's ops take microseconds. Both are settings of the
# process.


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


def local_devices() -> list[str]:
    """The devices of this process that the dataflow engine can compute on.

    GPUs are among them where CuPy and a card are there; asking loads CuPy. `is_here` asks for one device alone.
    """
    from ctrlgrad.engines.cuda import devices  # what it loads takes a while

    return [f"{kind}:{n}" for kind in _OF_THE_HOST for n in range(MOST)] + devices.found()


def _missing_cuda(number: int) -> UserInputError | None:
    """Why there is no GPU of this number; None where there is."""
    from ctrlgrad.engines.cuda import devices  # as above

    try:
        devices.check(number)
    except UserInputError as error:
        return error
    return None


# Pieces: the code that runs on a device.

# Takes a list of operands over, and what its device's run has as `context`: on the processor a `Run`.
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


class DeviceRun(Protocol):
    """One device in one run. All but the constructor is called on the device's own thread, inside `running`."""

    @property
    def run(self) -> Run:
        """Counters, and the iteration that a piece runs in."""

    @property
    def context(self) -> Any:
        """Context argument of the pieces."""

    @property
    def is_late(self) -> bool:
        """True if an error was seen later than it happened, so that its iteration is unknown."""

    def running(self) -> AbstractContextManager[None]:
        """For the whole run on this device. At the end nothing is under way any more, whatever has happened."""

    def entered(self, value: Any, its: Type) -> Any:
        """An input of the graph, as pieces take it."""

    def on_host(self, value: Any) -> Any:
        """A value that decides how control goes on; waits for it."""

    def leave(self, value: Any) -> Leaving | None:
        """Begin to bring a value to the host; None where it is there already. What computes does not wait."""

    def arrive(self, value: Any, its: Type) -> Any:
        """Begin to take in a value that lies on the host; `landed` has it."""

    def landed(self, arriving: Any) -> Any:
        """The value that was taken in, as pieces take it. What computes waits for it, not the caller."""

    def results(self, outputs: Mapping[int, Any]) -> dict[int, Any]:
        """Outputs of the graph as NumPy arrays and scalars, and lists of them for stacks."""


class HostRun:
    """A device `cpu:N` or `sim:N`."""

    is_late = False

    def __init__(self, run: Run) -> None:
        self.run = self.context = run

    def running(self) -> AbstractContextManager[None]:
        return nullcontext()

    def entered(self, value: Any, its: Type) -> Any:
        return value

    def on_host(self, value: Any) -> Any:
        return value

    def leave(self, value: Any) -> None:
        return None

    def arrive(self, value: Any, its: Type) -> Any:
        return value

    def landed(self, arriving: Any) -> Any:
        return arriving

    def results(self, outputs: Mapping[int, Any]) -> dict[int, Any]:
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
    """Once."""
    _LOG.warning("devices share the cores with BLAS's own threads: install ctrlgrad[dataflow] for speed")


_ONE_THREAD_PER_PRODUCT = ProcessSetting(_limit_products)


def single_threaded_products(*, is_required: bool = True) -> AbstractContextManager[None]:
    """One thread per matrix product, for a block of code.

    Args:
        is_required: whether to refuse where it cannot be had. A run whose speed alone depends on it goes on, and a
            warning says so once.

    Raises:
        UserInputError: the package threadpoolctl is missing, and it is required.
    """
    if is_required and not _is_possible():
        raise UserInputError(
            "matrix products cannot be made single-threaded",
            source=here(),
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
