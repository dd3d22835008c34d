"""Looking in while a program runs: `print`, `breakpoint` and `watch_cotangent`, in loops and branches too.

The calls are recorded like any op and happen each time their place in the graph is reached, in order; a call in
code that is not run (an untaken branch) does not happen.

Under `vmap` a call happens once for all rows, with arrays that have the rows in front: the outermost `vmap` along
axis 0, those inside it behind. Values that are the same for all rows have no such axis. In a loop that only some rows
still run, or a branch that only some rows take, the other rows are there too, and show the values of the first row
that takes part; where no row takes part nothing is called. To tell them apart, map over `numpy.arange(rows)` too and
show it: where the number shown is not the row's own, the row takes no part.
"""

from __future__ import annotations

import ast
import bdb
import sys
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

import numpy as np

from ctrlgrad import tree
from ctrlgrad.advice import explains_calls
from ctrlgrad.errors import UserInputError
from ctrlgrad.frontend import trace
from ctrlgrad.frontend.apply import value_in
from ctrlgrad.frontend.checks import check_callable, check_leaves
from ctrlgrad.frontend.tensor import Tensor
from ctrlgrad.source import Source, here, user_frame

Iterations = tuple[int, ...]


@explains_calls
def callback(fn: Callable[[Any, Iterations], None], values: Any, label: str = "callback") -> None:
    """Call `fn(values, iterations)` with arrays when this place is reached.

    Args:
        fn: gets the pytree with arrays in place of tensors, and the number of the current iteration of each loop
            around the place, the outermost first. What it returns is ignored.
        values: a pytree of tensors, arrays and numbers. Under `vmap` fn gets those of all rows at once; what rows
            show that do not reach this place is said above (in the module's docstring).
        label: what printed graphs show.

    >>> seen = []
    >>> def body(i, x):
    ...     cg.debug.callback(lambda x, iterations: seen.append((iterations, float(x))), x)
    ...     return x * 2
    >>> float(cg.fori_loop(0, 3, body, 1.0)), seen
    (8.0, [((0,), 1.0), ((1,), 2.0), ((2,), 4.0)])
    """
    check_callable("debug.callback", "fn", fn, ("values", "iterations"), here())
    leaves, treedef = tree.flatten(values)
    check_leaves("debug.callback: a value", leaves)
    builder = trace.current()
    if builder is None:
        fn(tree.unflatten(treedef, [np.asarray(x) for x in leaves]), ())
        return

    def call(arrays: Sequence[Any], iterations: Iterations) -> None:
        # Copies: what the caller keeps must not stop, or see, an update in place.
        fn(tree.unflatten(treedef, [np.array(x) for x in arrays]), iterations)

    operands = [value_in(builder, x) for x in leaves]
    builder.emit_all("callback", operands, {"fn": call, "label": label}, source=here())


@explains_calls
def print(format: str, *args: Any, **kwargs: Any) -> None:
    """Print a format string with values when this place is reached; as `jax.debug.print`.

    `{iteration}` in the format stands for the number of the innermost loop's iteration, `{iterations}` for those
    of all loops around. Under `vmap` one line shows all rows (see `callback`).

    >>> def body(i, x):
    ...     cg.debug.print("{iteration}: {}", x)
    ...     return x + 1.5
    >>> _ = cg.fori_loop(0, 2, body, 0.0)
    0: 0.0
    1: 1.5
    """

    def show(values: Any, iterations: Iterations) -> None:
        positional, named = values
        named = {"iteration": iterations[-1] if iterations else None, "iterations": iterations, **named}
        sys.stdout.write(format.format(*positional, **named) + "\n")

    if not isinstance(format, str):
        raise UserInputError(
            "debug.print: the format is no text",
            expected="a format string, and the values that it shows",
            got=type(format).__name__,
            hint="debug.print('{}', x)",
        )
    try:
        blanks: dict[str, Any] = {"iteration": 0, "iterations": (), **dict.fromkeys(kwargs, 0)}
        _check_format(format, len(args), blanks)
    except (IndexError, KeyError) as error:
        raise UserInputError(
            "debug.print: the format does not fit the values",
            expected="one value per field",
            got=f"{format!r} with {len(args)} values and {sorted(kwargs)}",
            hint="as in str.format: {} for positional values, {name} for named ones",
        ) from error
    callback(show, (tuple(args), dict(kwargs)), label="print")


