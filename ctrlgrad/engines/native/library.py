"""The elementary functions' code: each compiled once per machine, when it is first needed, and called from all modules.

A function takes and gives numbers, or vectors of them, in registers: `cg_exp_float32` and `cg_exp_float32_v8`. Each is
an object of its own (see `objects`), since a program uses few of them. Lanes of a vector whose arguments are beyond
what an expression holds for (angles above 1e5) are given one by one to what does hold there.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ctrlgrad import forks
from ctrlgrad.dtypes import dtype_kind
from ctrlgrad.engines.native import expressions, objects, target, text
from ctrlgrad.engines.native.expressions import PURE, emit_call, emit_expression, symbol
from ctrlgrad.engines.native.text import Writer, type_of
from ctrlgrad.plan import elementary as elementary_functions
from ctrlgrad.plan import expression
from ctrlgrad.plan.elementary.table import Elementary, elementary
from ctrlgrad.plan.expression import Instruction

_SYMBOL = re.compile(r"cg_(\w+?)_((?:u?int|float)\d+)(?:_v(\d+))?")
_CALLED = re.compile(r"@(cg_\w+)\(")
_LOCK = forks.recursive_lock()
_ADDRESSES: dict[str, int] = {}


def called(declarations: Iterable[str]) -> list[str]:
    """The symbols of the elementary functions among a module's declarations (see `Writer.declarations`)."""
    return [found[1] for declaration in declarations if (found := _CALLED.search(declaration))]


def addresses(symbols: Iterable[str]) -> dict[str, int]:
    """The addresses of elementary functions by their symbols: from memory, from disk, or compiled now."""
    with _LOCK:
        return {name: _address(name) for name in symbols}


def prepare(symbols: Iterable[str]) -> None:
    """Have elementary functions compiled meanwhile whose addresses will be asked for."""
    for name in symbols:
        if name not in _ADDRESSES:
            prepare(_used(name))
            objects.prepare(_key(name), functools.partial(_made, name))


def _address(name: str) -> int:
    if name not in _ADDRESSES:
        uses = {used: _address(used) for used in _used(name)}
        _ADDRESSES[name] = objects.library(_key(name), lambda: _made(name), uses).kept()[name]
    return _ADDRESSES[name]


def _key(name: str) -> str | None:
    return objects.key_of(["elementary function", name], _modules())


def _made(name: str) -> objects.ObjectCode:
    return objects.ObjectCode((name,), target.compiled(module_text(*_parsed(name))))


def _used(name: str) -> list[str]:
    """The elementary functions that one calls."""
    inner = _inner(_parsed(name)[0])
    return [] if inner is None else [symbol(inner.name, inner.dtype)]


def _parsed(name: str) -> tuple[Elementary, int]:
    found = _SYMBOL.fullmatch(name)
    assert found, f"no elementary function is called {name}"
    return elementary(found[1], np.dtype(found[2])), int(found[3] or 1)


@functools.cache
def _modules() -> list[str]:
    """The modules that make a function's text."""
    (folder,) = elementary_functions.__path__
    own = [module.__file__ for module in (expressions, text, expression)]
    return [__file__, *(path for path in own if path), *map(str, sorted(Path(folder).glob("*.py")))]


# Text.


def module_text(function: Elementary, width: int) -> str:
    """The module of a function for vectors of a width, or for numbers."""
    writer = Writer()
    kind = type_of(function.dtype, width)
    arguments = [f"%x{k}" for k in range(function.arity)]
    writer.line(f"ret {kind} {_body(writer, function, width, arguments)}")
    given = ", ".join(f"{kind} {x}" for x in arguments)
    return writer.module(writer.function(f"{kind} @{symbol(function.name, function.dtype, width)}({given})"))


def emit_in_place(
    writer: Writer, name: str, operands: list[str], dtype: np.dtype, width: int, known: dict[str, str] | None
) -> str:
    """Write an elementary function's code instead of a call; the name of its result. `known` as for expressions."""
    return _body(writer, elementary(name, dtype), width, operands, known)


def _body(
    writer: Writer, function: Elementary, width: int, arguments: list[str], known: dict[str, str] | None = None
) -> str:
    def leaf(instruction: Instruction, given: list[tuple[str, bool]]) -> tuple[str, bool]:
        return arguments[instruction.value], width > 1

    result, *beyond = emit_expression(writer, function.expression, leaf, width, known=known)
    return _with_lanes_beyond(writer, function, width, arguments, result, beyond[0]) if beyond else result


def _inner(function: Elementary) -> Elementary | None:
    """The elementary function that holds where this one does not; None where there is none or the C library has it."""
    if function.library is None or dtype_kind(function.dtype) == "f":
        return None
    return elementary(function.library, function.dtype)


def _with_lanes_beyond(
    writer: Writer, function: Elementary, width: int, arguments: list[str], result: str, beyond: str
) -> str:
    """The result, with the lanes where `beyond` is true replaced by calls for one element each."""
    one, kind = type_of(function.dtype), type_of(function.dtype, width)
    rare, done, origin = writer.new_label("beyond"), writer.new_label("done"), writer.block
    some = beyond
    if width > 1:
        mask = writer.op(f"bitcast <{width} x i1> {beyond} to i{width}")
        some = writer.op(f"icmp ne i{width} {mask}, 0")
    writer.branch_if(some, rare, done)
    writer.label(rare)
    if width == 1:
        mended = _outside(writer, function, arguments)
        last = rare
    else:
        places = [writer.alloca(kind) for _ in (*arguments, result)]
        for place, value in zip(places, (*arguments, result), strict=True):
            writer.line(f"store {kind} {value}, ptr {place}")
        lane, call, after = writer.new_label("lane"), writer.new_label("call"), writer.new_label("next")
        last = writer.new_label("mended")
        writer.branch(lane)
        writer.label(lane)
        number = writer.phi("i64")
        number.add("0", rare)
        is_beyond = writer.op(f"extractelement <{width} x i1> {beyond}, i64 {number.name}")
        writer.branch_if(is_beyond, call, after)
        writer.label(call)
        at = [writer.op(f"getelementptr {one}, ptr {place}, i64 {number.name}") for place in places]
        value = _outside(writer, function, [writer.op(f"load {one}, ptr {place}") for place in at[:-1]])
        writer.line(f"store {one} {value}, ptr {at[-1]}")
        writer.branch(after)
        writer.label(after)
        following = writer.op(f"add i64 {number.name}, 1")
        number.add(following, after)
        is_last = writer.op(f"icmp eq i64 {following}, {width}")
        writer.branch_if(is_last, last, lane)
        writer.label(last)
        mended = writer.op(f"load {kind}, ptr {places[-1]}")
    writer.branch(done)
    writer.label(done)
    both = writer.phi(kind)
    both.add(result, origin)
    both.add(mended, last)
    return both.name


def _outside(writer: Writer, function: Elementary, arguments: list[str]) -> str:
    """One element of what holds where the function's own expression does not."""
    assert function.library is not None
    inner = _inner(function)
    if inner is not None:
        return emit_call(writer, inner.name, inner.dtype, arguments, [inner.dtype] * inner.arity, 1)
    kind = type_of(function.dtype)
    writer.declare(f"{kind} @{function.library}({', '.join([kind] * function.arity)}) {PURE}")
    return writer.op(f"call {kind} @{function.library}({', '.join(f'{kind} {x}' for x in arguments)})")
