"""An independent judge of launch lists: it replays a prepared body without data, and proves that reads find their
values.

Each name of memory in a list (`Buffer`, `Carried`) stands for one value at a time. The judge keeps two memories: by
names, and by the places that the placement gives these names. A launch writes the same tokens to both. Each read finds
the token of its name and iteration at its place, else the list is wrong. Kernels on numbers of the list itself
(counters, slots, trip counts) are computed; all other numbers are drawn, so branches take each side and loops end
anywhere. A run pushes its rows one behind the other, and pops them so.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from ctrlgrad.engines.cuda.kernel import KernelLaunch
from ctrlgrad.engines.cuda.prepared.entries import ListWriter
from ctrlgrad.engines.cuda.prepared.model import (
    ENDLESS,
    Affine,
    Become,
    Branching,
    Buffer,
    CarriedRows,
    Converted,
    Fixed,
    Flag,
    Given,
    Item,
    PreparedBody,
    ProductLaunch,
    Register,
    Repeating,
    Rows,
    Source,
    View,
    carried_arrays,
    count,
)
from ctrlgrad.engines.cuda.reductions import ONE
from ctrlgrad.plan.checking.memory import PlanError
from instruments.text import run_text

# Rows of a stack in a run, on either side of its beginning; passes of a drawn loop at most; drawn numbers.
ROWS, PASSES, DRAWN = 512, 40, (0, 1, 1, 2)


def judge(body: PreparedBody, iterations: int = 3, seed: int = 0) -> int:
    """Replay iterations of a body; the number of reads that were compared. Raises `PlanError`."""
    replay = _Replay(body, iterations, random.Random(seed))
    return replay.compared if replay.run() else 0


class _Replay:
    def __init__(self, body: PreparedBody, iterations: int, draw: random.Random) -> None:
        self.body, self.iterations, self.draw = body, iterations, draw
        self.compared, self.iteration, self.tokens = 0, 0, 1
        self.names: list[tuple[int, str]] = []
        self.numbers: dict[int, Any] = {}
        self.named: dict[Source, np.ndarray] = {}
        self.placed: dict[Source, np.ndarray] = {Buffer(0): np.zeros(body.placement.nbytes, np.int64)}
        self.stacks = {n: its for n, its in enumerate(body.carries) if isinstance(its, CarriedRows)}
        # Rows of each stack that were pushed before this iteration, and in it; or popped.
        self.before: dict[int, int] = dict.fromkeys(self.stacks, 0)
        self.touched: dict[int, set[int]] = {n: set() for n in self.stacks}
        # Tokens of rows that were pushed in this iteration: by the name that their view is, and the byte behind it.
        self.pushed: dict[tuple[Source, Affine], dict[int, int]] = {}
        self.integers: dict[int, int] = {}

    # Tokens.

    def write(self, memory: np.ndarray, at: np.ndarray, label: str) -> np.ndarray:
        """Have new tokens, one for each element, in a memory."""
        found = np.arange(self.tokens, self.tokens + len(at))[:, None]
        self.names.append((self.tokens, f"{label}, iteration {self.iteration}"))
        self.tokens += len(at)
        memory[at] = found
        return found[:, 0]

    def told(self, token: int) -> str:
        return next((name for first, name in reversed(self.names) if first <= token), "nothing") if token else "nothing"

    # Memory.

    def memory(self, source: Source, end: int) -> np.ndarray:
        """Memory of a name, which is as large as is asked of it."""
        found = self.named.setdefault(source, np.zeros(0, np.int64))
        if len(found) < end:
            found = self.named[source] = np.concatenate([found, np.zeros(end - len(found), np.int64)])
        return found

    def elements(self, view: View, first: int) -> np.ndarray:
        """Addresses of the bytes of each element of a view that begins at an address."""
        at = np.asarray(first)
        for size, stride in zip(view.shape, view.strides, strict=True):
            at = at[..., None] + np.arange(size) * stride
        return at.reshape(-1)[:, None] + np.arange(view.dtype.itemsize)

    def place(self, view: View) -> tuple[np.ndarray, np.ndarray]:
        """Memory of a view by its place, and the addresses of its elements there."""
        known = ListWriter.place(SimpleNamespace(body=self.body), view)  # type: ignore[arg-type]
        memory = self.placed.get(known.what)  # type: ignore[arg-type]
        if memory is None:
            raise PlanError(f"{view.source} has no place")
        at = self.elements(view, known.plus + self.number_of(view.moved))
        if at.size and (at.min() < 0 or at.max() >= len(memory)):
            raise PlanError(f"{view.source} is beyond its memory, iteration {self.iteration}")
        return memory, at

    def name(self, view: View) -> tuple[np.ndarray, np.ndarray]:
        first = view.offset + self.number_of(view.moved)
        if isinstance(view.source, Rows):
            if view.source.position not in self.stacks:
                raise PlanError(f"{view.source} are rows of a stack that no iteration changes")
            first += ROWS * self.stacks[view.source.position].row_bytes
        at = self.elements(view, first)
        if at.size and at.min() < 0:
            raise PlanError(f"{view.source} begins before its memory")
        return self.memory(view.source, int(at.max(initial=0)) + 1), at

    def read(self, view: View, label: str) -> Any:
        """Tokens of a view are those of its name; the number that it is, if that is known."""
        if isinstance(view.source, Given | Flag):
            return None
        memory, at = self.name(view)
        wanted = memory[at]
        if isinstance(view.source, Rows):
            self.touch(view, at)
            pushed = self.pushed.get((view.source, view.moved), {})
            for there, lies in zip(self.elements(view, view.offset).flat, wanted.flat, strict=True):
                want = pushed.get(int(there), lies)
                if want != lies:
                    raise PlanError(f"{label} wants {self.told(want)} in {view.source}, and finds {self.told(lies)}")
        else:
            if not wanted.all():
                raise PlanError(f"{label} reads {view.source}, of which some was never written")
            place, there = self.place(view)
            found = place[there]
            if (found != wanted).any():
                lies, want = (int(x[found != wanted][0]) for x in (found, wanted))
                raise PlanError(f"{label} wants {self.told(want)} in {view.source}, and finds {self.told(lies)}")
            self.compared += 1
        return self.numbers.get(int(wanted[0, 0])) if wanted.size and view.size == 1 else None

    def put(self, view: View, label: str, number: Any = None) -> None:
        if isinstance(view.source, Flag):
            return
        if isinstance(view.source, Given):
            raise PlanError(f"{label} writes {view.source}")
        memory, at = self.name(view)
        tokens = self.write(memory, at, label)
        if isinstance(view.source, Rows):
            self.touch(view, at)
            pushed = self.pushed.setdefault((view.source, view.moved), {})
            for element, token in zip(self.elements(view, view.offset), tokens, strict=True):
                pushed.update(dict.fromkeys(map(int, element), int(token)))
        else:
            place, there = self.place(view)
            place[there] = tokens[:, None]
        if view.size == 1:
            if number is None and view.dtype.kind in "iub":
                number = self.draw.choice(DRAWN) if view.dtype.kind != "b" else None
            if number is not None:
                self.numbers[int(tokens[0])] = number

    # Numbers.

    def counter(self, number: int) -> int:
        memory, at = self.name(self.body.word(Register("counter", number)))
        return int(self.numbers[int(memory[at][0, 0])])

    def number_of(self, number: Affine) -> int:
        steps = sum(step * self.counter(counter) for counter, step in number.steps)
        return number.constant + sum(count * self.integers[slot] for slot, count in number.terms) + steps

    def operand(self, x: Any, label: str) -> Any:
        """The number that an operand is, if it is known."""
        if isinstance(x, View):
            return self.read(x, label)
        if isinstance(x, Affine):
            return np.int64(self.number_of(x))
        if isinstance(x, Converted):
            return x.dtype.type(self.number_of(x.number))
        return x.value if isinstance(x, Fixed) else None

    # Rows.

    def touch(self, view: View, at: np.ndarray) -> None:
        assert isinstance(view.source, Rows)
        nbytes = self.stacks[view.source.position].row_bytes
        rows = {int(x) for x in np.unique(at // nbytes - ROWS)} if nbytes else set()
        self.touched[view.source.position] |= rows

    def settle_rows(self) -> None:
        """Behind an iteration: it has touched the rows that are its own."""
        for position, its in self.stacks.items():
            before = self.before[position]
            rows = abs(before) + self.rows_of(its, position, abs(before))
            now = self.before[position] = rows if its.pushes else -rows
            own = set(range(before, now)) if its.pushes else set(range(now, before))
            touched, self.touched[position] = self.touched[position], set()
            if touched - own or (its.pushes and own - touched and its.row_bytes):
                raise PlanError(f"rows {sorted(own ^ touched)} of stack {position}, iteration {self.iteration}")

    def rows_of(self, its: CarriedRows, position: int, before: int) -> int:
        """Rows of the iteration: those that the host knows, and that the card has counted."""
        counter = Register("counter", count(position))
        counted = self.counter(counter.number) - before if counter in self.body.words else None
        if isinstance(its.total, int | None):
            assert counted is not None
            if its.total is not None and counted > its.total:
                raise PlanError(f"{counted} rows of stack {position}, which are {its.total} at most")
            return counted
        known = its.total.value(self.integers) + its.total.step * self.iteration
        if counted not in (None, known):
            raise PlanError(f"{counted} rows of stack {position}, iteration {self.iteration}: {known} are expected")
        return known

    # Running.

    def run(self) -> bool:
        if not self.begin():
            return False
        for iteration in range(self.iterations):
            self.iteration = iteration
            self.items(self.body.items)
            self.settle_rows()
            self.leave()
        return True

    def begin(self) -> bool:
        """Have words, carries and host integers; false where no integers that were drawn keep indices in range."""
        body = self.body
        slots = {slot for x in self.affines() for slot, _ in x.terms}
        for _ in range(300):
            self.integers = {slot: self.draw.randint(0, 4) for slot in slots}
            ends = [x.value(self.integers) + x.step * k for x, _ in body.bounds for k in (0, self.iterations - 1)]
            sizes = [size for _, size in body.bounds for _ in range(2)]
            if all(0 <= end < size for end, size in zip(ends, sizes, strict=True)):
                break
        else:
            return False
        values = {"limit": self.iterations, "goes_on": 1, "capacity": ENDLESS, "last_slot": 1 << 40}
        for word in body.words:
            its = body.word(word)
            self.put(its, f"the word {word}", np.int64(values.get(word.what, 0) if isinstance(word, Register) else 0))
        for name, its in carried_arrays(body.carries):
            nbytes = int(np.prod(its.shape)) * its.dtype.itemsize
            first = np.zeros(nbytes, np.int64)
            self.placed[name] = first
            at = np.arange(nbytes).reshape(-1, its.dtype.itemsize)
            self.write(first, at, f"the first {name}")
            self.memory(name, nbytes)[:] = first
        return True

    def affines(self) -> list[Affine]:
        found = [index for index, _ in self.body.bounds]

        def look(items: Sequence[Item]) -> None:
            for item in items:
                for x in getattr(item, "arguments", ()):
                    its = x.moved if isinstance(x, View) else x.number if isinstance(x, Converted) else x
                    if isinstance(its, Affine):
                        found.append(its)
                if isinstance(item, Repeating):
                    look(item.items)
                    if isinstance(item.trips, Affine):
                        found.append(item.trips)
                for side in item.sides if isinstance(item, Branching) else ():
                    look(side)

        look(self.body.items)
        return found

    def leave(self) -> None:
        """The carry after an iteration is the one before the next; temporaries are gone."""
        for name, its in carried_arrays(self.body.carries):
            strides = tuple(its.dtype.itemsize * int(np.prod(its.shape[k + 1 :])) for k in range(len(its.shape)))
            self.read(View(name, its.dtype, its.shape, strides), "the next iteration")
        kept = {Buffer(0)}
        self.named = {x: m for x, m in self.named.items() if not isinstance(x, Buffer) or x in kept}
        self.pushed = {}

    def items(self, items: Sequence[Item]) -> None:
        for number, item in enumerate(items):
            match item:
                case Branching():
                    chosen = self.read(item.chosen, f"branch {number}")
                    self.items(item.sides[min(int(chosen), len(item.sides) - 1)])
                case Repeating():
                    self.repeat(item)
                case Become(before, after):
                    memory, at = self.name(before)
                    found = memory[at]
                    target, there = self.name(after)
                    target[there] = found
                    self.read(after, f"{before.source} that becomes {after.source}")
                case _:
                    self.launch(item, f"launch {number}")

    def repeat(self, item: Repeating) -> None:
        trips = item.trips
        count = None if trips is None else self.operand(trips, "a loop")
        passes = 0
        while int(self.read(item.goes_on, "a loop")) and passes < PASSES:
            self.items(item.items)
            passes += 1
        if count is not None and passes != max(int(count), 0):
            raise PlanError(f"a loop of {count} passes had {passes}")

    def launch(self, item: Any, label: str) -> None:
        match item:
            case ProductLaunch():
                reads, writes = (item.a, item.b, *[item.out] * item.adds), (item.out,)
            case KernelLaunch():
                inputs = len(item.spec.reads)
                reads, writes = item.arguments[:inputs], item.arguments[inputs:]
                # An update may leave any row as it was.
                reads = (*reads, *[x for x in writes if type(item.spec).__name__ == "UpdateSpec"])
        numbers = [self.operand(x, label) for x in reads]
        self.apart(item, [x for x in reads if isinstance(x, View)], writes, label)
        found: Sequence[Any] = [None] * len(writes)
        # An unknown predicate says anything: a kernel may count beside it.
        for k, x in enumerate(reads):
            if numbers[k] is None and isinstance(x, View) and x.dtype.kind == "b":
                numbers[k] = self.draw.choice((False, True))
        is_elementwise = isinstance(item, KernelLaunch) and item.spec.is_elementwise
        if is_elementwise and item.numbers == ONE and None not in numbers:
            found = [np.ravel(x)[0] for x in run_text(item.spec.text.element, numbers)]
        for k, (view, number) in enumerate(zip(writes, found, strict=True)):
            assert isinstance(view, View)
            self.put(view, f"{label}, output {k}", number)

    def apart(self, item: Any, reads: Sequence[View], writes: Sequence[Any], label: str) -> None:
        """Outputs lie apart from all inputs, but an element may be written where the same thread has read it."""
        free = (Given, Flag, Rows)
        for target in writes:
            if isinstance(target.source, free):
                continue
            memory, at = self.place(target)
            for view in reads:
                if isinstance(view.source, free) or view is target:
                    continue
                other, there = self.place(view)
                if other is not memory or not np.isin(there, at).any():
                    continue
                is_elementwise = isinstance(item, KernelLaunch) and item.spec.is_elementwise
                if not is_elementwise or there.shape != at.shape or (there != at).any():
                    raise PlanError(f"{label} reads {view.source} while it writes {target.source} there")


__all__ = ["judge"]
