"""Python's own control flow on traced tensors: `if`, `while`, `for` and `and` become `cond` and `while_loop`.

`convert(fn)` rewrites a function once, with the library `diastatic-malt`. Every statement and operator that takes a
decision becomes a call that looks at its operand at trace time. For a Python value the call does what Python does; for
a traced tensor it records a `cond` or a `while`. Functions of the user's own are converted when they are called.

The modules, in reading order:

    canonical     the syntax tree of a function, with the syntax that malt does not support lowered
    conversion    malt's passes, the converted function with its original line numbers, and which functions to convert
    branches      `if`, and `and`, `or`, `not`
    loops         `while` and `for`: the variables of a traced loop
    iteration     `for` over an iterable, and built-in functions such as `range`, `zip` and `sum`
    values        truth of traced tensors, variables without a value, and Python containers

Importing this package does not load malt; converting a function does.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from ctrlgrad.errors import UserInputError


def convert(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with its control flow rewritten; on Python values it does what `fn` does.

    Args:
        fn: a function, method, `functools.partial` or callable object whose source can be read.

    Raises:
        UserInputError: `diastatic-malt` is not installed, or the function cannot be converted, and why.

    >>> def halvings(x):
    ...     steps = 0
    ...     while x > 1.0:
    ...         x, steps = x / 2, steps + 1
    ...     return steps
    >>> int(cg.function(halvings, autograph=True)(10.0)), halvings(10.0)
    (4, 4)
    """
    try:
        conversion = importlib.import_module("ctrlgrad.autograph.conversion")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "malt":
            raise
        raise UserInputError(
            "autograph needs the package diastatic-malt, which is not installed", hint="pip install -e '.[autograph]'"
        ) from error
    return conversion.convert(fn)  # type: ignore[no-any-return]


__all__ = ["convert"]
