"""One run on the device: its library, counts and transfers; and a region as a list of steps over numbered slots.

As in the reference engine a slot is cleared at its value's last use, so memory goes back as early as it can, and what
nothing else holds is updated in place. Constants lie in their slots from the start; those on the device were sent there
once, or in a session once a run.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from ctrlgrad.engines.cuda.library import ArrayLibrary
from ctrlgrad.engines.cuda.sites import Moment, Sites
from ctrlgrad.engines.cuda.stacks import DeviceRows, DeviceStack, RunMemory, Stack, own_array
from ctrlgrad.engines.device_array import DeviceArray
from ctrlgrad.engines.precision import Precision, current_precision
from ctrlgrad.engines.reference import Run
from ctrlgrad.engines.reference.interpreter import explained
from ctrlgrad.engines.sizes_of_a_run import refused
from ctrlgrad.ir import Node, StackType, Type, Value

if TYPE_CHECKING:
    from ctrlgrad.engines.cuda.kernel import KernelLaunch

INT64 = np.dtype(np.int64)
# Most graphs on the stream at once: one is launched while earlier ones run.
MOST_IN_FLIGHT = 3


@dataclass
class Counts:
    """Counts of one run. Each of the first five is at least one launch; a function of the library may make several."""

    # Generated kernels, matrix products, other functions of the library, and copies to the device: one by one.
    kernels: int = 0
    products: int = 0
    calls: int = 0
    uploads: int = 0
    # Graphs, whose kernels and products the host does not launch.
    graphs: int = 0
    # Runs of prepared iterations: how often Python had a part in their launches.
    runs: int = 0
    # Waits for the device: for a loop's predicate, and for other values; and copies of results to the host.
    predicate_reads: int = 0
    reads: int = 0
    results: int = 0
    # Ops that went through the host, by name.
    host_ops: Counter[str] = field(default_factory=Counter)

    @property
    def launches(self) -> int:
        return self.kernels + self.products + self.calls + self.uploads + self.graphs


@dataclass
class Context:
    """State that the steps of one run share."""

    library: ArrayLibrary
    counts: Counts = field(default_factory=Counts)
    run: Run = field(default_factory=Run)
    precision: Precision = field(default_factory=current_precision)
    # Where kernels note an index that is out of range (`ctrlgrad.engines.cuda.sites`). It is the library's, of which a
    # run has it until its end.
    flag: Any = None
    sites: Sites = field(default_factory=Sites)
    # The loops that run, the outermost first.
    loops: list[Node] = field(default_factory=list)
    # True if an error was raised later than it happened; the error itself names its iterations.
    is_late: bool = False
    # Run id, by which this run's graphs are stopped; and marks behind the last of them.
    run_number: int = field(default_factory=itertools.count(1).__next__)
    in_flight: deque[Any] = field(default_factory=deque)
    # In a session: what counts this run's values, and has the blocks of loops that push.
    memory: RunMemory | None = None
    # In a session: the constants that this run has sent to the device, by the program that they belong to.
    constants: dict[Any, list[Any]] = field(default_factory=dict)

    @property
    def xp(self) -> Any:
        return self.library.xp

    def on_device(self, x: Any) -> Any:
        """An array on the device of an array on either side."""
        if self.library.is_array(x):
            return x
        self.counts.uploads += 1
        return self.library.upload(x)

    def stack_on_device(self, stack: Stack, dtype: np.dtype) -> Stack:
        """A stack on the device of one on either side."""
        if isinstance(stack, DeviceStack | DeviceRows):
            return stack
        if not stack:
            return DeviceStack(self.library, dtype)
        if all(isinstance(row, np.generic) for row in stack):
            return DeviceStack.of(self.library, self.on_device(np.array(stack, stack[0].dtype)))
        return DeviceRows(None if row is None else self.on_device(row) for row in stack)

    def on_host(self, *values: Any) -> list[Any]:
        """Host arrays of values on either side, with one wait for all."""
        places = [i for i, x in enumerate(values) if self.library.is_array(x)]
        found = list(values)
        if places:
            self.counts.reads += 1
            for i, x in zip(places, self.library.read([values[i] for i in places]), strict=True):
                found[i] = x
        return found

    def number(self, x: Any) -> int:
        """A whole number that the host must know."""
        return int(self.on_host(x)[0])

    def predicate(self, *values: Any) -> list[Any]:
        """As `on_host`, for what decides how control goes on. Raises if an index was out of range so far."""
        self.counts.predicate_reads += 1
        if self.flag is None:
            return self.library.read(values)
        *found, flag = self.library.read([*values, self.flag])
        self.raise_flagged(flag)
        return found

    def launch(self, launch: KernelLaunch) -> None:
        """Put one launch of a reduction, or by indices, on the library's stream."""
        self.counts.kernels += 1
        self.library.launch(launch, self.precision != "ieee")

    def launched_graph(self, is_endless: bool) -> None:
        """Note that a graph has been launched; `is_endless`: its run time is not bounded.

        Few are in flight: when something asks for an end, what is left to do ends soon, or is stopped.
        """
        self.in_flight.append(self.library.mark())
        while len(self.in_flight) > MOST_IN_FLIGHT * (not is_endless):
            self.library.wait(self.in_flight[0])
            self.in_flight.popleft()

    # Indices that the host does not know.

    def index_flag(self) -> Any:
        """Flag on the device where kernels note an index that is out of range."""
        if self.flag is None:
            self.flag = self.library.take_flag()
        return self.flag

    def _end_of_flag(self, flag: np.ndarray) -> None:
        """Nothing is launched any more. One in which nothing was noted is another run's from now on."""
        self.raise_flagged(flag)
        self.library.give_back_flag(self.flag)
        self.flag = None

    def site(self, node: Node) -> int:
        """Number that a single kernel notes for its index error: it stands for the node and the current iterations."""
        return -self.moment(node)

    def moment(self, node: Node | None = None) -> int:
        """The number of now. Waits for the device where there have been too many moments to remember."""
        if self.sites.is_full:
            if self.flag is not None:
                self.counts.reads += 1
                self.raise_flagged(self.library.read([self.flag])[0])
            self.sites.forget_moments()
        return self.sites.moment(Moment(tuple(self.loops), tuple(self.run.iterations), node))

    def raise_flagged(self, flag: np.ndarray) -> None:
        """The error of an index that the device found out of range."""
        error = self.sites.error(flag.tolist())
        if error is not None:
            self.is_late = True
            raise error

    def keep(self, values: list[Any]) -> list[Any]:
        """The results, arrays where they lie: each in memory of its own. Takes the list over; stacks go to the host.

        Waits for the device only where it was asked to look at indices.
        """
        if self.flag is not None:
            self.counts.results += 1
            self._end_of_flag(self.library.read([self.flag])[0])
        kept: list[Any] = []
        while values:
            if not self.library.is_array(values[0]):
                kept += self.finish([values.pop(0)])
                continue
            array, was_copied = own_array(values, self.library)
            self.counts.calls += was_copied
            kept.append(DeviceArray(self.library, array))
        return kept

    def finish(self, values: Sequence[Any]) -> list[Any]:
        """The results on the host: arrays, and lists of rows for stacks."""
        arrays: list[Any] = [self.flag] if self.flag is not None else []
        first = len(arrays)
        places: list[tuple[int, int | None]] = []
        found: list[Any] = []
        for position, value in enumerate(values):
            if isinstance(value, DeviceStack) and value.is_managed:
                found.append(self._rows(value))
                continue
            rows: list[Any] | None = list(value) if isinstance(value, DeviceStack | list) else None
            found.append(value if rows is None else rows)
            for number, x in [(None, value)] if rows is None else enumerate(rows):
                if self.library.is_array(x):
                    arrays.append(x)
                    places.append((position, number))
        if not arrays:
            return found
        self.counts.results += 1
        copies = self.library.read(arrays)
        if first:
            self._end_of_flag(copies[0])
        for (position, number), x in zip(places, copies[first:], strict=True):
            if number is None:
                found[position] = x
            else:
                found[position][number] = x
        return found

    def _rows(self, stack: DeviceStack) -> list[np.ndarray]:
        """The rows of a stack on the host, a block at a time: there may be room for one alone."""
        found: list[np.ndarray] = []
        for block in stack.blocks:
            self.counts.results += 1
            found.extend(self.library.read([stack.used(block)])[0])
        return found