def _check_format(format: str, count: int, named: dict[str, Any]) -> None:
    class Anything:
        def __format__(self, spec: str) -> str:
            return ""

        def __getattr__(self, name: str) -> Anything:
            return self

        def __getitem__(self, key: Any) -> Anything:
            return self

    format.format(*(Anything() for _ in range(count)), **dict.fromkeys(named, Anything()))


@explains_calls
def breakpoint(**values: Any) -> None:
    """Stop in the debugger (`sys.breakpointhook`) at the user's line when this place is reached.

    The debugger has the names of `values`, `values` itself as a dict, `iterations`, and the globals of the module.

    Raises:
        bdb.BdbQuit: the debugger was quit; its text says where.
    """
    frame, source = user_frame(), here()
    code = _stopping(source)

    def stop(values: dict[str, Any], iterations: Iterations) -> None:
        names = {"values": values, "iterations": iterations, **values}
        try:
            exec(code, {} if frame_globals is None else frame_globals, names)
        except bdb.BdbQuit as quitting:
            quitting.args = (f"debug.breakpoint: the debugger was quit, at: {source}",)
            raise

    frame_globals = None if frame is None else frame.f_globals
    del frame
    callback(stop, values, label="breakpoint")


def _stopping(source: Source | None) -> CodeType:
    """Code that calls the hook and then stands at the user's line, where the debugger stops, in his file."""
    line, file, name = (source.line, source.file, source.function) if source else (1, "<unknown>", "<unknown>")
    module = ast.parse("__import__('sys').breakpointhook()\npass")
    # A debugger stops at the next instruction since Python 3.13, and at the next line before.
    lines = (line, line) if sys.version_info >= (3, 13) else (line + 1, line)
    for statement, at in zip(module.body, lines, strict=True):
        for node in ast.walk(statement):
            if hasattr(node, "lineno"):
                node.lineno = node.end_lineno = at  # type: ignore[attr-defined]
    return compile(module, file, "exec").replace(co_name=name.rpartition(".")[2], co_qualname=name)


@explains_calls
def watch_cotangent(x: Any, fn: Callable[[Any, Iterations], None], label: str = "cotangent") -> Any:
    """x itself; when its cotangent is computed on the way back, `fn(cotangent, iterations)` is called with it.

    In a loop that is once per iteration, from the last to the first; `iterations` are those of the forward loops.
    A cotangent that is zero because nothing depends on x is not computed, and fn not called. Under `vmap` it is called
    once for all rows, with their cotangents along axis 0. A row that did not reach this place has a zero there in the
    gradient of a mapped function. In a mapped gradient it has the cotangent of the first row that did, and where rows
    go round a loop different numbers of times, iterations are counted as the backward loop makes them, from 0.

    Args:
        x: a float tensor.
        fn: gets an array and a tuple of ints; what it returns is ignored.
        label: what printed graphs show.

    Raises:
        TypeMismatchError: fn is not a function of two arguments.

    >>> seen = []
    >>> def f(x):
    ...     def body(i, y):
    ...         note = lambda ct, at: seen.append((at, float(ct)))
    ...         return cg.debug.watch_cotangent(y, note) * x
    ...     return cg.fori_loop(0, 3, body, x)
    >>> _ = cg.grad(f)(2.0)
    >>> seen
    [((2,), 2.0), ((1,), 4.0), ((0,), 8.0)]
    """
    check_callable("debug.watch_cotangent", "fn", fn, ("cotangent", "iterations"), here())
    builder = trace.current()
    if builder is None or not isinstance(x, Tensor):
        return x

    def call(arrays: Sequence[Any], iterations: Iterations) -> None:
        fn(np.array(arrays[0]), iterations)

    attrs = {"fn": call, "label": label}
    return Tensor(builder, builder.emit("watch", [value_in(builder, x)], attrs, source=here()), x.weak)


__all__ = ["breakpoint", "callback", "print", "watch_cotangent"]


def __dir__() -> list[str]:
    return sorted(__all__)
