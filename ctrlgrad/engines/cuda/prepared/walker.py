"""The function in machine code that goes through a list of launches, without Python between one and the next.

A list is two words an entry: what is done and the address of its arguments, a word each:

- `KERNEL`: function, blocks, threads of a block, and the address of the addresses of its parameters, for
  `cuLaunchKernel`;
- `PRODUCT`: the parameters of `cublasGemmStridedBatchedEx` in their order;
- `READ`: an address of the host's and one of the card's, for `cuMemcpyDtoHAsync`: a word is copied and waited for;
- `SWITCH`: the address of a word of the host's, and for each of its values, from 0 on, how many entries further to go
  (below 0: back);
- `ADD`: the addresses of three words of the host's: the first becomes the sum of the other two;
- `COUNT`: the address of a word of the host's, and how many entries further to go where it is 0; else 1 is taken off.

A list may go on for long, and one that asks the card how to go on for as long as the data says. So Python has a turn
after so many reads, which wait for the card, and after so many launches: Ctrl-C ends a loop inside that does not end.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from ctrlgrad.engines.native import objects, target

KERNEL, PRODUCT, READ, SWITCH, ADD, COUNT = range(6)
# Words of an entry of the list.
ENTRY = 2
# Python has a turn each time that a walk has read so many words, or called a function of another kind so often.
READS, CALLS = 256, 4096

# The parameters of the functions, where a word is one of the arguments, and else a constant.
_LAUNCH = ("ptr", "i32", "i32 1", "i32 1", "i32", "i32 1", "i32 1", "i32 0", "ptr %stream", "ptr", "ptr null")
_GEMM = (
    *("ptr", "i32", "i32", "i32", "i32", "i32", "ptr"),
    *("ptr", "i32", "i32", "i64", "ptr", "i32", "i32", "i64"),
    *("ptr", "ptr", "i32", "i32", "i64", "i32", "i32", "i32"),
)
_COPY = ("ptr", "i64", "i64 8", "ptr %stream")
# Parameters of a walk, from `run`.
_GIVEN = "ptr %stream, ptr %functions, ptr %counts"


@dataclass(frozen=True)
class Functions:
    """Addresses of what is called: `cuLaunchKernel`, `cublasGemmStridedBatchedEx`, `cuMemcpyDtoHAsync` and
    `cuStreamSynchronize`, or the like of them."""

    launch: int
    multiply: int
    copy: int
    wait: int


@dataclass
class Counts:
    """Counts of calls."""

    kernels: int = 0
    products: int = 0
    reads: int = 0


class Failed(Exception):
    """A function has refused: what it is called for, and its status."""

    def __init__(self, kind: int, status: int) -> None:
        super().__init__(kind, status)
        self.kind, self.status = kind, status


def _call(block: str, function: str, parameters: Sequence[str]) -> list[str]:
    """The lines that call a function with words behind `%words` as its arguments, and its status."""
    lines, given, number = [f"{block}:"], [], 0
    for parameter in parameters:
        if " " in parameter:
            given.append(parameter)
            continue
        name = f"%{block}.{number}"
        lines.append(f"{name}.at = getelementptr i64, ptr %words, i64 {number}")
        lines.append(f"{name}.word = load i64, ptr {name}.at")
        if parameter == "i64":
            given.append(f"i64 {name}.word")
        else:
            change = "trunc i64 {}.word to i32" if parameter == "i32" else "inttoptr i64 {}.word to ptr"
            lines.append(f"{name} = {change.format(name)}")
            given.append(f"{parameter} {name}")
        number += 1
    lines.append(f"%{block}.status = call i32 {function}({', '.join(given)})")
    return [*lines, "br label %called"]


def _function(name: str, number: int) -> list[str]:
    """The lines that load one of the functions."""
    at = f"%{name}.function"
    return [f"{at} = getelementptr ptr, ptr %functions, i64 {number}", f"%{name} = load ptr, ptr {at}"]


def _host_word(block: str, number: int) -> list[str]:
    """The lines that load the address of a word of the host's, which is one of the words behind `%words`."""
    name = f"%{block}.{number}"
    return [
        f"{name}.at = getelementptr i64, ptr %words, i64 {number}",
        f"{name}.word = load i64, ptr {name}.at",
        f"{name} = inttoptr i64 {name}.word to ptr",
    ]