Values = list[Any]
# Where a node runs, for the report.
Where = Literal["device", "host", "through the host"]


class Step(Protocol):
    """One thing that is done: a node, or a group of nodes."""

    @property
    def node(self) -> Node:
        """The node that an error names."""

    @property
    def reads(self) -> tuple[int, ...]:
        """Slots of the operands."""

    @property
    def updates(self) -> tuple[int, ...]:
        """Slots of the operands that it may overwrite."""

    def __call__(self, values: Values, context: Context) -> None:
        """Read operands from their slots, clear those that die, write results to theirs."""


@dataclass(slots=True)
class NodeStep:
    """One node: `kernel(context, operands)` gives its result, or a sequence of results."""

    node: Node
    kernel: Callable[[Context, list[Any]], Any]
    operands: tuple[int, ...]
    results: tuple[int, ...]
    dead: tuple[int, ...] = ()
    unused: tuple[int, ...] = ()
    where: Where = "device"
    updates: tuple[int, ...] = ()
    # True if a product is added to the first operand.
    is_sum: bool = False

    @property
    def reads(self) -> tuple[int, ...]:
        return self.operands

    def __call__(self, values: Values, context: Context) -> None:
        operands = [values[slot] for slot in self.operands]
        for slot in self.dead:
            values[slot] = None
        try:
            result = self.kernel(context, operands)
        except ValueError as error:
            misfit = refused(self.node, operands)
            if misfit is None:
                raise
            raise misfit from error
        if len(self.results) == 1:
            values[self.results[0]] = result
        else:
            for slot, value in zip(self.results, result, strict=True):
                values[slot] = value
        for slot in self.unused:
            values[slot] = None


