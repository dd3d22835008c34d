"""Conversion of the results of a run into arrays for the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ctrlgrad import tree
from ctrlgrad.engines.device_array import Apply, DeviceArray
from ctrlgrad.frontend.apply import EagerStack
from ctrlgrad.ir import Graph, StackType
from ctrlgrad.ir.caching import Recent
from ctrlgrad.signature import static


def _bases(x: Any) -> list[Any]:
    """An array and the arrays whose memory it views."""
    chain = [x]
    while isinstance(chain[-1], np.ndarray) and chain[-1].base is not None:
        chain.append(chain[-1].base)
    return chain


def hand_out(graph: Graph, results: Sequence[Any], arguments: Sequence[Any], apply: Apply | None = None) -> list[Any]:
    """Results as the user gets them: arrays of their own that share no memory with arguments or constants.

    Those on a card stay there, and `apply` is how NumPy's functions compute on them.
    """
    handed: list[Any] = []
    shared = {id(y) for x in arguments for y in _bases(x)}
    for value, x in zip(graph.outputs, results, strict=True):
        if isinstance(value.type, StackType):
            handed.append(EagerStack(value.type, list(x)))
            continue
        if isinstance(x, DeviceArray) and apply is not None:
            handed.append(x.computing_with(apply))
            continue
        array = np.asarray(x)
        if array.base is not None or not array.flags.writeable or id(array) in shared:
            array = array.copy()
        shared.add(id(array))
        handed.append(array)
    return handed


class OnCard:
    """Computes functions of NumPy's on arrays on a card, each as a graph there.

    `function_of` makes a function run on the card; those of the last `most` kinds of calls are kept.
    """

    def __init__(self, function_of: Callable[[Callable[..., Any]], Callable[..., Any]], most: int) -> None:
        self._function_of = function_of
        self._kept: Recent[Any, Callable[..., Any]] = Recent(most)

    def __call__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves, treedef = tree.flatten((args, kwargs))
        # A number that an elementwise function is given is an operand, and not part of the signature.
        numbers = (bool, int, float, complex) if isinstance(fn, np.ufunc) else ()
        is_array = [isinstance(x, (DeviceArray, np.ndarray, np.generic, *numbers)) for x in leaves]
        fixed = tuple(None if yes else static(x) for x, yes in zip(leaves, is_array, strict=True))

        def call(*arrays: Any) -> Any:
            given = iter(arrays)
            args, kwargs = tree.unflatten(treedef, [next(given) if x is None else x.value for x in fixed])
            return fn(*args, **kwargs)

        run = self._kept.get((fn, treedef, fixed), lambda: self._function_of(call))
        return run(*(x for x, yes in zip(leaves, is_array, strict=True) if yes))
