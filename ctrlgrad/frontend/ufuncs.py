"""Functions that work element by element, with the methods and keywords that NumPy's have.

What the methods compute stands in `ctrlgrad.frontend.array.ufunc_methods`; a function finds it by name, as a tensor
finds the array functions.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

# Keywords of a call, after the function's own parameters.
_KEYWORDS = [
    inspect.Parameter("where", inspect.Parameter.KEYWORD_ONLY, default=True),
    inspect.Parameter("dtype", inspect.Parameter.KEYWORD_ONLY, default=None),
]


class ufunc:
    """A function of arrays, element by element; as `jax.numpy.ufunc`.

    Called with `dtype=` it computes in the dtypes of NumPy's function that give this dtype. With `where=` only the
    elements at which the condition holds are computed, derivatives included; the other elements are 0 (NumPy leaves
    them uninitialised).

    Args:
        func: the function of `nin` arrays, which broadcasts them.
        nin, nout: the numbers of its operands and results.
        name: its name, that of `func` by default.
        identity: what `reduce` gives for no elements; None where there is no such value.

    >>> cnp.add.reduce([[1, 2], [3, 4]], axis=1)
    array([3, 7])
    >>> cnp.divide([1.0, 2.0], [0.0, 4.0], where=[False, True])
    array([0. , 0.5])
    """

    # The array functions by name; the module that registers them says so.
    functions: Mapping[str, Callable[..., Any]] = {}
    __name__: str

    def __init__(
        self, func: Callable[..., Any], nin: int, nout: int, *, name: str | None = None, identity: Any = None
    ) -> None:
        functools.update_wrapper(self, func)
        self.func, self.nin, self.nout, self.identity = func, nin, nout, identity
        self.__name__ = str(name or getattr(func, "__name__", "ufunc"))
        own = inspect.signature(func)
        if not any(p.kind == p.VAR_KEYWORD for p in own.parameters.values()):
            self.__signature__ = own.replace(parameters=[*own.parameters.values(), *_KEYWORDS])

    @property
    def nargs(self) -> int:
        """The number of its operands and results together."""
        return self.nin + self.nout

    def __repr__(self) -> str:
        return f"<ctrlgrad.numpy.ufunc {self.__name__!r}>"

    def __call__(self, *args: Any, where: Any = True, dtype: Any = None, **others: Any) -> Any:
        if where is True and dtype is None:
            return self.func(*args, **others)
        return self.functions["ufunc.call"](self, args, others, where, dtype)

    def reduce(
        self,
        a: Any,
        axis: Any = 0,
        dtype: Any = None,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = True,
    ) -> Any:
        """The elements along axes combined from the first to the last; None is all axes.

        `initial` stands before the first, and elements at which `where` does not hold are left out.

        >>> print(cnp.subtract.reduce([9, 3, 2]))
        4
        """
        return self.functions["ufunc.reduce"](self, a, axis, dtype, keepdims, initial, where)

    def accumulate(self, a: Any, axis: int = 0, dtype: Any = None) -> Any:
        """Results of `reduce` over the elements up to each one along an axis.

        >>> cnp.maximum.accumulate([1, 3, 2, 4])
        array([1, 3, 3, 4])
        """
        return self.functions["ufunc.accumulate"](self, a, axis, dtype)

    def outer(self, a: Any, b: Any, /) -> Any:
        """The function of each element of a and each of b, of the shape of a followed by that of b.

        >>> cnp.add.outer([1, 2], [10, 20])
        array([[11, 21],
               [12, 22]])
        """
        return self.functions["ufunc.outer"](self, a, b)

    def at(self, a: Any, indices: Any, b: Any = None, /, *, inplace: bool = False) -> Any:
        """a with the elements at `indices` replaced by the function of them (and of b), as often as each is named.

        Returns the new array; a stays as it is.

        >>> cnp.add.at([1, 2], [0, 0], 10)
        array([21,  2])
        """
        return self.functions["ufunc.at"](self, a, indices, b, inplace)

    def reduceat(self, a: Any, indices: Any, axis: int = 0, dtype: Any = None) -> Any:
        """Results of `reduce` over the parts that begin at each of `indices` and end before the next one.

        If the next index is not larger, the part is one element; the last part goes to the end.

        >>> cnp.add.reduceat([1, 2, 3, 4], [0, 2])
        array([3, 7])
        """
        return self.functions["ufunc.reduceat"](self, a, indices, axis, dtype)


def as_ufunc(function: Any) -> Any:
    """The function as a `ufunc` where NumPy has one of its name; the function itself elsewhere."""
    numpys = getattr(np, function.__name__, None)
    # Products of matrices are made of whole rows, not of elements.
    if not isinstance(numpys, np.ufunc) or numpys.signature is not None:
        return function
    return ufunc(function, numpys.nin, numpys.nout, identity=numpys.identity)