@dataclass
class Slots:
    """The slots of a region's values."""

    numbers: dict[Value, int] = field(default_factory=dict)

    def of(self, value: Value) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    def all_of(self, values: Iterable[Value]) -> tuple[int, ...]:
        return tuple(self.of(v) for v in values)


@dataclass(eq=False)
class Program:
    """A region, ready to run. The inputs are the first slots."""

    inputs: int
    unused_inputs: tuple[int, ...]
    # Constants by slot: host scalars, and host arrays that are sent to the device at the first run.
    constants: dict[int, Any]
    size: int
    steps: list[Step]
    outputs: tuple[int, ...]
    # Outputs that are on the host and are wanted on the device: their types by position.
    uploads: Mapping[int, Type]
    template: list[Any] | None = None

    def __call__(self, values: Values, context: Context) -> Values:
        """Run on input values. Takes the list over: it is emptied as its values die."""
        values += self._rest(context)
        for slot in self.unused_inputs:
            values[slot] = None
        step = None
        try:
            for step in self.steps:
                step(values, context)
        except Exception as error:
            assert step is not None
            found = explained(error, step.node)
            if found is error:
                raise
            raise found from error
        outputs = [values[slot] for slot in self.outputs]
        for position, its in self.uploads.items():
            outputs[position] = to_device(context, outputs[position], its)
        return outputs

    def held(self, context: Context) -> dict[int, Any]:
        """The constants by slot, as a run has them."""
        rest = self._rest(context)
        return {slot: rest[slot - self.inputs] for slot in self.constants}

    def _rest(self, context: Context) -> list[Any]:
        """The slots above the inputs, constants in theirs."""
        if context.memory is None:
            if self.template is None:
                self.template = self._sent(context)
            return self.template
        # In a session they count, and go with the run.
        if self not in context.constants:
            context.constants[self] = self._sent(context)
        return context.constants[self]

    def _sent(self, context: Context) -> list[Any]:
        sent: list[Any] = [None] * (self.size - self.inputs)
        for slot, x in self.constants.items():
            sent[slot - self.inputs] = scalar(x) if x.ndim == 0 else context.on_device(x)
        return sent


class Regions:
    """Base of the kernels of branches: one program for each region, of which one runs."""

    programs: list[Program]


def scalar(x: Any) -> Any:
    """A host value, never an array of rank 0: kernels take scalars by value."""
    return x[()] if isinstance(x, np.ndarray) and x.ndim == 0 else x


def to_device(context: Context, value: Any, its: Type) -> Any:
    """A value or a stack of either side on the device."""
    return context.stack_on_device(value, its.element.dtype) if isinstance(its, StackType) else context.on_device(value)
