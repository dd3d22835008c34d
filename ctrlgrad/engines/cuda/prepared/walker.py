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
from ctrlgrad.engines.native.text import Writer

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


def _text() -> str:
    """The walk as LLVM text: entries [first, last) of a list; 0, or the kind of what refused and its status."""
    f = Writer()

    def at(pointer: str, number: int | str, kind: str = "i64") -> str:
        return f.op(f"getelementptr {kind}, ptr {pointer}, i64 {number}")

    def word(pointer: str, number: int | str = 0) -> str:
        return f.op(f"load i64, ptr {at(pointer, number)}")

    def pointer(word: str) -> str:
        return f.op(f"inttoptr i64 {word} to ptr")

    def called(function: str, parameters: Sequence[str]) -> str:
        """Status of a function whose arguments are words of the entry, and constants."""
        given, number = [], 0
        for parameter in parameters:
            if " " in parameter:
                given.append(parameter)
                continue
            value, number = word(words, number), number + 1
            if parameter != "i64":
                value = pointer(value) if parameter == "ptr" else f.op(f"trunc i64 {value} to i32")
            given.append(f"{parameter} {value}")
        return f.op(f"call i32 {function}({', '.join(given)})")

    def first_failure(one: str, other: str) -> str:
        is_fine = f.op(f"icmp eq i32 {one}, 0")
        return f.op(f"select i1 {is_fine}, i32 {other}, i32 {one}")

    def go(by: str) -> None:
        f.line(f"store i64 {f.add(number, by)}, ptr {position}")
        f.branch("head")

    functions = [f.op(f"load ptr, ptr {at('%functions', n, 'ptr')}") for n in range(5)]
    position, status_at = f.alloca("i64"), f.alloca("i32")
    f.line(f"store i64 %first, ptr {position}")
    f.branch("head")
    f.label("head")
    number = word(position)
    f.branch_if(f.op(f"icmp slt i64 {number}, %last"), "body", "done")
    f.label("done")
    f.line("ret i64 0")
    f.label("body")
    entry = at("%list", f.multiply(number, str(ENTRY)))
    kind, words = word(entry), pointer(word(entry, 1))
    others = " ".join(f"i64 {n}, label %kind{n}" for n in (KERNEL, PRODUCT, READ, ADD, COUNT))
    f.line(f"switch i64 {kind}, label %kind{SWITCH} [{others}]")
    for n, parameters in ((KERNEL, _LAUNCH), (PRODUCT, _GEMM), (READ, _COPY)):
        f.label(f"kind{n}")
        status = called(functions[n], parameters)
        if n == READ:
            status = first_failure(status, called(functions[3], ("ptr %stream",)))
        f.line(f"store i32 {status}, ptr {status_at}")
        calls_at = at("%counts", n)
        calls = f.add(word(calls_at), "1")
        f.line(f"store i64 {calls}, ptr {calls_at}")
        since = f.op(f"urem i64 {calls}, {READS if n == READ else CALLS}")
        with f.when(f.op(f"icmp eq i64 {since}, 0")):
            # The error of a failed call says more.
            f.line(f"store i32 {first_failure(status, called(functions[4], ()))}, ptr {status_at}")
        found = f.op(f"load i32, ptr {status_at}")
        f.branch_if(f.op(f"icmp eq i32 {found}, 0"), f"goes.on{n}", f"refused{n}")
        f.label(f"refused{n}")
        wide = f.op(f"zext i32 {found} to i64")
        f.line(f"ret i64 {f.op(f'or i64 {n << 32}, {wide}')}")
        f.label(f"goes.on{n}")
        go("1")
    f.label(f"kind{SWITCH}")
    go(word(words, f.add(word(pointer(word(words))), "1")))
    f.label(f"kind{ADD}")
    total, a, b = (pointer(word(words, n)) for n in range(3))
    f.line(f"store i64 {f.add(word(a), word(b))}, ptr {total}")
    go("1")
    f.label(f"kind{COUNT}")
    left_at = pointer(word(words))
    left = word(left_at)
    is_over = f.op(f"icmp eq i64 {left}, 0")
    fewer = f.add(left, "-1")
    f.line(f"store i64 {f.op(f'select i1 {is_over}, i64 0, i64 {fewer}')}, ptr {left_at}")
    go(f.op(f"select i1 {is_over}, i64 {word(words, 1)}, i64 1"))
    return f.function("i64 @run(ptr %list, i64 %first, i64 %last, ptr %stream, ptr %functions, ptr %counts)")


_RUN = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, *[ctypes.c_int64] * 2, *[ctypes.c_void_p] * 3)


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
    text = _text()
    make = lambda: objects.ObjectCode(("run",), target.compiled(text))
    return objects.library(objects.key_of([text], []), make).kept()


@functools.cache
def _compiled() -> Callable[..., int]:
    return _RUN(_code()["run"])


def run(address: int, first: int, last: int, functions: Functions, stream: int) -> Counts:
    """Go through the entries [first, last) of a list at an address.

    Kernels go on the stream, products where their handle says.

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
    found = _compiled()(address, first, last, stream, called, counts)
    if raised:
        raise raised[0]
    if found:
        raise Failed(found >> 32, found & 0xFFFFFFFF)
    return Counts(*counts)