_TEXT = "\n".join(
    [
        # Entries [first, last) of the list, in their order; 0, or what refused and its status.
        f"define internal i64 @walk(ptr %list, i64 %first, i64 %last, {_GIVEN})",
        "nounwind {",
        "entry:",
        *(line for n, name in enumerate(("launch", "multiply", "copy", "wait", "turn")) for line in _function(name, n)),
        "br label %head",
        "head:",
        "%n = phi i64 [%first, %entry], [%next, %called], [%next, %turning], [%target, %going.on]",
        "%status.before = phi i32 [0, %entry], [%status, %called], [%status.then, %turning], [0, %going.on]",
        "%kind.before = phi i64 [0, %entry], [%kind, %called], [%kind, %turning], [0, %going.on]",
        "%failed = icmp ne i32 %status.before, 0",
        "br i1 %failed, label %refused, label %going",
        "going:",
        "%more = icmp slt i64 %n, %last",
        "br i1 %more, label %body, label %done",
        "body:",
        f"%at = mul i64 %n, {ENTRY}",
        "%entry.at = getelementptr i64, ptr %list, i64 %at",
        "%kind = load i64, ptr %entry.at",
        "%words.at = getelementptr i64, ptr %entry.at, i64 1",
        "%words.word = load i64, ptr %words.at",
        "%words = inttoptr i64 %words.word to ptr",
        "switch i64 %kind, label %switch",
        f" [i64 {KERNEL}, label %kernel i64 {PRODUCT}, label %product i64 {READ}, label %read",
        f" i64 {ADD}, label %add i64 {COUNT}, label %count]",
        *_call("kernel", "%launch", _LAUNCH),
        *_call("product", "%multiply", _GEMM),
        *_call("read", "%copy", _COPY)[:-1],
        "%copied = icmp eq i32 %read.status, 0",
        "br i1 %copied, label %waiting, label %called",
        "waiting:",
        "%waiting.status = call i32 %wait(ptr %stream)",
        "br label %called",
        "switch:",
        "%switch.word = load i64, ptr %words",
        "%value.at = inttoptr i64 %switch.word to ptr",
        "%value = load i64, ptr %value.at",
        "%delta.number = add i64 %value, 1",
        "%delta.at = getelementptr i64, ptr %words, i64 %delta.number",
        "%delta = load i64, ptr %delta.at",
        "br label %going.on",
        "add:",
        *_host_word("add", 0),
        *_host_word("add", 1),
        *_host_word("add", 2),
        "%add.a = load i64, ptr %add.1",
        "%add.b = load i64, ptr %add.2",
        "%add.sum = add i64 %add.a, %add.b",
        "store i64 %add.sum, ptr %add.0",
        "br label %going.on",
        "count:",
        *_host_word("count", 0),
        "%count.left = load i64, ptr %count.0",
        "%count.over = icmp eq i64 %count.left, 0",
        "%count.fewer = sub i64 %count.left, 1",
        "%count.now = select i1 %count.over, i64 0, i64 %count.fewer",
        "store i64 %count.now, ptr %count.0",
        "%count.end.at = getelementptr i64, ptr %words, i64 1",
        "%count.end = load i64, ptr %count.end.at",
        "%count.delta = select i1 %count.over, i64 %count.end, i64 1",
        "br label %going.on",
        "going.on:",
        "%moved = phi i64 [%delta, %switch], [1, %add], [%count.delta, %count]",
        "%target = add i64 %n, %moved",
        "br label %head",
        "called:",
        "%status = phi i32 [%kernel.status, %kernel], [%product.status, %product],",
        " [%read.status, %read], [%waiting.status, %waiting]",
        "%calls.at = getelementptr i64, ptr %counts, i64 %kind",
        "%calls = load i64, ptr %calls.at",
        "%calls.now = add i64 %calls, 1",
        "store i64 %calls.now, ptr %calls.at",
        "%next = add i64 %n, 1",
        f"%is.read = icmp eq i64 %kind, {READ}",
        f"%each = select i1 %is.read, i64 {READS}, i64 {CALLS}",
        "%since = urem i64 %calls.now, %each",
        "%is.turn = icmp eq i64 %since, 0",
        "br i1 %is.turn, label %turning, label %head",
        "turning:",
        "%turning.status = call i32 %turn()",
        # The error of a failed call says more.
        "%fine = icmp eq i32 %status, 0",
        "%status.then = select i1 %fine, i32 %turning.status, i32 %status",
        "br label %head",
        "done:",
        "ret i64 0",
        "refused:",
        "%wide = zext i32 %status.before to i64",
        "%shifted = shl i64 %kind.before, 32",
        "%found = or i64 %shifted, %wide",
        "ret i64 %found",
        "}",
        # The first entries once, then iterations, each of which is one of two halves, until a word of the host's is 0.
        "define i64 @run(ptr %list, i64 %once, i64 %half, i64 %odd, i64 %iterations, ptr %going,",
        f" {_GIVEN}) nounwind {{",
        "entry:",
        f"%begun = call i64 @walk(ptr %list, i64 0, i64 %once, {_GIVEN})",
        "br label %head",
        "head:",
        "%k = phi i64 [0, %entry], [%k.next, %iteration]",
        "%result = phi i64 [%begun, %entry], [%found, %iteration]",
        "%goes = phi i64 [1, %entry], [%goes.on, %iteration]",
        "%stops = icmp eq i64 %goes, 0",
        "%failed = icmp ne i64 %result, 0",
        "%over = icmp sge i64 %k, %iterations",
        "%stops.early = or i1 %failed, %stops",
        "%ends = or i1 %stops.early, %over",
        "br i1 %ends, label %done, label %iteration",
        "iteration:",
        "%number = add i64 %k, %odd",
        "%side = and i64 %number, 1",
        "%before = mul i64 %side, %half",
        "%first = add i64 %once, %before",
        "%last = add i64 %first, %half",
        f"%found = call i64 @walk(ptr %list, i64 %first, i64 %last, {_GIVEN})",
        "%k.next = add i64 %k, 1",
        "%goes.on = load i64, ptr %going",
        "br label %head",
        "done:",
        "ret i64 %result",
        "}",
    ]
)
_RUN = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, *[ctypes.c_int64] * 4, *[ctypes.c_void_p] * 4)


