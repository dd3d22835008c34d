"""The arrays that functions of `ctrlgrad.numpy`, loops and branches return outside of a trace: NumPy arrays, with what
JAX users expect.

A subclass of NumPy's array, since nothing else can be indexed by a traced tensor: `xs[t]` asks NumPy's array, which
knows numbers alone. Everything else is NumPy's: memory, methods, printed text, `isinstance`. Results of compiled
functions are NumPy's own arrays, so that a call costs nothing for it; `ctrlgrad.numpy.asarray(x)` makes one of these of
any array, without a copy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ctrlgrad.errors import TracingError
from ctrlgrad.frontend.functions import FUNCTIONS
from ctrlgrad.frontend.tensor import Tensor


class Array(np.ndarray):
    """A NumPy array with `x.at[key]`, as a traced tensor has it, that a traced tensor may index.

    >>> import numpy as np, ctrlgrad as cg, ctrlgrad.numpy as cnp
    >>> xs = cnp.asarray(np.array([1.0, 2.0, 4.0]))
    >>> xs.at[0].set(7.0)
    array([7., 2., 4.])
    >>> float(cg.fori_loop(0, 3, lambda t, total: total + xs[t], 0.0))
    7.0
    """

    __slots__ = ()

    @property
    def at(self) -> Any:
        """`x.at[key].set(value)` and its kin give the changed array; see `ctrlgrad.numpy.at`."""
        return FUNCTIONS["at"](self)

    def __getitem__(self, key: Any) -> Any:
        try:
            return super().__getitem__(key)
        except TracingError:
            if not _is_traced(key):
                raise
        return FUNCTIONS["getitem"](np.asarray(self), key)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        if return_scalar or not array.ndim:
            plain = np.asarray(array)
            return plain[()] if return_scalar else plain
        return array.view(Array)

    def __repr__(self) -> str:
        return repr(np.asarray(self))

    def __reduce__(self) -> Any:
        return np.asarray(self).__reduce__()


def _is_traced(key: Any) -> bool:
    """Whether a key holds a traced tensor."""
    if isinstance(key, tuple | list):
        return any(map(_is_traced, key))
    if isinstance(key, slice):
        return any(isinstance(part, Tensor) for part in (key.start, key.stop, key.step))
    return isinstance(key, Tensor)


def concrete(x: Any) -> Any:
    """A NumPy array of rank 1 or more as an `Array`; anything else as it is."""
    return x.view(Array) if type(x) is np.ndarray and x.ndim else x
