"""Python's own control flow on traced tensors: `if`, `while`, `for`, `and` become `cond` and `while_loop`.

`convert(fn)` rewrites a function once, with the library `diastatic-malt`, so that every statement and operator
that decides something asks at trace time what it decides on. On a Python value it does what Python does; on a
traced tensor it records a `cond` or a `while` node. The functions that it calls are converted as they are
called, if they are the user's own.

The files, in the order in which a function passes through them: `parse` finds its syntax tree, `canonical`
lowers what malt does not know, `rewrite` runs malt, `compile` makes a function of the result whose lines are
the original ones, `conversion` decides what is converted. At trace time the generated code calls `branches`,
`loops`, `iteration`, `logic` and `overloads`, which share `values`, `undefined` and `containers`.

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
            "autograph needs the package diastatic-malt, which is not installed",
            hint="pip install -e '.[autograph]'",
        ) from error
    return conversion.convert(fn)  # type: ignore[no-any-return]


__all__ = ["convert"]