def _turns(raised: list[BaseException]) -> Generator[int, None, None]:
    """Turns of Python's: 0, or 1 where it has raised something, such as what a signal asks for.

    A function would have to be entered for that, and an exception on the way in would be lost; a generator comes back
    inside of its `try`.
    """
    while True:
        try:
            while True:
                yield int(bool(raised))
        except GeneratorExit:
            return
        except BaseException as error:
            raised.append(error)


_TURN = ctypes.CFUNCTYPE(ctypes.c_int)


@functools.cache
def _code() -> objects.Loaded:
    make = lambda: objects.ObjectCode(("run",), target.compiled(_TEXT))
    return objects.library(objects.key_of([_TEXT], []), make).kept()


@functools.cache
def _compiled() -> Callable[..., int]:
    return _RUN(_code()["run"])


def run(
    address: int, once: int, half: int, odd: int, iterations: int, going: int, functions: Functions, stream: int
) -> Counts:
    """Go through a list at an address: its first entries once, then iterations.

    Args:
        once: how many entries are first.
        half: how many entries an iteration has; there are twice as many, for iterations of even and odd number.
        odd: 1 where the first iteration is of odd number.
        going: the address of a word that is 0 after an iteration that is the last one.
        stream: where kernels go. Products go where their handle says.

    Raises:
        Failed: a function has refused; what follows has not been called. So it is with what Python raises in a turn of
            its own, which is raised as it is.
    """
    raised: list[BaseException] = []
    turns = _turns(raised)
    next(turns)
    turn = _TURN(turns.__next__)
    addresses = functions.launch, functions.multiply, functions.copy, functions.wait
    called = (ctypes.c_void_p * 5)(*addresses, ctypes.cast(turn, ctypes.c_void_p))
    counts = (ctypes.c_int64 * SWITCH)()
    found = _compiled()(address, once, half, odd, iterations, going, stream, called, counts)
    if raised:
        raise raised[0]
    if found:
        raise Failed(found >> 32, found & 0xFFFFFFFF)
    return Counts(*counts)
